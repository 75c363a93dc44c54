"""The server from outside: shapes, errors, limits, disconnects, drain. NYBBLE names the program."""
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import SLOW, Server, in_background, parse_events, raw_request, read_until  # noqa: E402

PROMPT = "Once upon a time there was"
GREEDY = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0}
LONG = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "temperature": 0}


class WithServer(unittest.TestCase):
    options = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.options)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.text())
        cls.server.close()

    def complete(self, **fields):
        status, answer = self.server.post("/v1/completions", {**GREEDY, **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def chat(self, **fields):
        status, answer = self.server.post("/v1/chat/completions", {**CHAT, **fields})
        self.assertEqual(status, 200, answer)
        return answer

    def refused(self, path, body, status, param=None, text=None, **more):
        got, answer = self.server.post(path, body, **more)
        self.assertEqual(got, status, answer)
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        too_long = "maximum context length" in error["message"]
        self.assertEqual(error["code"], "context_length_exceeded" if too_long else status)
        if param:
            self.assertEqual(error["param"], param, error)
        if text:
            self.assertIn(text, error["message"])
        return error


class Shapes(WithServer):
    def test_completion(self):
        answer = self.complete()
        self.assertEqual(answer["object"], "text_completion")
        self.assertTrue(answer["id"].startswith("cmpl-"))
        self.assertEqual(answer["model"], "tales-24m-moe-nvfp4")
        choice = answer["choices"][0]
        self.assertEqual(choice["finish_reason"], "length")
        self.assertTrue(choice["text"])
        usage = answer["usage"]
        self.assertEqual(usage["completion_tokens"], 12)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 12)

    def test_prompt_forms_agree(self):
        text = self.complete()["choices"][0]["text"]
        _, tokens = self.server.post("/tokenize", {"prompt": PROMPT})
        ids = tokens["tokens"]
        self.assertEqual(tokens["count"], len(ids))
        self.assertEqual(self.complete(prompt=ids)["choices"][0]["text"], text)
        self.assertEqual(self.complete(prompt_token_ids=ids)["choices"][0]["text"], text)
        several = self.complete(prompt=[PROMPT, PROMPT])
        self.assertEqual([c["text"] for c in several["choices"]], [text, text])
        self.assertEqual([c["index"] for c in several["choices"]], [0, 1])
        self.assertEqual(self.complete(prompt=[ids])["choices"][0]["text"], text)
        _, back = self.server.post("/detokenize", {"tokens": ids})
        self.assertEqual(back["prompt"], PROMPT)

    def test_stream_equals_whole(self):
        whole = self.complete()["choices"][0]
        events = self.server.stream("/v1/completions", GREEDY)
        self.assertEqual(events[-1], "[DONE]")
        chunks = [e["choices"][0] for e in events[:-1]]
        self.assertEqual("".join(c["text"] for c in chunks), whole["text"])
        self.assertEqual([c["finish_reason"] for c in chunks[:-1]], [None] * (len(chunks) - 1))
        self.assertEqual(chunks[-1]["finish_reason"], "length")
        arrivals = [c["arrival_time"] for c in chunks]
        self.assertEqual(arrivals, sorted(arrivals))

    def test_chat_stream(self):
        whole = self.chat()["choices"][0]["message"]
        self.assertEqual(whole["role"], "assistant")
        events = self.server.stream("/v1/chat/completions", CHAT)
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(events[0]["object"], "chat.completion.chunk")
        text = "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1])
        self.assertEqual(text, whole["content"])

    def test_usage_chunks(self):
        options = {"include_usage": True, "continuous_usage_stats": True}
        events = self.server.stream("/v1/chat/completions", {**CHAT, "stream_options": options})
        last = events[-2]
        self.assertEqual(last["choices"], [])
        self.assertEqual(last["usage"]["completion_tokens"], 12)
        counts = [e["usage"]["completion_tokens"] for e in events[:-1]]
        self.assertEqual(counts, sorted(counts))
        plain = self.server.stream("/v1/chat/completions", CHAT)
        self.assertTrue(all("usage" not in e for e in plain[:-1]))

    def test_cached_tokens(self):
        prompt = "In the beginning of the old tale, " * 8
        self.complete(prompt=prompt)
        again = self.complete(prompt=prompt)
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_n_and_seed(self):
        fields = dict(temperature=1, seed=7, n=3)
        three = self.complete(**fields)
        self.assertEqual(len(three["choices"]), 3)
        self.assertEqual(three, {**self.complete(**fields), "id": three["id"], "created": three["created"],
                                 "usage": three["usage"]})
        alone = self.complete(temperature=1, seed=8)["choices"][0]["text"]
        self.assertEqual(three["choices"][1]["text"], alone)
        events = self.server.stream("/v1/chat/completions", {**CHAT, **fields})
        indices = {e["choices"][0]["index"] for e in events[:-1]}
        self.assertEqual(indices, {0, 1, 2})

    def test_tokens_in_company(self):
        """Greedy and seeded answers are the same alone and together with forty others."""
        bodies = [{"prompt": PROMPT[:5 + i % 20], "max_tokens": 8 + i % 17, "ignore_eos": True,
                   **({"temperature": 0} if i % 2 else {"temperature": 0.9, "seed": i})} for i in range(40)]

        def ask(body, out, i):
            out[i] = self.server.post("/v1/completions", body)[1]["choices"][0]["text"]

        together, alone = {}, {}
        for thread in [in_background(ask, body, together, i) for i, body in enumerate(bodies)]:
            thread.join(60)
        for i, body in enumerate(bodies):
            ask(body, alone, i)
        self.assertEqual(together, alone)

    def test_stop(self):
        text = self.complete()["choices"][0]["text"]
        word = text.split()[3]
        choice = self.complete(stop=[word])["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(choice["stop_reason"], word)
        self.assertEqual(choice["text"], text[:text.index(word)])
        kept = self.complete(stop=word, include_stop_str_in_output=True)["choices"][0]["text"]
        self.assertTrue(kept.endswith(word))

    def test_stop_token(self):
        ids = self.complete(return_token_ids=True)["choices"][0]["token_ids"]
        self.assertEqual(len(ids), 12)
        choice = self.complete(stop_token_ids=[ids[4]])["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", ids[4]))

    def test_completion_logprobs(self):
        answer = self.complete(logprobs=2)["choices"][0]["logprobs"]
        self.assertEqual({len(answer[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}, {12})
        self.assertTrue(all(x <= 0 for x in answer["token_logprobs"]))
        self.assertEqual(answer["top_logprobs"][0][answer["tokens"][0]], answer["token_logprobs"][0])

    def test_echo(self):
        plain = self.complete()["choices"][0]["text"]
        self.assertEqual(self.complete(echo=True)["choices"][0]["text"], PROMPT + plain)
        scored = self.complete(echo=True, logprobs=1, max_tokens=0)
        self.assertEqual(scored["choices"][0]["text"], PROMPT)
        logprobs = scored["choices"][0]["logprobs"]
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertEqual("".join(logprobs["tokens"]), PROMPT)
        self.assertEqual(scored["usage"]["completion_tokens"], 0)

    def test_echo_with_logprobs_in_a_stream(self):
        """The prompt and its scores come with the first token, and all chunks together are the answer without stream."""
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        for more in ({}, {"max_tokens": 0}, {"max_tokens": 1}, {"n": 2, "temperature": 1, "seed": 5},
                     {"prompt": [PROMPT, "The queen of"]}, {"return_tokens_as_token_ids": True},
                     {"prompt": "\U0001f642 K\u00f6nigin"}, {"stop": ["a"]}, {"max_streaming_response_tokens": 4}):
            with self.subTest(more):
                body = {"echo": True, "logprobs": 2, **more}
                whole = self.complete(**body)["choices"]
                text, scores = [""] * len(whole), [{name: [] for name in names} for _ in whole]
                for event in self.server.stream("/v1/completions", {**GREEDY, **body})[:-1]:
                    choice = event["choices"][0]
                    text[choice["index"]] += choice["text"]
                    for name in names:
                        scores[choice["index"]][name] += (choice["logprobs"] or {}).get(name, [])
                self.assertEqual(text, [c["text"] for c in whole])
                self.assertEqual(scores, [c["logprobs"] for c in whole])

    def test_prompt_logprobs(self):
        answer = self.complete(prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
        self.assertIsNone(answer[0])
        for entry in answer[1:]:
            self.assertTrue(all(v["logprob"] <= 0 and v["rank"] >= 1 for v in entry.values()))

    def longest_health_beside(self, body):
        thread = in_background(self.server.request, "POST", "/v1/completions", body)
        longest = 0
        while thread.is_alive():
            start = time.time()
            self.assertEqual(self.server.request("GET", "/health")[0], 200)
            longest = max(longest, time.time() - start)
            time.sleep(0.005)
        return longest

    def test_long_prompt_logprobs(self):
        """Thousands of them are written in parts: nothing is lost between them, and nobody waits for all."""
        prompts = ["word " * 900, "the king " * 300, "a"]
        body = {"prompt": prompts, "logprobs": 20, "prompt_logprobs": 20, "echo": True, "n": 2, "temperature": 1, "seed": 3}
        choices = self.complete(**body)["choices"]
        self.assertEqual(len(choices), 6)
        for i, choice in enumerate(choices):
            scores, listed = choice["logprobs"], choice["prompt_logprobs"]
            self.assertTrue("".join(scores["tokens"]).startswith(prompts[i // 2]))
            self.assertIsNone(listed[0])
            for score, entry in zip(scores["token_logprobs"][1:], listed[1:]):
                self.assertIn(score, [v["logprob"] for v in entry.values()])
            self.assertEqual({len(v) for v in scores.values()}, {len(listed) + 12})
        del body["prompt_logprobs"]
        tokens = [[] for _ in choices]
        for event in self.server.stream("/v1/completions", {**GREEDY, **body})[:-1]:
            choice = event["choices"][0]
            tokens[choice["index"]] += zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"])
        self.assertEqual(tokens, [list(zip(c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"])) for c in choices])
        messages = [{"role": "user", "content": "the queen " * 400}]
        listed = self.chat(messages=messages, prompt_logprobs=5)["prompt_logprobs"]
        self.assertEqual(len(listed), self.chat(messages=messages)["usage"]["prompt_tokens"])
        # beside a million of them; others on this machine may hold a try up, a loop that is held holds all of them
        body = {"prompt": ["word " * 1000] * 48, "max_tokens": 1, "prompt_logprobs": 20}
        self.assertTrue(any(self.longest_health_beside(body) < 0.3 * SLOW for _ in range(3)), "the loop was held")

    def test_too_many_logprobs(self):
        """Those of prompts are counted before any work, those of an answer as they come."""
        prompts = ["word " * 1000] * 40
        for body, name in (({"prompt_logprobs": 20, "n": 3, "temperature": 1}, "prompt_logprobs"),
                           ({"echo": True, "logprobs": 20, "n": 3, "temperature": 1, "stream": True}, "logprobs")):
            status, answer = self.server.post("/v1/completions", {"prompt": prompts, "max_tokens": 1, **body})
            self.assertEqual((status, answer["error"]["param"]), (400, name), answer)
            self.assertIn("an answer may have 2097152", answer["error"]["message"])
        messages = [{"role": "user", "content": "the queen " * 400}]
        listed = self.chat(messages=messages, prompt_logprobs=20, n=300, temperature=1, max_tokens=1)  # once, not 300 times
        self.assertEqual((len(listed["choices"]), len(listed["prompt_logprobs"]) > 800), (300, True))
        server = Server("--max-logprobs", "1000")
        body = {"prompt": "Once", "max_tokens": 600, "ignore_eos": True, "logprobs": 1000, "n": 4, "seed": 1}
        status, answer = server.post("/v1/completions", body)
        self.assertEqual((status, answer["error"]["param"]), (400, "logprobs"), str(answer)[:500])
        self.assertIn("more than 2097152", answer["error"]["message"])
        server.until_metric("num_requests_running", 0)
        server.until_metric("kv_blocks_used", 0)
        self.assertEqual(server.stop(), 0)
        server.close()

    def test_chat_logprobs(self):
        content = self.chat(logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 12)
        for token in content:
            self.assertEqual(bytes(token["bytes"]).decode(), token["token"])
            self.assertEqual(len(token["top_logprobs"]), 3)
        events = self.server.stream("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 3})
        pieces = [t for e in events[:-1] if e["choices"][0]["logprobs"] for t in e["choices"][0]["logprobs"]["content"]]
        self.assertEqual(pieces, content)

    def test_bytes_of_parts_of_characters(self):
        """Where a character is several tokens, their bytes are put together by the client."""
        _, ids = self.server.post("/tokenize", {"prompt": "naïve 日本語 😀", "add_special_tokens": False})
        choice = self.chat(allowed_token_ids=ids["tokens"], temperature=2, seed=1, max_tokens=60, ignore_eos=True,
                           logprobs=True, top_logprobs=1)["choices"][0]
        tokens = choice["logprobs"]["content"]
        self.assertIn("\ufffd", "".join(t["token"] for t in tokens))
        whole = bytes(b for t in tokens for b in t["bytes"])
        self.assertEqual(whole.decode("utf-8", "replace"), choice["message"]["content"])
        self.assertTrue(any(len(t["bytes"]) == 1 and t["bytes"][0] >= 0x80 for t in tokens))

    def test_chat_content_parts(self):
        parts = [{"type": "text", "text": PROMPT}]
        a = self.chat(messages=[{"role": "user", "content": parts}])["choices"]
        self.assertEqual(a, self.chat()["choices"])

    def test_fastdeploy_extras(self):
        merged = self.complete(max_tokens=None, metadata={"min_tokens": 3, "max_tokens": 5})
        self.assertEqual(merged["usage"]["completion_tokens"], 5)
        events = self.server.stream("/v1/chat/completions",
                                    {**CHAT, "collect_metrics": True, "return_token_ids": True})
        self.assertIn("first_token_time", events[1]["metrics"])
        ids = [i for e in events[1:-1] for i in e["choices"][0]["delta"]["completion_token_ids"]]
        self.assertEqual(len(ids), 12)
        self.assertTrue(events[0]["prompt_token_ids"])

    def test_request_ids(self):
        status, headers, data = self.server.request("POST", "/v1/completions", GREEDY, {"X-Request-Id": "my-id.1"})
        self.assertEqual((status, headers["x-request-id"]), (200, "my-id.1"))
        self.assertEqual(json.loads(data)["id"], "cmpl-my-id.1")

    def test_information(self):
        for path in ("/health", "/ping", "/ready"):
            self.assertEqual(self.server.request("GET", path)[0], 200)
        models = json.loads(self.server.request("GET", "/v1/models")[2])
        card = models["data"][0]
        self.assertEqual(card["max_model_len"], 1024)
        self.assertEqual(json.loads(self.server.request("GET", "/v1/models/" + card["id"])[2]), card)
        self.assertEqual(self.server.request("GET", "/v1/models/other")[0], 404)
        self.assertIn("version", json.loads(self.server.request("GET", "/version")[2]))
        self.assertEqual(json.loads(self.server.request("GET", "/load")[2]), {"server_load": 0})
        self.assertEqual(self.server.request("HEAD", "/health")[0], 200)

    def test_keep_alive_after_stream(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        for _ in range(3):
            connection.request("POST", "/v1/completions", json.dumps({**GREEDY, "stream": True}),
                               {"Content-Type": "application/json"})
            self.assertEqual(parse_events(connection.getresponse().read())[-1], "[DONE]")
        connection.close()

    def test_metrics_format(self):
        self.complete()
        _, headers, data = self.server.request("GET", "/metrics")
        self.assertTrue(headers["content-type"].startswith("text/plain; version=0.0.4"))
        lines = data.decode().splitlines()
        types = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
        for name in ("num_requests_running", "kv_cache_usage_perc", "generation_tokens_total",
                     "time_to_first_token_seconds", "request_success_total"):
            self.assertIn("nybble:" + name, types)
        values = self.server.metrics()
        name = "nybble:e2e_request_latency_seconds"
        self.assertEqual(values[name + '_bucket{le="+Inf"}'], values[name + "_count"])


class Errors(WithServer):
    """What a client does wrong is answered with 4xx and the parameter's name, never with 500."""

    def test_parameters(self):
        table = [
            ({"temperature": -1}, "temperature"), ({"temperature": 2.5}, "temperature"),
            ({"temperature": "hot"}, "temperature"), ({"temperature": []}, "temperature"),
            ({"top_p": 0}, "top_p"), ({"top_p": 1.5}, "top_p"), ({"top_k": -2}, "top_k"),
            ({"top_k": 1.5}, "top_k"), ({"min_p": 2}, "min_p"), ({"min_p": -0.1}, "min_p"),
            ({"repetition_penalty": 0}, "repetition_penalty"), ({"presence_penalty": 3}, "presence_penalty"),
            ({"frequency_penalty": -3}, "frequency_penalty"), ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": -5}, "max_tokens"), ({"max_tokens": 1 << 40}, "max_tokens"),
            ({"max_tokens": "8"}, "max_tokens"), ({"min_tokens": -1}, "min_tokens"),
            ({"min_tokens": 100}, "min_tokens"), ({"n": 0}, "n"), ({"n": 100000, "temperature": 1}, "n"),
            ({"n": 2, "temperature": 0}, "n"), ({"seed": -7}, "seed"), ({"seed": 1.5}, "seed"),
            ({"stop": ["a"] * 65}, "stop"), ({"stop": ""}, "stop"), ({"stop": 3}, "stop"),
            ({"stop": [3]}, "stop"), ({"stop": "a\0b"}, "stop"), ({"stop_token_ids": ["x"]}, "stop_token_ids"),
            ({"stop_token_ids": [99999]}, "stop_token_ids"), ({"logit_bias": {"x": 1}}, "logit_bias"),
            ({"logit_bias": {"1": "x"}}, "logit_bias"), ({"logit_bias": [1]}, "logit_bias"),
            ({"logit_bias": {"999999": 1}}, "logit_bias"), ({"bad_words": [""]}, "bad_words"),
            ({"logprobs": 21}, "logprobs"), ({"logprobs": True}, "logprobs"), ({"logprobs": -1}, "logprobs"),
            ({"prompt_logprobs": 99}, "prompt_logprobs"), ({"stream": "yes"}, "stream"),
            ({"stream_options": {"include_usage": True}}, "stream_options"), ({"ignore_eos": 1}, "ignore_eos"),
            ({"priority": 5000}, "priority"), ({"echo": "x"}, "echo"), ({"suffix": "x"}, "suffix"),
            ({"prompt": None}, "prompt"), ({"prompt": 3}, "prompt"), ({"prompt": []}, "prompt"),
            ({"prompt": ""}, "prompt"), ({"prompt": [1, "x"]}, "prompt"), ({"prompt": [-1]}, "prompt"),
            ({"prompt": [999999]}, "prompt"), ({"prompt": {"a": 1}}, "prompt"), ({"prompt": ["a", []]}, "prompt"),
            ({"request_id": "a b"}, "request_id"), ({"guided_json": 3}, "guided_json"),
            ({"response_format": {"type": "odd"}}, "response_format"),
            ({"response_format": 1}, "response_format"), ({"use_beam_search": True}, "use_beam_search"),
            ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ]
        for fields, param in table:
            with self.subTest(fields):
                self.refused("/v1/completions", {**GREEDY, **fields}, 400, param)

    def test_constraints_say_what_is_wrong(self):
        for fields, text in (({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "one constraint only"),
                             ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"}, "guided_regex and structured_outputs"),
                             ({"structured_outputs": {"regex": "x[0-9"}}, 'not closed at byte 2 of "x[0-9"')):
            with self.subTest(fields):
                self.refused("/v1/completions", {**GREEDY, **fields}, 400, "structured_outputs", text)

    def test_whole_numbers_with_a_point(self):
        want = self.complete(seed=7)
        got = self.complete(max_tokens=float(GREEDY["max_tokens"]), seed=7.0, n=1.0)
        self.assertEqual(got["choices"], want["choices"])
        ids = self.complete(prompt=[1, 2])
        self.assertEqual(self.complete(prompt=[1.0, 2.0])["choices"], ids["choices"])
        for fields in ({"seed": 7.5}, {"seed": 1e17}, {"max_tokens": 3.5}, {"max_tokens": 1e10}):
            self.refused("/v1/completions", {**GREEDY, **fields}, 400, next(iter(fields)))

    def test_chat_parameters(self):
        user = {"role": "user", "content": "x"}
        tool = {"type": "function", "function": {"name": "f"}}
        table = [
            ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": "x"}, "messages"),
            ({"messages": [3]}, "messages[0]"), ({"messages": [{"content": "x"}]}, "messages[0]"),
            ({"messages": [user, {"role": "user"}]}, "messages[1]"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
            ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
             "messages[0]"),
            ({"top_logprobs": 3}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 50}, "top_logprobs"),
            ({"logprobs": 3}, "logprobs"), ({"tools": {}}, "tools"), ({"tools": [{}]}, "tools"),
            ({"tool_choice": "required"}, "tool_choice"), ({"tools": [], "tool_choice": "required"}, "tool_choice"),
            ({"tools": [tool], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
            ({"tools": [tool], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
             "tool_choice"),
            ({"tools": [tool], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
                "mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}}}, "tool_choice"),
            ({"tools": [tool], "tool_choice": "any"}, "tool_choice"),
            ({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
            ({"tools": [tool], "tool_choice": "required"}, "tool_choice"),  # this model has no format for them
            ({"chat_template_kwargs": 3}, "chat_template_kwargs"), ({"max_completion_tokens": 0}, "max_completion_tokens"),
            ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
            ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools"),
            ({"messages": [{"role": 5, "content": "x"}]}, "messages[0]"),
            ({"prompt_token_ids": "x"}, "prompt_token_ids"), ({"chat_template": "x"}, "chat_template"),
        ]
        for fields, param in table:
            with self.subTest(fields):
                self.refused("/v1/chat/completions", {**CHAT, **fields}, 400, param)

    def test_no_tools(self):
        """An empty list, and "auto" without tools, say nothing; clients send both unasked."""
        plain = self.chat()["choices"]
        for fields in ({"tools": []}, {"tools": None}, {"tool_choice": "auto"}, {"tools": [], "tool_choice": "auto"}):
            with self.subTest(fields):
                self.assertEqual(self.chat(**fields)["choices"], plain)

    def test_bodies(self):
        for body, text in (('{"prompt": ', "(byte "), (b"\xff\xfe", "valid JSON"), ("[]", "JSON object"),
                           ('{"prompt": "x",}', "(byte "), ('{"a": 1, "a": 2}', "duplicate"), ("", "empty"),
                           ("[" * 100000, "valid JSON"), ('{"seed": 1e999}', "valid JSON")):
            with self.subTest(body[:20]):
                self.refused("/v1/completions", body, 400, text=text)
        error = self.refused("/v1/completions", '{"prompt": tru}', 400)
        self.assertIn("byte 14", error["message"])

    def test_too_long(self):
        error = self.refused("/v1/completions", {**GREEDY, "prompt": [5] * 2000}, 400, "prompt")
        # Frameworks know the case by these words: LiteLLM by the first, LangChain by the second.
        self.assertIn("This model's maximum context length is 1024 tokens.", error["message"])
        self.assertIn("2000 tokens: the prompt is too long", error["message"])
        self.refused("/v1/completions", {"prompt_token_ids": [5] * 2000, "max_tokens": 1}, 400, "prompt_token_ids")
        chat = [{"role": "user", "content": "Once upon a time. " * 600}]
        self.refused("/v1/chat/completions", {"messages": chat, "max_tokens": 1}, 400, "messages")

    def test_more_answers_than_the_server_holds(self):
        self.refused("/v1/completions", {"prompt": ["a"] * 100, "n": 100, "max_tokens": 1}, 400, "n")

    def test_statuses(self):
        self.refused("/v1/completions", {**GREEDY, "model": "other"}, 404, "model", "The model `other` does not exist. This server has `tales-24m-moe-nvfp4`.")
        self.refused("/v1/nothing", {}, 404)
        self.refused("/v1/completions", "prompt=x", 415, headers={"Content-Type": "text/plain"})
        status, headers, _ = self.server.request("GET", "/v1/completions")
        self.assertEqual((status, headers["allow"]), (405, "POST"))
        self.assertEqual(self.server.request("DELETE", "/health")[0], 405)
        self.refused("/tokenize", {}, 400, "prompt")
        self.refused("/detokenize", {"tokens": [-4]}, 400, "tokens")

    def test_smuggling(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        for more in (b"Content-Length: 5\r\nContent-Length: 7\r\n", b"Content-Length: 5\r\nContent-Length: 5\r\n",
                     b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"Content-Length: -5\r\n",
                     b"Content-Length: x\r\n"):
            with self.subTest(more), self.server.socket() as s:
                s.sendall(head + more + b"\r\n{}")
                answer = read_until(s, b"never")
                self.assertTrue(answer == b"" or answer.split()[1] == b"400", answer)
                self.assertNotIn(b"prompt is missing", answer)  # nobody took the body for one

    def test_no_server_errors(self):
        self.assertFalse([k for k in self.server.metrics() if 'status_code="5' in k])


class Limits(WithServer):
    options = ("--max-body", "64K", "--header-timeout", "1", "--body-timeout", "1.5", "--max-num-seqs", "4",
               "--max-waiting", "2", "--stream-stall", "1", "--api-key", "secret-1", "--api-key", "secret-2",
               "--allowed-origins", '["http://other.test", "http://app.test"]', "--served-model-name", "a", "--served-model-name", "b",
               "--log-format", "json")
    key = {"Authorization": "Bearer secret-2"}

    def test_keys(self):
        self.refused("/v1/completions", GREEDY, 401)
        for wrong in ("Bearer nope", "Bearer secret-", "Bearer ", "secret-1", "Basic secret-1"):
            self.refused("/v1/completions", GREEDY, 401, headers={"Authorization": wrong})
        self.assertEqual(self.server.request("GET", "/v1/models")[0], 401)
        self.assertEqual(self.server.request("GET", "/v1/models", headers=self.key)[0], 200)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)
        status, answer = self.server.post("/v1/completions", {**GREEDY, "model": "b"}, headers=self.key)
        self.assertEqual((status, answer["model"]), (200, "a"))

    def test_cors(self):
        ask = {"Origin": "http://app.test", "Access-Control-Request-Method": "POST"}
        status, headers, _ = self.server.request("OPTIONS", "/v1/completions", headers=ask)
        self.assertEqual((status, headers["access-control-allow-origin"]), (204, "http://app.test"))
        self.assertIn("POST", headers["access-control-allow-methods"])
        ask["Access-Control-Request-Headers"] = "authorization,content-type,x-stainless-os"  # OpenAI's own client
        _, headers, _ = self.server.request("OPTIONS", "/v1/completions", headers=ask)
        self.assertEqual(headers["access-control-allow-headers"], ask["Access-Control-Request-Headers"])
        ask["Access-Control-Request-Headers"] = "x<script>"
        _, headers, _ = self.server.request("OPTIONS", "/v1/completions", headers=ask)
        self.assertNotIn("<", headers["access-control-allow-headers"])
        _, headers, _ = self.server.request("GET", "/health", headers={"Origin": "http://evil.test"})
        self.assertNotIn("access-control-allow-origin", headers)

    def test_oversize(self):
        self.refused("/v1/completions", {**GREEDY, "prompt": "x" * 100000}, 413, headers=self.key)
        with self.server.socket() as s:  # chunked: nobody says how long it is
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-1\r\n"
                      b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(10):
                s.sendall(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
            s.sendall(b"0\r\n\r\n")
            self.assertIn(b" 413 ", read_until(s, b"\r\n"))
        with self.server.socket() as s:  # and one that does not end
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-1\r\n"
                      b"Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n")
            self.assertIn(b" 413 ", read_until(s, b"\r\n"))
        with self.server.socket() as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 100000 + b"\r\n\r\n")
            try:
                answer = read_until(s, b"\r\n")
            except ConnectionResetError:
                answer = b""
            self.assertTrue(answer == b"" or answer.split()[1] in (b"431", b"400", b"413"), answer)

    def closed_within(self, s, seconds, drip):
        start = time.time()
        s.settimeout(0.2)
        while time.time() - start < seconds:
            try:
                s.sendall(drip)
                if s.recv(4096) == b"":
                    return True
            except socket.timeout:
                pass
            except OSError:
                return True
        return False

    def test_slow_headers_and_bodies(self):
        with self.server.socket() as s:
            s.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
            self.assertTrue(self.closed_within(s, 4, b"a"))
        with self.server.socket() as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-1\r\n"
                      b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
            self.assertTrue(self.closed_within(s, 4, b" "))

    def test_queue_full(self):
        body = {**LONG, "max_tokens": 300, "stream": True}
        sockets = []
        try:
            for _ in range(6):  # 4 run, 2 wait
                s = self.server.socket()
                s.sendall(raw_request("/v1/completions", body, Authorization="Bearer secret-1"))
                sockets.append(s)
                read_until(s, b"200 OK")
            status, headers, data = self.server.request("POST", "/v1/completions", LONG, self.key)
            self.assertEqual(status, 429, data)
            self.assertGreaterEqual(int(headers["retry-after"]), 1)
            self.assertEqual(self.server.request("GET", "/health")[0], 200)
            load = json.loads(self.server.request("GET", "/load")[2])
            self.assertEqual(load["server_load"], 6)
        finally:
            for s in sockets:
                s.close()
        self.server.until_metric("kv_blocks_used", 0)

    def test_stalled_reader(self):
        """A client that stops reading is dropped, and its blocks are free."""
        dropped = self.server.metric("http_clients_left_total")
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.settimeout(10)
        s.connect(("127.0.0.1", self.server.port))
        body = {**LONG, "stream": True, "logprobs": 20}  # about 1 KB a token
        s.sendall(raw_request("/v1/completions", body, Authorization="Bearer secret-1"))
        read_until(s, b"data: ")
        self.server.until_metric("http_clients_left_total", dropped + 1)
        self.server.until_metric("kv_blocks_used", 0)
        s.close()

    def test_access_log(self):
        self.server.request("GET", "/health", headers={"X-Request-Id": "find-me"})
        time.sleep(0.1)
        lines = [json.loads(line) for line in self.server.access_text().splitlines()]
        line = next(entry for entry in lines if entry["id"] == "find-me")
        self.assertEqual((line["method"], line["path"], line["status"]), ("GET", "/health", 200))
        for text in self.server.text().splitlines():
            self.assertEqual(json.loads(text)["level"], "info")


class LongBodies(WithServer):
    def test_short_ones_do_not_wait(self):
        """Bodies of megabytes, which take a worker seconds, leave one to the others."""
        long_one = {"prompt": "hello " * 1000000, "max_tokens": 1}
        start = time.time()
        self.refused("/v1/completions", long_one, 400, "prompt")
        alone = time.time() - start
        threads = [in_background(self.server.post, "/v1/completions", long_one) for _ in range(4)]
        time.sleep(alone / 4)
        worst = 0
        while any(t.is_alive() for t in threads):
            start = time.time()
            self.complete(max_tokens=1)
            worst = max(worst, time.time() - start)
            time.sleep(0.02)
        self.assertLess(worst, alone)
        self.assertGreater(alone, 0.1)


class Silence(WithServer):
    options = ("--stream-keepalive", "0.3")

    def test_comments(self):
        """A stream that has nothing to say says so; its events stay as they are."""
        plain = self.server.stream("/v1/completions", GREEDY)
        for path, body in (("/v1/completions", GREEDY), ("/v1/chat/completions", CHAT), ("/v1/responses", {"input": "x", "max_output_tokens": 8})):
            with self.subTest(path):
                self.assertEqual(self.server.post("/pause_generation", {"mode": "in_place"})[0], 200)
                with self.server.socket() as s:
                    s.sendall(raw_request(path, {**body, "stream": True}, Connection="close"))
                    data = read_until(s, b": keep-alive\n\n\r\n")
                    self.assertNotIn(b"data: ", data)
                    data = read_until(s, b": keep-alive\n\n\r\n")
                    self.assertEqual(self.server.post("/continue_generation", {})[0], 200)
                    while b"\r\n0\r\n" not in data:
                        data += s.recv(65536)
                self.assertIn(b"data: ", data)
                if path == "/v1/completions":
                    texts = [json.loads(line[6:])["choices"][0]["text"] for line in data.decode().split("\n")
                             if line.startswith("data: {")]
                    self.assertEqual(texts, [e["choices"][0]["text"] for e in plain[:-1]])


class Disconnects(WithServer):
    options = ("--max-num-batched-tokens", "64")

    def leave(self, body, reset=False, after=b""):
        s = self.server.socket()
        s.sendall(raw_request("/v1/completions", body))
        if after:
            read_until(s, after)
        else:
            self.server.until_metric("num_requests_running", 1)
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
        self.server.until_metric("num_requests_running", 0, 2)
        self.server.until_metric("kv_blocks_used", 0, 2)

    def test_while_streaming(self):
        self.leave({**LONG, "stream": True}, after=b"data: ")

    def test_reset_while_streaming(self):
        self.leave({**LONG, "stream": True}, reset=True, after=b"data: ")

    def test_without_stream(self):
        self.leave(LONG)

    def test_several_choices(self):
        self.leave({**LONG, "n": 4, "temperature": 1, "stream": True}, after=b"data: ")

    def test_before_the_answer(self):
        """Leaving right after the request, whatever a worker is doing with it."""
        for i in range(40):
            s = self.server.socket()
            s.sendall(raw_request("/v1/completions", {**LONG, "stream": i % 2 == 0}))
            time.sleep(i * 0.0002)
            s.close()
        self.server.until_metric("num_requests_running", 0, 5)
        self.server.until_metric("num_requests_waiting", 0, 5)
        self.server.until_metric("kv_blocks_used", 0, 5)
        self.server.until_metric("http_connections", 1, 5)


class Secure(unittest.TestCase):
    def test_tls(self):
        if not shutil.which("openssl"):
            self.skipTest("no openssl to make a certificate with")
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = os.path.join(folder, "key.pem"), os.path.join(folder, "cert.pem")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key,
                            "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                           check=True, capture_output=True)
            server = Server("--tls-cert", certificate, "--tls-key", key)
            context = ssl.create_default_context(cafile=certificate)
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=30, context=context)
            connection.request("POST", "/v1/completions", json.dumps({**GREEDY, "stream": True}),
                               {"Content-Type": "application/json"})
            self.assertEqual(parse_events(connection.getresponse().read())[-1], "[DONE]")
            connection.request("GET", "/metrics")
            self.assertIn(b"nybble:", connection.getresponse().read())
            old = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_1", "-cipher",
                                  "ALL:@SECLEVEL=0"], input=b"", capture_output=True)
            self.assertNotEqual(old.returncode, 0)  # 1.2 at least
            with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port)),
                                     server_hostname="127.0.0.1") as s:
                s.sendall(raw_request("/v1/completions", LONG))  # leaves while nothing is sent
                time.sleep(0.3)
            for _ in range(100):
                connection.request("GET", "/metrics")
                if b'kv_blocks_used{model_name="tales-24m-moe-nvfp4",engine="0"} 0' in connection.getresponse().read():
                    break
                time.sleep(0.02)
            else:
                self.fail("blocks are still held")
            connection.close()
            self.assertEqual(server.stop(), 0)
            server.close()

    def make_certificate(self, folder, name, days=2):
        key, certificate = os.path.join(folder, name + ".key"), os.path.join(folder, name + ".pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-days", str(days), "-keyout", key, "-out", certificate, "-subj", f"/CN={name}", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        return certificate, key

    def until_logged(self, server, text, times=1):
        until = time.time() + 10 * SLOW
        while server.text().count(text) < times:
            self.assertLess(time.time(), until, server.text())
            time.sleep(0.05)

    def test_certificate_is_replaced(self):
        """As certbot does it under load: one file after the other. Streams go on, new connections get the new one."""
        if not shutil.which("openssl"):
            self.skipTest("no openssl to make a certificate with")
        with tempfile.TemporaryDirectory() as folder:
            first, second = self.make_certificate(folder, "first"), self.make_certificate(folder, "second")
            certificate, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
            shutil.copy(first[0], certificate)
            shutil.copy(first[1], key)
            trust = {name: ssl.create_default_context(cafile=os.path.join(folder, name + ".pem"))
                     for name in ("first", "second")}
            server = Server("--tls-cert", certificate, "--tls-key", key, "--header-timeout", "100")

            def ask(name):
                connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=30, context=trust[name])
                connection.request("GET", "/health")
                return connection, connection.getresponse().read()

            kept, _ = ask("first")
            stream = trust["first"].wrap_socket(server.socket(), server_hostname="127.0.0.1")
            stream.sendall(raw_request("/v1/completions", {**LONG, "stream": True}, Connection="close"))
            begun = read_until(stream, b"data: ")
            silent = server.socket()  # its handshake comes after the change
            time.sleep(0.1)
            shutil.copy(second[0], certificate)
            self.until_logged(server, "cannot be used, what was read before stays")  # the key is the old one
            ask("first")[0].close()
            os.replace(second[1], key)
            self.until_logged(server, "has changed and is used from now on")
            ask("second")[0].close()
            with self.assertRaises(ssl.SSLCertVerificationError):
                ask("first")
            trust["first"].wrap_socket(silent, server_hostname="127.0.0.1").close()  # it began before
            kept.request("GET", "/health")
            self.assertEqual(kept.getresponse().status, 200)
            kept.close()
            rest = read_until(stream, b"[DONE]", 1 << 24)
            self.assertIn(b"[DONE]", begun + rest)
            stream.close()
            for i in range(3):  # and again; what was replaced is freed
                pair = self.make_certificate(folder, f"next{i}", days=1)
                os.replace(pair[0], certificate)
                os.replace(pair[1], key)
                self.until_logged(server, "used from now on", 2 + i)
            self.assertEqual(server.stop(), 0)
            server.close()

    def test_keys_are_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {name: os.path.join(folder, name) for name in ("keys", "admin")}

            def write(name, text):
                with open(files[name], "w", encoding="utf-8") as f:
                    f.write(text)

            def status(key, path="/v1/models"):
                return server.request("GET", path, headers={"Authorization": "Bearer " + key})[0]

            write("keys", "one\n")
            write("admin", "boss\n")
            server = Server("--api-key-file", files["keys"], "--admin-api-key-file", files["admin"], "--api-key", "flag")
            self.assertEqual([status(k) for k in ("one", "two", "flag")], [200, 401, 200])
            write("keys", "two\nthree\n")
            self.until_logged(server, "api-key-file " + files["keys"] + " has changed and is used")
            self.assertEqual([status(k) for k in ("one", "two", "three", "flag")], [401, 200, 200, 200])
            for times, damage in ((1, lambda: write("keys", "# nobody\n")), (2, lambda: os.unlink(files["keys"]))):
                damage()
                self.until_logged(server, "cannot be used", times)
                self.assertEqual([status(k) for k in ("one", "two", "flag")], [401, 200, 200])  # as they were
            self.assertEqual(status("boss", "/server_info"), 200)
            os.rename(files["admin"], files["admin"] + ".old")
            write("admin", "chief\n")
            self.until_logged(server, "admin-api-key-file " + files["admin"] + " has changed and is used")
            self.assertEqual([status(k, "/server_info") for k in ("boss", "chief", "two")], [401, 200, 401])
            self.assertEqual(server.stop(), 0)
            server.close()

    def test_a_reason_that_passes(self):
        """Without descriptors nothing can be read. It is said once and tried until there are some, though the file
        does not change again."""
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            with open(keys, "w", encoding="utf-8") as f:
                f.write("one\n")
            server = Server("--api-key-file", keys)
            kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)

            def status(key):
                kept.request("GET", "/v1/models", headers={"Authorization": "Bearer " + key})
                answer = kept.getresponse()
                answer.read()
                return answer.status

            self.assertEqual([status("one"), status("two")], [200, 401])
            usual = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
            with open(keys, "w", encoding="utf-8") as f:
                f.write("two\n")
            self.until_logged(server, "cannot be used, what was read before stays: " + keys + ": cannot open: Too many open")
            time.sleep(2.5)
            self.assertEqual([status("one"), status("two")], [200, 401])
            self.assertEqual(server.text().count("cannot be used"), 1)
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, usual)
            self.until_logged(server, "api-key-file " + keys + " has changed and is used")
            self.assertEqual([status("one"), status("two")], [401, 200])
            kept.close()
            self.assertEqual(server.stop(), 0)
            server.close()

    def test_who_may_use_it_is_said(self):
        for options, warned in ((("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "k"), False)):
            server = Server(*options)
            self.assertEqual("there is no API key" in server.text(), warned)
            self.assertEqual(server.stop(), 0)
            server.close()

    def test_what_cannot_be_is_said_before_the_model_is_loaded(self):
        for options, text in ((("--tls-cert", "/nowhere.pem"), "belong together"),
                              (("--tls-cert", __file__, "--tls-key", __file__), "is no certificate of the key in"),
                              (("--api-key-file", "/nowhere"), "/nowhere: cannot open"),
                              (("--admin-api-key-file", "/nowhere"), "/nowhere: cannot open"),
                              (("--weights-root", "/nowhere"), "/nowhere is not a folder"),
                              (("--upload-dir", "/nowhere"), "/nowhere: cannot make a temporary file"),
                              (("--parser", "odd"), 'there is no parser "odd"'),
                              (("--port", "8190", "--metrics-port", "8190"), "metrics-port: expected another port"),
                              (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
                              (("--host", "@nybble"), "takes the path of one"),
                              (("--host", "unix:/tmp/s"), "begins with a slash"), (("--host", "a.sock"), "with a slash"),
                              (("--host", "[::1]"), "the address alone"), (("--host", "127.0.0.1:80"), "(--port)"),
                              (("--host", "http://127.0.0.1"), "the address alone")):
            with self.subTest(options):
                server = Server(*options, wait=False)
                self.assertEqual(server.process.wait(30), 1)
                self.assertIn(text, server.text())
                self.assertNotIn("KV cache", server.text())
                server.close()


class Tools(WithServer):
    """The embedded model calls no tools by itself (test_parameters.py has calls that are required)."""
    options = ("--parser", "qwen3")

    def test_none(self):
        tool = {"type": "function", "function": {"name": "look"}}
        self.assertEqual(self.chat(tools=[tool], tool_choice="none")["choices"][0]["finish_reason"], "length")


class Drain(unittest.TestCase):
    def test_a_signal_right_after_the_start(self):
        for _ in range(5):
            self.assertEqual(Server().stop(), 0)

    def read_stream(self, server, out):
        out.append(server.stream("/v1/completions", LONG))

    def test_running_streams_finish(self):
        server = Server("--drain", str(30 * SLOW))
        out = []
        threads = [in_background(self.read_stream, server, out) for _ in range(4)]
        server.until_metric("num_requests_running", 4)
        server.process.send_signal(signal.SIGTERM)
        until = time.time() + 5
        while server.request("GET", "/ready")[0] != 503 and time.time() < until:
            time.sleep(0.01)
        status, headers, _ = server.request("POST", "/v1/completions", GREEDY)
        self.assertEqual(status, 503)
        self.assertIn("retry-after", headers)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        for thread in threads:
            thread.join(60 * SLOW)
        self.assertEqual([len(events) for events in out if events[-1] == "[DONE]"], [901] * 4)
        self.assertEqual(server.process.wait(20), 0, server.text())

    def test_limit(self):
        server = Server("--drain", "0")
        out = []
        thread = in_background(self.read_stream, server, out)
        server.until_metric("num_requests_running", 1)
        self.assertEqual(server.stop(), 0, server.text())
        thread.join(20)
        self.assertEqual(out[0][-2]["choices"][0]["finish_reason"], "abort")

    def test_second_signal(self):
        server = Server("--drain", "60")
        s = server.socket()
        s.sendall(raw_request("/v1/completions", {**LONG, "stream": True}))
        read_until(s, b"data: ")
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        start = time.time()
        self.assertNotEqual(server.stop(), 0)
        self.assertLess(time.time() - start, 2)
        s.close()

    def test_hangup(self):
        """A terminal that closes, which may say so twice, ends no answer; nohup's programs do not hear it."""
        server = Server("--drain", str(30 * SLOW))
        out = []
        thread = in_background(self.read_stream, server, out)
        server.until_metric("num_requests_running", 1)
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            server.process.send_signal(number)
            time.sleep(0.05)
        thread.join(60 * SLOW)
        self.assertEqual((len(out[0]), out[0][-1]), (901, "[DONE]"))
        self.assertEqual(server.process.wait(20), 0, server.text())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            server = Server()
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        self.assertEqual(server.request("GET", "/ready")[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_notify(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "notify")
            inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            inbox.bind(path)
            inbox.settimeout(30)
            server = Server(env={"NOTIFY_SOCKET": path})
            self.assertEqual(inbox.recv(100), b"READY=1")
            self.assertEqual(server.stop(), 0)
            self.assertEqual(inbox.recv(100), b"STOPPING=1")
            inbox.close()


class Configuration(unittest.TestCase):
    def refuse(self, *options, env=None, text="", code=2):
        server = Server(*options, env=env, wait=False)
        self.assertEqual(server.process.wait(30), code, server.text())
        self.assertIn(text, server.text())
        server.close()

    def with_file(self, text, check):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
            f.write(text)
            f.flush()
            check(f.name)

    def test_file(self):
        def check(path):
            server = Server("--config", path, "--max-logprobs", "3", env={"NYBBLE_STREAM_STALL": "5"})
            try:
                names = [m["id"] for m in json.loads(server.request("GET", "/v1/models", headers={
                    "Authorization": "Bearer k"})[2])["data"]]
                self.assertEqual(names, ["x", "y"])
                status, _ = server.post("/v1/completions", {**GREEDY, "logprobs": 4},
                                        headers={"Authorization": "Bearer k"})
                self.assertEqual(status, 400)
                for name, status in (("x", 200), ("y", 200), ("", 200), (None, 200), ("z", 404)):
                    got, answer = server.post("/v1/completions", {**GREEDY, "model": name}, headers={"Authorization": "Bearer k"})
                    self.assertEqual(got, status, answer)
                self.assertEqual(answer["error"]["message"], "The model `z` does not exist. This server has `x`, `y`.")
            finally:
                self.assertEqual(server.stop(), 0)
        self.with_file("served-model-name: [x, y]\napi-key: k\nmax_num_seqs: 8\naccess-log: false\n", check)

    def test_bad_files(self):
        for text, expected in (("port: 1\nnonsense: 2\n", "line 2, column 1"), ("port: [1]\n", "line 1, column 7"),
                               ("port: x\n", "line 1, column 7"), ("port: 1\nport: 2\n", "line 2, column 1"),
                               ("port: 1\n---\nport: 2\n", "line 2, column 1"), ("a: b: c\n", "line 1"), ("- 1\n", "option names")):
            self.with_file(text, lambda path, e=expected: self.refuse("--config", path, text=e))

    def test_bad_options(self):
        self.refuse("--nonsense", "1", text="nonsense")
        self.refuse("--max-num-seqs", "0", text="max-num-seqs")
        self.refuse("--max-num-seqs", text="needs a value")
        self.refuse("--served-model-name=", text="served-model-name")
        self.refuse("--api-key", "", text="api-key")
        for bad in ("[", '["a", 1]', '{"a": 1', '[""]'):
            self.refuse("--allowed-origins", bad if bad[0] == "[" else "[" + bad, text="allowed-origins")
        self.refuse("--pipeline-parallel-size", "2", text="pipeline-parallel-size")
        self.refuse("--tensor-parallel-size", "0", text="tensor-parallel-size")
        self.refuse("--metrics-style", "odd", text="fastdeploy")
        for bad in ("4", "[1]", '{"step_interval": 1', '{"step_interval": 1, "step_interval": 2}'):
            self.refuse("--eplb-config", bad, text="eplb-config must be a JSON object")
        self.refuse("--eplb-config", '{"num_redundant_experts": 4, "surprise": 1}', text="surprise")
        self.refuse("--eplb-config", '{"step_interval": [1]}', text="eplb-config.step_interval must be")
        self.refuse("--eplb-config", '{"step_interval": -1}', text="whole number")
        self.refuse("--eplb-config", '{"policy": "odd"}', text="one balancer")
        self.refuse("--eplb-config", '{"policy": "%s"}' % ("default" + " " * 300), text="eplb-config.policy must be")
        self.refuse("--eplb-algorithm", "deepseek", text="one balancer")
        self.refuse(env={"FD_FLASHINFER_MOE_BACKEND": "odd"}, text="flashinfer-cutlass")
        self.refuse(env={"FD_NVFP4_GEMM_BACKEND": "odd"}, text="flashinfer-cudnn")

    def test_slips(self):
        self.refuse("--max-num-seq", "4", text='there is no option "max-num-seq"; there is "max-num-seqs"')
        self.refuse("--nonsense", "4", text='there is no option "nonsense"; see')
        server = Server(env={"NYBBLE_MAX_NUM_SEQ": "4", "NYBBLE_MODELS": "", "NYBBLE_MAX_LOGPROBS": "3", "NYBBLE_QUITE_ELSE": ""})
        self.assertEqual([line for line in server.text().splitlines() if "is no option" in line],
                         ["nybble: warning: NYBBLE_MAX_NUM_SEQ is no option; there is NYBBLE_MAX_NUM_SEQS"])
        self.assertEqual(server.stop(), 0)
        server.close()
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
            for text, said in (("api_keys: a", 'no option "api_keys"; there is "api-key"'),
                               ("config: a", "a file of options cannot name another"), ("api-key: ~", "there is no value"),
                               ("api-key: [null]", "there is no value"), ("tls-cert:", "there is no value"),
                               ("api-key: ''", "api-key must be")):
                f.seek(0)
                f.truncate()
                f.write(text + "\n")
                f.flush()
                self.refuse("--config", f.name, text=said)

    def test_links_of_kubernetes(self):
        """Beside a service of the name nybble every container has variables that look like options."""
        links = {"NYBBLE_PORT": "tcp://10.0.0.1:8180", "NYBBLE_METRICS_PORT": "tcp://10.0.0.2:9", "NYBBLE_SERVICE_HOST": "10.0.0.1",
                 "NYBBLE_SERVICE_PORT": "8180", "NYBBLE_PORT_8180_TCP": "tcp://10.0.0.1:8180", "NYBBLE_PORT_8180_TCP_PORT": "8180",
                 "NYBBLE_PORT_8180_TCP_PROTO": "tcp", "NYBBLE_PORT_8180_TCP_ADDR": "10.0.0.1", "NYBBLE_SERVICE_PORT_HTTP": "8180"}
        server = Server("--log-format", "json", env=links)
        said = [json.loads(line)["msg"] for line in server.text().splitlines()]
        for name in ("NYBBLE_PORT=tcp://10.0.0.1:8180", "NYBBLE_METRICS_PORT=tcp://10.0.0.2:9"):
            self.assertEqual(said.count(name + " is Kubernetes' link to a service, not an option"), 1, said)
        self.assertEqual([line for line in said if "is no option" in line], [])
        self.assertEqual(server.request("GET", "/ready")[0], 200)
        self.assertEqual(server.stop(), 0)
        server.close()
        self.refuse(env={"NYBBLE_PORT": "nowhere"}, text="NYBBLE_PORT: port must be a whole number")

    def test_balancers_need_expert_parallel(self):
        for flags in (("--enable-eplb",), ("--eplb-rebalance-num-iterations", "5"), ("--eplb-config.step_interval", "5"),
                      ("--eplb-config", '{"step_interval": 5, "log_balancedness": true, "window_size": null}')):
            self.refuse(*flags, code=1,
                        text="expert_rebalance_interval is for experts that ranks share out")
        for flags in (("--ep-num-redundant-experts", "2"), ("--eplb-config", '{"num_redundant_experts": 2}'),
                      ("--eplb-config", '{"redundant_experts_num": 2}')):
            self.refuse("--no-enable-eplb", *flags, code=1,
                        text="num_redundant_experts is for experts that ranks share out")

    def test_other_names(self):
        server = Server("--tensor-parallel-size", "1", "--max_num_seqs=8", "--enable-chunked-prefill",
                        "--gpu-memory-utilization", "0.9", "--quantization", "modelopt_fp4", "--no-access-log",
                        "--metrics-style", "fastdeploy", "--metrics-port", "0",
                        env={"FD_FLASHINFER_MOE_BACKEND": "flashinfer-cutlass", "FD_API_KEY": "k"})
        try:
            self.assertEqual(server.request("GET", "/v1/models")[0], 401)
            text = server.request("GET", "/metrics")[2].decode()
            self.assertIn("fastdeploy:max_batch_size", text)
            self.assertIn("fastdeploy:gpu_cache_usage_perc", text)
        finally:
            self.assertEqual(server.stop(), 0)
        self.assertEqual(server.access_text(), "")


if __name__ == "__main__":
    unittest.main(verbosity=2, warnings="ignore")
