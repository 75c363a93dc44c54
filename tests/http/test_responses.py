#!/usr/bin/env python3
"""OpenAI's Responses API over the wire, beside the chats that mean the same. NYBBLE names the program."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server, in_background, raw_request, read_until  # noqa: E402

TOOLS = [{"type": "function", "name": name, "strict": True, "parameters": {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
    "additionalProperties": False}} for name in ("look", "go")]
CHAT_TOOLS = [{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in TOOLS]
# Shows the prompt as it is, so that answers of both APIs can be compared.
TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
            "{% for c in m.tool_calls or [] %}<{{ c.function.name }}{{ c.function.arguments | tojson }}>{% endfor %}{% endfor %}"
            "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% if thinks %}<think>{% else %}</think>{% endif %}")


class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write(TEMPLATE)
            template.flush()
            cls.server = Server("--parser", "qwen3", "--chat-template", template.name)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.text()
        cls.server.close()

    def ask(self, **fields):
        body = {"input": "Once upon a time", "max_output_tokens": 16, "temperature": 0, "ignore_eos": True, **fields}
        status, answer = self.server.post("/v1/responses", body)
        self.assertEqual(status, 200, answer)
        self.assertEqual((answer["object"], answer["id"][:5], answer["store"]), ("response", "resp_", False))
        return answer

    def chat(self, messages, **fields):
        body = {"messages": messages, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **fields}
        status, answer = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        return answer

    def stream(self, **fields):
        """Events whose names, numbers and places fit; and the response of the last one."""
        body = {"input": "Once upon a time", "max_output_tokens": 16, "temperature": 0, "ignore_eos": True, "stream": True,
                **fields}
        status, headers, data = self.server.request("POST", "/v1/responses", body)
        self.assertEqual((status, headers["content-type"]), (200, "text/event-stream; charset=utf-8"), data)
        events = []
        for block in data.decode().split("\n\n")[:-1]:
            name, line = block.split("\n")
            events.append(json.loads(line.removeprefix("data: ")))
            self.assertEqual(name, "event: " + events[-1]["type"])
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        self.assertEqual([e["type"] for e in events[:2]], ["response.created", "response.in_progress"])
        response = events[-1]["response"]
        self.assertEqual(events[-1]["type"], "response." + response["status"])
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        self.assertEqual(done, response["output"])
        for i, item in enumerate(done):
            mine = [e for e in events if e.get("output_index") == i]
            self.assertEqual((mine[0]["type"], mine[-1]["type"]), ("response.output_item.added", "response.output_item.done"))
            self.assertEqual({e.get("item_id", item["id"]) for e in mine}, {item["id"]})
            deltas = "".join(e["delta"] for e in mine if e["type"].endswith(".delta"))
            self.assertEqual(deltas, item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        return events, response

    def same(self, whole, streamed):
        """But for what differs from request to request."""
        def plain(response):
            return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
        self.assertEqual(plain(whole), plain(streamed))
        for key in ("status", "incomplete_details", "tools", "text"):
            self.assertEqual(whole[key], streamed[key])
        self.assertEqual(whole["usage"]["output_tokens"], streamed["usage"]["output_tokens"])

    def text(self, answer):
        self.assertEqual([item["type"] for item in answer["output"]], ["message"])
        return answer["output"][0]["content"][0]["text"]

    def test_text(self):
        answer = self.ask()
        want = self.chat([{"role": "user", "content": "Once upon a time"}])
        self.assertEqual(self.text(answer), want["choices"][0]["message"]["content"])
        self.assertEqual((answer["status"], answer["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
        usage, other = answer["usage"], want["usage"]
        self.assertEqual([usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]],
                         [other["prompt_tokens"], 16, other["total_tokens"]])
        self.same(answer, self.stream()[1])
        word = self.text(answer).split()[3]
        self.assertEqual(self.ask(stop=[word])["status"], "completed")  # chats' own parameters count
        empty = self.ask(stop=[self.text(answer)[:1]])
        self.assertEqual((self.text(empty), empty["output"][0]["status"]), ("", "completed"))
        self.same(empty, self.stream(stop=[self.text(answer)[:1]])[1])

    def test_settings_are_repeated(self):
        answer = self.ask(instructions="Be brief.", metadata={"a": "b"}, top_p=0.5, user="me", store=True,
                          parallel_tool_calls=False, reasoning={"effort": "low"}, text={"verbosity": "low"})
        self.assertEqual([answer[k] for k in ("instructions", "metadata", "top_p", "user", "parallel_tool_calls", "temperature",
                                              "max_output_tokens", "reasoning", "text", "tools", "tool_choice", "error")],
                         ["Be brief.", {"a": "b"}, 0.5, "me", False, 0, 16, {"effort": "low"}, {"verbosity": "low"}, [], "auto", None])
        status, headers, data = self.server.request("POST", "/v1/responses", {"input": "x", "max_output_tokens": 1},
                                                    headers={"X-Request-Id": "mine-1"})
        self.assertEqual((status, headers["x-request-id"], json.loads(data)["id"]), (200, "mine-1", "resp_mine-1"))

    def test_settings_are_repeated_as_they_were_written(self):
        exact = {"instructions": "\u00e9/\u0001\"\\", "metadata": {"z": "1", "a": "\u00e9" * 512, "k" * 64: ""},
                 "tools": [{"type": "function", "name": "go", "parameters": {
                     "type": "object", "properties": {"n": {"type": "integer", "maximum": 2**64 - 1, "minimum": -10**30},
                                                      "x": {"enum": [None, True, False, 0.1, -2.5e-300, 1e22, -7, [], {}]}}}}]}
        exact.update(temperature=0.7, top_p=0.9, tool_choice="none", max_output_tokens=1)
        body = json.dumps({"input": "x", **exact}, ensure_ascii=False).encode()
        status, _, data = self.server.request("POST", "/v1/responses", body)
        self.assertEqual(status, 200, data)
        for name, value in exact.items():
            self.assertIn(json.dumps({name: value}, ensure_ascii=False, separators=(",", ":"))[1:-1], data.decode())

    def test_what_is_repeated_has_a_bound(self):
        tool = [{"type": "function", "name": "go", "parameters": {"type": "object", "description": "x" * 1100000}}]
        for fields, param in (({"metadata": {"a": 5}}, "metadata"), ({"metadata": ["a"]}, "metadata"),
                              ({"metadata": {str(i): "" for i in range(17)}}, "metadata"), ({"metadata": {"k" * 65: ""}}, "metadata"),
                              ({"metadata": {"a": "\u00e9" * 513}}, "metadata"), ({"tools": tool, "tool_choice": "none"}, "tools"),
                              ({"user": "x" * 600000, "instructions": "y" * 600000}, "user")):
            with self.subTest(str(fields)[:80]):
                status, answer = self.server.post("/v1/responses", {"input": "x", "max_output_tokens": 1, **fields})
                self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
                self.assertIn("(parameter=" + param, answer["error"]["message"])

    def test_conversation(self):
        """Items become the messages of the chat that means the same."""
        items = [{"role": "developer", "content": "Rules."}, {"role": "user", "content": [{"type": "input_text", "text": "Go"}]},
                 {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
                 {"type": "message", "role": "assistant", "id": "m", "status": "completed",
                  "content": [{"type": "output_text", "text": "Well,", "annotations": []}]},
                 {"type": "function_call", "id": "fc", "call_id": "c1", "name": "go", "arguments": "{\"n\": 1}"},
                 {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
                 {"type": "function_call_output", "call_id": "c1", "output": "gone"},
                 {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "seen"}]},
                 {"type": "message", "role": "user", "content": "On"}]
        call = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}}
                for i, n, a in (("c1", "go", "{\"n\": 1}"), ("c2", "look", "{}"))]
        messages = [{"role": "system", "content": "First.\nRules."}, {"role": "user", "content": "Go"},
                    {"role": "assistant", "content": "Well,", "reasoning_content": "Hm.", "tool_calls": call},
                    {"role": "tool", "tool_call_id": "c1", "content": "gone"}, {"role": "tool", "tool_call_id": "c2", "content": "seen"},
                    {"role": "user", "content": "On"}]
        answer = self.ask(input=items, instructions="First.", tools=TOOLS, tool_choice="none")
        want = self.chat(messages, tools=CHAT_TOOLS, tool_choice="none")
        self.assertEqual(self.text(answer), want["choices"][0]["message"]["content"])
        self.assertEqual(answer["usage"]["input_tokens"], want["usage"]["prompt_tokens"])
        counted = self.server.post("/v1/responses/input_tokens", {"input": items, "instructions": "First.", "tools": TOOLS})
        self.assertEqual(counted, (200, {"object": "response.input_tokens", "input_tokens": want["usage"]["prompt_tokens"]}))
        status, answer = self.server.post("/v1/responses/input_tokens", {"input": 5})
        self.assertEqual((status, answer["error"]["param"]), (400, "input"))

    def test_reasoning_belongs_to_the_answer_behind_it(self):
        hm = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
        user, answered = {"role": "user", "content": "Go"}, {"role": "assistant", "content": "Well"}
        for between, kept in (([], True), ([user], False), ([{"role": "developer", "content": "Rules."}], False)):
            answer = self.ask(input=[user, hm, *between, answered, user])
            messages = [user, *between, {**answered, **({"reasoning_content": "Hm."} if kept else {})}, user]
            self.assertEqual(answer["usage"]["input_tokens"], self.chat(messages)["usage"]["prompt_tokens"])

    def test_calls(self):
        for fields in ({"tool_choice": "required"}, {"tool_choice": {"type": "function", "name": "go"}},
                       {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "go"}]}}):
            with self.subTest(fields):
                fields = {"tools": TOOLS, "max_output_tokens": 150, "parallel_tool_calls": False, **fields}
                answer = self.ask(**fields)
                call, = answer["output"]
                self.assertEqual((call["type"], call["status"], answer["status"]), ("function_call", "completed", "completed"))
                self.assertEqual(list(json.loads(call["arguments"])), ["n"])
                self.assertIn(call["name"], ("look", "go") if fields["tool_choice"] == "required" else ("go",))
                self.assertTrue(call["call_id"].startswith("call_"))
                self.same(answer, self.stream(**fields)[1])
        many = self.ask(tools=TOOLS, tool_choice="required", max_output_tokens=150)["output"]
        self.assertGreater(len(many), 1)
        self.assertEqual(len({item["id"] for item in many}), len(many))

    def test_format(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"],
                  "additionalProperties": False}
        text = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
        answer = self.ask(text=text, max_output_tokens=80)
        self.assertEqual(list(json.loads(self.text(answer))), ["n"])
        self.assertEqual(answer["text"], text)
        self.same(answer, self.stream(text=text, max_output_tokens=80)[1])
        both = self.ask(text=text, tools=TOOLS, max_output_tokens=80)  # as agents ask
        self.assertEqual(both["status"], "completed")

    def test_reasoning(self):
        _, ids = self.server.post("/tokenize", {"prompt": "</think>", "add_special_tokens": False})
        fields = {"chat_template_kwargs": {"thinks": True}, "logit_bias": {str(ids["tokens"][0]): -100}}
        answer = self.ask(**fields)
        item, = answer["output"]
        self.assertEqual((item["type"], item["status"], item["summary"]), ("reasoning", "incomplete", []))
        self.assertEqual(item["content"][0]["type"], "reasoning_text")
        self.assertTrue(item["content"][0]["text"])
        self.assertEqual(answer["usage"]["output_tokens_details"]["reasoning_tokens"], 16)
        self.same(answer, self.stream(**fields)[1])
        self.assertEqual(self.ask(include_reasoning=False, **fields)["output"][0]["type"], "message")

    def test_logprobs(self):
        fields = {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2}
        answer = self.ask(**fields)
        all_of_it = answer["output"][0]["content"][0]["logprobs"]
        self.assertEqual("".join(entry["token"] for entry in all_of_it), self.text(answer))
        self.assertEqual({len(entry["top_logprobs"]) for entry in all_of_it}, {2})
        events, response = self.stream(**fields)
        self.same(answer, response)
        pieces = [entry for e in events if e["type"] == "response.output_text.delta" for entry in e["logprobs"]]
        self.assertEqual(pieces, all_of_it)

    def test_logprobs_are_the_messages(self):
        """Of tokens of reasoning, of calls and of markers there are none, however the answer comes."""
        call = r'<tool_call>\n\{"name": "go", "arguments": \{\}\}\n</tool_call>'
        table = [("<think>a b</think>hello there", ["a b", "hello there"]),
                 ("hello<think>a b</think>there", ["hello<think>a b</think>there"]),  # it is text there
                 ("one " + call, ["one ", "{}"]), ("one " + call + "two", ["one ", "{}", "two"]),
                 (call + "\n" + call + "\n\ntwo < 3", ["{}", "{}", "two < 3"]), ("<think>é</think>\n\n😀é!", ["é", "😀é!"])]
        tools = [{"type": "function", "name": "go", "parameters": {"type": "object"}}]
        for regex, want in table:
            fields = {"max_output_tokens": 120, "include": ["message.output_text.logprobs"], "tools": tools, "tool_choice": "auto",
                      "structured_outputs": {"regex": regex}, "ignore_eos": False}
            answers = [self.ask(**fields)] + [self.stream(max_streaming_response_tokens=n, **fields)[1] for n in (1, 3, 200)]
            for i, answer in enumerate(answers):
                with self.subTest(regex=regex, i=i):
                    parts = [item.get("arguments") or item["content"][0]["text"] for item in answer["output"]]
                    self.assertEqual(parts, want)
                    self.same(answer, answers[0])
                    for item in answer["output"]:
                        if item["type"] == "message":
                            part = item["content"][0]
                            shown = bytes(b for entry in part["logprobs"] for b in entry["bytes"]).decode()
                            self.assertEqual(shown, part["text"])
        hidden = self.ask(max_output_tokens=120, include=["message.output_text.logprobs"], include_reasoning=False, ignore_eos=False,
                          structured_outputs={"regex": table[0][0]})
        self.assertEqual("".join(e["token"] for e in hidden["output"][0]["content"][0]["logprobs"]), "hello there")

    def test_refused(self):
        call = {"type": "function_call", "call_id": "c", "name": "go", "arguments": "{"}
        table = [
            ({"input": None}, "input"), ({"input": []}, "input"), ({"input": 5}, "input"), ({"input": [5]}, "input[0]"),
            ({"input": [{"role": "user"}]}, "input[0]"), ({"input": [{"content": "x"}]}, "input[0]"),
            ({"input": [{"type": 5}]}, "input[0]"), ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
            ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"), ({"input": [call]}, "input"),
            ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0]"),
            ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
            ({"instructions": ["x"]}, "instructions"), ({"previous_response_id": "resp_1"}, "previous_response_id"),
            ({"conversation": "c"}, "conversation"), ({"prompt": {"id": "p"}}, "prompt"), ({"background": True}, "background"),
            ({"truncation": "auto"}, "truncation"), ({"tools": [{"type": "web_search"}]}, "tools"), ({"tools": [{}]}, "tools"),
            ({"tools": 5}, "tools"), ({"tool_choice": "required"}, "tool_choice"), ({"max_output_tokens": 0}, "max_output_tokens"),
            ({"text": 5}, "text"), ({"text": {"format": {"type": "odd"}}}, "text"), ({"reasoning": 5}, "reasoning"),
            ({"reasoning": {"effort": 5}}, "reasoning"), ({"include": 5}, "include"), ({"top_logprobs": 99}, "top_logprobs"),
            ({"input": "Once upon a time. " * 600}, "input"), ({"temperature": 9}, "temperature"),
        ]
        for fields, param in table:
            with self.subTest(str(fields)[:80]):
                status, answer = self.server.post("/v1/responses", {"input": "x", "max_output_tokens": 1, **fields})
                self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
                for name in ("parameter=messages", "max_completion_tokens", "response_format", "reasoning_effort"):
                    self.assertNotIn(f"({name}", answer["error"]["message"])
        self.assertEqual(self.server.post("/v1/responses", {"input": "x", "model": "other"})[0], 404)
        fine = {"background": False, "truncation": "disabled", "previous_response_id": None, "tools": [], "tool_choice": "auto",
                "stream_options": {"include_obfuscation": False}, "n": None, "include": None, "text": None, "reasoning": None}
        self.assertEqual(self.text(self.ask(**fine)), self.text(self.ask()))

    def test_leaving(self):
        """A reader that leaves frees its request at once; one that is slow stalls nobody else."""
        s = self.server.socket()
        s.sendall(raw_request("/v1/responses", {"input": "x", "max_output_tokens": 900, "ignore_eos": True, "stream": True}))
        read_until(s, b"output_text.delta")
        s.close()
        self.server.until_metric("num_requests_running", 0, 5)
        self.server.until_metric("kv_blocks_used", 0, 5)

    def test_aborted(self):
        body = {"input": "x", "max_output_tokens": 900, "ignore_eos": True, "request_id": "gone"}
        out = []
        thread = in_background(lambda: out.append(self.server.post("/v1/responses", body)))
        self.server.until_metric("num_requests_running", 1)
        self.assertEqual(self.server.post("/abort_request", {"rid": "resp_gone"})[0], 200)
        thread.join(20)
        status, answer = out[0]
        self.assertEqual((status, answer["status"], answer["id"]), (200, "failed", "resp_gone"))
        self.assertIn("aborted", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
