"""Constrained answers over the wire: every one parses and validates, whatever the seed. NYBBLE names the program."""
import json
import os
import re
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(__file__))
from harness import SANITIZED, Server  # noqa: E402

PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "mood": {"enum": ["good", "bad"]}, "pets": {"type": "array", "items": {"$ref": "#/$defs/pet"}, "maxItems": 2}},
    "required": ["name", "age"], "additionalProperties": False,
    "$defs": {"pet": {"type": "object", "properties": {"kind": {"const": "cat"}, "tame": {"type": "boolean"}}, "required": ["kind"]}}}
SEEDS = 10 if SANITIZED else 30


def is_person(value):
    assert list(value)[:2] == ["name", "age"] and set(value) <= set(PERSON["properties"]), value
    assert isinstance(value["name"], str) and 1 <= len(value["name"]) <= 20, value
    assert isinstance(value["age"], int) and 0 <= value["age"] <= 120, value
    assert value.get("mood", "good") in ("good", "bad"), value
    assert len(value.get("pets", [])) <= 2, value
    for pet in value.get("pets", []):
        assert pet["kind"] == "cat" and isinstance(pet.get("tame", True), bool), value


class WithServer(unittest.TestCase):
    options = ("--max-num-seqs", "16")

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.options)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.text())
        cls.server.close()

    def complete(self, **fields):
        body = {"prompt": "Once upon a time", "max_tokens": 300, "temperature": 1, "seed": 1, **fields}
        status, answer = self.server.post("/v1/completions", body)
        self.assertEqual(status, 200, answer)
        return answer["choices"]

    def chat(self, **fields):
        body = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 300, "temperature": 1, "seed": 1, **fields}
        status, answer = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]

    def refused(self, param, *words, path="/v1/completions", **fields):
        body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, **fields}
        status, answer = self.server.post(path, body)
        self.assertEqual(status, 400, answer)
        self.assertEqual(answer["error"]["param"], param, answer)
        for word in words:
            self.assertIn(word, answer["error"]["message"])


class Constraints(WithServer):
    def test_schema_for_all_seeds(self):
        choices = self.complete(n=SEEDS, structured_outputs={"json": PERSON})
        self.assertEqual(len(choices), SEEDS)
        for choice in choices:
            self.assertEqual(choice["finish_reason"], "stop", choice)
            is_person(json.loads(choice["text"]))
        # the same alone as in company
        for i in (0, 7, SEEDS - 1):
            self.assertEqual(self.complete(seed=1 + i, structured_outputs={"json": PERSON})[0]["text"], choices[i]["text"])

    def test_json_object(self):
        for choice in self.complete(n=SEEDS, response_format={"type": "json_object"}, max_tokens=500):
            if choice["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(choice["text"]), dict)
            else:
                self.assertTrue(choice["text"].startswith("{"))

    def test_response_format(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
        is_person(json.loads(self.chat(response_format=form)["message"]["content"]))
        self.assertTrue(self.chat(response_format={"type": "text"}, max_tokens=5)["message"]["content"])
        events = self.server.stream("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Who?"}], "response_format": form, "seed": 4, "temperature": 1, "max_tokens": 300})
        is_person(json.loads("".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1])))

    def test_spellings(self):
        compact = json.dumps(PERSON)
        is_person(json.loads(self.complete(guided_json=compact)[0]["text"]))
        text = self.complete(structured_outputs={"json": PERSON, "disable_any_whitespace": True})[0]["text"]
        self.assertNotRegex(text, r"[:,{] ")
        text = self.complete(guided_json=PERSON, guided_whitespace_pattern=" ")[0]["text"]
        self.assertRegex(text, r'^\{ "name": ')
        self.assertTrue(self.complete(structured_outputs={"json_object": True}, max_tokens=9)[0]["text"].startswith("{"))
        for field in ({"guided_choice": ["red", "green"]}, {"structured_outputs": {"choice": ["red", "green"]}}):
            for choice in self.complete(n=20, **field):
                self.assertIn(choice["text"], ("red", "green"))
        for field in ({"json_schema": PERSON}, {"json_schema": compact},
                      {"response_format": {"type": "json_object", "schema": PERSON}}):
            is_person(json.loads(self.complete(**field)[0]["text"]))
        for choice in self.complete(n=5, response_format={"type": "json_object", "schema": {}}):
            self.assertEqual(choice["text"].lstrip()[:1], "{")
        regex = "[a-z]{2,6}( [a-z]{2,6}){2}[.!]"
        for field in ({"guided_regex": regex}, {"structured_outputs": {"regex": regex}}, {"regex": regex}):
            for choice in self.complete(n=20, **field):
                self.assertTrue(re.fullmatch("[a-z]{2,6}( [a-z]{2,6}){2}[.!]", choice["text"]), choice)
        grammar = 'root ::= "The " word (", the " word){1,3} "."\nword ::= [a-z]{3,8}'
        for field in ({"guided_grammar": grammar}, {"structured_outputs": {"grammar": grammar}}, {"grammar": grammar},
                      {"ebnf": grammar}):
            for choice in self.complete(n=20, **field):
                self.assertTrue(re.fullmatch(r"The [a-z]{3,8}(, the [a-z]{3,8}){1,3}\.", choice["text"]), choice)

    def test_structural_tags(self):
        tags = {"structures": [{"begin": "<n>", "schema": {"enum": [1, 22]}, "end": "</n>"}], "triggers": ["<n"],
                "required": True, "parallel": False}
        for field in ({"structural_tag": tags}, {"structural_tag": json.dumps(tags)}, {"structured_outputs": {"structural_tag": tags}},
                      {"response_format": {"type": "structural_tag", **tags}}):
            for choice in self.complete(n=8, **field):
                self.assertRegex(choice["text"], r"^<n>(1|22)</n>$")
        self.refused("structural_tag", "structures and triggers", structural_tag=3)
        self.refused("structural_tag", "trigger", structural_tag={**tags, "triggers": []})
        self.refused("response_format", "malformed", response_format={"type": "structural_tag"})

    def test_switches(self):
        for field in ({"guided_json_object": True}, {"structured_outputs": {"json_object": True}}):
            self.assertTrue(self.complete(max_tokens=9, **field)[0]["text"].startswith("{"))
        for field in ({"guided_json_object": False}, {"structured_outputs": {"json_object": False}}):
            self.assertFalse(self.complete(max_tokens=9, **field)[0]["text"].startswith("{"))
        self.refused("guided_json_object", "boolean", guided_json_object="yes")
        self.refused("guided_whitespace_pattern", "string", guided_json={}, guided_whitespace_pattern=3)
        self.refused("structured_outputs", "whitespace_pattern", structured_outputs={"json": {}, "whitespace_pattern": 3})
        spaced = self.complete(structured_outputs={"json": PERSON, "whitespace_pattern": " "})[0]["text"]
        self.assertRegex(spaced, r'^\{ "name": ')

    def test_with_other_parameters(self):
        constraint = {"guided_choice": ["a", "ab"]}
        self.assertEqual(self.complete(temperature=0, min_tokens=50, **constraint)[0]["finish_reason"], "stop")
        self.assertEqual(self.complete(ignore_eos=True, **constraint)[0]["finish_reason"], "stop")
        choice = self.complete(top_k=1, top_p=0.5, repetition_penalty=1.3, presence_penalty=1, **constraint)[0]
        self.assertIn(choice["text"], ("a", "ab"))
        stopped = self.complete(guided_regex="[a-z]{9}x[0-9]{30}", stop=["x"])[0]
        self.assertTrue(re.fullmatch("[a-z]{9}", stopped["text"]) or "x" not in stopped["text"], stopped)
        free = self.chat(logprobs=True, top_logprobs=1, max_tokens=1, temperature=0)["logprobs"]["content"][0]
        bound = self.chat(logprobs=True, top_logprobs=1, max_tokens=1, temperature=0, guided_choice=["{}"])["logprobs"]["content"][0]
        self.assertEqual(free["top_logprobs"], bound["top_logprobs"])  # the model's own, whatever is allowed

    def test_refused(self):
        self.refused("guided_json", "patternProperties", "#/patternProperties", guided_json={"patternProperties": {}})
        self.refused("structured_outputs", "byte 2", structured_outputs={"regex": "(a"})
        self.refused("guided_grammar", "root", guided_grammar='a ::= "b"')
        self.refused("guided_choice", guided_choice=[])
        self.refused("guided_choice", guided_choice=["a", 1])
        self.refused("guided_regex", guided_regex=3)
        self.refused("guided_json", "not valid JSON", guided_json="{")
        self.refused("guided_json", "response_format", guided_json={}, response_format={"type": "json_object"})
        self.refused("structured_outputs", structured_outputs={"json": {}, "regex": "a"})
        self.refused("structured_outputs", structured_outputs=[])
        self.refused("response_format", "odd", response_format={"type": "odd"})
        self.refused("response_format", response_format={"type": "json_schema"})


class Calls(WithServer):
    """The format of Qwen3's calls, and reasoning that the model might begin."""
    options = ("--parser", "qwen3", "--max-num-seqs", "16")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {
        "type": "object", "properties": {"at": {"enum": ["sea", "sky"]}, "times": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["at", "times"], "additionalProperties": False}}},
        {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {"far": {"type": "boolean"}}}}}]

    def chats(self, n, fields):
        """One for each seed, at once: a batch costs little more than one of them."""
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda seed: self.chat(seed=seed, tools=self.tools, **fields(seed)), range(n)))

    def check(self, call):
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "look":
            self.assertEqual(set(arguments), {"at", "times"})
            self.assertIn(arguments["at"], ("sea", "sky"))
            self.assertIn(arguments["times"], range(1, 10))
        else:
            self.assertEqual(call["function"]["name"], "go")
            self.assertLessEqual(set(arguments), {"far"})

    def test_required_and_named(self):
        seen = 0
        choices = self.chats(SEEDS, lambda seed: {"tool_choice": "required", "parallel_tool_calls": seed % 2 == 0})
        for seed, choice in enumerate(choices):
            calls = choice["message"].get("tool_calls") or []
            seen += len(calls) > 0
            for call in calls:
                self.check(call)
            if not calls or seed % 2:  # it still reasons, or there is one call
                self.assertEqual(choice["finish_reason"], "tool_calls" if calls else "length")
                self.assertLessEqual(len(calls), 1)
        self.assertGreater(seen, SEEDS // 5)
        named = {"type": "function", "function": {"name": "look"}}
        for choice in self.chats(8, lambda seed: {"tool_choice": named}):
            calls = choice["message"].get("tool_calls") or []
            self.assertEqual([c["function"]["name"] for c in calls], ["look"] * len(calls))
            for call in calls:
                self.check(call)

    def test_strict_tools_leave_text_free(self):
        strict = [{**t, "function": {**t["function"], "strict": True}} for t in self.tools]
        self.assertTrue(self.chat(tools=strict, max_tokens=20)["message"]["content"])
        self.refused("tools", "not", path="/v1/chat/completions",
                     tools=[{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
                         "type": "object", "properties": {"a": {"not": {}}}}}}])


    def test_calls_or_a_format(self):
        """With response_format an answer is calls of the tools, strict or not, or what the format says."""
        _, ids = self.server.post("/tokenize", {"prompt": "<tool_call>", "add_special_tokens": False})
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
        formats = [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}]
        strict = [{**t, "function": {**t["function"], "strict": True}} for t in self.tools]
        done = [{"role": "user", "content": "Who?</think>"}]  # there is no reasoning then
        for call, tools, form in ((c, t, f) for c in (True, False) for t in (strict, self.tools) for f in formats):
            choice = self.chat(messages=done, tools=tools, response_format=form, parallel_tool_calls=False, temperature=0,
                               logit_bias={str(ids["tokens"][0]): 100 if call else -100})
            with self.subTest(call=call, strict=tools is strict, form=form["type"]):
                if call:
                    endless = tools is not strict and choice["finish_reason"] == "length"  # arguments without an end
                    self.assertEqual(choice["finish_reason"], "length" if endless else "tool_calls", choice)
                    if endless:
                        self.assertTrue(choice["message"]["content"].startswith("<tool_call>"), choice)
                    elif tools is strict:
                        self.check(choice["message"]["tool_calls"][0])
                elif choice["finish_reason"] == "stop":
                    self.assertIsInstance(json.loads(choice["message"]["content"]), dict)
                else:
                    self.assertEqual(choice["message"]["content"].lstrip()[:1], "{", choice)
        for how in ("required", {"type": "function", "function": {"name": "look"}}):  # then there is nothing but calls
            message = self.chat(messages=done, tools=strict, tool_choice=how, response_format=formats[1])["message"]
            self.assertFalse((message["content"] or "").startswith("{"), message)
        none = self.chat(messages=done, tools=strict, tool_choice="none", response_format=formats[1], temperature=0)["message"]
        self.assertEqual(none["content"][:1], "{")
        wrong = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}
        self.refused("response_format", "not", path="/v1/chat/completions", tools=strict, response_format=wrong)
        unread = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "a\0b"}}}
        for tools in (None, strict, self.tools):
            self.refused("response_format", "\\u0000", path="/v1/chat/completions", tools=tools, response_format=unread)
        self.refused("structured_outputs", "content/schema", structured_outputs={"regex": "content/schema#(?=x)"})

    def test_schemas_that_cannot_be_kept(self):
        """A tool that is not strict is called with any object then; a strict one is refused."""
        parameters = {"type": "object", "properties": {"at": {"type": "object", "patternProperties": {"^x": {}}}}}
        for strict in (False, True):
            tools = [{"type": "function", "function": {"name": "look", "strict": strict, "parameters": parameters}}]
            for how in ("required", {"type": "function", "function": {"name": "look"}}):
                if strict:
                    self.refused("tool_choice", "patternProperties", path="/v1/chat/completions", tools=tools, tool_choice=how)
                    continue
                message = self.chat(messages=[{"role": "user", "content": "Who?</think>"}], tools=tools, tool_choice=how,
                                    temperature=0)["message"]
                if message.get("tool_calls"):
                    self.assertIsInstance(json.loads(message["tool_calls"][0]["function"]["arguments"]), dict)
                else:  # arguments without an end
                    self.assertTrue(message["content"].startswith("<tool_call>"), message)
        wrong = [{"type": "function", "function": {"name": "look", "parameters": {
            "type": "object", "properties": {"a": {"type": "odd"}}}}}]
        self.refused("tool_choice", "malformed", path="/v1/chat/completions", tools=wrong, tool_choice="required")

    def test_allowed_tools(self):
        allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "go"}}]}
        for choice in self.chats(8, lambda seed: {"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}):
            for call in choice["message"].get("tool_calls") or []:
                self.assertEqual(call["function"]["name"], "go")


class FunctionCalls(Calls):
    options = ("--parser", "qwen3_coder", "--max-num-seqs", "16")


class KeyCalls(Calls):
    options = ("--parser", "glm45", "--max-num-seqs", "16")


if __name__ == "__main__":
    unittest.main()
