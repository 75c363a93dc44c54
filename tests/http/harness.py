"""Start the server under test and talk to it with sockets. Standard library only."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

with open(os.environ["NYBBLE"], "rb") as _program:
    _bytes = _program.read()
SANITIZED = b"__asan_" in _bytes or b"__tsan_" in _bytes
SLOW = 10 if SANITIZED else 1  # how many times longer things may take
del _bytes


class Server:
    """A running `nybble serve` on a free loopback port with the embedded model."""

    def __init__(self, *options, env=None, wait=True, access=None):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.access = tempfile.TemporaryFile(mode="w+") if access is None else access
        command = [os.environ["NYBBLE"], "serve", "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=self.access, stderr=self.log,
                                        env={**os.environ, **(env or {})})
        self.port = None
        if wait:
            self.wait()

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def access_text(self):
        self.access.seek(0)
        return self.access.read()

    def wait(self, seconds=60):
        until = time.time() + seconds
        while time.time() < until and self.process.poll() is None:
            found = re.search(r"listening on https?://(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)", self.text())
            if found:
                self.port = int(found.group(1))
                return
            time.sleep(0.02)
        raise RuntimeError("the server did not start:\n" + self.text())

    def stop(self, number=signal.SIGTERM, seconds=60):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(seconds)
        return code

    def close(self):
        self.log.close()
        if hasattr(self.access, "close"):
            self.access.close()

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers with lower-case names, body bytes)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            send = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, body, {**send, **(headers or {})})
            response = connection.getresponse()
            data = response.read()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, data
        finally:
            connection.close()

    def post(self, path, body, **more):
        """(status, parsed JSON)"""
        status, _, data = self.request("POST", path, body, **more)
        return status, json.loads(data)

    def stream(self, path, body):
        """All events of a stream, [DONE] as the string."""
        status, headers, data = self.request("POST", path, {**body, "stream": True})
        assert status == 200, (status, data)
        assert headers["content-type"].startswith("text/event-stream"), headers
        return parse_events(data)

    def socket(self, timeout=30):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def metrics(self):
        _, _, data = self.request("GET", "/metrics")
        values = {}
        for line in data.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                labels = re.sub(r'model_name="[^"]*",engine="0",?', "", name)
                values[labels.replace("{}", "")] = float(value)
        return values

    def metric(self, name):
        return self.metrics()["nybble:" + name]

    def until_metric(self, name, value, seconds=20):
        until = time.time() + seconds
        while time.time() < until:
            if self.metric(name) == value:
                return True
            time.sleep(0.005)
        raise AssertionError(f"{name} is {self.metric(name)}, expected {value}")

    def rss_kib(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def parse_events(data):
    events = []
    for block in data.decode().split("\n\n"):
        if block and not block.startswith(":"):  # a comment: nothing was to be said for a while
            assert block.startswith("data: "), block
            events.append("[DONE]" if block == "data: [DONE]" else json.loads(block[6:]))
    return events


def raw_request(path, body, **headers):
    """A POST as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json",
             f"Content-Length: {len(data)}"] + [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def read_until(sock, marker, limit=1 << 20):
    data = b""
    while marker not in data and len(data) < limit:
        piece = sock.recv(4096)
        if not piece:
            break
        data += piece
    return data


def in_background(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread
