#!/usr/bin/env python3
"""Two hundred different requests at once, over HTTP, equal the same ones sent alone, one after another: texts, ids,
log-probabilities, finish reasons and usage."""
import json
import os
import random
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server, parse_events  # noqa: E402

COUNT = 200
STARTS = ["Once upon a time there was", "The old king said to his", "In the forest lived a", "A poor miller had three",
          "When the winter came the", "The wolf", "And so the youngest son went out into the world and"]


def make_request(r):
    """(path, body): greedy and seeded, of both APIs, with all that changes what is sampled or shown."""
    chat = r.random() < 0.4
    text = " ".join(r.choice(STARTS) for _ in range(r.choice([1, 1, 2, 5, 20])))
    body = {"max_tokens": r.randint(1, 48), "stream": r.random() < 0.5, "return_token_ids": True}
    if chat:
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt"] = text if r.random() < 0.8 else [text, r.choice(STARTS)]
    if r.random() < 0.4:
        body["temperature"] = 0
    else:
        body.update(temperature=r.choice([0.3, 0.8, 1, 1.5]), seed=r.randint(0, 1 << 40), n=r.choice([1, 1, 1, 2, 4]))
    for name, values in (("top_p", [0.5, 0.9, 0.99]), ("top_k", [1, 5, 50]), ("min_p", [0.05, 0.2]),
                         ("repetition_penalty", [0.8, 1.1, 1.3]), ("presence_penalty", [-1, 0.5, 2]),
                         ("frequency_penalty", [-0.5, 1]), ("min_tokens", [1]), ("ignore_eos", [True]),
                         ("logit_bias", [{"13": 5, "700": -100}]), ("bad_words", [["king"]]),
                         ("bad_words_token_ids", [[263, [700, 701]]]), ("stop", ["the", [".", "wolf"]]),
                         ("stop_token_ids", [[13]]), ("include_stop_str_in_output", [True])):
        if r.random() < 0.25:
            body[name] = r.choice(values)
    if r.random() < 0.3:
        body.update({"logprobs": True, "top_logprobs": r.randint(0, 5)} if chat else {"logprobs": r.randint(0, 5)})
    if r.random() < 0.1:
        body["allowed_token_ids"] = sorted(r.sample(range(3, 4000), 300))
    if not body["stream"] and r.random() < 0.15:
        body["prompt_logprobs"] = 2
    return ("/v1/chat/completions" if chat else "/v1/completions"), body


def collect(events):
    """A stream as what its choices said."""
    choices = {}
    for event in events[:-1]:
        assert "error" not in event, event
        for c in event["choices"]:
            to = choices.setdefault(c["index"], {"text": "", "ids": [], "logprobs": [], "reason": None})
            to["text"] += c["delta"].get("content", "") if "delta" in c else c["text"]
            to["ids"] += c.get("token_ids", [])
            to["logprobs"].append(c["logprobs"])
            to["reason"] = c["finish_reason"]
    return choices


class Mixed(unittest.TestCase):
    def ask(self, path, body):
        status, _, data = self.server.request("POST", path, body, timeout=300)
        if status != 200:
            return status, data
        if body["stream"]:
            events = parse_events(data)
            assert events[-1] == "[DONE]"
            return status, collect(events)
        answer = json.loads(data)
        usage = {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}  # the cache fills up
        return status, (answer["choices"], answer.get("prompt_logprobs"), usage)

    def test_alone_and_together(self):
        self.server = Server("--max-num-seqs", "64", "--max-num-batched-tokens", "128", "--kv-cache-memory", "1300K",
                             "--max-model-len", "320")  # tight: some are preempted
        r = random.Random(20)
        requests = [make_request(r) for _ in range(COUNT)]
        alone = [self.ask(*request) for request in requests]
        together = [None] * COUNT
        start = threading.Barrier(COUNT)

        def one(i):
            start.wait()
            together[i] = self.ask(*requests[i])

        threads = [threading.Thread(target=one, args=(i,)) for i in range(COUNT)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for i in range(COUNT):
            with self.subTest(i=i, request=requests[i]):
                self.assertEqual(alone[i][0], 200, alone[i][1])
                self.assertEqual(together[i], alone[i])
        self.assertGreater(self.server.metric("num_preemptions_total"), 0)
        self.server.until_metric("kv_blocks_used", 0)
        self.assertEqual(self.server.stop(), 0)
        self.server.close()


if __name__ == "__main__":
    unittest.main(verbosity=1, warnings="ignore")
