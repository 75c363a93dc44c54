#!/usr/bin/env python3
"""Starting, dying, being watched: kill -9, the unit file, ports, keys, origins."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import SLOW, Server, in_background, raw_request, read_until  # noqa: E402

PROMPT = "Once upon a time there was"
GREEDY = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
LONG = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "temperature": 0}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Kill(unittest.TestCase):
    def test_kill_and_restart(self):
        """kill -9 with streams open: the port binds again at once, and nothing is left of the first life."""
        with tempfile.TemporaryDirectory() as home:
            port = free_port()
            options = ("--port", str(port), "--metrics-port", str(free_port()))
            env = {"HOME": home, "TMPDIR": home, "XDG_RUNTIME_DIR": home, "XDG_CACHE_HOME": ""}
            shared = set(os.listdir("/dev/shm"))
            expected = None
            for _ in range(4):
                start = time.time()
                server = Server(*options, env=env)
                self.assertEqual(server.port, port)
                ready = time.time() - start
                status, answer = server.post("/v1/completions", GREEDY)
                self.assertEqual(status, 200)
                expected = expected or answer["choices"][0]["text"]
                self.assertEqual(answer["choices"][0]["text"], expected)
                self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0)  # a new cache
                sockets = []
                for _ in range(5):
                    s = server.socket()
                    s.sendall(raw_request("/v1/completions", {**LONG, "stream": True}))
                    read_until(s, b"data: ")
                    sockets.append(s)
                server.process.send_signal(signal.SIGKILL)
                self.assertEqual(server.process.wait(10), -signal.SIGKILL)
                for s in sockets:  # the client is told by its socket
                    try:
                        while s.recv(65536):
                            pass
                    except ConnectionResetError:
                        pass
                    s.close()
                server.close()
                self.assertLess(ready, 30)
            left = {os.path.relpath(os.path.join(at, name), home) for at, _, names in os.walk(home) for name in names}
            self.assertLessEqual(left, {".cache/nybble/threads"})  # what it has measured, for the next start
            self.assertEqual({f for f in set(os.listdir("/dev/shm")) - shared if "nyb" in f}, set())

    def test_port_is_taken(self):
        first = Server()
        second = Server("--port", str(first.port), wait=False)
        self.assertEqual(second.process.wait(30), 1)
        self.assertIn(f"cannot listen on 127.0.0.1 port {first.port}: Address already in use", second.text())
        self.assertNotIn("KV cache", second.text())  # it said so before it loaded the model
        self.assertEqual(first.post("/v1/completions", GREEDY)[0], 200)
        self.assertEqual(first.stop(), 0)
        first.close()
        second.close()


class FirstOfContainer(unittest.TestCase):
    def test_signal_while_loading(self):
        """The kernel withholds signals from a process 1 that has no handler: it would load to the end."""
        inside = ["unshare", "--user", "--map-root-user", "--fork", "--pid", "--kill-child"]
        if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
            self.skipTest("no namespaces here")
        model = os.path.join(os.environ["SOURCE"], "models", "tales-24m-moe-nvfp4")
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "hf_quant_config.json"):
                with open(os.path.join(model, name), encoding="utf-8") as f, \
                        open(os.path.join(folder, name), "w", encoding="utf-8") as to:
                    json.dump({**json.load(f), "num_hidden_layers": 300}, to)  # a second or more
            for number in (signal.SIGTERM, signal.SIGINT):
                with subprocess.Popen([*inside, os.environ["NYBBLE"], "serve", "--port", "0", "--load-format", "dummy", folder],
                                      stderr=subprocess.PIPE) as outer:
                    while b"loading" not in outer.stderr.readline():
                        self.assertIsNone(outer.poll())
                    with open(f"/proc/{outer.pid}/task/{outer.pid}/children", encoding="ascii") as f:
                        server = int(f.read().split()[0])
                    time.sleep(0.1)
                    os.kill(server, number)
                    try:
                        self.assertEqual(outer.wait(10 * SLOW), 128 + number)
                    finally:
                        outer.kill()


class Log(unittest.TestCase):
    def test_nobody_reads_it(self):
        """A full pipe behind the access log stops nobody; whoever empties it later reads whole lines."""
        server = Server(wait=False, access=subprocess.PIPE)
        server.wait()
        for i in range(700):  # more than a pipe holds
            self.assertEqual(server.request("GET", f"/health/{'x' * 300}", timeout=5)[0], 404, i)
        status, _ = server.post("/v1/completions", GREEDY, timeout=10)
        self.assertEqual(status, 200)
        self.assertIn("lines are lost", server.text())
        os.set_blocking(server.process.stdout.fileno(), False)
        held = server.process.stdout.read()
        lines = held.decode().splitlines()
        self.assertTrue(all(line.startswith("time=") for line in lines))
        self.assertEqual(server.request("GET", "/health")[0], 200)
        time.sleep(0.1)
        self.assertIn("path=/health ", server.process.stdout.read().decode())
        self.assertRegex(server.text(), "[0-9]+ lines were lost")
        self.assertEqual(server.stop(), 0)
        server.process.stdout.close()
        server.close()

    def test_closed(self):
        read, write = os.pipe()
        server = Server(wait=False, access=write)
        os.close(write)
        server.wait()
        os.close(read)
        for _ in range(3):
            self.assertEqual(server.post("/v1/completions", GREEDY)[0], 200)
        self.assertEqual(server.stop(), 0)


class LeavingAtOnce(unittest.TestCase):
    def test_nothing_is_computed(self):
        """The end of the connection arrives together with the request, before anybody looks at either."""
        server = Server()
        before = server.metric("generation_tokens_total")
        for i in range(60):
            with server.socket() as s:
                s.sendall(raw_request("/v1/completions", {**LONG, "stream": i % 2 == 0}))
        server.until_metric("http_connections", 1)
        server.until_metric("num_requests_running", 0)
        server.until_metric("kv_blocks_used", 0)
        self.assertLess(server.metric("generation_tokens_total") - before, 60 * 20)
        self.assertEqual(server.stop(), 0)
        server.close()

    def test_sending_side_closed(self):
        """To close it is to leave: there is no telling the two apart."""
        server = Server()
        with server.socket() as s:
            s.sendall(raw_request("/v1/completions", {**LONG, "stream": True}))
            read_until(s, b"data: ")
            s.shutdown(socket.SHUT_WR)
            server.until_metric("num_requests_running", 0, 2)
        self.assertEqual(server.stop(), 0)
        server.close()


class Health(unittest.TestCase):
    def test_stuck_engine(self):
        """A step that takes longer than --stuck-after looks from outside as a step that never ends does."""
        server = Server("--stuck-after", "0.01", "--max-num-batched-tokens", "1024", "--no-enable-prefix-caching")
        self.assertEqual(server.request("GET", "/health")[0], 200)  # idle
        reasons = []
        for path in ("/health", "/ready", "/ping"):
            thread = in_background(server.post, "/v1/completions", {"prompt": [7] * 1000, "max_tokens": 1})
            while thread.is_alive():
                status, headers, data = server.request("GET", path)
                if status != 200:
                    self.assertEqual(status, 503)
                    self.assertIn("retry-after", headers)
                    reasons.append((path, json.loads(data)["error"]["message"]))
            thread.join()
        self.assertEqual({path for path, _ in reasons}, {"/health", "/ready", "/ping"})
        for _, reason in reasons:
            self.assertRegex(reason, r"The engine is stuck: it has work and has finished no step for \d+\.\d s")
        self.assertEqual(server.request("GET", "/health")[0], 200)  # and it recovers
        self.assertEqual(server.stop(), 0)
        server.close()


class Access(unittest.TestCase):
    def test_key_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
            f.write("\ufefffourth\n# staff\n  first-key \r\n\n\tsecond key\n")  # with the mark of some editors
            f.flush()
            server = Server("--api-key-file", f.name, "--api-key", "third")
        for key, status in (("first-key", 200), ("second key", 200), ("third", 200), ("fourth", 200), ("# staff", 401), ("first", 401),
                            ("", 401), ("first-key ", 401), ("x" * 5000, 401)):
            with self.subTest(key):
                got, headers, _ = server.request("GET", "/v1/models", headers={"Authorization": "Bearer " + key})
                self.assertEqual(got, status)
                if status == 401:
                    self.assertEqual(headers["www-authenticate"], "Bearer")
        self.assertEqual(server.request("GET", "/v1/models", headers={"Authorization": "bearer third"})[0], 200)
        self.assertEqual(server.request("OPTIONS", "/v1/models")[0], 204)
        for path in ("/v1", "/v1/", "/v1/nothing", "/v1/models/x"):
            self.assertEqual(server.request("GET", path)[0], 401, path)
        self.assertNotIn("first-key", server.text() + server.access_text())
        self.assertEqual(server.stop(), 0)
        server.close()

    def test_bad_key_files(self):
        with tempfile.TemporaryDirectory() as folder:
            empty = os.path.join(folder, "empty")
            with open(empty, "w", encoding="utf-8") as f:
                f.write("# nothing\n\n")
            torn, wide = os.path.join(folder, "torn"), os.path.join(folder, "wide")
            with open(torn, "wb") as f:
                f.write(b"first\nsec\0ond\nthird\n")
            with open(wide, "w", encoding="utf-16") as f:
                f.write("first\n")
            for path, text in ((empty, "there is no key in it"), (os.path.join(folder, "absent"), "absent"),
                               (torn, torn + ": a NUL byte, and it should be a text (not in UTF-16) (at byte 9)"),
                               (wide, wide + ": a NUL byte")):
                server = Server("--api-key-file", path, wait=False)
                self.assertEqual(server.process.wait(30), 1)
                self.assertIn(text, server.text())
                server.close()

    def test_origins(self):
        server = Server("--allowed-origins", "http://one.test", "--allowed-origins", "http://two.test")
        for origin in ("http://one.test", "http://two.test"):
            _, headers, _ = server.request("POST", "/v1/completions", GREEDY, {"Origin": origin})
            self.assertEqual(headers["access-control-allow-origin"], origin)
            self.assertEqual(headers["vary"], "Origin")
        for origin in ("http://one.test.evil", "http://three.test", "null", "HTTP://ONE.TEST"):
            _, headers, _ = server.request("GET", "/health", headers={"Origin": origin})
            self.assertNotIn("access-control-allow-origin", headers)
        ask = {"Origin": "http://one.test", "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization,content-type"}
        status, headers, _ = server.request("OPTIONS", "/v1/chat/completions", headers=ask)
        self.assertEqual(status, 204)
        self.assertIn("authorization", headers["access-control-allow-headers"].lower())
        status, headers, _ = server.request("POST", "/v1/completions", {"prompt": 3}, {"Origin": "http://one.test"})
        self.assertEqual((status, headers["access-control-allow-origin"]), (400, "http://one.test"))
        self.assertEqual(server.stop(), 0)
        everybody = Server("--allowed-origins", "*")
        _, headers, _ = everybody.request("GET", "/v1/models", headers={"Origin": "http://any.test"})
        self.assertEqual(headers["access-control-allow-origin"], "*")
        self.assertEqual(everybody.stop(), 0)

    def test_metrics_port(self):
        port = free_port()
        server = Server("--metrics-port", str(port), "--api-key", "k")
        self.assertEqual(server.request("GET", "/metrics")[0], 404)
        main, server.port = server.port, port
        status, headers, data = server.request("GET", "/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["content-type"].startswith("text/plain; version=0.0.4"))
        self.assertIn(b"nybble:num_requests_running", data)
        self.assertEqual(server.request("HEAD", "/metrics")[2], b"")
        for method, path in (("GET", "/health"), ("POST", "/metrics"), ("POST", "/v1/completions")):
            self.assertEqual(server.request(method, path)[0], 404)
        server.port = main
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.assertEqual(server.stop(), 0)
        server.close()

    def test_connection_limit(self):
        server = Server("--max-connections", "4", "--keep-alive", "1")
        open_ones = [server.socket() for _ in range(4)]
        for s in open_ones:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertIn(b"200", read_until(s, b"\r\n\r\n"))
        with server.socket(3) as fifth:  # waits in the backlog, or is closed
            try:
                fifth.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                fifth.recv(100)
            except OSError:
                pass
        start = time.time()
        self.assertEqual(open_ones[0].recv(100), b"")  # idle for a second
        self.assertLess(time.time() - start, 5)
        waiting = [server.socket() for _ in range(20)]
        for s in [*open_ones, *waiting]:
            s.close()
        start = time.time()
        server.request("GET", "/health")  # room that there is again is used at once
        self.assertLess(time.time() - start, 0.5 * SLOW)
        until = time.time() + 5
        while time.time() < until:
            try:
                if server.request("GET", "/health")[0] == 200:
                    break
            except OSError:
                time.sleep(0.05)
        else:
            self.fail("no connection is taken any more")
        self.assertEqual(server.stop(), 0)
        server.close()


class UnixSocket(unittest.TestCase):
    def ask(self, path, data):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(30)
            s.connect(path)
            s.sendall(data)
            return read_until(s, b"[DONE]") if b'"stream": true' in data else read_until(s, b"}")

    def start(self, path, *options):
        server = Server("--host", path, *options, wait=False)
        until = time.time() + 30 * SLOW
        while "listening on http+unix://" + path not in server.text():
            self.assertIsNone(server.process.poll(), server.text())
            self.assertLess(time.time(), until, server.text())
            time.sleep(0.02)
        return server

    def test_life(self):
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with tempfile.TemporaryDirectory() as folder:
            path, port = os.path.join(folder, "socket"), free_port()
            server = self.start(path, "--metrics-port", str(port))
            self.assertIn(b"200 OK", self.ask(path, health))
            self.assertIn(b"[DONE]", self.ask(path, raw_request("/v1/completions", {**GREEDY, "stream": True})))
            self.assertIn(b"403", self.ask(path, b"GET /server_info HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            self.assertIn("client=unix", server.access_text())
            self.assertNotIn("there is no API key", server.text())
            server.port = port
            self.assertEqual(server.metric("http_connections"), 0)
            with socket.socket(socket.AF_UNIX) as leaves:  # noticed as with TCP
                leaves.connect(path)
                leaves.sendall(raw_request("/v1/completions", LONG))
                server.until_metric("num_requests_running", 1)
            server.until_metric("num_requests_running", 0)
            second = Server("--host", path, wait=False)  # the place is taken
            self.assertEqual(second.process.wait(30), 1)
            self.assertIn(f"cannot listen on {path}: Address already in use", second.text())
            second.close()
            server.process.kill()
            server.process.wait(30)
            server.close()
            self.assertTrue(os.path.exists(path))  # and is replaced
            server = self.start(path, "--admin-api-key", "boss")
            self.assertIn(b"200 OK", self.ask(path, health))
            self.assertIn(b"200 OK", self.ask(path, b"GET /server_info HTTP/1.1\r\nHost: x\r\n"
                                                    b"Authorization: Bearer boss\r\n\r\n"))
            self.assertEqual(server.stop(), 0)
            self.assertFalse(os.path.exists(path))
            server.close()

    def test_file_goes_while_it_listens(self):
        """Later another server might have its own in the place, with the same inode."""
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as idle:
            path = os.path.join(folder, "socket")
            server = self.start(path)
            idle.settimeout(30)
            idle.connect(path)
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b"200 OK", read_until(idle, b"}"))
            server.process.send_signal(signal.SIGTERM)
            while idle.recv(4096):
                pass
            self.assertFalse(os.path.exists(path))
            self.assertEqual(server.process.wait(30), 0)
            server.close()

    def test_what_is_no_socket_of_ours(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "file")
            with open(path, "w", encoding="utf-8") as f:
                f.write("x")
            for host, text in ((path, "Address already in use"), ("/nowhere/socket", "No such file"),
                               ("/" + "x" * 200, "at most 107 bytes")):
                server = Server("--host", host, wait=False)
                self.assertEqual(server.process.wait(30), 1)
                self.assertIn(text, server.text())
                server.close()
            self.assertTrue(os.path.exists(path))
            path = os.path.join(folder, "socket")
            server = self.start(path)
            os.rename(path, path + ".old")
            other = self.start(path)  # another has the place: it stays when the first goes
            self.assertEqual(server.stop(), 0)
            self.assertTrue(os.path.exists(path))
            self.assertEqual(other.stop(), 0)
            self.assertFalse(os.path.exists(path))
            server.close()
            other.close()


class Systemd(unittest.TestCase):
    def test_unit_file(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze")
        with open(os.path.join(os.environ["SOURCE"], "packaging", "nybble.service"), encoding="utf-8") as f:
            unit = f.read()
        self.assertIn("Type=notify", unit)
        program = os.path.abspath(os.environ["NYBBLE"])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "nybble.service")
            with open(path, "w", encoding="utf-8") as f:
                f.write(unit.replace("/usr/bin/nybble", program))
            # Manual pages are looked for by a program that a small machine does not have.
            result = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True,
                                    check=False)
        mine = [line for line in result.stderr.splitlines() if "nybble" in line]
        self.assertEqual((result.returncode, mine), (0, []), result.stderr)

    def test_command_of_the_unit(self):
        """The options that the unit gives, with a file where it expects one."""
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
            f.write("port: 0\nserved-model-name: unit\n")
            f.flush()
            server = Server("--config", f.name)
            self.assertEqual(json.loads(server.request("GET", "/v1/models")[2])["data"][0]["id"], "unit")
            self.assertEqual(server.stop(), 0)
            server.close()

    def inbox(self, address):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        s.bind(address)
        s.settimeout(30)
        return s

    def test_abstract_socket(self):
        name = f"nybble-test-{os.getpid()}"
        with self.inbox("\0" + name) as inbox:
            server = Server(env={"NOTIFY_SOCKET": "@" + name})
            self.assertEqual(inbox.recv(100), b"READY=1")
            self.assertEqual(server.request("GET", "/ready")[0], 200)  # it serves by then
            self.assertEqual(server.stop(), 0)
            self.assertEqual(inbox.recv(100), b"STOPPING=1")
            server.close()

    def test_ready_only_when_it_serves(self):
        """Not ready where the port is taken; and stopping is told at the start of the drain."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "notify")
            with self.inbox(path) as inbox, socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen()
                failed = Server("--port", str(taken.getsockname()[1]), env={"NOTIFY_SOCKET": path}, wait=False)
                self.assertEqual(failed.process.wait(30), 1)
                inbox.settimeout(0.2)
                self.assertRaises(socket.timeout, inbox.recv, 100)
                inbox.settimeout(30)
                server = Server("--drain", "20", env={"NOTIFY_SOCKET": path})
                self.assertEqual(inbox.recv(100), b"READY=1")
                thread = in_background(server.stream, "/v1/completions", {**LONG, "max_tokens": 900})
                server.until_metric("num_requests_running", 1)
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(inbox.recv(100), b"STOPPING=1")
                self.assertIsNone(server.process.poll())
                thread.join(30)
                self.assertEqual(server.process.wait(30), 0)
                failed.close()
                server.close()

    def test_useless_sockets(self):
        for value in ("", "relative", "/" + "x" * 200, "/nowhere/notify"):
            server = Server(env={"NOTIFY_SOCKET": value})
            self.assertEqual(server.request("GET", "/health")[0], 200)
            self.assertEqual(server.stop(), 0)
            server.close()


if __name__ == "__main__":
    unittest.main(verbosity=1, warnings="ignore")
