"""Options that stand for what requests and checkpoints leave unsaid, and command lines that were written for
other servers. NYBBLE names the program, SOURCE the project."""
import json
import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server  # noqa: E402

MODEL = os.path.join(os.environ["SOURCE"], "models", "tales-24m-moe-nvfp4")
PROMPT = "Once upon a time there was"
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}
TEMPLATE = "{{ messages[-1].content }}|{{ enable_thinking }}|{{ a }}|{{ reasoning_effort }}|"


class Case(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="nybble-options-")
        self.addCleanup(shutil.rmtree, self.root)

    def serve(self, *options, **more):
        server = Server(*options, **more)
        self.addCleanup(server.close)
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0, server.text()))
        return server

    def refused(self, text, *options):
        server = Server(*options, wait=False)
        code = server.process.wait(30)
        said = server.text()
        server.close()
        self.assertNotEqual(code, 0)
        self.assertIn(text, said)
        return code

    def folder(self, name, **changes):
        """The embedded model with other members of its JSON files: config_json={...}."""
        path = os.path.join(self.root, name)
        os.mkdir(path)
        for entry in os.listdir(MODEL):
            shutil.copy(os.path.join(MODEL, entry), path)
        for file, members in changes.items():
            file = os.path.join(path, file.replace("_json", ".json"))
            with open(file) as f:
                text = {**json.load(f), **members}
            with open(file, "w") as f:
                json.dump(text, f)
        return path

    def complete(self, server, **fields):
        status, answer = server.post("/v1/completions", {"prompt": PROMPT, "logprobs": 1, **fields})
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["logprobs"]["tokens"], answer["choices"][0]["logprobs"]["token_logprobs"]


class Sampling(Case):
    def test_defaults_of_requests(self):
        server = self.serve("--temperature", "0", "--max-tokens", "5", "--frequency-penalty", "1.5")
        greedy = self.complete(server)
        self.assertEqual(len(greedy[0]), 5)
        self.assertEqual(greedy, self.complete(server, temperature=0, frequency_penalty=1.5, max_tokens=5))
        self.assertEqual(len(self.complete(server, max_tokens=40)[0]), 40)
        self.assertNotEqual(self.complete(server, max_tokens=40), self.complete(server, max_tokens=40, frequency_penalty=0))
        status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]})
        if status == 200:  # the embedded model has no template
            self.assertEqual(answer["usage"]["completion_tokens"], 5)
        drawn = {tuple(self.complete(server, temperature=2, max_tokens=30)[0]) for _ in range(3)}
        self.assertGreater(len(drawn), 1)

    def test_where_defaults_come_from(self):
        folder = self.folder("cold", generation_config_json={"temperature": 0.0, "repetition_penalty": 1.3})
        cold = {"temperature": 0, "repetition_penalty": 1.3, "max_tokens": 12}
        own = self.serve(folder)
        self.assertEqual(self.complete(own, max_tokens=12), self.complete(own, **cold))
        other = self.serve(folder, "--generation-config", "vllm", "--seed", "3")
        self.assertEqual(self.complete(other, max_tokens=12, seed=5), self.complete(other, seed=5, temperature=1, top_p=1,
                                                                                     repetition_penalty=1, max_tokens=12))
        self.assertEqual(self.complete(own, **cold), self.complete(other, **cold))
        both = self.serve(folder, "--override-generation-config", '{"temperature": 0.0, "max_new_tokens": 12}',
                          "--sampling-defaults", "openai")
        self.assertEqual(self.complete(both), self.complete(own, temperature=0, repetition_penalty=1, max_tokens=12))

    def test_seed(self):
        ask = {"temperature": 1, "max_tokens": 20}
        first, second, third = (self.serve("--seed", seed) for seed in ("11", "11", "12"))
        said = [[self.complete(server, **ask) for _ in range(3)] for server in (first, second, third)]
        self.assertEqual(said[0], said[1])
        self.assertNotEqual(said[0][0], said[0][1])
        self.assertNotEqual(said[0][0], said[2][0])
        self.assertEqual(self.complete(first, seed=4, **ask), self.complete(third, seed=4, **ask))

    def test_refusals(self):
        for text, *options in (
                ("temperature must be a number in [0, 2]", "--temperature", "2.5"), ("top_p must be in (0, 1]", "--top-p", "0"),
                ("top-k must be a whole number in [-1", "--top-k", "-2"), ("or auto, got \"x\"", "--max-tokens", "x"),
                ("generation-config must be one of auto, vllm", "--generation-config", "/some/folder"),
                ("override-generation-config has no part \"do_sample\"", "--override-generation-config", '{"do_sample": true}'),
                ("override-generation-config must be a JSON object", "--override-generation-config", "0.5")):
            self.refused(text, *options)


class Templates(Case):
    def prompt(self, server, **fields):
        status, answer = server.post("/apply-template", {"messages": [{"role": "user", "content": "x"}], **fields})
        self.assertEqual(status, 200, answer)
        return answer["prompt"]

    def test_variables_of_a_template(self):
        path = os.path.join(self.root, "t.jinja")
        with open(path, "w") as f:
            f.write(TEMPLATE)
        server = self.serve("--chat-template", path, "--default-chat-template-kwargs", '{"enable_thinking": false, "a": [1]}')
        self.assertEqual(self.prompt(server), "x|False|[1]||")
        self.assertEqual(self.prompt(server, enable_thinking=True), "x|True|[1]||")
        self.assertEqual(self.prompt(server, reasoning_effort="high"), "x|True|[1]|high|")
        self.assertEqual(self.prompt(server, chat_template_kwargs={"a": 2}), "x|False|2||")
        self.assertEqual(self.prompt(server, chat_template_kwargs={"enable_thinking": True, "a": None}), "x|True|None||")
        for text, value in (("must be a JSON object such as", "[]"), ("must be a JSON object such as", "{'a': 1}"),
                            ("tools is a request's to say", '{"tools": []}')):
            self.refused(text, "--chat-template-kwargs", value)


class Overrides(Case):
    def test_rope_of_a_longer_context(self):
        stretched = self.serve(self.folder("yarn", config_json={"rope_scaling": YARN}))
        plain = self.serve(MODEL)
        ways = [self.serve(MODEL, "--max-model-len", "2K", *more) for more in (
            ("--rope-scaling", json.dumps(YARN)), ("--hf-overrides", json.dumps({"rope_scaling": YARN})),
            ("--json-model-override-args", json.dumps({"vocab_size": 4096}), "--rope-scaling", json.dumps(YARN)))]
        ask = {"temperature": 0, "max_tokens": 30}
        want = self.complete(stretched, **ask)
        self.assertNotEqual(want, self.complete(plain, **ask))
        for server in ways:
            self.assertEqual(self.complete(server, **ask), want)
            self.assertEqual(json.loads(server.request("GET", "/v1/models")[2])["data"][0]["max_model_len"], 2048)
        self.refused("is 2048, but the model's context is 1024", MODEL, "--max-model-len", "2048")

    def test_new_weights_under_overrides(self):
        admin = ("--weights-root", self.root, "--rope-scaling", json.dumps(YARN))
        server = self.serve(self.folder("a"), *admin)
        before = self.complete(server, temperature=0)
        status, answer = server.post("/update_weights_from_disk", {"model_path": self.folder("b")})
        self.assertEqual((status, answer["success"]), (200, True), answer)
        self.assertEqual(self.complete(server, temperature=0), before)
        other = self.folder("c", config_json={"rope_theta": 5000.0})  # what the overrides leave alone is looked at
        status, answer = server.post("/update_weights_from_disk", {"model_path": other})
        self.assertEqual(answer["success"], False, answer)
        self.assertIn("theta", answer["message"])

    def test_refusals(self):
        for text, *options in (
                ("hf_overrides: must be a JSON object such as", "--hf-overrides", "rope"),
                ("rope-scaling must be a JSON object such as", "--rope-scaling", "yarn"),
                ("hf-overrides must be a JSON object", "--hf-overrides", "[1]", "--rope-scaling", "{}"),
                ("expected default, linear, llama3 or yarn", "--rope-scaling", '{"rope_type": "su"}'),
                ("num_hidden_layers is 'six', expected", "--hf-overrides", '{"num_hidden_layers": "six"}')):
            self.refused(text, MODEL, *options)


class CommandLines(Case):
    def models(self, server):
        return [(m["id"], m["max_model_len"]) for m in json.loads(server.request("GET", "/v1/models")[2])["data"]]

    def test_of_llama_cpp(self):
        server = self.serve("-m", MODEL, "-c", "64", "-np", "2", "-t", "1", "-fa", "on", "-ngl", "99", "-a", "x,y", "--temp", "0",
                            "-n", "3", "-s", "5", "-b", "256", "-ub", "64", "--no-mmap", "--jinja", "--no-webui", "--metrics")
        self.assertEqual(self.models(server), [("x", 64), ("y", 64)])
        self.assertEqual(self.complete(server), self.complete(server, temperature=0, max_tokens=3))
        self.assertEqual(json.loads(server.request("GET", "/server_info")[2])["max_num_seqs"], 2)

    def test_of_vllm(self):
        server = self.serve(MODEL, "--served-model-name", "x", "y", "z", "--max-model-len", "0.5k", "-tp", "1", "--dtype", "auto",
                            "--seed", "0", "--swap-space", "4", "--uvicorn-log-level", "info", "--generation-config", "auto",
                            "--no-enable-log-requests", "--async-scheduling", "--structured-outputs-config", '{"backend": "auto"}')
        self.assertEqual(self.models(server), [("x", 500), ("y", 500), ("z", 500)])

    def test_of_sglang(self):
        server = self.serve("--model-path", MODEL, "--context-length", "auto", "--max-running-requests", "-1", "--random-seed", "1",
                            "--attention-backend", "fa3", "--schedule-policy", "lpm", "--log-level", "debug", "--page-size", "16",
                            "--enable-cache-report", "--mem-fraction-static", "0.8")
        self.assertEqual(self.models(server), [("tales-24m-moe-nvfp4", 1024)])
        self.assertEqual(json.loads(server.request("GET", "/server_info")[2])["max_num_seqs"], 64)

    def test_many_names(self):
        names = ["name-%02d-%s" % (i, "x" * 30) for i in range(20)]
        server = self.serve(MODEL, "--served-model-name", *names)
        self.assertEqual([name for name, _ in self.models(server)], names)
        status, answer = server.post("/v1/completions", {"prompt": PROMPT, "model": "other"})
        said = ", ".join(f"`{name}`" for name in names[:11])
        self.assertEqual((status, answer["error"]["message"]), (404, f"The model `other` does not exist. This server has {said} and 9 more."))

    def test_words_and_levels(self):
        self.refused("one model at a time", MODEL, "--port", "0", "x")
        self.refused("one model at a time", MODEL, "--served-model-name", "x", "--port", "0", "y")
        self.refused("there is no option -q", "-q")
        self.refused("-c needs a value", "-c")
        self.refused("log-level must be one of error, warn, info, debug", "--log-level", "loud")
        self.refused("none is named", "--revision", "main")
        self.refused("named twice", "a/b@c", "--revision", "main")
        self.refused("`hf download a/b --revision v2`", "a/b", "--revision", "v2")
        for level, says in (("info", True), ("warning", False)):
            server = Server(MODEL, "--log-level", level, "--max-model-len", "8", "--kv-cache-memory", "1", wait=False)
            self.assertNotEqual(server.process.wait(30), 0)
            self.assertEqual("info: loading" in server.text(), says, server.text())
            self.assertIn("error:" if "error:" in server.text() else "nybble serve", server.text())
            server.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
