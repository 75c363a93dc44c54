#!/usr/bin/env python3
"""The official OpenAI client against the server. The package goes into a folder beside the program; where it cannot be
installed, the test is skipped."""
import os
import shutil
import subprocess
import sys

SKIPPED = 77
FOLDER = os.path.join(os.path.dirname(os.path.abspath(os.environ["NYBBLE"])), "openai-package")
COMPLETE = os.path.join(FOLDER, "complete")


def pip():
    """The command; that of a new virtual environment where this Python has none. None: there is neither."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
        return [sys.executable, "-m", "pip"]
    venv = os.path.join(FOLDER, "venv")
    made = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, check=False).returncode == 0
    return [os.path.join(venv, "bin", "python"), "-m", "pip"] if made else None


def install():
    """Without compiling all of it: the few modules that are imported are compiled then."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    command = pip()
    if not command:
        return "there is no pip"
    result = subprocess.run([*command, "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--target", FOLDER,
                             "openai"], capture_output=True, text=True, check=False)
    if result.returncode:
        return result.stderr.strip()[-300:]
    with open(COMPLETE, "w", encoding="utf-8"):
        return None


if not os.path.exists(COMPLETE):
    fault = install()
    if fault:
        print("skipped: the openai package cannot be installed:", fault)
        sys.exit(SKIPPED)
sys.path.insert(0, FOLDER)

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

    def test_seed(self):
        ask = {"temperature": 1, "seed": 5, "max_tokens": 24}
        first, again, other = (self.chat(**{**ask, "seed": s}).choices[0].message.content for s in (5, 5, 6))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_stop(self):
        whole = self.chat(max_tokens=24).choices[0].message.content
        word = whole.split()[4]
        answer = self.chat(max_tokens=24, stop=["nowhere to be seen", word]).choices[0]
        self.assertEqual((answer.finish_reason, answer.message.content), ("stop", whole[:whole.index(word)]))
        self.assertEqual(answer.stop_reason, word)
        chunks = list(self.chat(max_tokens=24, stop=word, stream=True))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), whole[:whole.index(word)])
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")

    def test_stream_of_several(self):
        chunks = list(self.chat(n=3, temperature=1, seed=3, stream=True, stream_options={"include_usage": True}))
        texts = ["", "", ""]
        for c in chunks[:-1]:
            texts[c.choices[0].index] += c.choices[0].delta.content or ""
        whole = self.chat(n=3, temperature=1, seed=3)
        self.assertEqual(texts, [c.message.content for c in whole.choices])
        self.assertEqual((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 24))
        self.assertEqual(whole.usage.completion_tokens, 24)
        roles = [c.choices[0].index for c in chunks[:-1] if c.choices[0].delta.role]
        self.assertEqual(sorted(roles), [0, 1, 2])

    def test_stream_options(self):
        plain = list(self.chat(stream=True))
        self.assertTrue(all(c.usage is None and c.choices for c in plain))
        counted = list(self.chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
        counts = [c.usage.completion_tokens for c in counted]
        self.assertEqual((counts, counts[-1]), (sorted(counts), 8))

    def test_stream_logprobs(self):
        whole = self.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        chunks = list(self.chat(logprobs=True, top_logprobs=3, stream=True))
        pieces = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
        self.assertEqual(pieces, whole)
        self.assertTrue(all(t.logprob <= 0 and t.top_logprobs[0].logprob >= t.logprob for t in whole))
        scored = self.client.completions.create(model=MODEL, prompt="The king", max_tokens=0, echo=True, logprobs=2)
        self.assertEqual("".join(scored.choices[0].logprobs.tokens), "The king")

    def test_other_parameters(self):
        """What the package knows by name arrives."""
        answer = self.chat(max_completion_tokens=5, max_tokens=openai.NOT_GIVEN, presence_penalty=0.5,
                           frequency_penalty=0.5, logit_bias={"700": -100}, user="me", top_p=0.9,
                           parallel_tool_calls=False, tools=TOOLS, reasoning_effort="low", store=False,
                           metadata={"a": "b"}, service_tier="auto")
        self.assertEqual(answer.usage.completion_tokens, 5)
        answer = self.client.completions.create(model=MODEL, prompt="The king", max_tokens=4, best_of=1, seed=1, n=1,
                                                suffix=None, user="me")
        self.assertEqual(answer.usage.completion_tokens, 4)
        ids = self.client.completions.create(model=MODEL, prompt=[[300, 301], [302]], max_tokens=2)
        self.assertEqual([c.index for c in ids.choices], [0, 1])

    def test_extra_body(self):
        answer = self.chat(extra_body={"top_k": 1, "min_tokens": 8, "return_token_ids": True, "repetition_penalty": 1.2,
                                       "chat_template_kwargs": {"enable_thinking": False}})
        self.assertEqual(len(answer.choices[0].token_ids), 8)
        self.assertTrue(answer.prompt_token_ids)

    def test_headers(self):
        raw = self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=MESSAGES, max_tokens=2, extra_headers={"X-Request-Id": "from-the-client"})
        self.assertEqual(raw.headers["x-request-id"], "from-the-client")
        self.assertEqual(raw.parse().id, "chatcmpl-from-the-client")

    def test_refusals_are_bad_requests(self):
        for fields in ({"functions": [{"name": "f"}]}, {"modalities": ["text", "audio"]}, {"n": 0}, {"top_p": 2},
                       {"logprobs": False, "top_logprobs": 2}, {"stream_options": {"include_usage": True}},
                       {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
                       {"extra_body": {"use_beam_search": True}}):
            with self.subTest(fields), self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**fields)
            self.assertTrue(caught.exception.body["message"])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model=MODEL, prompt=[5] * 3000, max_tokens=1)
        self.assertIn("1024", str(caught.exception))
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=MODEL, input="x")

    def test_error_within_a_stream(self):
        """It comes as an event, which the package raises."""
        with self.assertRaises(openai.APIError) as caught:
            list(self.chat(stream=True, extra_body={"allowed_token_ids": [5], "bad_words_token_ids": [5]}))
        self.assertIn("allowed_token_ids", str(caught.exception))

    def test_cancelled_task(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=self.base, api_key="k", max_retries=0) as client:
                job = asyncio.create_task(client.chat.completions.create(
                    model=MODEL, messages=MESSAGES, max_tokens=900, extra_body={"ignore_eos": True}))
                await asyncio.sleep(0.2)
                job.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await job
        asyncio.run(run())
        self.server.until_metric("num_requests_running", 0, 5)
        self.server.until_metric("kv_blocks_used", 0, 5)

    def test_responses(self):
        ask = {"model": MODEL, "input": "Once upon a time there was", "max_output_tokens": 8, "temperature": 0}
        whole = self.client.responses.create(**ask)
        self.assertEqual(whole.output_text, self.chat().choices[0].message.content)
        self.assertEqual((whole.status, whole.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        events = list(self.client.responses.create(**ask, stream=True))
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), whole.output_text)
        self.assertEqual(events[-1].response.usage.output_tokens, 8)
        word = whole.output_text.split()[3]
        with self.client.responses.stream(**ask, extra_body={"stop": word}) as s:  # it wants one that is complete
            kinds = {event.type for event in s}
            self.assertEqual(s.get_final_response().output_text, whole.output_text[:whole.output_text.index(word)])
        self.assertIn("response.output_text.delta", kinds)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.create(**ask, previous_response_id="resp_1")
        self.assertEqual(caught.exception.param, "previous_response_id")

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
            client.close()
        finally:
            self.assertEqual(server.stop(), 0)
            server.close()


if __name__ == "__main__":
    unittest.main(verbosity=2, warnings="ignore")
