#!/usr/bin/env python3
"""Many streams at once with clients that misbehave; then everything must be as before.

    NYBBLE=build/release/nybble tests/http/storm.py --streams 500 --seconds 120

What is checked: every answer that was waited for is complete and the client's mistakes get their 4xx; no 5xx and no
lost stream; afterwards no block is held and no request is left; memory is flat after the first ten seconds; p99 of
/health, asked by a process of its own. --term sends SIGTERM under load: every stream that had begun must finish.
"""
import argparse
import asyncio
import collections
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server, raw_request  # noqa: E402

PROMPTS = ["Once upon a time there was", "The old king said to his", "In the forest lived a", "A poor miller had three",
           "When the winter came the"]
KINDS = {"stream": 62, "whole": 8, "leave": 10, "leave at once": 4, "stall": 4, "malformed": 4, "out of range": 3,
         "oversize": 2, "slow headers": 2, "health": 1}


class Storm:
    def __init__(self, server, seconds, seed):
        self.server = server
        self.until = time.time() + seconds
        self.random = random.Random(seed)
        self.done = collections.Counter()
        self.faults = []
        self.chunks = 0
        self.open_streams = self.most_streams = 0
        self.draining = False

    def fault(self, kind, what):
        self.faults.append(f"{kind}: {what}")

    def body(self, stream, tokens=None):
        r = self.random
        return {"prompt": r.choice(PROMPTS), "max_tokens": tokens or r.randint(16, 96), "stream": stream,
                "ignore_eos": True, "temperature": r.choice([0, 0.8]), "seed": r.randint(0, 1 << 30)}

    async def status(self, reader):
        line = await reader.readline()
        return int(line.split()[1]) if line else 0

    async def read_stream(self, kind, reader, body, stop_after=None):
        """Chunks until [DONE], or until enough."""
        n = 0
        last = None
        while True:
            line = await reader.readline()
            if not line:
                return self.fault(kind, f"the stream broke off after {n} chunks of {body['max_tokens']}")
            if line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data: "):
                n += 1
                self.chunks += 1
                last = line
                if n == 1:
                    self.open_streams += 1
                    self.most_streams = max(self.most_streams, self.open_streams)
                if stop_after is not None and n >= stop_after:
                    self.open_streams -= 1
                    return None
        self.open_streams -= 1
        reason = json.loads(last[6:])["choices"][0]["finish_reason"] if last else None
        if reason != "length":
            self.fault(kind, f"the stream ended with {reason!r}")
        return None

    async def one(self, kind):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=1 << 20)
        try:
            await getattr(self, "do_" + kind.replace(" ", "_"))(kind, reader, writer)
            self.done[kind] += 1
        finally:
            writer.close()

    async def expect(self, kind, reader, *allowed):
        status = await self.status(reader)
        if self.draining and status == 503:
            return status
        if status not in allowed:
            self.fault(kind, f"status {status}, expected {allowed}")
        return status

    async def do_stream(self, kind, reader, writer):
        body = self.body(True)
        writer.write(raw_request("/v1/completions", body))
        if await self.expect(kind, reader, 200, 429) == 200:
            await self.read_stream(kind, reader, body)

    async def do_whole(self, kind, reader, writer):
        body = self.body(False)
        writer.write(raw_request("/v1/completions", body, Connection="close"))
        if await self.expect(kind, reader, 200, 429) == 200:
            data = (await reader.read()).split(b"\r\n\r\n", 1)[1]
            if json.loads(data)["usage"]["completion_tokens"] != body["max_tokens"]:
                self.fault(kind, "the answer is too short")

    async def do_leave(self, kind, reader, writer):
        body = self.body(True)
        writer.write(raw_request("/v1/completions", body))
        if await self.expect(kind, reader, 200, 429) == 200:
            await self.read_stream(kind, reader, body, self.random.randint(1, 10))

    async def do_leave_at_once(self, kind, reader, writer):
        writer.write(raw_request("/v1/completions", self.body(self.random.random() < 0.5)))
        await writer.drain()
        await asyncio.sleep(self.random.random() * 0.02)

    async def do_stall(self, kind, reader, writer):
        """Asks for much, reads nothing, and waits to be dropped."""
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.transport.pause_reading()
        writer.write(raw_request("/v1/completions", {**self.body(True, 400), "logprobs": 20}))
        await asyncio.sleep(self.random.uniform(2, 6))

    async def do_malformed(self, kind, reader, writer):
        text = json.dumps(self.body(True)).encode()
        writer.write(raw_request("/v1/completions", text[:self.random.randint(0, len(text) - 1)]))
        await self.expect(kind, reader, 400)

    async def do_out_of_range(self, kind, reader, writer):
        writer.write(raw_request("/v1/completions", {**self.body(True), "top_p": 7}))
        await self.expect(kind, reader, 400)

    async def do_oversize(self, kind, reader, writer):
        writer.write(raw_request("/v1/completions", {"prompt": "x" * (300 << 10)}))
        await self.expect(kind, reader, 413)

    async def do_slow_headers(self, kind, reader, writer):
        start = time.time()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        try:
            while time.time() - start < 20:
                writer.write(b"a")
                await asyncio.wait_for(reader.read(1), 0.5)
                return
        except (asyncio.TimeoutError, ConnectionError):
            pass
        while time.time() - start < 20 and not reader.at_eof():
            writer.write(b"a")
            try:
                await asyncio.wait_for(reader.read(1), 0.5)
            except asyncio.TimeoutError:
                continue
            except ConnectionError:
                return
        if not reader.at_eof():
            self.fault(kind, "still open after 20 s")

    async def do_health(self, kind, reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await self.expect(kind, reader, 200)

    async def client(self, i):
        await asyncio.sleep(self.random.random() * 0.5)
        while time.time() < self.until and not self.draining:
            kind = self.random.choices(list(KINDS), KINDS.values())[0]
            try:
                await asyncio.wait_for(self.one(kind), 180)
            except asyncio.TimeoutError:
                self.fault(kind, "no end within 180 s")
            except (ConnectionError, OSError) as e:
                if not self.draining and kind not in ("slow headers", "stall", "oversize"):
                    self.fault(kind, f"{type(e).__name__} {e}")


def probe_health(port, seconds, out):
    """Latencies of /health in milliseconds, on one connection."""
    times = []
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    until = time.time() + seconds
    with socket.create_connection(("127.0.0.1", port)) as s:
        while time.time() < until:
            start = time.perf_counter()
            s.sendall(request)
            data = b""
            while b"\r\n\r\n" not in data:
                data += s.recv(4096)
            times.append((time.perf_counter() - start) * 1e3)
            time.sleep(0.02)
    out.put(times)


async def watch_memory(storm, samples):
    start = time.time()
    while time.time() < storm.until and not storm.draining:
        await asyncio.sleep(1)
        samples.append((time.time() - start, storm.server.rss_kib()))


async def terminate_later(storm, seconds):
    await asyncio.sleep(seconds)
    storm.draining = True
    storm.server.process.send_signal(signal.SIGTERM)


async def run(storm, streams, term):
    samples = []
    jobs = [storm.client(i) for i in range(streams)]
    if term:
        jobs.append(terminate_later(storm, term))
    else:
        jobs.append(watch_memory(storm, samples))
    await asyncio.gather(*jobs)
    return samples


def check_after(storm, samples, report):
    server = storm.server
    for name in ("num_requests_running", "num_requests_waiting", "kv_blocks_used"):
        server.until_metric(name, 0, 30)
    bad = {k: v for k, v in server.metrics().items() if 'status_code="5' in k}
    if bad:
        storm.fault("server", f"answered {bad}")
    settled = [kib for t, kib in samples if t >= 10]
    if len(settled) > 1:
        report["rss_kib_after_10s"], report["rss_kib_end"] = settled[0], settled[-1]
        report["rss_growth_percent"] = round(100 * (settled[-1] / settled[0] - 1), 2)


def touch_cache(server):
    """Fill the KV cache once, with prompts that share nothing: its pages count as memory only when written."""
    blocks = int(server.metric("kv_blocks"))
    for i in range(0, blocks, 60 * 4):
        prompts = [[(i + k) % 4000 + 1] + [7 + k] * 959 for k in range(0, 240, 60)]
        status, answer = server.post("/v1/completions", {"prompt": prompts, "max_tokens": 1, "temperature": 0})
        if status != 200:
            raise RuntimeError(f"touching the cache: {answer}")


def storm_main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--term", type=float, default=0, help="send SIGTERM after so many seconds")
    parser.add_argument("--health-ms", type=float, default=20, help="bound of the p99 of /health; 0: report only")
    parser.add_argument("--rss-percent", type=float, default=5, help="bound of the growth; 0: report only")
    a = parser.parse_args(arguments)
    server = Server("--max-body", "256K", "--header-timeout", "5", "--stream-stall", "3", "--max-num-seqs", "512",
                    "--max-num-batched-tokens", "1024", "--kv-cache-memory", "192M", "--drain", "120",
                    "--no-access-log")
    if a.rss_percent and not a.term:
        touch_cache(server)
    storm = Storm(server, a.seconds, a.seed)
    queue = multiprocessing.Queue()
    probe = multiprocessing.Process(target=probe_health, args=(server.port, a.seconds, queue), daemon=True)
    if not a.term:
        probe.start()
    samples = asyncio.run(run(storm, a.streams, a.term))
    report = {"streams": a.streams, "seconds": a.seconds, "done": dict(storm.done), "chunks": storm.chunks,
              "most_streams_at_once": storm.most_streams}
    if a.term:
        code = server.process.wait(150)
        if code != 0:
            storm.fault("drain", f"exit status {code}")
    else:
        health = sorted(queue.get(timeout=60))
        report["health_ms"] = {p: round(health[min(len(health) - 1, int(len(health) * p / 100))], 2)
                               for p in (50, 90, 99, 100)}
        check_after(storm, samples, report)
        if a.health_ms and report["health_ms"][99] > a.health_ms:
            storm.fault("health", f"p99 {report['health_ms'][99]} ms, bound {a.health_ms} ms")
        if a.rss_percent and report.get("rss_growth_percent", 0) > a.rss_percent:
            storm.fault("memory", f"grew by {report['rss_growth_percent']} %")
        if server.stop() != 0:
            storm.fault("server", "did not stop cleanly")
    report["faults"] = len(storm.faults)
    print(json.dumps(report, indent=1))
    for text, n in collections.Counter(storm.faults).most_common(20):
        print(f"FAULT {n} x {text}")
    if storm.faults:
        print(server.text()[-3000:])
    return 1 if storm.faults else 0


if __name__ == "__main__":
    sys.exit(storm_main())
