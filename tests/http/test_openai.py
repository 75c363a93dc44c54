#!/usr/bin/env python3
"""The official OpenAI client against the server. The package goes into a virtual environment beside the program;
where it cannot be installed, the test is skipped."""
import os
import subprocess
import sys

SKIPPED = 77


def enter_environment():
    """Run this file again with an interpreter that has the package."""
    folder = os.path.join(os.path.dirname(os.path.abspath(os.environ["NYBBLE"])), "openai-venv")
    python = os.path.join(folder, "bin", "python")
    if subprocess.run([python, "-c", "import openai"], capture_output=True, check=False).returncode \
            if os.path.exists(python) else True:
        for command in ([sys.executable, "-m", "venv", folder],
                        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "openai"]):
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                print("skipped: the openai package cannot be installed:", result.stderr.strip()[-300:])
                sys.exit(SKIPPED)
    os.execv(python, [python, os.path.abspath(__file__), "--inside"])


if "--inside" not in sys.argv:
    enter_environment()
sys.argv.remove("--inside")

import asyncio  # noqa: E402
import tempfile  # noqa: E402
import unittest  # noqa: E402

import openai  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server  # noqa: E402

MODEL = "tales-24m-moe-nvfp4"
MESSAGES = [{"role": "user", "content": "Once upon a time there was"}]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "look around",
                                           "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "k")
        cls.base = f"http://127.0.0.1:{cls.server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.base, api_key="k", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0
        cls.server.close()

    def chat(self, **fields):
        return self.client.chat.completions.create(
            **{"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0, **fields})

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)

    def test_chat(self):
        answer = self.chat()
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertTrue(answer.choices[0].message.content)
        self.assertIsNone(answer.choices[0].message.tool_calls)
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertEqual(answer.usage.prompt_tokens_details.cached_tokens, 0)

    def test_stream(self):
        whole = self.chat().choices[0].message.content
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[-1].usage.completion_tokens, 8)
        self.assertEqual(chunks[-2].choices[0].finish_reason, "length")

    def test_stream_helper(self):
        whole = self.chat().choices[0].message.content
        word = whole.split()[3]
        with self.client.chat.completions.stream(model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0,
                                                 stop=word) as s:
            kinds = {event.type for event in s}
            final = s.get_final_completion()
        self.assertIn("content.delta", kinds)
        self.assertEqual(final.choices[0].message.content, whole[:whole.index(word)])

    def test_logprobs(self):
        content = self.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        self.assertEqual(len(content), 8)
        self.assertEqual(len(content[0].top_logprobs), 2)
        self.assertEqual(bytes(content[0].bytes).decode(), content[0].token)

    def test_n(self):
        self.assertEqual([c.index for c in self.chat(n=3, temperature=1, seed=1).choices], [0, 1, 2])

    def test_completions(self):
        answer = self.client.completions.create(model=MODEL, prompt=["The king", "The queen"], max_tokens=4, echo=True,
                                                logprobs=1)
        self.assertTrue(answer.choices[1].text.startswith("The queen"))
        self.assertIsNone(answer.choices[0].logprobs.token_logprobs[0])
        chunks = list(self.client.completions.create(model=MODEL, prompt="The king", max_tokens=4, stream=True))
        self.assertEqual(chunks[-1].choices[0].finish_reason, "length")

    def test_tools_are_accepted(self):
        answer = self.chat(tools=TOOLS, tool_choice="auto")
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.chat(model="other")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=9)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError):
            self.chat(messages=[])
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.base, api_key="x", max_retries=0).models.list()

    def test_cancelling(self):
        stream = self.chat(stream=True, max_tokens=900, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.server.until_metric("num_requests_running", 0, 5)
        self.server.until_metric("kv_blocks_used", 0, 5)

    def test_timeout(self):
        with self.assertRaises(openai.APITimeoutError):
            self.chat(max_tokens=900, extra_body={"ignore_eos": True}, timeout=0.1)
        self.server.until_metric("num_requests_running", 0, 5)

    def test_many_at_once(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=self.base, api_key="k") as client:
                jobs = [client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0)
                        for _ in range(32)]
                return [a.choices[0].message.content for a in await asyncio.gather(*jobs)]
        self.assertEqual(set(asyncio.run(run())), {self.chat().choices[0].message.content})


class Reasoning(unittest.TestCase):
    """The embedded model neither reasons nor calls tools, so a template makes its answers begin within reasoning."""

    def test_reasoning(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{{ messages[0].content }}<think>")
            template.flush()
            server = Server("--parser", "qwen3", "--chat-template", template.name)
        try:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="-", max_retries=0)
            ask = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
            answer = client.chat.completions.create(**ask)
            message = answer.choices[0].message
            self.assertEqual(message.content, "")
            self.assertEqual(message.reasoning, message.reasoning_content)
            self.assertTrue(message.reasoning)
            self.assertEqual(answer.usage.completion_tokens_details.reasoning_tokens, 8)
            deltas = [c.choices[0].delta for c in client.chat.completions.create(**ask, stream=True)]
            self.assertEqual("".join(getattr(d, "reasoning", None) or "" for d in deltas), message.reasoning)
            forced = client.chat.completions.create(
                **ask, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "look"}})
            self.assertIn("<tool_call>", forced.choices[0].message.content)
            client.close()
        finally:
            self.assertEqual(server.stop(), 0)
            server.close()


if __name__ == "__main__":
    unittest.main(verbosity=2, warnings="ignore")
