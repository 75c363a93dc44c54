"""New weights for a running server: what is served after an update is what a fresh start serves, whatever runs,
fails, leaves or asks for too much meanwhile. NYBBLE names the program, SOURCE the project."""
import contextlib
import functools
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import SANITIZED, SLOW, Server, in_background  # noqa: E402

SOURCE = os.environ["SOURCE"]
MODEL = os.path.join(SOURCE, "models", "tales-24m-moe-nvfp4")
TWIN = os.path.join(SOURCE, "tests", "tools", "twin.py")
GREEDY = {"prompt": "Once upon a time there was", "max_tokens": 16, "temperature": 0, "logprobs": 3}
PARTS = ["*.experts.0.*", "*.experts.3.*", "*.layers.1.*", "*q_proj*", "*norm*", "*gate.weight", "*k_proj*",
         "*.layers.0.mlp.*", "*embed_tokens*", "*down_proj*"]
FROM_DISK = "/update_weights_from_disk"
STALL_S = 0.05  # the bound that the embedded model is to keep
GROWTH_KIB = 400 << 10 if SANITIZED else 8 << 10  # the first has freed memory in quarantine
LONG = {"prompt": "Once upon a time there was", "max_tokens": 150 if SANITIZED else 700, "ignore_eos": True,
        "temperature": 0}


def setUpModule():
    global ROOT, A, B
    ROOT = tempfile.mkdtemp(prefix="nybble-weights-")
    A, B = os.path.join(ROOT, "a"), os.path.join(ROOT, "b")
    twin(MODEL, "a")
    twin(MODEL, "b", "--permute", "5", "--perturb", "7")


def tearDownModule():
    shutil.rmtree(ROOT)


def twin(source, name, *edits):
    path = os.path.join(ROOT, name)
    subprocess.run([sys.executable, TWIN, source, path, *edits], check=True)
    return path


def answer_of(server):
    status, reply = server.post("/v1/completions", GREEDY)
    assert status == 200, reply
    choice = reply["choices"][0]
    return choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]


def checksum_of(server):
    status, reply = server.post("/weights_checker", {"action": "checksum"})
    assert status == 200, reply
    return reply["checksum"]


def served_by(server):
    return answer_of(server), checksum_of(server)


@functools.lru_cache(maxsize=None)
def fresh(folder):
    """What a server that starts with this folder, which nobody changes later, serves."""
    server = Server(folder)
    try:
        return served_by(server)
    finally:
        server.stop()
        server.close()


def update(server, folder, **fields):
    status, reply = server.post(FROM_DISK, {"model_path": folder, **fields}, timeout=120)
    assert status == 200, (status, reply)
    assert reply["success"] and reply["weights_state"] == ("old" if fields.get("dry_run") else "new"), reply
    return reply


class Streams:
    """n answers under way."""

    def __init__(self, server, n, **fields):
        self.server, self.results, self.fields = server, [], {**LONG, **fields}
        self.threads = [in_background(self.run, i) for i in range(n)]
        until = time.time() + 30
        while server.metric("num_requests_running") < n and time.time() < until:
            time.sleep(0.01)

    def run(self, i):
        body = {**self.fields, "prompt": f"{i} {LONG['prompt']}", "rid": f"stream-{i}"}
        self.results.append(self.server.stream("/v1/completions", body))

    def join(self):
        for thread in self.threads:
            thread.join(120)
        ends = [[e for e in events if e != "[DONE]" and e["choices"][0]["finish_reason"]][-1]
                for events in self.results]
        assert len(ends) == len(self.threads), "a stream was lost"
        return ends


class WithRoot(unittest.TestCase):
    options = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--weights-root", ROOT, *cls.options, A)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.text())
        cls.server.close()

    def refused(self, path, body, status, text="", **more):
        got, reply = self.server.post(path, body, **more)
        self.assertEqual(got, status, reply)
        self.assertIn(text, reply["error"]["message"])
        return reply


class Updates(WithRoot):
    def test_there_and_back_equals_fresh_starts(self):
        a, b = fresh(A), fresh(B)
        self.assertNotEqual(a, b)
        self.assertEqual(served_by(self.server), a)
        for folder, expected in ((A, a), (B, b), (A, a), (B, b), (A, a)):
            reply = update(self.server, folder)
            self.assertGreater(reply["changed"]["tensors"], 600)
            self.assertEqual(set(reply["seconds"]), {"prepare", "stage", "wait", "stall"})
            self.assertLess(reply["seconds"]["stall"], STALL_S * SLOW)
            self.assertEqual(served_by(self.server), expected)

    def test_without_a_second_slab(self):
        b, a = fresh(B), fresh(A)
        self.assertFalse(update(self.server, B, staging="off")["changed"]["staged"])
        self.assertEqual(served_by(self.server), b)
        self.assertTrue(update(self.server, A, staging="on")["changed"]["staged"])
        self.assertEqual(served_by(self.server), a)

    def test_ten_partial_updates_equal_a_fresh_start(self):
        rng, edits = random.Random(3), []
        update(self.server, A)
        try:
            for name in rng.sample(PARTS, len(PARTS)):
                update(self.server, B, names=[name])
                edits += ["--take", B, name]
            self.assertEqual(served_by(self.server), fresh(twin(A, "mixed", *edits)))
        finally:
            update(self.server, A)

    def test_compressed_tensors_dress(self):
        dressed = twin(B, "b-compressed", "--compressed")
        b, expected = fresh(B), fresh(dressed)
        self.assertEqual(b[1], expected[1], "other spellings of the same numbers")
        try:
            update(self.server, dressed)
            self.assertEqual(served_by(self.server), expected)
            update(self.server, B)
            self.assertEqual(served_by(self.server), b)
        finally:
            update(self.server, A)

    def test_dry_run_changes_nothing(self):
        before = served_by(self.server), self.server.metric("weight_generation")
        self.assertTrue(update(self.server, B, dry_run=True)["dry_run"])
        self.assertEqual((served_by(self.server), self.server.metric("weight_generation")), before)

    def test_versions(self):
        self.assertEqual(update(self.server, A, weight_version="v7")["weight_version"], "v7")
        answer = self.server.post("/v1/completions", GREEDY)[1]
        self.assertEqual(answer["weight_version"], "v7")
        self.assertNotIn("first_weight_version", answer)
        self.assertEqual(self.server.stream("/v1/completions", GREEDY)[-2]["weight_version"], "v7")
        status, reply = self.server.post("/update_weight_version", {"new_version": "v8"})
        self.assertEqual((status, reply["new_version"]), (200, "v8"))
        for path in ("/model_info", "/get_model_info", "/server_info", "/get_server_info"):
            self.assertEqual(json.loads(self.server.request("GET", path)[2])["weight_version"], "v8", path)
        card = json.loads(self.server.request("GET", "/v1/models")[2])["data"][0]
        self.assertEqual(card["metadata"]["weight_version"], "v8")
        self.assertIn('weight_version_info{version="v8"}', str(self.server.metrics().keys()))
        for body in ({"new_version": "v" * 200}, {"new_version": ""}, {}):
            self.refused("/update_weight_version", body, 400, "new_version")

    def test_snapshot_and_compare(self):
        update(self.server, A)
        self.assertEqual(self.server.post("/weights_checker", {"action": "snapshot"})[0], 200)
        self.assertEqual(self.server.post("/weights_checker", {"action": "compare"})[0], 200)
        update(self.server, B, names=["model.norm.weight"])
        reply = self.refused("/weights_checker", {"action": "compare"}, 400, "differ")
        self.assertEqual((reply["num_differ"], reply["differs"]), (1, ["model.norm.weight"]))
        self.refused("/weights_checker", {"action": "reset_tensors"}, 400, "action")
        update(self.server, A)

    def test_values_by_name(self):
        body = {"name": "model.norm.weight", "truncate_size": 5}
        update(self.server, A)
        a = self.server.post("/get_weights_by_name", body)[1]
        self.assertEqual((len(a["weights"]), a["shape"]), (5, [384]))
        update(self.server, B)
        self.assertNotEqual(self.server.post("/get_weights_by_name", body)[1]["weights"], a["weights"])
        update(self.server, A)
        self.assertEqual(self.server.post("/get_weights_by_name", body)[1], a)
        matrix = self.server.post("/get_weights_by_name",
                                  {"name": "model.layers.0.self_attn.q_proj.weight", "truncate_size": 500})[1]
        self.assertEqual([len(row) for row in matrix["weights"]], [384, 116])
        self.refused("/get_weights_by_name", {"name": "nobody"}, 404)

    def test_memory_is_flat(self):
        """The least of ten: what an update has at its busiest, or an allocator keeps for a moment, is no growth."""
        def ten(first):
            sizes = []
            for i in range(first, first + 10):
                update(self.server, (A, B)[i % 2])
                sizes.append(self.server.rss_kib())
            return min(sizes)
        ten(0)
        before, files = ten(10), self.server.open_files()
        for i in range(20, 50, 10):  # golden.test_live has more, without the server
            after = ten(i)
        update(self.server, A)
        self.assertLess(after - before, GROWTH_KIB)
        self.assertLessEqual(self.server.open_files(), files + 1)


class Refusals(WithRoot):
    def test_bad_checkpoints_leave_the_old_answers(self):
        before = served_by(self.server)
        bad = [("missing", ["--drop", "*layers.1.*q_proj*"], 4), ("many", ["--drop", "*.experts.1.*"], 12),
               ("shape", ["--shape", "model.norm.weight"], 1), ("config", ["--config", "rope_theta", "77.0"], 1),
               ("unknown", ["--add", "model.nobody"], 0), ("short", ["--truncate", "1000"], 0),
               ("nan", ["--nan", "model.layers.0.mlp.experts.0.up_proj.weight_scale"], 0)]
        for name, edits, least in bad:
            folder = twin(B, "bad-" + name, *edits)
            status, reply = self.server.post(FROM_DISK, {"model_path": folder})
            self.assertIn(status, (400, 500) if name == "nan" else (400,), (name, reply))
            self.assertFalse(reply["success"])
            if name == "short":  # which file, also for who reads the log
                self.assertTrue(reply["message"].startswith(folder + "/model.safetensors: "), reply)
                self.assertIn("weights: no update: " + reply["message"] + "\n", self.server.text())
            self.assertEqual(reply["weights_state"], "old", name)
            self.assertGreaterEqual(reply["num_differences"], min(least, 1), (name, reply))
            self.assertLessEqual(len(reply["differences"]), 10)
            self.assertEqual(len(reply["differences"]), min(10, reply["num_differences"]), name)
            self.assertEqual(served_by(self.server), before, name)
        empty = os.path.join(ROOT, "empty")
        os.mkdir(empty)
        self.refused(FROM_DISK, {"model_path": empty}, 400)
        health = json.loads(self.server.request("GET", "/health")[2])
        self.assertEqual(health["weights"]["state"], "old")
        self.assertGreaterEqual(self.server.metric("weight_update_failures_total"), len(bad))

    def test_paths_do_not_get_out(self):
        outside = tempfile.mkdtemp(prefix="nybble-outside-")
        try:
            os.symlink(outside, os.path.join(ROOT, "link"))
            strays = twin(A, "strays")
            os.remove(os.path.join(strays, "config.json"))
            os.symlink("/etc/hostname", os.path.join(strays, "config.json"))
            for path in ("/", "/etc", outside, ROOT + "/..", ROOT + "/../" + os.path.basename(outside),
                         ROOT + "/link", "link", "../" + os.path.basename(outside), ROOT + "x",
                         ROOT + "/does-not-exist", strays, ""):
                self.refused(FROM_DISK, {"model_path": path}, 403, "model_path")
            self.refused(FROM_DISK, {"model_path": ROOT + "/a/config.json"}, 400, "file")
            self.assertEqual(self.server.post(FROM_DISK, {"model_path": "b/../a"})[0], 200)
            self.assertEqual(self.server.post("/v1/update_weights", {"model_path": "/etc"})[0], 403)
        finally:
            shutil.rmtree(outside)

    def test_parameters(self):
        for body, text in (({}, "model_path"), ({"model_path": A, "dryrun": True}, "dryrun"),
                           ({"model_path": A, "dry_run": "maybe"}, "dry_run"), ({"model_path": 7}, "model_path"),
                           ({"model_path": A, "names": []}, "names"), ({"model_path": A, "names": [1]}, "names"),
                           ({"model_path": A, "in_flight": "eaten"}, "finish, retract"),
                           ({"model_path": A, "load_format": "pickle"}, "load_format"),
                           ({"model_path": A, "is_async": True}, "is_async"),
                           ({"model_path": A, "names": ["nobody.*"]}, ""),
                           ({"model_path": A, "abort_all_requests": True, "in_flight": "finish"}, "contradict")):
            self.refused(FROM_DISK, body, 400, text)
        for seconds in (-1, 86401, True, [1], "x", "", "nan", "inf", "2s"):
            self.refused(FROM_DISK, {"model_path": A, "finish_timeout": seconds}, 400, "seconds")
        for more in ({"finish_timeout": 1.5}, {"finish_timeout": "2"}, {"finish_timeout": 0}, {"is_async": False}, {"is_async": 0},
                     {"is_async": "false"}, {"is_async": ""}, {"is_async": None}, {"manifest": None}, {"torch_empty_cache": True},
                     {"flush_cache": "0"}, {"names": "model.norm.weight"}):
            status, reply = self.server.post(FROM_DISK, {"model_path": A, "dry_run": "1", **more})
            self.assertEqual(status, 200, (more, reply))
        for value in (1, "true", "x", [], {}):
            self.refused(FROM_DISK, {"model_path": A, "dry_run": True, "is_async": value}, 400, "is_async")
        for value in (1.5, "x", 1 << 40, True, "", "1e300"):
            self.refused("/get_weights_by_name", {"name": "model.norm.weight", "truncate_size": value}, 400, "truncate_size")
        self.assertEqual(len(self.server.post("/get_weights_by_name", {"name": "model.norm.weight", "truncate_size": "3"})[1]["weights"]), 3)
        self.refused("/pause_generation", {"mode": "nap"}, 400, "mode")
        self.refused("/abort_request", {}, 400, "rid")

    def test_the_second_of_two_is_told_to_wait(self):
        streams, results = Streams(self.server, 1), []
        first = in_background(lambda: results.append(update(self.server, A, in_flight="finish")))
        until = time.time() + 20
        while self.server.metric("weights_updating") == 0 and time.time() < until:
            time.sleep(0.005)
        self.refused(FROM_DISK, {"model_path": A}, 409, "another update")
        self.refused("/weights_checker", {}, 409)
        first.join(60)
        self.assertEqual(len(results), 1)
        self.assertEqual(streams.join()[0]["choices"][0]["finish_reason"], "length")

    def test_a_client_that_leaves_does_not_stop_it(self):
        streams, generation = Streams(self.server, 1), self.server.metric("weight_generation")
        body = json.dumps({"model_path": A, "in_flight": "finish"}).encode()
        with self.server.socket() as s:
            s.sendall(b"POST /update_weights_from_disk HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                      b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            until = time.time() + 20
            while self.server.metric("weights_updating") == 0 and time.time() < until:
                time.sleep(0.005)
        streams.join()
        self.assertTrue(self.server.until_metric("weight_generation", generation + 1))


class InFlight(WithRoot):
    def end(self):
        update(self.server, A, weight_version="a")

    def test_finish(self):
        self.end()
        streams = Streams(self.server, 32, max_tokens=200)
        update(self.server, B, weight_version="b", in_flight="finish")
        for end in streams.join():
            self.assertEqual(end["choices"][0]["finish_reason"], "length")
            self.assertIn(end["weight_version"], "ab")
            self.assertNotIn("first_weight_version", end)
        self.end()

    def test_retract_and_continue(self):
        expected = fresh(B)
        for mode in ("retract", "continue"):
            self.end()
            streams = Streams(self.server, 32, max_tokens=min(300, LONG["max_tokens"]))
            reply = update(self.server, B, weight_version="b", in_flight=mode)
            self.assertGreater(reply["num_paused_requests"], 0)
            self.assertLess(reply["seconds"]["stall"], STALL_S * SLOW)
            ends = streams.join()
            self.assertEqual({e["choices"][0]["finish_reason"] for e in ends}, {"length"})
            self.assertEqual({e["weight_version"] for e in ends}, {"b"})
            if mode == "continue":
                self.assertIn("a", {e.get("first_weight_version") for e in ends})
            self.assertEqual(served_by(self.server), expected)
        self.end()

    def test_abort(self):
        self.end()
        streams = Streams(self.server, 32)
        reply = update(self.server, A, abort_all_requests=True)
        self.assertEqual(reply["num_paused_requests"], 32)
        self.assertEqual({e["choices"][0]["finish_reason"] for e in streams.join()}, {"abort"})

    def test_pause_and_resume(self):
        expected = fresh(A)[0]
        self.end()
        for mode in ("retract", "in_place"):
            streams = Streams(self.server, 4)
            status, reply = self.server.post("/pause_generation", {"mode": mode})
            self.assertEqual((status, reply["status"], reply["num_paused_requests"]), (200, "ok", 4))
            steps = self.server.metric("engine_steps_total")
            time.sleep(0.1)
            self.assertEqual(self.server.metric("engine_steps_total"), steps)
            self.assertEqual(self.server.request("GET", "/health")[0], 200)
            update(self.server, A, keep_pause=True)
            paused = json.loads(self.server.request("GET", "/v1/is_paused")[2])
            self.assertEqual(paused["result"], {"is_paused": True})
            self.assertEqual(self.server.post("/continue_generation", {})[1]["status"], "ok")
            self.assertEqual({e["choices"][0]["finish_reason"] for e in streams.join()}, {"length"})
        self.assertEqual(answer_of(self.server), expected)

    def test_fastdeploys_pause(self):
        streams = Streams(self.server, 4)
        status, _, data = self.server.request("POST", "/v1/pause")
        reply = json.loads(data)
        self.assertEqual((status, reply["status"], reply["result"]), (200, "success", {"num_paused_requests": 4}))
        self.assertTrue(reply["request_id"].startswith("control-"))
        self.assertEqual({e["choices"][0]["finish_reason"] for e in streams.join()}, {"abort"})
        status, reply = self.server.post("/v1/update_weights", {"version": "fd"})
        self.assertEqual((status, reply["result"]["weight_version"]), (200, "fd"))
        self.assertEqual(self.server.post("/v1/update_weights", {"rsync_config": {"a": 1}})[1]["status"], "error")
        self.assertEqual(self.server.request("POST", "/v1/resume")[0], 200)
        answer_of(self.server)

    def test_abort_by_id(self):
        streams = Streams(self.server, 3)
        for rid in ("stream-0", "cmpl-stream-2"):
            status, reply = self.server.post("/abort_request", {"rid": rid})
            self.assertEqual((status, reply["num_aborted_requests"]), (200, 1))
        self.assertEqual(self.server.post("/abort_request", {"rid": "nobody"})[1]["num_aborted_requests"], 0)
        ends = {e["id"]: e["choices"][0]["finish_reason"] for e in streams.join()}
        self.assertEqual(ends, {"cmpl-stream-0": "abort", "cmpl-stream-1": "length", "cmpl-stream-2": "abort"})
        streams = Streams(self.server, 2)
        self.assertEqual(self.server.post("/v1/abort_requests", {"abort_all": True})[1]["status"], "success")
        self.assertEqual({e["choices"][0]["finish_reason"] for e in streams.join()}, {"abort"})

    def test_flush_while_requests_run(self):
        streams = Streams(self.server, 4)
        self.assertEqual(self.server.request("POST", "/flush_cache")[0], 200)
        self.assertEqual(self.server.request("GET", "/flush_cache?timeout=1")[0], 200)
        self.assertEqual({e["choices"][0]["finish_reason"] for e in streams.join()}, {"length"})


class Uploads(WithRoot):
    options = ("--max-upload", "32M")
    path = "/update_weights_from_tensor"

    def send(self, data, query="", **headers):
        status, _, reply = self.server.request(
            "POST", self.path + query, data, {"Content-Type": "application/octet-stream", **headers}, timeout=60)
        return status, json.loads(reply)

    def file(self, folder):
        with open(os.path.join(folder, "model.safetensors"), "rb") as f:
            return f.read()

    def test_whole_and_part(self):
        a, b = fresh(A), fresh(B)
        status, reply = self.send(self.file(B), "?weight_version=up&flush_cache=true")
        self.assertEqual((status, reply["weight_version"]), (200, "up"), reply)
        self.assertEqual(served_by(self.server), b)
        only = twin(A, "only", "--only", "*")
        self.assertEqual(self.send(self.file(only))[0], 200)
        self.assertEqual(served_by(self.server), a)
        part = twin(B, "part", "--only", "*.layers.0.*")
        status, reply = self.send(self.file(part), "?names=*.layers.0.*")
        self.assertEqual(status, 200, reply)
        mixed = fresh(twin(A, "with-part", "--take", B, "*.layers.0.*"))
        self.assertEqual(served_by(self.server), mixed)
        self.assertEqual(self.send(self.file(A))[0], 200)
        # a parameter that comes several times is a list
        query = "?names=*.layers.0.mlp.*&names=*.layers.0.self_attn.*&names=*.layers.0.*norm*&finish_timeout=2.5&is_async=false"
        status, reply = self.send(self.file(part), query)
        self.assertEqual(status, 200, reply)
        self.assertEqual(served_by(self.server), mixed)
        self.assertEqual(self.send(self.file(A))[0], 200)
        status, reply = self.send(self.file(part), query.replace("2.5", "-1"))
        self.assertEqual(status, 400, reply)
        self.assertEqual(served_by(self.server), a)

    def test_garbage_changes_nothing(self):
        before, data = served_by(self.server), self.file(B)
        for bad in (b"", b"garbage", os.urandom(100000), data[:-1000], data[:100], b"\xff" * 8 + data[8:],
                    b"\x80\x04\x95"):
            status, reply = self.send(bad)
            self.assertEqual(status, 400, reply)
            self.assertFalse(reply["success"])
        self.assertEqual(served_by(self.server), before)

    def test_too_large(self):
        self.assertEqual(self.send(bytes((32 << 20) + 1))[0], 413)
        with self.server.socket() as s:  # chunked, so that nobody knows before
            s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
                      b"Transfer-Encoding: chunked\r\n\r\n" % self.path.encode())
            try:
                for _ in range(40):
                    s.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
                s.sendall(b"0\r\n\r\n")
                data = s.recv(4096)
            except ConnectionError:
                data = b""
            self.assertIn(data[:12], (b"HTTP/1.1 413", b""))
        self.assertEqual(self.send(self.file(A))[0], 200)

    def test_wrong_type(self):
        self.refused(self.path, {"serialized_named_tensors": []}, 415, "octet-stream")

    def test_a_client_that_leaves_midway(self):
        before, data = served_by(self.server), self.file(B)
        head = (b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
                b"Content-Length: %d\r\n\r\n" % (self.path.encode(), len(data)))
        for _ in range(3):
            until, status = time.time() + 20, 0
            while status != 409 and time.time() < until:  # its place is taken ...
                with self.server.socket() as s:
                    with contextlib.suppress(ConnectionError):  # it came second and was refused itself
                        s.sendall(head + data[:1 << 20])
                    time.sleep(0.05)
                    status = self.send(b"")[0]
            self.assertEqual(status, 409)
        until = time.time() + 10
        while time.time() < until:  # ... and free again
            status, reply = self.send(self.file(A))
            if status == 200:
                break
        self.assertEqual(status, 200, reply)
        self.assertEqual(served_by(self.server), before)


class Auth(unittest.TestCase):
    def ask(self, server, key=None, method="POST", path="/abort_request", body='{"rid":"x"}', **headers):
        given = {"Authorization": "Bearer " + key} if key else {}
        return server.request(method, path, body, {**given, **{k.replace("_", "-"): v for k, v in headers.items()}})[0]

    def with_server(self, *options):
        server = Server(*options)
        self.addCleanup(server.close)
        self.addCleanup(server.stop)
        return server

    def test_admin_keys(self):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("# keys\nfrom-file\n")
            f.flush()
            server = self.with_server("--admin-api-key", "one", "--admin-api-key", "two", "--admin-api-key-file",
                                      f.name, "--api-key", "user")
            for key, status in (("one", 200), ("two", 200), ("from-file", 200), (None, 401), ("user", 401),
                                ("on", 401), ("onee", 401), ("# keys", 401)):
                self.assertEqual(self.ask(server, key), status, key)
            self.assertEqual(self.ask(server, "one", X_Forwarded_For="8.8.8.8", Host="example.org"), 200)
            for path in ("/v1/is_paused", "/model_info", "/get_model_info", "/server_info", "/weights_checker",
                         "/get_weights_by_name?name=x", "/flush_cache"):
                self.assertEqual(self.ask(server, None, "GET", path, None), 401, path)
            for path in (FROM_DISK, "/v1/pause", "/v1/resume", "/v1/update_weights", "/pause_generation",
                         "/continue_generation", "/update_weight_version", "/v1/abort_requests"):
                self.assertEqual(self.ask(server, "user", "POST", path, "{}"), 401, path)
            self.assertEqual(self.ask(server, None, "POST", "/update_weights_from_tensor", "x",
                                      Content_Type="application/octet-stream"), 401)
            self.assertEqual(self.ask(server, "one", "GET", "/v1/models", None), 401)

    def test_without_keys_only_this_machine(self):
        server = self.with_server()
        self.assertEqual(self.ask(server), 200)
        self.assertEqual(self.ask(server, X_Forwarded_For="127.0.0.1"), 403)
        for headers in ({"X_Real_IP": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"}, {"Via": "1.1 p"},
                        {"Origin": "http://localhost"}, {"Sec_Fetch_Site": "cross-site"}, {"Host": "example.org"},
                        {"Host": "127.0.0.1.example.org"}, {"Host": "localhost:80@x"}):
            self.assertEqual(self.ask(server, **headers), 403, headers)
        for host in ("localhost", "LOCALHOST:80", "127.1.2.3", "[::1]:80"):
            self.assertEqual(self.ask(server, Host=host), 200, host)

    def test_another_machine_without_keys(self):
        mine = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
        if not mine:
            self.skipTest("this machine has no address besides loopback")
        server = Server("--host", "0.0.0.0", wait=False)
        self.addCleanup(server.close)
        self.addCleanup(server.stop)
        until = time.time() + 60
        while "listening on" not in server.text() and time.time() < until:
            time.sleep(0.02)
        port = int(server.text().split("listening on http://0.0.0.0:")[1].split(",")[0])
        request = b"POST /abort_request HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n\r\n" + b'{"rid":"x"}'
        for address, status in ((mine[0], b"403"), ("127.0.0.1", b"200")):
            with socket.create_connection((address, port), 20) as s:
                s.sendall(request)
                self.assertEqual(s.recv(4096)[9:12], status, address)

    def test_api_keys_alone(self):
        server = self.with_server("--api-key", "user")
        self.assertEqual(self.ask(server), 401)
        self.assertEqual(self.ask(server, "user"), 200)

    def test_the_served_folder_without_roots(self):
        server = self.with_server(A)
        self.assertEqual(server.post(FROM_DISK, {"model_path": A})[0], 200)
        self.assertEqual(server.post(FROM_DISK, {"model_path": B})[0], 403)
        with self.assertRaises(RuntimeError):
            Server("--weights-root", "/does/not/exist")


class Life(unittest.TestCase):
    def test_refused_during_a_drain(self):
        server = Server("--weights-root", ROOT, A)
        streams = Streams(server, 1)
        server.process.send_signal(signal.SIGTERM)
        until = time.time() + 10
        while "draining" not in server.text() and time.time() < until:
            time.sleep(0.01)
        self.assertEqual(server.post(FROM_DISK, {"model_path": B})[0], 503)
        self.assertEqual(server.post("/pause_generation", {})[0], 503)
        streams.join()
        self.assertEqual(server.process.wait(60), 0)
        server.close()

    def test_a_drain_ends_though_an_update_waits(self):
        server, outcomes = Server("--weights-root", ROOT, "--drain", "0", A), []

        def ask():
            try:
                outcomes.append(server.post(FROM_DISK, {"model_path": B, "in_flight": "finish"})[0])
            except (OSError, ValueError, http.client.HTTPException):  # the process was faster
                outcomes.append(503)
        streams = Streams(server, 16)
        thread = in_background(ask)
        until = time.time() + 20
        while server.metric("weights_updating") == 0 and time.time() < until:
            time.sleep(0.005)
        self.assertEqual(server.stop(seconds=30), 0)
        thread.join(10)
        self.assertEqual(outcomes, [503])
        for thread in streams.threads:
            thread.join(10)
        server.close()

    def test_a_paused_server_drains(self):
        server = Server("--drain", "0.5", A)
        self.assertEqual(server.post("/pause_generation", {"mode": "in_place"})[0], 200)
        waiting = in_background(lambda: server.post("/v1/completions", GREEDY))
        server.until_metric("num_requests_waiting", 1)
        self.assertEqual(server.stop(seconds=30), 0)
        waiting.join(10)
        server.close()


class Ranks(unittest.TestCase):
    VALUES = ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.o_proj.weight",
              "model.layers.2.mlp.experts.31.down_proj.weight", "model.layers.2.mlp.experts.0.up_proj.weight",
              "model.layers.5.mlp.gate.weight", "model.embed_tokens.weight", "model.norm.weight"]

    def start(self, ranks=2, *options):
        server = Server("--weights-root", ROOT, "--tensor-parallel-size", str(ranks), "--threads", "1", *options, A)
        self.addCleanup(server.close)
        return server

    def values(self, server):
        return [server.post("/get_weights_by_name", {"name": name, "truncate_size": 1000}) for name in self.VALUES]

    def test_they_commit_together(self):
        server = self.start()
        a = answer_of(server)
        update(server, B)
        b = answer_of(server)
        self.assertNotEqual(a, b)
        status, reply = server.post(FROM_DISK, {"model_path": twin(A, "bad-rank", "--shape", "model.norm.weight")})
        self.assertEqual((status, reply["weights_state"]), (400, "old"), reply)
        self.assertEqual(answer_of(server), b)
        update(server, A)
        self.assertEqual(answer_of(server), a)
        self.assertEqual(server.stop(), 0)

    def test_checked_as_one_rank_is(self):
        """Checksums, values, uploads and refusals do not depend on how the weights are shared out."""
        hashes = {folder: subprocess.run([os.environ["NYBBLE"], "inspect", "--checksum", folder], check=True, text=True,
                                         capture_output=True).stdout.split()[0] for folder in (A, B)}
        with open(os.path.join(B, "model.safetensors"), "rb") as f:
            data = f.read()
        no_expert = twin(B, "no-expert", "--drop", "*.experts.31.*")
        one = Server(A)
        values = self.values(one)
        one.stop()
        one.close()
        self.assertEqual([status for status, _ in values], [200] * len(self.VALUES))
        for ranks, *options in ((2,), (3, "--enable-expert-parallel")):
            server = self.start(ranks, *options)
            self.assertEqual(checksum_of(server), hashes[A])
            self.assertEqual(self.values(server), values)
            self.assertEqual(server.post("/get_weights_by_name", {"name": "nobody"})[0], 404)
            self.assertEqual(server.post("/weights_checker", {"action": "snapshot"})[0], 200)
            streams = Streams(server, 4, max_tokens=100)
            dry, reply = update(server, B, dry_run=True), update(server, B, in_flight="continue")
            self.assertEqual(checksum_of(server), hashes[B])
            for key in ("tensors", "read_bytes", "weight_bytes"):
                self.assertEqual(dry["changed"][key], reply["changed"][key])
            self.assertEqual({e["choices"][0]["finish_reason"] for e in streams.join()}, {"length"})
            status, reply = server.post("/weights_checker", {"action": "compare"})
            self.assertEqual((status, reply["num_differ"] > 500, len(reply["differs"])), (400, True, 10))
            answer = answer_of(server)
            update(server, A)
            self.assertEqual(server.post("/weights_checker", {"action": "compare"})[0], 200)
            status, reply = server.post(FROM_DISK, {"model_path": no_expert})
            self.assertEqual((status, reply["num_differences"], reply["weights_state"]), (400, 6 * 3, "old"), reply)
            streams = Streams(server, 2, max_tokens=100)
            status, _, reply = server.request("POST", "/update_weights_from_tensor?in_flight=retract", data,
                                              {"Content-Type": "application/octet-stream"})
            self.assertEqual(status, 200, reply)
            streams.join()
            self.assertEqual((checksum_of(server), answer_of(server)), (hashes[B], answer))
            self.assertEqual(server.stop(), 0)

    def test_a_rank_is_killed_during_an_update(self):
        """Beside the steps, and in the commit, which reads in place: all processes end, and none says "new"."""
        for staging in ("on", "off"):
            server = self.start()
            with open(f"/proc/{server.process.pid}/task/{server.process.pid}/children") as f:
                child = int(f.read().split()[0])
            stop = threading.Event()
            outcomes = []

            def updates():
                while not stop.is_set():
                    try:
                        status, reply = server.post(FROM_DISK, {"model_path": B, "staging": staging}, timeout=30)
                        outcomes.append((status, reply.get("weights_state")))
                    except (OSError, ValueError, http.client.HTTPException):  # the process is gone
                        return
            thread = in_background(updates)
            server.until_metric("weights_updating", 1)
            time.sleep(random.random() * 0.05)
            os.kill(child, signal.SIGKILL)
            code = server.process.wait(60)
            stop.set()
            thread.join(40)
            self.assertNotEqual(code, 0)
            self.assertFalse(thread.is_alive())
            self.assertTrue(all(status == 200 or state != "new" for status, state in outcomes), outcomes)


if __name__ == "__main__":
    unittest.main(verbosity=2, warnings="ignore")
