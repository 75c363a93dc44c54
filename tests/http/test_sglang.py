#!/usr/bin/env python3
"""SGLang's /generate over the wire, beside the completions that mean the same. NYBBLE names the program."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server, parse_events, raw_request, read_until  # noqa: E402

PROMPT = "Once upon a time"


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.ids = cls.server.post("/tokenize", {"prompt": PROMPT})[1]["tokens"]

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.text()
        cls.server.close()

    def ask(self, sampling=None, **fields):
        body = {"sampling_params": {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True, **(sampling or {})}, **fields}
        status, answer = self.server.post("/generate", body if "input_ids" in fields or "text" in fields else {"text": PROMPT, **body})
        self.assertEqual(status, 200, answer)
        return answer

    def complete(self, **fields):
        status, answer = self.server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
                                                              "return_token_ids": True, **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def test_text(self):
        answer, want = self.ask(rid="mine"), self.complete()
        choice, meta = want["choices"][0], answer["meta_info"]
        self.assertEqual((answer["text"], answer["output_ids"]), (choice["text"], choice["token_ids"]))
        self.assertEqual((meta["id"], meta["finish_reason"], meta["weight_version"]), ("mine", {"type": "length", "length": 12}, "default"))
        self.assertEqual((meta["prompt_tokens"], meta["completion_tokens"]), (want["usage"]["prompt_tokens"], 12))
        self.assertEqual(self.ask(input_ids=self.ids)["text"], choice["text"])
        self.assertNotIn("output_token_logprobs", meta)
        whole = self.server.post("/generate", {"text": PROMPT, "sampling_params": {"ignore_eos": True}})[1]
        self.assertEqual(whole["meta_info"]["completion_tokens"], 128)
        self.assertIsInstance(self.server.post("/generate", {"text": PROMPT})[1]["text"], str)

    def test_ends(self):
        word = self.ask()["text"].split()[3]
        answer = self.ask({"stop": [word]})
        self.assertEqual(answer["meta_info"]["finish_reason"], {"type": "stop", "matched": word})
        self.assertFalse(answer["text"].endswith(word))
        self.assertTrue(self.ask({"stop": word, "no_stop_trim": True})["text"].endswith(word))
        third = self.ask()["output_ids"][2]
        self.assertEqual(self.ask({"stop_token_ids": [third]})["meta_info"]["finish_reason"], {"type": "stop", "matched": third})
        over = self.ask({"regex": "[ab]{3}", "ignore_eos": False})
        self.assertRegex(over["text"], "^[ab]{3}$")
        self.assertEqual(over["meta_info"]["finish_reason"], {"type": "stop", "matched": over["output_ids"][-1]})

    def test_lists(self):
        several = self.ask(text=[PROMPT, "The king"])
        self.assertEqual([a["text"] for a in several], [self.ask(text=t)["text"] for t in (PROMPT, "The king")])
        one, = self.ask(text=[PROMPT])
        self.assertEqual(one["text"], several[0]["text"])
        self.assertEqual([a["text"] for a in self.ask(input_ids=[self.ids, self.ids])], [one["text"]] * 2)
        ask = {"n": 3, "temperature": 1, "sampling_seed": 5}
        want = self.complete(n=3, temperature=1, seed=5)
        self.assertEqual([a["text"] for a in self.ask(ask)], [c["text"] for c in want["choices"]])

    def test_logprobs(self):
        answer = self.ask(return_logprob=True, top_logprobs_num=2, logprob_start_len=0, return_text_in_logprobs=True)
        meta, choice = answer["meta_info"], self.complete(logprobs=2, prompt_logprobs=2)["choices"][0]
        self.assertEqual([e[0] for e in meta["output_token_logprobs"]], choice["logprobs"]["token_logprobs"])
        self.assertEqual([e[1] for e in meta["output_token_logprobs"]], answer["output_ids"])
        self.assertEqual([e[2] for e in meta["output_token_logprobs"]], choice["logprobs"]["tokens"])
        self.assertEqual([len(e) for e in meta["output_top_logprobs"]], [2] * 12)
        self.assertEqual(meta["output_top_logprobs"][0][0], meta["output_token_logprobs"][0])  # greedy: the most likely one
        self.assertEqual([e[1] for e in meta["input_token_logprobs"]], self.ids)
        self.assertIsNone(meta["input_token_logprobs"][0][0])
        self.assertIsNone(meta["input_top_logprobs"][0])
        for entry, listed in zip(meta["input_token_logprobs"][1:], choice["prompt_logprobs"][1:]):
            self.assertEqual(entry[0], listed[str(entry[1])]["logprob"])
        later = self.ask(return_logprob=True, logprob_start_len=2)["meta_info"]
        self.assertEqual(later["input_token_logprobs"], [[e[0], e[1], None] for e in meta["input_token_logprobs"][2:]])
        self.assertNotIn("output_top_logprobs", later)
        self.assertEqual(self.ask(return_logprob=True)["meta_info"]["input_token_logprobs"], [])
        scored = self.ask({"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0)
        self.assertEqual((scored["text"], scored["output_ids"], scored["meta_info"]["completion_tokens"]), ("", [], 0))
        self.assertEqual([e[:2] for e in scored["meta_info"]["input_token_logprobs"]], [e[:2] for e in meta["input_token_logprobs"]])

    def test_streams(self):
        for fields in ({}, {"text": [PROMPT, "The king"]}):
            whole = self.ask(**fields)
            whole = whole if isinstance(whole, list) else [whole]
            body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}, "stream": True, **fields}
            events = parse_events(self.server.request("POST", "/generate", body)[2])
            self.assertEqual(events.pop(), "[DONE]")
            last = [""] * len(whole)
            for e in events:
                i = e.get("index", 0)
                self.assertTrue(e["text"].startswith(last[i]))
                last[i] = e["text"]
                done = e["meta_info"]["finish_reason"] is not None
                self.assertEqual("output_ids" in e, done)
                if done:
                    self.assertEqual((e["text"], e["output_ids"]), (whole[i]["text"], whole[i]["output_ids"]))
            self.assertEqual(last, [w["text"] for w in whole])
            self.assertEqual(len(events), 12 * len(whole))

    def test_only_sampling_parameters_are_some(self):
        """What the request says of its prompt and its answer is not said again among them."""
        more = {"prompt": "The king", "stream": True, "logprobs": 2, "prompt_logprobs": 2, "echo": True, "return_token_ids": False,
                "model": "x", "rid": "other", "stream_options": {}}
        want, got = self.ask(rid="mine", return_logprob=True), self.ask(more, rid="mine", return_logprob=True)
        for answer in (want, got):
            del answer["meta_info"]["e2e_latency"], answer["meta_info"]["cached_tokens"]
        self.assertEqual(got, want)

    def test_aborted(self):
        with self.server.socket() as s:
            s.sendall(raw_request("/generate", {"text": PROMPT, "rid": "gone", "sampling_params": {"max_new_tokens": 900, "ignore_eos": True}},
                                  Connection="close"))
            self.server.until_metric("num_requests_running", 1)
            self.assertEqual(self.server.post("/abort_request", {"rid": "gone"})[0], 200)
            self.assertIn(b'"type":"abort"', read_until(s, b'"type":"abort"'))
        self.server.until_metric("num_requests_running", 0)

    def test_refused(self):
        table = [({"text": None}, "text"), ({"text": 5}, "text"), ({"input_ids": self.ids}, "input_ids"),
                 ({"text": None, "input_ids": 5}, "input_ids"), ({"text": None, "input_ids": [10**6]}, "text"), ({"text": []}, "text"),
                 ({"sampling_params": [{}]}, "sampling_params"), ({"sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
                 ({"sampling_params": {"top_p": 9}}, "top_p"), ({"sampling_params": {"sampling_seed": "x"}}, "sampling_seed"),
                 ({"sampling_params": {"regex": "("}}, "regex"), ({"top_logprobs_num": 99, "return_logprob": True}, "top_logprobs_num"),
                 ({"image_data": ["x"]}, "image_data"), ({"input_embeds": [[1]]}, "input_embeds"), ({"lora_path": "x"}, "lora_path"),
                 ({"token_ids_logprob": [1]}, "token_ids_logprob"), ({"return_hidden_states": True}, "return_hidden_states"),
                 ({"return_logprob": True, "stream": True}, "return_logprob"), ({"text": "x " * 3000}, "text")]
        for fields, param in table:
            with self.subTest(str(fields)[:80]):
                status, answer = self.server.post("/generate", {"text": PROMPT, **fields})
                self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
        status, answer = self.server.post("/generate", {"text": PROMPT, "rid": "a b"})
        self.assertEqual((status, answer["error"]["param"]), (400, "rid"))
        self.assertEqual(self.ask(image_data=[], lora_path=None, token_ids_logprob=None, log_metrics=True)["text"], self.ask()["text"])


if __name__ == "__main__":
    unittest.main()
