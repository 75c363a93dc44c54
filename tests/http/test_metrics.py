"""What /metrics tells of the engine and its experts, and that the dashboard asks for nothing else. NYBBLE names the
program."""
import json
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server  # noqa: E402

SOURCE = os.environ["SOURCE"]
MODEL = SOURCE + "/models/tales-24m-moe-nvfp4"


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--no-access-log")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.text())
        cls.server.close()

    def settle(self):
        """One answer; then everything is counted, because a step that is over counts before the state changes."""
        status, answer = self.server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12})
        self.assertEqual(status, 200, answer)
        self.server.until_metric('engine_state{state="idle"}', 1)

    def test_metrics_of_the_engine(self):
        before = self.server.metrics()
        self.settle()
        values = self.server.metrics()
        steps = values["nybble:engine_steps_total"] - before["nybble:engine_steps_total"]
        self.assertGreater(steps, 0)
        for name in ("iteration_tokens_total", "step_duration_seconds"):
            name = "nybble:" + name
            self.assertEqual(values[name + "_count"], values["nybble:engine_steps_total"])
            self.assertEqual(values[name + '_bucket{le="+Inf"}'], values[name + "_count"])
            self.assertGreater(values[name + "_sum"], before[name + "_sum"])
        self.assertEqual(values["nybble:engine_alive"], 1)
        self.assertEqual(sum(v for k, v in values.items() if k.startswith("nybble:engine_state{")), 1)
        self.assertEqual(values["nybble:engine_failed_steps"], 0)
        for name in ("weight_generation", "weight_updates_total", "weight_update_failures_total",
                     "weights_inconsistent"):
            self.assertEqual(values["nybble:" + name], 0)

    def test_metrics_of_the_experts(self):
        """Each row of a step chooses top_k experts in every layer that has some."""
        with open(MODEL + "/config.json") as f:
            config = json.load(f)
        self.settle()
        values = self.server.metrics()
        load = {}
        for key, value in values.items():
            if key.startswith("nybble:expert_tokens_total{"):
                layer, expert = re.search('layer="([0-9]+)",expert="([0-9]+)"', key).groups()
                load.setdefault(layer, {})[int(expert)] = value
        self.assertEqual(len(load), config["num_hidden_layers"])
        rows = values["nybble:iteration_tokens_total_sum"]
        for layer, experts in load.items():
            self.assertEqual(sorted(experts), list(range(config["num_experts"])))
            self.assertEqual(sum(experts.values()), rows * config["num_experts_per_tok"])
            mean = sum(experts.values()) / len(experts)
            self.assertAlmostEqual(values['nybble:router_balance{layer="%s"}' % layer],
                                   max(experts.values()) / mean, places=6)

    def test_dashboard_asks_for_metrics_that_exist(self):
        self.settle()
        text = self.server.request("GET", "/metrics")[2].decode()
        exported = set(re.findall("(?m)^(nybble:[a-z0-9_]+)", text))
        with open(SOURCE + "/packaging/grafana.json") as f:
            board = json.load(f)
        titles, ids, asked = set(), set(), set()
        for panel in board["panels"]:
            titles.add(panel["title"])
            ids.add(panel["id"])
            self.assertTrue(panel["targets"], panel["title"])
            for target in panel["targets"]:
                names = re.findall("nybble:[a-z0-9_]+", target["expr"])
                self.assertTrue(names, target["expr"])
                self.assertEqual(target["expr"].count("("), target["expr"].count(")"))
                asked.update(names)
        self.assertEqual(len(ids), len(board["panels"]))
        self.assertEqual(asked - exported, set())
        self.assertGreater(len(asked), 20)

    def test_both_styles_tell_of_the_engine(self):
        server = Server("--no-access-log", "--metrics-style", "fastdeploy")
        try:
            text = server.request("GET", "/metrics")[2].decode()
            for name in ("iteration_tokens_total_bucket", "step_duration_seconds_sum", "engine_alive",
                         "expert_tokens_total", "router_balance"):
                self.assertTrue("\nfastdeploy:" + name + "{" in text, name)
            self.assertFalse("nybble:" in text)
        finally:
            self.assertEqual(server.stop(), 0)
            server.close()


if __name__ == "__main__":
    unittest.main(verbosity=2, warnings="ignore")
