#!/usr/bin/env python3
"""Anthropic's Messages API over the wire, beside the chats that mean the same. NYBBLE names the program."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server, raw_request, read_until  # noqa: E402

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
          "additionalProperties": False}
TOOLS = [{"name": name, "description": "d", "strict": True, "input_schema": SCHEMA} for name in ("look", "go")]
CHAT_TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "strict": True, "parameters": SCHEMA}}
              for name in ("look", "go")]
# Shows the prompt as it is, so that answers of both APIs can be compared.
TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
            "{% for c in m.tool_calls or [] %}<{{ c.function.name }}{{ c.function.arguments | tojson }}>{% endfor %}{% endfor %}"
            "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
            "{% if enable_thinking %}<think>{% elif add_generation_prompt %}</think>{% endif %}")
USER = [{"role": "user", "content": "Once upon a time"}]


class Messages(unittest.TestCase):
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

    def body(self, **fields):
        return {"messages": USER, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **fields}

    def ask(self, **fields):
        status, answer = self.server.post("/v1/messages", self.body(**fields))
        self.assertEqual(status, 200, answer)
        self.assertEqual((answer["type"], answer["role"], answer["id"][:4]), ("message", "assistant", "msg_"))
        return answer

    def chat(self, messages, **fields):
        body = {"messages": messages, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **fields}
        status, answer = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        return answer

    def stream(self, **fields):
        """Events that fit together, and the message that they make."""
        status, headers, data = self.server.request("POST", "/v1/messages", self.body(stream=True, **fields))
        self.assertEqual((status, headers["content-type"]), (200, "text/event-stream; charset=utf-8"), data)
        events = []
        for block in data.decode().split("\n\n")[:-1]:
            name, line = block.split("\n")
            events.append(json.loads(line.removeprefix("data: ")))
            self.assertEqual(name, "event: " + events[-1]["type"])
        self.assertEqual([events[0]["type"]] + [e["type"] for e in events[-2:]], ["message_start", "message_delta", "message_stop"])
        message = events[0]["message"]
        self.assertEqual((message["content"], message["stop_reason"]), ([], None))
        self.assertEqual(message["usage"]["input_tokens"], events[-2]["usage"]["input_tokens"])
        for e in events[1:-2]:
            if e["type"] == "content_block_start":
                self.assertEqual(e["index"], len(message["content"]))
                message["content"].append(e["content_block"])
                arguments = ""
                continue
            self.assertEqual(e["index"], len(message["content"]) - 1)
            block = message["content"][-1]
            if e["type"] == "content_block_stop":
                if block["type"] == "tool_use":
                    block["input"] = json.loads(arguments)
                continue
            self.assertEqual(e["type"], "content_block_delta")
            kind, = set(e["delta"]) - {"type"}
            self.assertEqual(e["delta"]["type"], {"partial_json": "input_json_delta"}.get(kind, kind + "_delta"))
            if kind == "partial_json":
                arguments += e["delta"][kind]
            else:
                block[kind] += e["delta"][kind]
        return events, {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}

    def same(self, whole, streamed):
        """But for what differs from request to request."""
        def plain(message):
            return [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
        self.assertEqual(plain(whole), plain(streamed))
        for key in ("stop_reason", "stop_sequence", "model"):
            self.assertEqual(whole[key], streamed[key])
        self.assertEqual(whole["usage"]["output_tokens"], streamed["usage"]["output_tokens"])

    def text(self, answer):
        self.assertEqual([block["type"] for block in answer["content"]], ["text"])
        return answer["content"][0]["text"]

    def test_text(self):
        answer = self.ask()
        want = self.chat(USER)
        self.assertEqual(self.text(answer), want["choices"][0]["message"]["content"])
        self.assertEqual((answer["stop_reason"], answer["stop_sequence"]), ("max_tokens", None))
        usage = answer["usage"]
        self.assertEqual([usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]],
                         [want["usage"]["prompt_tokens"], 16])
        self.same(answer, self.stream()[1])
        word = self.text(answer).split()[3]
        stopped = self.ask(stop_sequences=["nowhere", word])
        self.assertEqual((stopped["stop_reason"], stopped["stop_sequence"]), ("stop_sequence", word))
        self.assertEqual(self.text(stopped), self.text(answer)[:self.text(answer).index(word)])
        self.same(stopped, self.stream(stop_sequences=["nowhere", word])[1])
        empty = self.ask(stop_sequences=[self.text(answer)[:1]])
        self.assertEqual(empty["content"], [])
        self.same(empty, self.stream(stop_sequences=[self.text(answer)[:1]])[1])
        status, headers, data = self.server.request("POST", "/v1/messages?beta=true", self.body(max_tokens=1),
                                                    headers={"X-Request-Id": "mine-1", "anthropic-version": "2023-06-01"})
        self.assertEqual((status, headers["x-request-id"], json.loads(data)["id"]), (200, "mine-1", "msg_mine-1"))

    def test_what_the_cache_had_counts_apart(self):
        messages = [{"role": "user", "content": "A long tale of the cache, as it is told. " * 20}]
        first, again = self.ask(messages=messages)["usage"], self.ask(messages=messages)["usage"]
        self.assertEqual(first["cache_read_input_tokens"], 0)
        self.assertGreater(again["cache_read_input_tokens"], 100)
        self.assertEqual(first["input_tokens"], again["input_tokens"] + again["cache_read_input_tokens"])

    def test_conversation(self):
        """Blocks become the messages of the chat that means the same."""
        messages = [
            {"role": "user", "content": [{"type": "text", "text": "Go", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""},
                                              {"type": "redacted_thinking", "data": "xyz"}, {"type": "text", "text": "Well,"},
                                              {"type": "tool_use", "id": "c1", "name": "go", "input": {"n": 1}},
                                              {"type": "tool_use", "id": "c2", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "gone"},
                                         {"type": "tool_result", "tool_use_id": "c2", "is_error": True,
                                          "content": [{"type": "text", "text": "se"}, {"type": "text", "text": "en"}]},
                                         {"type": "tool_result", "tool_use_id": "c3"}, {"type": "text", "text": "On"},
                                         {"type": "text", "text": "and on"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c4", "name": "go", "input": {"n": 2}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c4", "content": []}]}]
        def call(i, name, arguments):
            return {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
        want = [{"role": "system", "content": "First.\nRules."}, {"role": "user", "content": "Go"},
                {"role": "assistant", "content": "Well,", "reasoning_content": "Hm.",
                 "tool_calls": [call("c1", "go", "{\"n\": 1}"), call("c2", "look", "{}")]},
                {"role": "tool", "tool_call_id": "c1", "content": "gone"}, {"role": "tool", "tool_call_id": "c2", "content": "se\nen"},
                {"role": "tool", "tool_call_id": "c3", "content": ""}, {"role": "user", "content": "On\nand on"},
                {"role": "assistant", "content": "", "tool_calls": [call("c4", "go", "{\"n\": 2}")]},
                {"role": "tool", "tool_call_id": "c4", "content": ""}]
        system = [{"type": "text", "text": "First."}, {"type": "text", "text": "Rules."}]
        fields = {"messages": messages, "system": system, "tools": TOOLS, "tool_choice": {"type": "none"}}
        answer, other = self.ask(**fields), self.chat(want, tools=CHAT_TOOLS, tool_choice="none")
        self.assertEqual(self.text(answer), other["choices"][0]["message"]["content"])
        usage = answer["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], other["usage"]["prompt_tokens"])
        status, counted = self.server.post("/v1/messages/count_tokens", fields)
        self.assertEqual((status, counted), (200, {"input_tokens": other["usage"]["prompt_tokens"]}))

    def test_answers_that_have_begun(self):
        messages = [*USER, {"role": "assistant", "content": "there was a king"}]
        answer, other = self.ask(messages=messages), self.chat(messages, continue_final_message=True, add_generation_prompt=False)
        self.assertEqual(self.text(answer), other["choices"][0]["message"]["content"])
        counted = self.server.post("/v1/messages/count_tokens", {"messages": messages})[1]
        self.assertEqual(counted["input_tokens"], other["usage"]["prompt_tokens"])

    def test_prompts_by_themselves(self):
        """/tokenize and /apply-template take what chats take, and llama.cpp's names."""
        for more, end in (({}, "</think>"), ({"enable_thinking": True}, "<think>"), ({"add_generation_prompt": False}, "time"),
                          ({"chat_template_kwargs": {"enable_thinking": True}}, "<think>")):
            chat = {"messages": USER, **more}
            status, shown = self.server.post("/apply-template", chat)
            self.assertEqual((status, shown), (200, {"prompt": "[user]Once upon a time" + ("" if end == "time" else end)}))
            tokens = self.server.post("/tokenize", chat)[1]["tokens"]
            self.assertEqual(self.chat(max_tokens=1, **chat)["usage"]["prompt_tokens"], len(tokens))
            plain = self.server.post("/tokenize", {"content": shown["prompt"]})[1]["tokens"]
            self.assertEqual(plain, self.server.post("/tokenize", {"prompt": shown["prompt"], "add_special_tokens": False})[1]["tokens"])
            self.assertEqual(self.server.post("/detokenize", {"tokens": plain})[1]["content"], shown["prompt"])
        for body, param in (({}, "messages"), ({"messages": USER, "enable_thinking": 5}, "enable_thinking"),
                            ({"messages": USER, "model": "x"}, "model")):
            status, answer = self.server.post("/apply-template", body)
            self.assertEqual((status, answer["error"]["param"]), (404 if param == "model" else 400, param), answer)

    def test_calls(self):
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "go"}):
            with self.subTest(choice):
                fields = {"tools": TOOLS, "max_tokens": 150, "tool_choice": choice}
                answer = self.ask(**fields)
                call, = answer["content"]
                self.assertEqual((call["type"], answer["stop_reason"], list(call["input"])), ("tool_use", "tool_use", ["n"]))
                self.assertIn(call["name"], ("look", "go") if choice["type"] == "any" else ("go",))
                self.assertTrue(call["id"].startswith("call_"))
                self.same(answer, self.stream(**fields)[1])
        many = self.ask(tools=TOOLS, tool_choice={"type": "any"}, max_tokens=150)["content"]
        self.assertGreater(len(many), 1)

    def test_parts_in_their_order(self):
        call = r'<tool_call>\n\{"name": "go", "arguments": \{"a":"\\u00e9"\}\}\n</tool_call>'
        table = [("<think>a b</think>hello", [("thinking", "a b"), ("text", "hello")]),
                 ("one " + call + "two", [("text", "one "), ("tool_use", {"a": "é"}), ("text", "two")]),
                 (call + "\n" + call, [("tool_use", {"a": "é"})] * 2)]
        for regex, want in table:
            fields = {"max_tokens": 200, "ignore_eos": False, "structured_outputs": {"regex": regex},
                      "tools": [{"name": "go", "input_schema": {"type": "object"}}]}
            answers = [self.ask(**fields)] + [self.stream(max_streaming_response_tokens=n, **fields)[1] for n in (1, 3, 200)]
            for answer in answers:
                got = [(b["type"], b.get("thinking", b.get("text", b.get("input")))) for b in answer["content"]]
                self.assertEqual(got, want)
                self.assertEqual(answer["stop_reason"], "tool_use" if "go" in regex else "end_turn")
                self.same(answer, answers[0])

    def test_thinking(self):
        _, ids = self.server.post("/tokenize", {"prompt": "</think>", "add_special_tokens": False})
        fields = {"thinking": {"type": "adaptive"}, "logit_bias": {str(ids["tokens"][0]): -100}}
        block, = self.ask(**fields)["content"]
        self.assertEqual((block["type"], block["signature"], bool(block["thinking"])), ("thinking", "", True))
        self.same(self.ask(**fields), self.stream(**fields)[1])
        self.assertEqual(self.ask(thinking={"type": "disabled"})["content"][0]["type"], "text")
        status, answer = self.server.post("/v1/messages", self.body(thinking={"type": "enabled", "budget_tokens": 0}))
        self.assertEqual(status, 400)
        self.assertIn("(parameter=thinking", answer["error"]["message"])

    def test_format(self):
        form = {"type": "json_schema", "schema": SCHEMA}
        for fields in ({"output_config": {"format": form, "effort": "low"}}, {"output_format": form}):
            answer = self.ask(max_tokens=80, **fields)
            self.assertEqual(list(json.loads(self.text(answer))), ["n"])
            self.assertEqual(answer["stop_reason"], "end_turn")

    def test_refused(self):
        def user(*blocks):
            return {"messages": [{"role": "user", "content": list(blocks)}]}
        table = [
            ({"messages": None}, "messages is missing"), ({"messages": []}, "messages must not be empty"),
            ({"messages": 5}, "messages must be a list"), ({"messages": [5]}, "messages[0] has no role"),
            ({"messages": [{"role": "user"}]}, "messages[0] must have a string or"), (user(5), "messages[0].content[0] has no type"),
            (user({"type": "image", "source": {}}), 'messages[0].content[0] is of type "image", which is not supported'),
            (user({"type": "tool_use", "id": "x", "name": "y", "input": {}}), 'is of type "tool_use"'),
            (user({"type": "text"}), "messages[0].content[0] has no text"), (user({"type": "tool_result"}), "without tool_use_id"),
            (user({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}), 'of type "image"'),
            (user({"type": "tool_result", "tool_use_id": "x", "content": 5}), "a string or a list of blocks"),
            ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}]}, "without id, name or input"),
            ({"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]}, "has no thinking"),
            ({"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": 10**30}]}]}, "has no thinking"),
            ({"system": 5}, "(parameter=system"), ({"system": [{"type": "image"}]}, "system[0] must be of type text"),
            ({"tools": 5}, "(parameter=tools"), ({"tools": [{"type": "web_search_20250305", "name": "s"}]}, "the server calls nobody"),
            ({"tools": [{"name": "x", "input_schema": 5}]}, "(parameter=tools"), ({"tools": [{}]}, "tools[0] has no name"),
            ({"tools": [5]}, "tools[0] has no name"),
            ({"tool_choice": {"type": "any"}}, "(parameter=tool_choice"), ({"tool_choice": 5}, "(parameter=tool_choice"),
            ({"tool_choice": {"type": "tool"}}, "(parameter=tool_choice"), ({"stop_sequences": 5}, "(parameter=stop_sequences"),
            ({"mcp_servers": [{"name": "x"}]}, "mcp_servers is not supported"), ({"max_tokens": 0}, "(parameter=max_tokens"),
            ({"thinking": 5}, "(parameter=thinking"), ({"thinking": {"type": "odd"}}, "(parameter=thinking"),
            ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens must be an integer"),
            ({"messages": [*USER, {"role": "assistant", "content": ""}]}, "it has no text. (parameter=messages)"),
            ({"output_config": {"format": {"type": "json_schema", "schema": 5}}}, "output_config.format must be"),
            ({"output_config": 5}, "(parameter=output_config"), ({"output_format": {"type": "text"}}, "(parameter=output_config"),
            ({"output_config": {"format": {"type": "json_schema", "schema": {"multipleOf": 3}}}}, "(parameter=output_config"),
            ({"output_config": {"effort": 5}}, "output_config.effort must be a string"), ({"temperature": 9}, "(parameter=temperature"),
            ({"chat_template_kwargs": 5}, "(parameter=chat_template_kwargs"), ({"service_tier": "auto", "top_k": "x"}, "(parameter=top_k"),
            ({"messages": [{"role": "user", "content": "Once upon a time. " * 600}]}, "the prompt is too long")]
        for fields, text in table:
            with self.subTest(str(fields)[:80]):
                status, answer = self.server.post("/v1/messages", self.body(max_tokens=1, **fields)
                                                  if "max_tokens" not in fields else self.body(**fields))
                self.assertEqual((status, answer["type"], answer["error"]["type"]), (400, "error", "invalid_request_error"), answer)
                self.assertIn(text, answer["error"]["message"])
        for fields, text in table[:16]:
            self.assertIn(text, self.server.post("/v1/messages/count_tokens", fields)[1]["error"]["message"])
        status, answer = self.server.post("/v1/messages", self.body(model="claude"))
        self.assertEqual((status, answer["error"]["type"]), (404, "not_found_error"))
        status, answer = self.server.post("/v1/messages", b"{")
        self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))
        # Fields that change nothing, or that others' APIs have, do no harm.
        self.ask(metadata={"user_id": "x"}, n=5, logprobs=True, echo=True, prompt_logprobs=3, mcp_servers=[], container=None,
                 context_management={"edits": []}, cache_control={"type": "ephemeral"}, stop_sequences=None, system=[])

    def test_aborted(self):
        body = self.body(max_tokens=900, request_id="mine")
        for stream in (False, True):
            with self.server.socket() as s:
                s.sendall(raw_request("/v1/messages", {**body, "stream": stream}, Connection="close"))
                self.server.until_metric("num_requests_running", 1)
                self.assertEqual(self.server.post("/abort_request", {"rid": "mine"})[0], 200)
                data = read_until(s, b"aborted", 1 << 20)
                self.assertIn(b"event: error" if stream else b"HTTP/1.1 499", data)
                self.assertIn(b'{"type":"error","error":{"type":"api_error","message":"The answer was aborted."}}', data + s.recv(64))
        self.server.until_metric("num_requests_running", 0)


class Keys(unittest.TestCase):
    def test_keys(self):
        server = Server("--api-key", "k", "--admin-api-key", "boss")
        body = {"messages": USER, "max_tokens": 1}
        for headers, status in (({"X-Api-Key": "k"}, 200), ({"Authorization": "Bearer k"}, 200), ({}, 401), ({"X-Api-Key": "x"}, 401),
                                ({"X-Api-Key": "k", "Authorization": "Bearer other"}, 200), ({"X-Api-Key": ""}, 401)):
            got, _, data = server.request("POST", "/v1/messages", body, headers=headers)
            self.assertEqual(got, status, data)
            if status == 401:
                self.assertEqual(json.loads(data)["error"]["type"], "authentication_error")
        self.assertEqual(server.request("GET", "/v1/models", headers={"X-Api-Key": "k"})[0], 200)
        for header in ("k", "boss"):  # administration takes bearer tokens alone
            self.assertEqual(server.request("GET", "/server_info", headers={"X-Api-Key": header})[0], 401)
        self.assertEqual(server.request("POST", "/v1/messages/count_tokens", body, headers={"X-Api-Key": "k"})[0], 200)
        self.assertEqual(server.request("POST", "/v1/messages/count_tokens", body)[0], 401)
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("boss", server.text() + server.access_text())
        server.close()


if __name__ == "__main__":
    unittest.main()
