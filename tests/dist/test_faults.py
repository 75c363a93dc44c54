#!/usr/bin/env python3
"""Ranks of one machine that are killed, stopped, told to drain or interrupted, under streams."""
import json
import os
import random
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.environ["SOURCE"], "tests", "http"))
from harness import Server, in_background, parse_events  # noqa: E402

PROMPTS = ["Once upon a time", "The dog was", "One day a girl", "There was a big red"]
TIMEOUT_S = 3  # of a rank that is silent
LIMIT_S = 10   # until everything has ended
DRAIN_S = 150


def body(prompt, tokens):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def start(ranks):
    # A drain waits for as long as a busy machine may need for what runs.
    return Server("--tensor-parallel-size", str(ranks), "--rank-timeout", str(TIMEOUT_S), "--threads", "1",
                  "--drain", str(DRAIN_S))


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(word) for word in f.read().split()]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(what, seconds, message):
    end = time.time() + seconds
    while not what():
        assert time.time() < end, message
        time.sleep(0.02)


class Streams:
    """Greedy streams in the background, in rounds until the server is gone; what each has brought."""

    def __init__(self, server):
        self.server = server
        self.received = [b""] * len(PROMPTS)
        self.threads = [in_background(self.read, i) for i in range(len(PROMPTS))]

    def read(self, i):
        data = json.dumps({**body(PROMPTS[i], 900), "stream": True}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n").encode()
        try:
            with self.server.socket(60) as sock:
                sock.sendall(head + data)
                while piece := sock.recv(65536):
                    self.received[i] += piece
        except OSError:
            pass

    def running(self):
        return all(b"data: " in r for r in self.received)

    def join(self):
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive(), "a stream hangs"

    def texts_and_errors(self):
        for r in self.received:
            pieces = re.findall(rb"data: (\{.*?\})\r?\n", r)
            events = [json.loads(p) for p in pieces]
            yield ("".join(e["choices"][0]["text"] for e in events if "choices" in e and e["choices"]),
                   sum("error" in e for e in events))


def lose_a_rank(ranks, victim, number, wanted):
    """A rank is gone or stopped while streams run: all of them end, with one message each."""
    server = start(ranks)
    followers = children(server.process.pid)
    assert len(followers) == ranks - 1, followers
    pids = [server.process.pid, *followers]
    streams = Streams(server)
    until(streams.running, 30, "the streams do not run")
    time.sleep(random.random() * 0.3)
    begin = time.time()
    os.kill(pids[victim], number)
    others = [p for p in pids if p != pids[victim]]
    until(lambda: not any(alive(p) for p in others), LIMIT_S, f"ranks {others} still run\n{server.text()}")
    took = time.time() - begin
    if number == signal.SIGSTOP and alive(pids[victim]):  # only rank 0 can be left so: nobody may end it but its starter
        assert victim == 0, "a stopped rank was left behind"
        os.kill(pids[0], signal.SIGKILL)
    code = server.process.wait(5)
    assert code != 0, code
    streams.join()
    said = re.findall(r"rank (\d+) of \d+ stops: (.*)", server.text())
    assert len(said) == ranks - 1, server.text()
    assert sorted(int(r) for r, _ in said) == [r for r in range(ranks) if r != victim], said
    assert len({why for _, why in said}) == 1, said
    assert re.match(rf"rank {victim} \(process {pids[victim]}\) has|rank {victim} has", said[0][1]), said
    for (text, errors), prompt in zip(streams.texts_and_errors(), PROMPTS):
        assert wanted[prompt].startswith(text), (prompt, text)  # no wrong token before the end
        assert victim == 0 or errors == 1, (prompt, errors, text)
    server.close()
    print(f"{ranks} ranks, {signal.Signals(number).name} of rank {victim}: all ended after {took:.1f} s", flush=True)


def answers(server, tokens=900):
    def answer(prompt):
        return server.post("/v1/completions", body(prompt, tokens))[1]["choices"][0]["text"]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        return dict(zip(PROMPTS, threads.map(answer, PROMPTS)))


def drain(ranks, number, all_ranks, wanted):
    """Told to end, all of them as by Ctrl-C on a terminal, or rank 0 alone: running streams are finished, and all processes leave in good order."""
    server = start(ranks)
    followers = children(server.process.pid)
    streams = Streams(server)
    until(streams.running, 30, "the streams do not run")
    for pid in [server.process.pid, *followers] if all_ranks else [server.process.pid]:
        os.kill(pid, number)
    code = server.process.wait(DRAIN_S)
    streams.join()
    assert code == 0, (code, server.text())
    until(lambda: not any(alive(p) for p in followers), 5, f"ranks {followers} are left")
    assert " stops: " not in server.text(), server.text()
    for (text, errors), prompt in zip(streams.texts_and_errors(), PROMPTS):
        assert errors == 0 and text == wanted[prompt], (prompt, errors, text)
    server.close()
    print(f"{ranks} ranks, {signal.Signals(number).name} to {'all' if all_ranks else 'rank 0'}: drained", flush=True)


def main():
    seed = int(os.environ.get("SEED", time.time()))
    print(f"SEED={seed}")
    random.seed(seed)
    for ranks in (3, 2):
        server = start(ranks)
        wanted = answers(server)
        assert server.stop() == 0
        server.close()
        for victim in range(ranks):
            lose_a_rank(ranks, victim, signal.SIGKILL, wanted)
        lose_a_rank(ranks, ranks - 1, signal.SIGSTOP, wanted)
        server = start(ranks)  # and it starts again, with the same answers
        assert all(text and wanted[prompt].startswith(text) for prompt, text in answers(server, 200).items())
        assert server.stop() == 0
        server.close()
        print(f"{ranks} ranks: the same answers after a restart", flush=True)
    lose_a_rank(2, 0, signal.SIGSTOP, wanted)
    drain(2, signal.SIGTERM, False, wanted)
    drain(2, signal.SIGINT, True, wanted)


if __name__ == "__main__":
    main()
