#!/usr/bin/env python3
"""What clients of a running server notice of new weights: the phases of each update as the server tells them, the
longest time that a live stream waited for its next token, and beside them how large the files are and how fast the
disk reads them. Python's standard library only.

    bench/update.py [--nybble build/release/nybble] [--to DIR] [--streams 32] [--repeat 5] [--json] FOLDER [SERVE'S OPTIONS]

Updates go to --to (FOLDER again where it is left out) and back in turn. A stream that ends is begun anew, so that
--streams are live all the time. Everything after FOLDER goes to nybble serve: --update-threads 4, --tensor-parallel-size 2.
"""
import argparse
import http.client
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time

PROMPT = "Once upon a time there was"
QUIET_S = 3.0
DISK_BYTES = 2 << 30  # most that is read to find out how fast the disk is
BLOCK = 4 << 20


class Server:
    def __init__(self, nybble, folders, options):
        self.log = tempfile.TemporaryFile(mode="w+")
        command = [nybble, "serve", "--port", "0", "--weights-root", os.path.commonpath(folders)]
        self.process = subprocess.Popen(command + options + [folders[0]], stdout=subprocess.DEVNULL, stderr=self.log)
        self.port = None
        while self.port is None:
            if self.process.poll() is not None:
                sys.exit("the server did not start:\n" + self.text())
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.text())
            self.port = int(found.group(1)) if found else None
            time.sleep(0.02)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        reply = json.loads(response.read())
        connection.close()
        if response.status != 200:
            sys.exit(f"{path}: {response.status}: {reply}")
        return reply

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


class Streams:
    """n answers under way in one thread. Every event but the last of an answer is a token."""

    def __init__(self, server, n, tokens):
        self.server, self.tokens = server, tokens
        self.selector = selectors.DefaultSelector()
        self.lock = threading.Lock()
        self.count, self.longest, self.running = 0, 0.0, True
        for i in range(n):
            self.begin(i)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def begin(self, i):
        body = json.dumps({"prompt": f"{i} {PROMPT}", "max_tokens": self.tokens, "ignore_eos": True, "temperature": 0,
                           "stream": True}).encode()
        sock = socket.create_connection(("127.0.0.1", self.server.port))
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        sock.setblocking(False)
        self.selector.register(sock, selectors.EVENT_READ, [i, None])

    def read(self, key):
        try:
            data = key.fileobj.recv(1 << 16)
        except BlockingIOError:
            return
        now, n = time.monotonic(), data.count(b'data: {')
        if n:
            before, key.data[1] = key.data[1], now
            with self.lock:
                self.count += n
                if before is not None:
                    self.longest = max(self.longest, now - before)
        if not data:
            self.selector.unregister(key.fileobj)
            key.fileobj.close()
            self.begin(key.data[0])

    def run(self):
        while self.running:
            for key, _ in self.selector.select(0.1):
                self.read(key)

    def take(self):
        """(tokens, longest gap) since the last call. A gap counts for where it ends."""
        with self.lock:
            taken = self.count, self.longest
            self.count, self.longest = 0, 0.0
        return taken

    def until(self, n):
        while self.count < n:
            time.sleep(0.01)

    def stop(self):
        self.running = False
        self.thread.join()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()


def files_of(folder):
    return [os.path.join(folder, f) for f in sorted(os.listdir(folder)) if f.endswith(".safetensors")]


def disk_speed(paths):
    """Bytes a second of reading the files from start to end, which the kernel is asked to forget first."""
    done, begin = 0, time.monotonic()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        while done < DISK_BYTES and (n := len(os.read(fd, BLOCK))):
            done += n
        os.close(fd)
    return done / (time.monotonic() - begin)


def measure(server, streams, folder, fields):
    streams.take()
    begin = time.monotonic()
    reply = server.post("/update_weights_from_disk", {"model_path": folder, **fields})
    took = time.monotonic() - begin
    streams.until(1)  # the first token after it ends the gap
    time.sleep(0.25)
    tokens, gap = streams.take()
    return {"total_ms": 1e3 * took, "tokens_per_s": tokens / (time.monotonic() - begin), "longest_gap_ms": 1e3 * gap,
            "staged": reply["changed"]["staged"], "read_bytes": reply["changed"]["read_bytes"],
            "in_flight": reply["num_paused_requests"],
            **{name + "_ms": 1e3 * s for name, s in reply["seconds"].items()}}


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip(), add_help=True)
    parser.add_argument("--nybble", default=os.path.join(os.path.dirname(__file__), "..", "build", "release", "nybble"))
    parser.add_argument("--to")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=900)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--staging", default="on", choices=("auto", "on", "off"))
    parser.add_argument("--in-flight", default="continue", choices=("finish", "retract", "continue"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("folder")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    o = parser.parse_args()
    folders = [os.path.realpath(o.folder), os.path.realpath(o.to or o.folder)]
    size, disk = sum(os.path.getsize(f) for f in files_of(folders[1])), disk_speed(files_of(folders[1]))
    server = Server(o.nybble, folders, ["--max-num-seqs", str(max(o.streams, 1))] + o.options)
    streams = Streams(server, o.streams, o.tokens)
    streams.until(2 * o.streams)
    streams.take()
    time.sleep(QUIET_S)
    quiet = streams.take()
    updates = [measure(server, streams, folders[(i + 1) % 2], {"staging": o.staging, "in_flight": o.in_flight})
               for i in range(o.repeat)]
    streams.stop()
    server.stop()
    if o.json:
        print(json.dumps({"folder": folders[0], "to": folders[1], "file_bytes": size, "disk_bytes_per_s": disk,
                          "streams": o.streams, "tokens_per_s": quiet[0] / QUIET_S, "longest_gap_ms": 1e3 * quiet[1],
                          "updates": updates}, indent=1))
        return
    print(f"{folders[1]}: {size / 1e6:.1f} MB of files, read from the disk at {disk / 1e9:.2f} GB/s: "
          f"{1e3 * size / disk:.0f} ms")
    print(f"{o.streams} streams undisturbed: {quiet[0] / QUIET_S:.0f} tok/s, longest gap between two tokens of one "
          f"{1e3 * quiet[1]:.1f} ms")
    print(f"{'update':>6} {'prepare':>9} {'stage':>9} {'wait':>8} {'stall':>8} {'in all':>9} {'GB/s':>6} {'tok/s':>7} "
          f"{'longest gap':>12}   ms; in flight: {o.in_flight}")
    for i, u in enumerate(updates):
        reading = u["stage_ms"] if u["staged"] else u["stall_ms"]
        print(f"{i + 1:6} {u['prepare_ms']:9.1f} {u['stage_ms']:9.1f} {u['wait_ms']:8.1f} {u['stall_ms']:8.2f} "
              f"{u['total_ms']:9.1f} {u['read_bytes'] / reading / 1e6:6.2f} {u['tokens_per_s']:7.0f} "
              f"{u['longest_gap_ms']:12.1f}")


if __name__ == "__main__":
    main()
