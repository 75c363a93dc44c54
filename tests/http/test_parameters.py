#!/usr/bin/env python3
"""What FastDeploy's and vLLM's clients may send beyond OpenAI's fields: it works, or is refused by its name."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server, parse_events  # noqa: E402

PROMPT = "Once upon a time there was"
GREEDY = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0}
OPEN, CLOSE = 4094, 4095  # ids that the model below calls <think> and </think>


def template_file(folder, text):
    path = os.path.join(folder, "template.jinja")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def thinking_model(folder):
    """The embedded model with two rare tokens renamed to the marks of reasoning."""
    source = os.path.join(os.environ["SOURCE"], "models", "tales-24m-moe-nvfp4")
    for name in os.listdir(source):
        if name != "tokenizer.json":
            os.symlink(os.path.join(source, name), os.path.join(folder, name))
    with open(os.path.join(source, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    vocab = tokenizer["model"]["vocab"]
    gone = {text for text, number in vocab.items() if number in (OPEN, CLOSE)}
    for text in gone:
        del vocab[text]
    merges = [m if isinstance(m, list) else m.split(" ") for m in tokenizer["model"]["merges"]]
    tokenizer["model"]["merges"] = [m for m in merges if "".join(m) not in gone and not gone & set(m)]
    for number, text in ((OPEN, "<think>"), (CLOSE, "</think>")):
        tokenizer["added_tokens"].append({"id": number, "content": text, "single_word": False, "lstrip": False,
                                          "rstrip": False, "normalized": False, "special": False})
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer, f)


class Case(unittest.TestCase):
    server = None

    def ask(self, path, body, status=200, **more):
        got, answer = self.server.post(path, body, **more)
        self.assertEqual(got, status, answer)
        return answer

    def complete(self, **fields):
        return self.ask("/v1/completions", {**GREEDY, **fields})

    def chat(self, **fields):
        return self.ask("/v1/chat/completions", {**CHAT, **fields})

    def refused(self, path, body, param, text=""):
        error = self.ask(path, body, 400)["error"]
        self.assertEqual(error["param"], param, error)
        self.assertIn(text, error["message"])
        self.assertIn(param.split("[")[0], error["message"])

    def ids(self, text):
        return self.ask("/tokenize", {"prompt": text})["tokens"]


class Plain(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        path = template_file(cls.folder.name, "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
                             "{% if add_generation_prompt %}[assistant]{% endif %}"
                             "{{ reasoning_effort or '' }}{{ (documents or []) | length or '' }}"
                             "{% if enable_thinking is defined %}{{ '+' if enable_thinking else '-' }}{% endif %}")
        cls.server = Server("--chat-template", path)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.text()
        cls.server.close()
        cls.folder.cleanup()

    def prompt_of(self, **fields):
        """The text that a chat's template made."""
        ids = self.chat(max_tokens=1, return_token_ids=True, **fields)["prompt_token_ids"]
        return self.ask("/detokenize", {"tokens": ids})["prompt"]

    # ---- sampling

    def test_allowed_token_ids(self):
        free = self.complete(return_token_ids=True)["choices"][0]["token_ids"]
        allowed = sorted(set(free))[:5] + [500, 700]
        for fields in ({}, {"temperature": 1, "seed": 3}, {"temperature": 1, "seed": 3, "top_k": 4}):
            ids = self.complete(allowed_token_ids=allowed, return_token_ids=True, max_tokens=24,
                                **fields)["choices"][0]["token_ids"]
            self.assertLessEqual(set(ids), set(allowed))
        for value in ([], ["x"], [99999], [-1], "x", [1.5], [1 << 70]):
            self.refused("/v1/completions", {**GREEDY, "allowed_token_ids": value}, "allowed_token_ids")

    def test_bad_words_token_ids(self):
        ids = self.complete(return_token_ids=True)["choices"][0]["token_ids"]
        single = self.complete(bad_words_token_ids=[ids[0], ids[3]], return_token_ids=True)["choices"][0]["token_ids"]
        self.assertFalse({ids[0], ids[3]} & set(single))
        run = self.complete(bad_words_token_ids=[ids[2:4]], return_token_ids=True)["choices"][0]["token_ids"]
        self.assertEqual(run[:3], ids[:3])
        self.assertNotEqual(run[3], ids[3])
        both = self.complete(bad_words_token_ids=[ids[0]], bad_words=["the"], return_token_ids=True)["choices"][0]
        self.assertNotIn(" the", both["text"])
        self.assertNotIn(ids[0], both["token_ids"])
        self.assertEqual(self.complete(bad_words_token_ids=[])["choices"], self.complete()["choices"])
        for value in ([[]], ["x"], [99999], [[99999]], "x", [[1] * 2000], [1] * 2000):
            self.refused("/v1/completions", {**GREEDY, "bad_words_token_ids": value}, "bad_words_token_ids")

    def test_nothing_is_left(self):
        """The request forbids every token: its own mistake, whole and streamed, and the server goes on."""
        body = {**GREEDY, "allowed_token_ids": [5], "bad_words_token_ids": [5]}
        self.refused("/v1/completions", body, "allowed_token_ids", "no token to choose")
        events = self.server.stream("/v1/completions", body)
        self.assertEqual((events[0]["error"]["code"], events[-1]), (400, "[DONE]"))
        self.complete()

    def test_logit_bias(self):
        ids = self.complete(return_token_ids=True)["choices"][0]["token_ids"]
        forced = self.complete(logit_bias={"700": 100}, return_token_ids=True)["choices"][0]["token_ids"]
        self.assertEqual(set(forced), {700})
        banned = self.complete(logit_bias={str(ids[0]): -100}, return_token_ids=True)["choices"][0]["token_ids"]
        self.assertNotIn(ids[0], banned)

    def test_min_tokens_and_penalties(self):
        first = self.complete(return_token_ids=True)["choices"][0]["token_ids"][0]
        stopped = self.complete(stop_token_ids=[first])["usage"]["completion_tokens"]
        kept = self.complete(stop_token_ids=[first], min_tokens=6)["usage"]["completion_tokens"]
        self.assertEqual(stopped, 1)
        self.assertGreaterEqual(kept, 6)
        ids = self.complete(frequency_penalty=2, presence_penalty=2, max_tokens=40,
                            return_token_ids=True)["choices"][0]["token_ids"]
        self.assertGreater(len(set(ids)), 30)

    # ---- how an answer comes

    def test_chunks_of_several_tokens(self):
        for path, body in (("/v1/completions", GREEDY), ("/v1/chat/completions", CHAT)):
            body = {**body, "return_token_ids": True, "logprobs": True if "messages" in body else 1}
            one, five = (self.server.stream(path, {**body, "max_streaming_response_tokens": n}) for n in (1, 5))
            whole = [e["choices"][0]["token_ids"] for e in one[:-1] if e["choices"][0].get("token_ids")]
            chunks = [e["choices"][0]["token_ids"] for e in five[:-1] if e["choices"][0].get("token_ids")]
            self.assertEqual([len(c) for c in chunks], [5, 5, 2])
            self.assertEqual(sum(whole, []), sum(chunks, []))
            self.assertEqual(five[-2]["choices"][0]["finish_reason"], "length")
        merged = self.server.stream("/v1/completions", {**GREEDY, "metadata": {"max_streaming_response_tokens": 12}})
        self.assertEqual(len(merged), 2)
        self.refused("/v1/completions", {**GREEDY, "max_streaming_response_tokens": 0},
                     "max_streaming_response_tokens")

    def test_tokens_as_ids(self):
        ids = self.complete(return_token_ids=True)["choices"][0]["token_ids"]
        plain = self.complete(logprobs=1)["choices"][0]["logprobs"]
        shown = self.complete(logprobs=1, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
        self.assertEqual(shown["tokens"], [f"token_id:{i}" for i in ids])
        self.assertEqual(shown["text_offset"], plain["text_offset"])
        self.assertIn(shown["tokens"][0], shown["top_logprobs"][0])
        content = self.chat(logprobs=True, top_logprobs=2, return_tokens_as_token_ids=True)
        content = content["choices"][0]["logprobs"]["content"]
        self.assertTrue(all(t["token"].startswith("token_id:") for c in content for t in [c] + c["top_logprobs"]))

    def test_best_of(self):
        self.complete(best_of=1)
        self.complete(best_of=2, n=2, temperature=1)
        self.refused("/v1/completions", {**GREEDY, "temperature": 1, "best_of": 3, "n": 2}, "best_of")

    # ---- prompts of chats

    def test_echo(self):
        messages = [{"role": "user", "content": "Tell"}, {"role": "assistant", "content": "Once upon"}]
        plain = self.chat(messages=messages)["choices"][0]["message"]["content"]
        echoed = self.chat(messages=messages, echo=True)["choices"][0]["message"]["content"]
        self.assertEqual(echoed, "Once upon" + plain)
        events = self.server.stream("/v1/chat/completions", {**CHAT, "messages": messages, "echo": True})
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]), echoed)
        self.assertEqual(self.chat(echo=True)["choices"], self.chat()["choices"])  # another role than the answer's
        self.chat(echo=True, messages=messages, logprobs=True)

    def test_continue_final_message(self):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b [end] c"}]
        go_on = {"messages": messages, "continue_final_message": True}
        self.assertEqual(self.prompt_of(**go_on), "[user]a[end][assistant]b [end] c")
        self.assertEqual(self.prompt_of(**go_on, add_generation_prompt=False), "[user]a[end][assistant]b [end] c")
        self.assertEqual(self.prompt_of(messages=messages, add_generation_prompt=False),
                         "[user]a[end][assistant]b [end] c[end]")
        messages[1]["content"] = " b  "
        self.assertEqual(self.prompt_of(**go_on), "[user]a[end][assistant] b  ")
        self.refused("/v1/chat/completions", {**CHAT, **go_on, "add_generation_prompt": True},
                     "continue_final_message", "add_generation_prompt")
        for content in ("", " \n"):
            messages[1]["content"] = content
            self.refused("/v1/chat/completions", {**CHAT, **go_on}, "continue_final_message", "no text")

    def test_template_variables(self):
        self.assertTrue(self.prompt_of(reasoning_effort="high").endswith("[assistant]high+"))
        self.assertTrue(self.prompt_of(reasoning_effort=None).endswith("[assistant]"))
        self.assertTrue(self.prompt_of(documents=[{"text": "a"}, {"text": "b"}]).endswith("[assistant]2"))
        given = self.prompt_of(reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "low"})
        self.assertTrue(given.endswith("[assistant]low+"), given)
        given = self.prompt_of(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
        self.assertTrue(given.endswith("[assistant]none+"), given)
        self.assertTrue(self.prompt_of(reasoning_effort="high", enable_thinking=False).endswith("[assistant]high-"))
        for name in ("reasoning_effort", "documents", "enable_thinking", "include_reasoning", "parallel_tool_calls",
                     "continue_final_message", "add_generation_prompt", "echo"):
            self.refused("/v1/chat/completions", {**CHAT, name: 3}, name)

    def test_big_integers(self):
        """Beyond 64 bits: kept for templates, out of place elsewhere, and the byte of a later mistake is right."""
        n = "123456789012345678901234567890"
        tools = '[{"type":"function","function":{"name":"f","parameters":{"maximum":%s}}}]' % n
        call = '[{"id":"a","type":"function","function":{"name":"f","arguments":"{\\"x\\": -%s}"}}]' % n
        body = ('{"max_tokens":1,"return_token_ids":true,"tools":%s,"chat_template_kwargs":{"reasoning_effort":%s},'
                '"messages":[{"role":"assistant","content":"","tool_calls":%s},{"role":"user","content":"x"}]}')
        ids = self.ask("/v1/chat/completions", body % (tools, n, call))["prompt_token_ids"]
        self.assertTrue(self.ask("/detokenize", {"tokens": ids})["prompt"].endswith(n))
        for path, field, param in (("/v1/completions", '"seed":%s', "seed"), ("/v1/completions", '"prompt":%s', "prompt"),
                                   ("/v1/completions", '"stop":%s', "stop"), ("/v1/completions", '"stop":[%s]', "stop"),
                                   ("/v1/completions", '"model":%s', "model"),
                                   ("/v1/completions", '"prompt":[1,%s]', "prompt"),
                                   ("/v1/completions", '"temperature":%s', "temperature"),
                                   ("/v1/completions", '"request_id":%s', "request_id"),
                                   ("/v1/chat/completions", '"messages":[{"role":"user","content":%s}]', "messages[0]"),
                                   ("/v1/chat/completions", '"messages":[{"role":%s,"content":"x"}]', "messages[0]"),
                                   ("/tokenize", '"prompt":%s', "prompt")):
            with self.subTest(field):
                prompt = '"prompt":"x",' if "prompt" not in field and "messages" not in field else ""
                self.refused(path, "{" + prompt + field % n + "}", param)
        error = self.ask("/v1/completions", '{"seed": %s, "x": tru}' % n, 400)["error"]
        self.assertIn(f"byte {len(n) + 19}", error["message"])
        self.ask("/v1/completions", '{"prompt":"x","max_tokens":1,"unknown":%s}' % n)

    def test_completion_token_ids(self):
        self.assertTrue(self.prompt_of(completion_token_ids=self.ids(" the king")).endswith("[assistant] the king"))

    # ---- prompts

    def test_tokenize_messages(self):
        """The same prompt as the chat's, whatever it is made of."""
        said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b c"}]}]
        for fields in ({}, {"add_generation_prompt": False}, {"continue_final_message": True}, {"reasoning_effort": "low"},
                       {"documents": [{"text": "a"}]}, {"chat_template_kwargs": {"reasoning_effort": "high"}}):
            with self.subTest(fields):
                answer = self.ask("/tokenize", {"messages": said, "return_token_strs": True, **fields})
                ids = self.chat(max_tokens=1, return_token_ids=True, messages=said, **fields)["prompt_token_ids"]
                self.assertEqual((answer["tokens"], answer["count"]), (ids, len(ids)))
                self.assertEqual(len(answer["token_strs"]), len(ids))
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        self.assertEqual(self.ask("/tokenize", {**CHAT, "tools": tools})["tokens"], self.ask("/tokenize", CHAT)["tokens"])
        for name, value in (("messages", [3]), ("messages", []), ("tools", 3), ("chat_template_kwargs", []),
                            ("documents", "x"), ("add_generation_prompt", 3), ("continue_final_message", "x"),
                            ("return_token_strs", 1)):
            with self.subTest(name):
                body = {"messages": said, name: value}
                self.assertIn(name, self.ask("/tokenize", body, 400)["error"]["message"])
        self.refused("/tokenize", {"messages": said, "continue_final_message": True, "add_generation_prompt": True},
                     "continue_final_message", "add_generation_prompt")

    def test_token_strs(self):
        answer = self.ask("/tokenize", {"prompt": "a king", "return_token_strs": True})
        self.assertEqual("".join(answer["token_strs"]).replace("\u0120", " "), "a king")
        self.assertIsNone(self.ask("/tokenize", {"prompt": "a king"})["token_strs"])

    def test_truncate(self):
        """The last tokens of the prompt are kept."""
        ids = self.ids(PROMPT)
        chat = self.ask("/tokenize", CHAT)["tokens"]
        for n, kept in ((1, 1), (3, 3), (len(ids), len(ids)), (-1, 0), (5000, 0)):
            answer = self.complete(truncate_prompt_tokens=n, max_tokens=1, return_token_ids=True)
            self.assertEqual(answer["choices"][0]["prompt_token_ids"], ids[-kept:])
            self.assertEqual(answer["usage"]["prompt_tokens"], len(ids[-kept:]))
            answer = self.chat(truncate_prompt_tokens=n, max_tokens=1, return_token_ids=True)
            self.assertEqual(answer["prompt_token_ids"], chat[-kept:])
        for n in (0, -2, "x", 1.5):
            self.refused("/v1/completions", {**GREEDY, "truncate_prompt_tokens": n}, "truncate_prompt_tokens")

    # ---- refused

    def test_refused_by_name(self):
        table = [("use_beam_search", True), ("early_stopping", True), ("length_penalty", 0.5), ("prompt_embeds", "AA=="),
                 ("chat_template", "x"), ("disable_chat_template", True), ("functions", []), ("function_call", "auto"),
                 ("modalities", ["text", "audio"]), ("audio", {}), ("mm_processor_kwargs", {}), ("mm_hashes", []),
                 ("web_search_options", {}), ("logits_processors", ["a.B"]), ("logits_processors_args", {"a": 1}),
                 ("logprob_token_ids", [1]), ("temp_scaled_logprobs", True), ("top_p_normalized_logprobs", True),
                 ("include_draft_logprobs", True), ("include_logprobs_decode_token", False),
                 ("truncation_side", "right"), ("cache_salt", "x"), ("kv_transfer_params", {}),
                 ("disaggregate_info", {}), ("vllm_xargs", {"a": 1}), ("lora_path", "a"), ("lora", [{"id": 0, "scale": 1}]),
                 ("custom_logit_processor", "x"), ("return_hidden_states", True), ("stop_regex", "a+"), ("mirostat", 2),
                 ("typical_p", 0.9), ("xtc_probability", 0.1), ("dynatemp_range", 0.5), ("dry_multiplier", 0.8)]
        for path, body in (("/v1/completions", GREEDY), ("/v1/chat/completions", CHAT)):
            for name, value in table:
                with self.subTest(name):
                    self.refused(path, {**body, name: value}, name, "is not supported: ")
        self.refused("/v1/chat/completions", {**CHAT, "add_special_tokens": True}, "add_special_tokens")
        self.refused("/v1/completions", {**GREEDY, "reasoning_max_tokens": 5}, "reasoning_max_tokens")

    def test_harmless_values(self):
        """The defaults that clients write out."""
        fields = {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False, "modalities": ["text"],
                  "logits_processors": [], "logits_processors_args": None, "include_logprobs_decode_token": True,
                  "temp_scaled_logprobs": False, "truncation_side": "left", "vllm_xargs": {}, "user": "me",
                  "spaces_between_special_tokens": True, "lora": [], "mirostat": 0, "typical_p": 1, "xtc_probability": 0.0,
                  "dynatemp_range": 0, "dry_multiplier": 0, "grammar": "", "regex": None, "json_schema": "", "ebnf": "", "mm_processor_kwargs": None, "parallel_tool_calls": True,
                  "include_reasoning": True, "reasoning_max_tokens": None, "best_of": None,
                  "service_tier": "auto", "store": False, "metadata": {"mine": "x"}, "stop": [], "logit_bias": {}}
        self.assertEqual(self.chat(**fields)["choices"], self.chat()["choices"])
        self.assertEqual(self.complete(**fields)["choices"], self.complete()["choices"])

    def test_metadata(self):
        """FastDeploy's old place for parameters; a field of the request itself is stronger."""
        inner = {"bad_words_token_ids": [3], "temperature": 5, "max_tokens": 3}
        self.assertEqual(self.complete(max_tokens=4, metadata=inner)["usage"]["completion_tokens"], 4)
        self.refused("/v1/completions", {"prompt": "x", "metadata": inner}, "temperature")


class Reasoning(Case):
    """A model for which <think> and </think> are tokens, and a template that opens the reasoning."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        thinking_model(cls.folder.name)
        path = template_file(cls.folder.name, "{{ messages[0].content }}{% if enable_thinking != false %}<think>{% endif %}")
        cls.server = Server("--chat-template", path, "--parser", "qwen3", cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.text()
        cls.server.close()
        cls.folder.cleanup()

    def test_limit(self):
        for fields in ({}, {"temperature": 1, "seed": 4}, {"metadata": {"reasoning_max_tokens": 5}}):
            fields = {"reasoning_max_tokens": 5, **fields} if "metadata" not in fields else fields
            answer = self.chat(**fields, max_tokens=20, ignore_eos=True, return_token_ids=True)
            choice = answer["choices"][0]
            self.assertEqual(choice["token_ids"][5], CLOSE)
            self.assertNotIn(CLOSE, choice["token_ids"][:5] + choice["token_ids"][6:])
            self.assertEqual(self.ids(choice["message"]["reasoning"]), choice["token_ids"][:5])
            self.assertTrue(choice["message"]["content"])
            self.assertIn(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], (5, 6))

    def test_beyond_the_answer(self):
        self.assertEqual(self.chat(reasoning_max_tokens=500)["choices"], self.chat()["choices"])

    def test_closed_early(self):
        """Whoever ends the reasoning alone is not made to do it again."""
        close = {"logit_bias": {str(CLOSE): 100}, "max_tokens": 1, "return_token_ids": True}
        self.assertEqual(self.chat(**close)["choices"][0]["token_ids"], [CLOSE])
        ids = self.chat(completion_token_ids=[CLOSE], reasoning_max_tokens=3, return_token_ids=True)
        self.assertNotIn(CLOSE, ids["choices"][0]["token_ids"])

    def test_no_reasoning(self):
        plain = self.chat(chat_template_kwargs={"enable_thinking": False})["choices"]
        limited = self.chat(chat_template_kwargs={"enable_thinking": False}, reasoning_max_tokens=3)["choices"]
        self.assertEqual(plain, limited)
        self.assertEqual(self.chat(reasoning_effort="none")["choices"], plain)
        self.assertEqual(self.chat(reasoning_effort="low")["choices"], self.chat()["choices"])

    def test_left_out(self):
        answer = self.chat(include_reasoning=False, reasoning_max_tokens=3, max_tokens=20, ignore_eos=True)
        message = answer["choices"][0]["message"]
        self.assertNotIn("reasoning", message)
        self.assertTrue(message["content"])
        self.assertGreaterEqual(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 3)
        status, _, data = self.server.request("POST", "/v1/chat/completions", {
            **CHAT, "include_reasoning": False, "reasoning_max_tokens": 3, "stream": True, "max_tokens": 20,
            "ignore_eos": True})
        self.assertEqual(status, 200)
        deltas = [e["choices"][0]["delta"] for e in parse_events(data)[:-1]]
        self.assertFalse([d for d in deltas if "reasoning" in d])
        self.assertEqual("".join(d.get("content", "") for d in deltas), message["content"])

    def test_required_calls(self):
        """Reasoning as long as it may be, and then nothing but a call of these tools."""
        parameters = {"type": "object", "properties": {"at": {"enum": ["the sea", "the moon"]}, "n": {"type": "integer"}},
                      "required": ["at"], "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("look", "go")]
        ask = {"tools": tools, "reasoning_max_tokens": 4, "max_tokens": 120}
        for choice, names in (("required", {"look", "go"}), ({"type": "function", "function": {"name": "go"}}, {"go"})):
            for fields in ({}, {"temperature": 1, "seed": 2}):
                answer = self.chat(**ask, **fields, tool_choice=choice)["choices"][0]
                # A model that was trained for calls ends after some; this one may begin another for ever.
                self.assertIn(answer["finish_reason"], ("tool_calls", "length"))
                self.assertGreater(len(answer["message"]["tool_calls"]), 0)
                self.assertTrue(answer["message"]["reasoning"])
                for call in answer["message"]["tool_calls"]:
                    self.assertIn(call["function"]["name"], names)
                    self.assertIn(json.loads(call["function"]["arguments"])["at"], ("the sea", "the moon"))
        one = self.chat(**ask, tool_choice="required", parallel_tool_calls=False)["choices"][0]["message"]["tool_calls"]
        self.assertEqual(len(one), 1)

    def test_prompt_ids_open_it(self):
        answer = self.chat(prompt_token_ids=self.ids(PROMPT) + [OPEN], reasoning_max_tokens=4, max_tokens=12,
                           ignore_eos=True)
        self.assertTrue(answer["choices"][0]["message"]["reasoning"])

    def test_ranges(self):
        for value in (0, -3, "x", 1.5):
            self.refused("/v1/chat/completions", {**CHAT, "reasoning_max_tokens": value}, "reasoning_max_tokens")


if __name__ == "__main__":
    unittest.main(verbosity=1, warnings="ignore")
