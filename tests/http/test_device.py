"""A server whose model is on the emulated GPU: the answers, checksum and values of the CPU, among others as alone, new
weights, tokens drawn there and here, and a GPU that is lost for a while.
NYBBLE names the program."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server  # noqa: E402

PLUGIN = os.path.join(os.path.dirname(os.environ["NYBBLE"]), "libnybble_cuda_emu.so")
PROMPTS = ["Once upon a time", "The dog was", "One day a girl"]
MODEL = os.environ["SOURCE"] + "/models/tales-24m-moe-nvfp4"


def body(prompt, tokens=4):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def answers(server):
    """All prompts at once."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        replies = list(pool.map(lambda p: server.post("/v1/completions", body(p), timeout=300), PROMPTS))
    assert all(status == 200 for status, _ in replies), replies
    return [reply["choices"][0]["text"] for _, reply in replies]


def values(server):
    """Packed, of a pair, of a plain matrix, of a vector, and of nobody."""
    layer = "model.layers.2."
    return [server.post("/get_weights_by_name", {"name": name, "truncate_size": 3000})
            for name in (layer + "self_attn.q_proj.weight", layer + "mlp.experts.31.gate_proj.weight",
                         layer + "mlp.experts.0.up_proj.weight", layer + "mlp.experts.5.down_proj.weight",
                         layer + "mlp.gate.weight", "model.embed_tokens.weight", "model.norm.weight", "nobody")]


class Device(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(PLUGIN):
            print("no emulated plug-in in this build")
            sys.exit(77)
        cpu = Server("--no-access-log", "--threads", "1")
        cls.wanted = answers(cpu)
        cls.values = values(cpu)
        assert cpu.stop() == 0
        cpu.close()
        cls.folder = tempfile.TemporaryDirectory()
        cls.lost = os.path.join(cls.folder.name, "lost")  # as long as it is there, so is the GPU not
        cls.server = Server("--no-access-log", "--device", "cuda",
                            env={"NYBBLE_CUDA_PLUGIN": PLUGIN, "NYBBLE_SIMT_LOST": cls.lost})

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.text())
        cls.server.close()
        cls.folder.cleanup()

    def test_answers(self):
        self.assertIn("emulated GPU", self.server.text())
        self.assertIn("steps of up to 2048 tokens", self.server.text())
        self.assertEqual(json.loads(self.server.request("GET", "/server_info")[2])["max_num_batched_tokens"], 2048)
        self.assertEqual(answers(self.server), self.wanted)
        status, reply = self.server.post("/v1/completions", body(PROMPTS[1]), timeout=300)
        self.assertEqual((status, reply["choices"][0]["text"]), (200, self.wanted[1]))

    def test_draws_are_those_of_the_cpu(self):
        """Who wants logprobs has its logits copied and its tokens drawn by the CPU's sampler."""
        asked = [dict(body(prompt, 3), seed=i, temperature=0.9, top_p=0.95, top_k=top_k)
                 for i, (prompt, top_k) in enumerate(zip(PROMPTS, (0, 0, 20)))]
        asked += [dict(one, logprobs=1) for one in asked]
        with ThreadPoolExecutor(len(asked)) as pool:
            replies = list(pool.map(lambda b: self.server.post("/v1/completions", b, timeout=300), asked))
        texts = [reply["choices"][0]["text"] for _, reply in replies]
        self.assertEqual(texts[:3], texts[3:])

    def test_lost(self):
        """Requests end with the reason, the process goes on, and so do answers once the GPU is back."""
        with open(self.lost, "w", encoding="ascii") as f:
            f.write("0")
        status, reply = self.server.post("/v1/completions", body(PROMPTS[0]), timeout=300)
        os.unlink(self.lost)
        self.assertEqual(status, 500, reply)
        self.assertIn("the device is lost", reply["error"]["message"])
        self.assertEqual(answers(self.server), self.wanted)

    def check(self, action):
        status, reply = self.server.post("/weights_checker", {"action": action}, timeout=300)
        self.assertEqual(status, 200, reply)
        return reply["checksum"]

    def test_weights_of_the_checkpoint(self):
        line = subprocess.run([os.environ["NYBBLE"], "inspect", "--checksum", MODEL], check=True, text=True,
                              capture_output=True).stdout
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(answers, self.server)
            self.assertEqual(self.check("checksum"), line.split()[0])
            self.assertEqual(beside.result(), self.wanted)
        self.assertEqual([status for status, _ in self.values], [200] * 7 + [404])
        self.assertEqual(values(self.server), self.values)

    def test_new_weights(self):
        self.check("snapshot")
        status, reply = self.server.post("/update_weights_from_disk", {"model_path": MODEL}, timeout=300)
        self.assertEqual(status, 200, reply)
        self.check("compare")
        self.assertEqual(answers(self.server), self.wanted)


if __name__ == "__main__":
    unittest.main()
