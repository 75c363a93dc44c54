#!/usr/bin/env python3
"""Bytes that no client library would send: requests that two parties could read differently, limits, odd versions,
pipelines, bodies that are hardly JSON. Each gets one clear answer or a closed connection, and nobody else notices."""
import json
import os
import random
import socket
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server, raw_request, read_until  # noqa: E402

BODY = json.dumps({"prompt": "x", "max_tokens": 2, "temperature": 0}).encode()
STREAM = json.dumps({"prompt": "x", "max_tokens": 2, "temperature": 0, "stream": True}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body, *headers):
    return HEAD + b"".join(h + b"\r\n" for h in headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(body, step, extension=b"", trailer=b""):
    pieces = [body[i:i + step] for i in range(0, len(body), step)]
    return (HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
            + b"".join(b"%x%s\r\n" % (len(p), extension) + p + b"\r\n" for p in pieces) + b"0\r\n" + trailer + b"\r\n")


def parse_responses(data, methods):
    """All complete responses as (status, body)."""
    found = []
    for method in methods:
        while True:
            if b"\r\n\r\n" not in data:
                return found
            head, data = data.split(b"\r\n\r\n", 1)
            lines = head.split(b"\r\n")
            status = int(lines[0].split()[1])
            if status != 100:
                break
        fields = {line.split(b":", 1)[0].lower(): line.split(b":", 1)[1].strip() for line in lines[1:]}
        body = b""
        if fields.get(b"transfer-encoding") == b"chunked":
            while True:
                if b"\r\n" not in data:
                    return found
                size, data = data.split(b"\r\n", 1)
                n = int(size, 16)
                if len(data) < n + 2:
                    return found
                body, data = body + data[:n], data[n + 2:]
                if n == 0:
                    break
        elif method != "HEAD":
            n = int(fields.get(b"content-length", b"0"))
            if len(data) < n:
                return found
            body, data = data[:n], data[n:]
        found.append((status, body))
    return found


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--header-timeout", "1", "--body-timeout", "1.5", "--max-body", "4M", "--keep-alive", "20")

    @classmethod
    def tearDownClass(cls):
        cls.server.until_metric("http_connections", 1)
        cls.server.until_metric("kv_blocks_used", 0)
        values = cls.server.metrics()
        assert not [k for k in values if 'status_code="5' in k], values
        assert cls.server.stop() == 0, cls.server.text()
        cls.server.close()

    def talk(self, data, methods=("POST",), seconds=2):
        """Send, read until the answers are there, and for some seconds whether the server closes. (responses, closed)"""
        out, closed = b"", False
        with self.server.socket(20) as s:
            try:
                for piece in data if isinstance(data, list) else [data]:
                    s.sendall(piece)
                while len(parse_responses(out, methods)) < len(methods):
                    more = s.recv(65536)
                    if not more:
                        closed = True
                        break
                    out += more
                if not closed and seconds:
                    s.settimeout(seconds)
                    more = s.recv(65536)
                    closed = more == b""
                    out += more
            except socket.timeout:
                pass
            except OSError:
                closed = True
        return parse_responses(out, methods), closed

    def statuses(self, data, methods=("POST",)):
        return [status for status, _ in self.talk(data, methods, 0)[0]]

    def refused(self, data, *allowed):
        """One error, after which the connection is closed: what follows cannot be told apart from it."""
        responses, closed = self.talk(data)
        self.assertTrue(closed, (data[:200], responses))
        if responses:
            self.assertIn(responses[0][0], allowed or (400,), (data[:200], responses))

    # ---- framing

    def test_lengths(self):
        for line in (b"Content-Length: +2", b"Content-Length: 2, 2", b"Content-Length: 0x2", b"Content-Length: ",
                     b"Content-Length: 2 2", b"Content-Length: -2", b"Content-Length: 2\r\nContent-Length: 2",
                     b"Content-Length: 2\r\nContent-Length: 3", b"Content-Length : 2", b"Content-Length\t: 2",
                     b"Content-Length: 2\r\n 2", b"Content-Length: 2\r\n\t5", b"Content-Length:\r\n 2",
                     b"Content-Length2: 2"):
            with self.subTest(line):
                self.refused(HEAD + line + b"\r\n\r\n{}" + HEALTH)
        self.refused(HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n{}", 400, 413)

    def test_transfer_codings(self):
        for lines in (b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: xchunked", b"Transfer-Encoding: identity",
                      b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"Transfer-Encoding : chunked",
                      b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: \"chunked\"", b"Transfer-Encoding:",
                      b"Transfer-Encoding: chunked\r\nContent-Length: 2", b"Transfer-Encoding: x\r\n chunked",
                      b"Transfer-Encoding: xchunked\r\nContent-Length: 2"):
            with self.subTest(lines):
                self.refused(HEAD + lines + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + HEALTH)
        self.assertEqual(self.statuses(HEAD + b"transfer-encoding: Chunked\r\n\r\n%x\r\n" % len(BODY) + BODY
                                       + b"\r\n0\r\n\r\n"), [200])

    def test_chunks(self):
        self.assertEqual(self.statuses(chunked(BODY, 7)), [200])
        self.assertEqual(self.statuses([chunked(BODY, 1)[i:i + 1] for i in range(len(chunked(BODY, 1)))]), [200])
        more = chunked(BODY, 9, b";name=value", b"X-After: 1\r\nContent-Length: 7\r\n") + HEALTH
        self.assertEqual(self.statuses(more, ("POST", "GET")), [200, 200])
        start = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        for broken in (b"-5\r\nabcde\r\n", b"2\r\n{}XX0\r\n\r\n", b"zz\r\n", b"1FFFFFFFFFFFFFFFFFF\r\n", b"\r\n"):
            with self.subTest(broken):
                self.refused(start + broken, 400, 413)
        self.refused(start + b"FFFFFFFFFFFFFFFF\r\n{}", 400, 408, 413)  # never complete: the deadline ends it

    def test_header_names(self):
        for line in (b"X A: blank", b"X-\x01: control", b"X\xe9: latin", b"X-A: a\r\n b c: d", b"nothing", b"(x): y",
                     b"X\0-A: b"):
            with self.subTest(line):
                self.refused(b"GET /health HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n\r\n")
        self.refused(b"GET /health HTTP/1.1\r\n\r\n")
        self.refused(b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")

    def test_bombs(self):
        self.refused(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(5000)) + b"\r\n",
                     431, 413, 400)
        self.refused(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100000 + b"\r\n\r\n", 431, 413, 400)
        for line in (b"GET /health?" + b"a" * 40000 + b" HTTP/1.1\r\nHost: x", b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40000,
                     b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 33000):
            with self.subTest(line[:40]):  # beyond our limit and within the library's
                [(status, body)], closed = self.talk(line + b"\r\n\r\n" + HEALTH)
                self.assertEqual((status, closed, json.loads(body)["error"]["code"]), (431, True, 431))
                self.assertIn("the limit is 32768", json.loads(body)["error"]["message"])
        self.assertEqual(self.statuses(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 32000 + b"\r\n\r\n", ("GET",)), [200])
        self.refused(b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, 400)
        self.refused(b"A" * 100000 + b" / HTTP/1.1\r\nHost: x\r\n\r\n", 414, 431, 400)
        self.refused(bytes(range(256)) * 20)
        self.refused(b"\0" * 5000)
        self.refused(bytes.fromhex("16030100c8010000c40303") + b"\0" * 190)  # TLS on a plain port
        self.assertEqual(self.statuses(b"\r\n" * 100 + HEALTH, ("GET",)), [200])

    # ---- requests

    def test_targets(self):
        get = lambda target: b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"  # noqa: E731
        for target, status in ((b"/health?a=b&c", 200), (b"http://x/health", 200), (b"HTTPS://x:1/health", 200),
                               (b"http://x", 404), (b"/../../etc/passwd", 404), (b"/h\xc3\xa9alth", 404), (b"//health", 404),
                               (b"/health/", 404), (b"*", 404), (b"/%2e%2e/health", 404), (b"/health%", 404)):
            with self.subTest(target):
                self.assertEqual(self.statuses(get(target), ("GET",)), [status])
        self.refused(get(b"/health%00x"))
        self.refused(get(b"/hea lth"))

    def test_versions(self):
        for line, statuses in ((b"GET /health HTTP/1.0\r\n\r\n", [200]), (b"GET /health HTTP/3.1\r\nHost: x\r\n\r\n", [505]),
                               (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [505]), (b"GET /health\r\n\r\n", [400])):
            with self.subTest(line):
                responses, closed = self.talk(line, ("GET",))
                self.assertEqual(([s for s, _ in responses], closed), (statuses, True))
        with self.server.socket() as s:  # no chunks in HTTP/1.0: the end of the connection ends the stream
            s.sendall(post(STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"))
            data = read_until(s, b"never")
        self.assertNotIn(b"chunked", data)
        self.assertTrue(data.endswith(b"data: [DONE]\n\n"), data)

    def test_methods(self):
        for method, path, status in (("HEAD", "/health", 200), ("HEAD", "/metrics", 200), ("HEAD", "/v1/models", 200),
                                     ("HEAD", "/v1/completions", 405), ("HEAD", "/nothing", 404), ("TRACE", "/health", 405),
                                     ("get", "/health", 405), ("CONNECT", "x:80", 404), ("OPTIONS", "/health", 204),
                                     ("DELETE", "/v1/models/x", 405), ("X" * 40, "/health", 405)):
            with self.subTest(method=method, path=path):
                data = f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
                self.assertEqual(self.statuses(data + HEALTH, (method, "GET")), [status, 200])

    def test_pipeline(self):
        data = post(STREAM) + HEALTH + post(BODY) + b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n" + post(b"{") + post(BODY)
        self.assertEqual(self.statuses(data, ("POST", "GET", "POST", "GET", "POST", "POST")), [200, 200, 200, 404, 400, 200])
        many = self.statuses(HEALTH * 500, ("GET",) * 500)
        self.assertEqual(many, [200] * 500)
        self.assertEqual(self.statuses(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello" + HEALTH,
                                       ("GET", "GET")), [200, 200])

    def test_expect(self):
        head = HEAD + b"Expect: 100-continue\r\n"
        with self.server.socket() as s:
            s.sendall(head + b"Content-Length: %d\r\n\r\n" % len(BODY))
            self.assertEqual(read_until(s, b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n")
            s.sendall(BODY)
            self.assertIn(b" 200 OK", read_until(s, b"\r\n"))
        for lines, status in ((head + b"Content-Length: 999999999\r\n", 413),  # before the body is sent
                              (head.replace(b"application/json", b"text/plain") + b"Content-Length: 9\r\n", 415),
                              (head.replace(b"/v1/completions", b"/nope") + b"Content-Length: 9\r\n", 404)):
            responses, closed = self.talk(lines + b"\r\n")
            self.assertEqual(([s for s, _ in responses], closed), ([status], True))

    # ---- bodies

    def test_types(self):
        for kind, status in ((b"application/jsonx", 415), (b"text/plain", 415), (b"multipart/form-data; boundary=x", 415),
                             (b"application/x-www-form-urlencoded", 415), (b"", 415), (b"Application/JSON", 200),
                             (b"application/json; charset=utf-8", 200), (b"application/json ;x", 200)):
            with self.subTest(kind):
                self.assertEqual(self.statuses(post(BODY).replace(b"application/json", kind, 1)), [status])
        self.assertEqual(self.statuses(post(BODY).replace(b"Content-Type: application/json\r\n", b"")), [200])
        self.assertEqual(self.statuses(post(b"\x1f\x8b123", b"Content-Encoding: gzip")), [415])
        self.assertEqual(self.statuses(post(BODY, b"Content-Encoding: identity")), [200])

    def test_json(self):
        fine = [b'{"prompt":"a\\u0000b","max_tokens":1}', b'{"prompt":"x","max_tokens":1,"temperature":1e-99999}',
                b'{"prompt":"x","max_tokens":1,"temperature":-0.0,"top_p":1.0}', b' \n{"prompt":"x","max_tokens":1}\n ',
                b"{" + b",".join(b'"k%d":1' % i for i in range(50000)) + b',"prompt":"x","max_tokens":1}',
                b'{"prompt":"x","max_tokens":1,"x":' + b"9" * 100000 + b"}"]
        bad = [b'{"prompt":"a\0b","max_tokens":1}', b'{"prompt":"\xff\xfe"}', b'{"prompt":"\\ud800"}', b'{"prompt":"\xc0\x80"}',
               '{"prompt":"x"}'.encode("utf-16"), b"\xef\xbb\xbf" + BODY, b'{"prompt":' + b"[" * 2000 + b"]" * 2000 + b"}",
               b'{"x":' * 100000, b"[" * 1000000, b'{"prompt":"x","seed":' + b"9" * 100000 + b"}",
               b'{"prompt":"x","temperature":1e99999}', b'{"prompt":"x","temperature":NaN}', b"{'prompt':'x'}",
               b'{"prompt":"x"} {}', b'{"prompt":"x",}', b"null", b'"x"', b"\0", b"{}", b'{"prompt":[[[1]]]}',
               json.dumps({"prompt": [5] * 500000}).encode(), json.dumps({"prompt": ["x"] * 20000}).encode(),
               json.dumps({"prompt": "x", "n": 16384, "temperature": 1}).encode(),
               json.dumps({"prompt": ["x"] * 2000, "n": 2, "temperature": 1}).encode(),
               json.dumps({"prompt": "x", "stop_token_ids": [1] * 100000}).encode(),
               json.dumps({"prompt": "x", "logit_bias": {str(i): 1 for i in range(70000)}}).encode(),
               json.dumps({"prompt": "x", "stop": ["y" * 1000000]}).encode()]
        for body in fine:
            with self.subTest(body[:40]):
                self.assertEqual(self.statuses(post(body)), [200])
        for body in bad:
            with self.subTest(body[:40]):
                responses, _ = self.talk(post(body), seconds=0)
                self.assertEqual(responses[0][0], 400)
                error = json.loads(responses[0][1])["error"]
                self.assertTrue(error["message"] and len(error["message"]) < 1024)

    def test_noise(self):
        """Requests with bytes changed, cut, doubled: any answer but 5xx, and a server that goes on."""
        r = random.Random(7)
        seeds = [post(BODY), post(STREAM), chunked(BODY, 11), HEALTH, raw_request("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x"}], "max_tokens": 1})]
        for i in range(300):
            data = bytearray(r.choice(seeds))
            for _ in range(r.randint(1, 6)):
                at = r.randrange(len(data))
                if r.random() < 0.5:
                    data[at] = r.choice([0, 9, 10, 13, 32, 58, 255, r.randrange(256)])
                elif r.random() < 0.5:
                    del data[at:at + r.randint(1, 9)]
                else:
                    data[at:at] = data[at:at + r.randint(1, 30)]
                if not data:
                    data = bytearray(b"\r\n")
            with self.server.socket(10) as s:
                try:
                    s.sendall(bytes(data))
                    if r.random() < 0.7:
                        s.settimeout(0.05)
                        s.recv(65536)
                except OSError:
                    pass
        self.assertEqual(self.statuses(post(BODY)), [200])


if __name__ == "__main__":
    unittest.main(verbosity=1, warnings="ignore")
