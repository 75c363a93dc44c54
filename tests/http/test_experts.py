"""Experts shared out over processes of a server: what it tells of their load, moving them under streams, and a process
that is killed meanwhile. NYBBLE names the program."""
import json
import os
import re
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server, in_background  # noqa: E402

SOURCE = os.environ["SOURCE"]
with open(SOURCE + "/models/tales-24m-moe-nvfp4/config.json") as f:
    CONFIG = json.load(f)
LAYERS, EXPERTS, TOP_K = (CONFIG[k] for k in ("num_hidden_layers", "num_experts", "num_experts_per_tok"))
PROMPTS = ["Once upon a time", "The dog was", "One day a girl", "There was a big red", "The old king had three sons"]
RANKS, COPIES = 3, 4
OPTIONS = ("--no-access-log", "--threads", "1", "--tensor-parallel-size", str(RANKS), "--enable-expert-parallel",
           "--ep-num-redundant-experts", str(COPIES), "--rank-timeout", "4")


def body(prompt, tokens=48):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def answer(server, prompt):
    status, reply = server.post("/v1/completions", body(prompt))
    assert status == 200, reply
    return reply["choices"][0]["text"]


def alone():
    """The answers of one process."""
    server = Server("--no-access-log", "--threads", "1")
    answers = {p: answer(server, p) for p in PROMPTS}
    assert server.stop() == 0, server.text()
    server.close()
    return answers


class Experts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wanted = alone()
        cls.server = Server(*OPTIONS, "--enable-two-batch-overlap", "--tbo-prefill-threshold", "2",
                            "--tbo-decode-threshold", "2")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.text())
        assert "not used by this model" not in cls.server.text()  # other ranks use them
        cls.server.close()

    def load(self):
        status, headers, data = self.server.request("GET", "/expert_load")
        self.assertEqual((status, headers["content-type"]), (200, "application/json"))
        return json.loads(data)

    def checksum(self):
        status, reply = self.server.post("/weights_checker", {"action": "checksum"})
        self.assertEqual(status, 200, reply)
        return reply["checksum"]

    def ask_all(self, rounds):
        """All prompts at once, so that every rank has some."""
        got = []

        def ask(prompt):
            for _ in range(rounds):
                got.append((prompt, answer(self.server, prompt)))

        threads = [in_background(ask, p) for p in PROMPTS]
        for thread in threads:
            thread.join(60)
        self.assertEqual(len(got), rounds * len(PROMPTS))
        for prompt, text in got:
            self.assertEqual(text, self.wanted[prompt])

    def test_moving_under_requests_changes_no_token(self):
        before = self.checksum()
        thread = in_background(self.ask_all, 3)
        moves = 0
        while thread.is_alive():
            status, reply = self.server.post("/rebalance_experts", {})
            self.assertEqual(status, 200, reply)
            self.assertTrue(reply["success"])
            self.assertGreaterEqual(reply["imbalance_before"], reply["imbalance_planned"])
            self.assertGreaterEqual(reply["imbalance_planned"], 1 - 1e-6)
            moves += reply["moves"]
            time.sleep(0.05)
        thread.join(60)
        self.assertGreater(moves, 0)
        self.assertEqual(self.checksum(), before)
        self.ask_all(1)
        values = self.server.metrics()
        self.assertEqual(values["nybble:expert_moves_total"], self.load()["moves"])
        self.assertGreaterEqual(values["nybble:expert_moves_total"], moves)
        self.assertGreater(values["nybble:expert_moved_bytes_total"], 0)
        self.assertGreater(values["nybble:expert_move_seconds_total"], 0)

    def test_the_load_counts_all_ranks(self):
        self.ask_all(1)
        load = self.load()
        self.assertEqual((load["num_ranks"], load["num_experts"], load["num_redundant_experts"]),
                         (RANKS, EXPERTS, COPIES))
        self.assertEqual([layer["layer"] for layer in load["layers"]], list(range(LAYERS)))
        values = self.server.metrics()
        rows = values["nybble:iteration_tokens_total_sum"]
        for layer in load["layers"]:
            self.assertEqual(sum(layer["experts"]), rows * TOP_K)
            self.assertEqual(sum(layer["ranks"]), rows * TOP_K)
            self.assertTrue(all(n > 0 for n in layer["ranks"]))
            self.assertAlmostEqual(layer["imbalance"], max(layer["ranks"]) * RANKS / sum(layer["ranks"]), 4)
            self.assertEqual([len(own) for own in layer["placement"]], [12, 12, 12])
            self.assertEqual(set(sum(layer["placement"], [])), set(range(EXPERTS)))
            for rank, n in enumerate(layer["ranks"]):
                name = f'nybble:rank_expert_tokens_total{{layer="{layer["layer"]}",rank="{rank}"}}'
                self.assertEqual(values[name], n)

    def test_a_body_with_unknown_parameters_is_refused(self):
        status, reply = self.server.post("/rebalance_experts", {"layer": 3})
        self.assertEqual(status, 400, reply)


class Alone(unittest.TestCase):
    def test_one_process_has_nothing_to_move(self):
        server = Server("--no-access-log", "--threads", "1")
        answer(server, PROMPTS[0])
        load = json.loads(server.request("GET", "/expert_load")[2])
        self.assertEqual((load["num_ranks"], load["num_redundant_experts"]), (1, 0))
        self.assertEqual(len(load["layers"]), LAYERS)
        self.assertGreater(sum(load["layers"][0]["experts"]), 0)
        self.assertNotIn("ranks", load["layers"][0])
        status, reply = server.post("/rebalance_experts", {})
        self.assertEqual(status, 400, reply)
        self.assertIn("expert parallelism", reply["error"]["message"])
        self.assertEqual(server.stop(), 0)
        server.close()


class Encodings(unittest.TestCase):
    def test_rows_in_fewer_bits(self):
        """They round: answers may differ from the exact ones, but not from one another."""
        for dtype in ("bf16", "nvfp4"):
            server = Server("--no-access-log", "--threads", "1", "--tensor-parallel-size", "2",
                            "--enable-expert-parallel", "--dispatch-dtype", dtype)
            self.assertIn(f"rows as {dtype}", server.text())
            first = answer(server, PROMPTS[0])
            self.assertEqual(answer(server, PROMPTS[0]), first)
            self.assertEqual(server.stop(), 0)
            server.close()


class Faults(unittest.TestCase):
    def lose(self, victim):
        """A process dies under streams and moving experts: all of them end soon, no token is wrong."""
        wanted = self.wanted
        server = Server(*OPTIONS, "--enable-eplb", "--eplb-config", '{"step_interval": 8, "use_async": true}')
        with open(f"/proc/{server.process.pid}/task/{server.process.pid}/children") as f:
            pids = [server.process.pid, *map(int, f.read().split())]
        received = {}

        def stream(prompt):
            head = f"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            data = json.dumps({**body(prompt, 200), "stream": True}).encode()
            received[prompt] = b""
            try:
                with server.socket(30) as sock:
                    sock.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
                    while piece := sock.recv(65536):
                        received[prompt] += piece
            except OSError:
                pass

        threads = [in_background(stream, p) for p in PROMPTS]
        end = time.time() + 20
        while not (len(received) == len(PROMPTS) and all(b"data: " in r for r in received.values())):
            self.assertLess(time.time(), end, "the streams do not run")
            time.sleep(0.01)
        begin = time.time()
        os.kill(pids[victim], signal.SIGKILL)
        self.assertNotEqual(server.process.wait(10), 0)
        for thread in threads:
            thread.join(10)
            self.assertFalse(thread.is_alive(), "a stream hangs")
        for pid in pids[1:]:
            while os.path.exists(f"/proc/{pid}"):
                with open(f"/proc/{pid}/stat") as f:
                    if f.read().rsplit(")", 1)[1].split()[0] in "ZX":
                        break
                self.assertLess(time.time() - begin, 10, f"process {pid} is left")
                time.sleep(0.02)
        self.assertLess(time.time() - begin, 10)
        self.assertEqual(len(re.findall(r"rank \d of 3 stops: rank", server.text())), RANKS - 1, server.text())
        for prompt, data in received.items():
            text = "".join(json.loads(p)["choices"][0]["text"] for p in
                           re.findall(rb'data: (\{"id".*?\})\r?\n', data) if b'"choices":[{' in p)
            self.assertTrue(wanted[prompt].startswith(text[:len(wanted[prompt])]), (prompt, text))
        server.close()

    @classmethod
    def setUpClass(cls):
        cls.wanted = alone()

    def test_a_follower_that_is_killed(self):
        self.lose(1)
        self.lose(2)

    def test_rank_0_that_is_killed(self):
        self.lose(0)


if __name__ == "__main__":
    unittest.main()
