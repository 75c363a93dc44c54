#!/usr/bin/env python3
"""The server through curl, as the examples in the documents show it."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server, parse_events  # noqa: E402

if not shutil.which("curl"):
    print("skipped: there is no curl")
    sys.exit(77)

CHAT = {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 12, "temperature": 0}


class Curl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "k", "--max-body", "64K")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.server.close()

    def curl(self, path, *options, key="k", code=0, stdin=None):
        """(status, body)"""
        command = ["curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}", *options,
                   f"http://127.0.0.1:{self.server.port}{path}"]
        if key:
            command[1:1] = ["-H", "Authorization: Bearer " + key]
        result = subprocess.run(command, capture_output=True, check=False, input=stdin)
        self.assertEqual(result.returncode, code, result.stderr)
        body, status = result.stdout.rsplit(b"\n", 1)
        return int(status), body

    def json(self, body, *more):
        return ("-H", "Content-Type: application/json", "-d", json.dumps(body), *more)

    def test_documented_example(self):
        """Without key and as docs/SERVING.md has it."""
        with open(os.path.join(os.environ["SOURCE"], "docs", "SERVING.md"), encoding="utf-8") as f:
            text = f.read()
        start = text.index("curl localhost:8180")
        command = text[start:text.index("\n\n", start)].replace("localhost:8180", f"127.0.0.1:{self.server.port}")
        command = command.replace("curl ", "curl -sS -H 'Authorization: Bearer k' ", 1)
        out = subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout
        self.assertEqual(parse_events(out)[-1], "[DONE]")

    def test_chat(self):
        status, body = self.curl("/v1/chat/completions", *self.json(CHAT))
        self.assertEqual(status, 200)
        self.assertTrue(json.loads(body)["choices"][0]["message"]["content"])

    def test_stream_comes_in_pieces(self):
        command = ["curl", "-sSN", "-H", "Authorization: Bearer k", "-H", "Content-Type: application/json", "-d",
                   json.dumps({**CHAT, "max_tokens": 900, "stream": True, "ignore_eos": True}),
                   f"http://127.0.0.1:{self.server.port}/v1/chat/completions"]
        for _ in range(20):  # on a busy machine the answer may be there before the metric is
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                first = process.stdout.readline()
                running = self.server.metric("num_requests_running")
                rest = process.stdout.read()
            if running:
                break
        self.assertEqual(running, 1)  # the first piece was here before the last was made
        self.assertEqual(parse_events(first + rest)[-1], "[DONE]")

    def test_interrupted(self):
        command = ["curl", "-sSN", "-H", "Authorization: Bearer k", "-H", "Content-Type: application/json", "-d",
                   json.dumps({**CHAT, "max_tokens": 900, "ignore_eos": True}),
                   f"http://127.0.0.1:{self.server.port}/v1/chat/completions"]
        seen = False
        for _ in range(20):  # as above
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                while not seen and process.poll() is None:
                    seen = self.server.metric("num_requests_running") == 1
                process.kill()
            if seen:
                break
        self.assertTrue(seen)
        self.server.until_metric("num_requests_running", 0, 2)
        self.server.until_metric("kv_blocks_used", 0, 2)

    def test_errors(self):
        self.assertEqual(self.curl("/v1/models", key=None)[0], 401)
        self.assertEqual(self.curl("/v1/models", key="wrong")[0], 401)
        self.assertEqual(self.curl("/v1/chat/completions", "-d", "a=b")[0], 415)  # curl's own type
        self.assertEqual(self.curl("/v1/chat/completions", *self.json({"messages": []}))[0], 400)
        self.assertEqual(self.curl("/v1/chat/completions")[0], 405)
        self.assertEqual(self.curl("/nothing")[0], 404)
        status, body = self.curl("/v1/chat/completions", *self.json({**CHAT, "model": "other"}))
        self.assertEqual((status, json.loads(body)["error"]["param"]), (404, "model"))

    def test_large_bodies(self):
        """curl asks by Expect: 100-continue before it sends more than a megabyte."""
        with tempfile.NamedTemporaryFile() as f:
            f.write(json.dumps({"prompt": "x" * 2000000}).encode())
            f.flush()
            started = time.time()
            status, _ = self.curl("/v1/completions", "-H", "Content-Type: application/json", "--data-binary", "@" + f.name)
            self.assertEqual(status, 413)
            self.assertLess(time.time() - started, 0.9)  # it did not wait for its own patience of a second
        chunked = ("-H", "Content-Type: application/json", "-H", "Transfer-Encoding: chunked", "--data-binary", "@-")
        fine = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        self.assertEqual(self.curl("/v1/completions", *chunked, stdin=fine)[0], 200)
        self.assertEqual(self.curl("/v1/completions", *chunked, stdin=b" " * 100000)[0], 413)
        small = ("-H", "Expect: 100-continue", *self.json({"prompt": "x", "max_tokens": 1}))
        self.assertEqual(self.curl("/v1/completions", *small)[0], 200)

    def test_versions_and_methods(self):
        self.assertEqual(self.curl("/health", "--http1.0")[0], 200)
        self.assertEqual(self.curl("/health", "-I")[0], 200)
        self.assertEqual(self.curl("/health", "--http2")[0], 200)  # its offer to upgrade is not taken
        status, body = self.curl("/v1/chat/completions", *self.json({**CHAT, "stream": True}, "--http1.0"))
        self.assertEqual((status, parse_events(body)[-1]), (200, "[DONE]"))
        self.assertEqual(self.curl("/health", "--proxy", f"http://127.0.0.1:{self.server.port}")[0], 200)

    def test_connection_is_kept(self):
        base = f"http://127.0.0.1:{self.server.port}"
        result = subprocess.run(["curl", "-sS", "-w", "%{num_connects} ", f"{base}/health", f"{base}/version", f"{base}/load",
                                 "-o", "/dev/null", "-o", "/dev/null", "-o", "/dev/null"], capture_output=True, check=True)
        self.assertEqual(result.stdout.split(), [b"1", b"0", b"0"])

    def test_metrics(self):
        status, body = self.curl("/metrics", key=None)
        self.assertEqual(status, 200)
        self.assertIn(b"nybble:num_requests_running", body)


if __name__ == "__main__":
    unittest.main(verbosity=1, warnings="ignore")
