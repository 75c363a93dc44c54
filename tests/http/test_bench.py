#!/usr/bin/env python3
"""nybble bench serve against a server whose delays are known (mock_openai.py). $NYBBLE is the program."""
import json
import math
import os
import pty
import socket
import statistics
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path
from xml.etree import ElementTree

from mock_openai import Mock

NYBBLE = os.environ["NYBBLE"]
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "eval"
SLACK_MS = 400  # a busy machine wakes late, never early


def percentile(values, p):
    """numpy's default, by hand."""
    values = sorted(values)
    at = p / 100 * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


class Bench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mock = Mock()
        cls.base = "http://127.0.0.1:%d" % cls.mock.server_address[1]

    @classmethod
    def tearDownClass(cls):
        cls.mock.shutdown()
        cls.mock.server_close()

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.dir = Path(self.folder.name)

    def call(self, *args, status=0):
        env = {k: v for k, v in os.environ.items() if k != "OPENAI_API_KEY"}
        done = subprocess.run([NYBBLE, "bench", "serve", "--base-url", self.base, *map(str, args)], env=env,
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def result(self, *args, mock=None, status=0):
        extra = ["--extra-body", json.dumps({"mock": mock})] if mock else []
        return json.loads(self.call("--json", "--save-detailed", *extra, *args, status=status).stdout)

    def seen(self, log):
        with self.mock.lock:
            return list(self.mock.seen.get(log, []))

    # ---- metrics ------------------------------------------------------------------------------------

    def check_figures(self, r, name, values, unit="_ms"):
        near = lambda a, b: self.assertAlmostEqual(a, b, delta=1e-4 * max(1, abs(b)), msg=name)
        near(r["mean_" + name + unit], statistics.fmean(values))
        near(r["median_" + name + unit], percentile(values, 50))
        near(r["std_" + name + unit], statistics.pstdev(values))
        for p in (80, 99.9):
            near(r["p%g_%s%s" % (p, name, unit)], percentile(values, p))

    def test_delays_are_measured(self):
        for backend in ("openai-chat", "openai"):
            r = self.result("--backend", backend, "--num-prompts", 4, "--random-output-len", 5, "--percentile-metrics",
                            "all", "--metric-percentiles", "80,99.9", "--goodput", "ttft:1000", "tpot:1000",
                            mock={"ttft_ms": 120, "itl_ms": 40})
            self.assertEqual((r["completed"], r["failed"], r["backend"], r["model_id"]), (4, 0, backend, "mock-1"))
            for ttft, itls, e2el in zip(r["ttfts"], r["itls"], r["e2els"]):
                self.assertGreaterEqual(ttft * 1e3, 119)  # the role chunk came at once and does not count
                self.assertLess(ttft * 1e3, 120 + SLACK_MS)
                self.assertEqual(len(itls), 4)
                self.assertGreaterEqual((ttft + sum(itls)) * 1e3, 120 + 4 * 40 - 2)
                self.assertGreaterEqual(e2el + 1e-6, ttft + sum(itls))
                self.assertLess(e2el * 1e3, 120 + 4 * 40 + SLACK_MS)
            self.check_figures(r, "ttft", [t * 1e3 for t in r["ttfts"]])
            self.check_figures(r, "e2el", [t * 1e3 for t in r["e2els"]])
            self.check_figures(r, "itl", [g * 1e3 for gaps in r["itls"] for g in gaps])
            self.check_figures(r, "tpot", [(e - t) * 1e3 / 4 for t, e in zip(r["ttfts"], r["e2els"])])
            # The server's clock is exact, so these are too; no gap is dropped.
            self.check_figures(r, "s_ttft", [125.0] * 4)
            self.check_figures(r, "s_itl", [40.0] * 16)
            self.check_figures(r, "s_e2el", [285.0] * 4)
            self.check_figures(r, "s_decode", [4 / 0.16] * 4, "")
            self.check_figures(r, "output_len", [5] * 4, "")
            self.check_figures(r, "s_input_len", [200] * 4, "")
            self.check_figures(r, "input_len", [3] * 4, "")
            self.assertEqual((r["total_input_tokens"], r["total_output_tokens"], r["total_cached_tokens"]),
                             (800, 20, 12))
            self.assertAlmostEqual(r["request_throughput"], 4 / r["duration"], places=5)
            self.assertAlmostEqual(r["request_goodput"], 4 / r["duration"], places=5)
            self.assertAlmostEqual(r["output_throughput"], 20 / r["duration"], places=4)
            self.assertAlmostEqual(r["total_token_throughput"], 820 / r["duration"], places=3)
            self.assertEqual(r["generated_texts"], ["tök0 tök1 tök2 tök3 tök4 "] * 4)
            self.assertEqual(r["max_concurrent_requests"], 4)

    def recompute(self, r, goals, drop=0.0):
        """The result's figures from nothing but its lists: one entry a request, in seconds and tokens."""
        done = [i for i, e in enumerate(r["errors"]) if not e]
        done.sort(key=lambda i: r["start_times"][i] + r["e2els"][i])
        half = int(len(done) * drop) // 2
        kept = done[half:len(done) - half]
        end = [r["start_times"][i] + r["e2els"][i] for i in kept]
        ms = {k: [] for k in ("ttft", "tpot", "itl", "e2el", "s_ttft", "s_itl", "s_e2el")}
        plain = {k: [] for k in ("s_decode", "input_len", "s_input_len", "output_len")}
        good = 0
        for i in kept:
            n, ttft, e2el, arrival = r["output_lens"][i], r["ttfts"][i], r["e2els"][i], r["arrival_times"][i]
            ms["ttft"].append(ttft * 1e3)
            ms["e2el"].append(e2el * 1e3)
            ms["tpot"] += [(e2el - ttft) * 1e3 / (n - 1)] if n > 1 else []
            ms["itl"] += [g * 1e3 for g in r["itls"][i]]
            ms["s_ttft"].append(arrival[0] * 1e3)
            ms["s_itl"] += [(b - a) * 1e3 for a, b in zip(arrival, arrival[1:])]
            ms["s_e2el"].append(r["s_e2els"][i] * 1e3)
            plain["s_decode"] += [(n - 1) / (r["s_e2els"][i] - arrival[0])] if len(arrival) > 1 else []
            plain["input_len"].append(r["input_lens"][i])
            plain["s_input_len"].append(r["infer_input_lens"][i])
            plain["output_len"].append(n)
            mine = {"ttft": ttft * 1e3, "e2el": e2el * 1e3, "tpot": (e2el - ttft) * 1e3 / (n - 1) if n > 1 else 0}
            good += all(mine[name] <= limit for name, limit in goals.items())
        for name, values in ms.items():
            self.check_figures(r, name, values)
        for name, values in plain.items():
            self.check_figures(r, name, values, "")
        duration = end[-1] - end[0] if drop else r["duration"]
        total_in, total_out = sum(plain["s_input_len"]), sum(plain["output_len"])
        want = {"duration": duration, "completed": len(kept), "total_input_tokens": total_in,
                "total_output_tokens": total_out, "total_cached_tokens": sum(plain["input_len"]),
                "request_throughput": len(kept) / duration, "request_goodput": good / duration,
                "output_throughput": total_out / duration, "total_token_throughput": (total_in + total_out) / duration,
                "concurrency": sum(ms["e2el"]) / 1e3 / duration}
        for name, value in want.items():
            self.assertAlmostEqual(r[name], value, delta=1e-5 * max(1, abs(value)), msg=name)
        if not drop:
            self.assertGreaterEqual(duration, end[-1])
            seconds = {}
            for i in kept:
                at = r["start_times"][i] + r["ttfts"][i]
                times = [at] + [at := at + g for g in r["itls"][i]]
                for t in times:
                    seconds[int(t)] = seconds.get(int(t), 0) + r["output_lens"][i] / len(times)
            edge = min(abs(t - round(t)) for t in times)
            if edge > 1e-3:  # a chunk on the border of two seconds may count in either
                self.assertAlmostEqual(r["max_output_tokens_per_s"], max(seconds.values()), delta=1e-3)
        return good

    def test_every_figure_is_recomputed(self):
        args = ("--num-prompts", 30, "--random-input-len", 20, "--random-output-len", 8, "--random-range-ratio", 0.6,
                "--percentile-metrics", "all", "--metric-percentiles", "80,99.9", "--max-concurrency", 8, "--goodput",
                "ttft:45", "e2el:150", "tpot:18")
        mock = {"ttft_ms": 15, "itl_ms": 5, "vary": True}
        goals = {"ttft": 45, "e2el": 150, "tpot": 18}
        good = self.recompute(self.result(*args, mock=mock), goals)
        self.assertTrue(0 < good < 30, good)  # or the limits told nothing apart
        r = self.result(*args, "--drop-ratio", 0.4, mock=mock)
        self.assertEqual((r["completed"], r["dropped"], r["drop_ratio"], r["failed"]), (18, 12, 0.4, 0))
        self.assertEqual(len(r["ttfts"]), 30)
        self.recompute(r, goals, 0.4)
        self.assertIn("too few", self.call("--num-prompts", 3, "--drop-ratio", 0.9, status=1).stderr)

    def test_pd_metrics(self):
        r = self.result("--num-prompts", 3, "--random-output-len", 3, "--pd-metrics", "--metric-percentiles", "80,99.9",
                        mock={"metrics": True, "itl_ms": 20})
        for name, ms in (("prefill_cost_time", 13), ("prefill_prepare_cost_time", 6), ("preprocess_cost_time", 1),
                         ("cache_in_scheduler_cost_time", 2), ("ask_decode_resource_cost_time", 2),
                         ("schedule_cost_time", 1), ("prefill_first_token_infer_cost_time", 4),
                         ("wait_sending_cache_cost_time", 2), ("decode_preallocate_cost_time", 2),
                         ("decode_prepare_cost_time", 2), ("decode_second_token_infer_cost_time", 3),
                         ("mixed_schedule_cost_time", 3), ("cpu_cache_prepare_time", 2)):
            for figure in ("mean", "median", "p80"):
                self.assertAlmostEqual(r["%s_%s_ms" % (figure, name)], ms, delta=0.01, msg=name)
        self.assertEqual(r["mean_gpu_cache_token_num"], 64)
        self.assertNotIn("mean_storage_cache_token_num", r)
        self.assertEqual([len(m) for m in r["metrics"]], [17] * 3)
        # The tokens came at once and 20 ms later, by this clock; the server's account says 14 and 19 ms.
        self.assertAlmostEqual(r["mean_first_token_transmission_cost_time_ms"], -14, delta=SLACK_MS / 4)
        gap = r["mean_second_token_transmission_cost_time_ms"] - r["mean_first_token_transmission_cost_time_ms"]
        self.assertAlmostEqual(gap, statistics.fmean(g[0] for g in r["itls"]) * 1e3 - 5, delta=0.01)
        r = self.result("--num-prompts", 1, mock={"metrics": True})
        self.assertEqual((r["metrics"], [k for k in r if "cost_time" in k]), ([{}], []))

    def test_goodput_counts_requests_that_keep_every_limit(self):
        r = self.result("--num-prompts", 3, "--random-output-len", 3, "--goodput", "ttft:50,e2el:100000",
                        mock={"ttft_ms": 80})
        self.assertEqual(r["request_goodput"], 0)

    def test_one_token_has_no_tpot(self):
        r = self.result("--num-prompts", 2, "--random-output-len", 1, "--goodput", "tpot:1")
        self.assertEqual(r["completed"], 2)
        self.assertNotIn("mean_tpot_ms", r)
        self.assertGreater(r["request_goodput"], 0)

    def test_reasoning(self):
        r = self.result("--num-prompts", 2, "--random-output-len", 4, "--percentile-metrics", "res_ttft,reasoning_len",
                        mock={"ttft_ms": 20, "itl_ms": 50, "mode": "reasoning"})
        self.assertEqual(r["reasoning_contents"], ["tök0 tök1 "] * 2)
        self.assertEqual(r["generated_texts"], ["tök2 tök3 "] * 2)
        self.assertEqual(r["mean_reasoning_len"], 2)
        self.assertGreaterEqual(r["mean_res_ttft_ms"], 119)

    def test_without_usage_chunks_are_counted(self):
        r = self.result("--num-prompts", 2, "--random-output-len", 7, mock={"mode": "no_usage"})
        self.assertEqual((r["total_output_tokens"], r["without_usage"]), (14, 2))

    # ---- streams ------------------------------------------------------------------------------------

    def test_streams_in_other_shapes(self):
        for mode in ("crlf", "torn"):
            r = self.result("--num-prompts", 3, "--random-output-len", 3, mock={"mode": mode})
            self.assertEqual(r["generated_texts"], ["tök0 tök1 tök2 "] * 3, mode)

    def test_an_empty_answer_succeeds(self):
        r = self.result("--num-prompts", 2, mock={"mode": "empty"})
        self.assertEqual((r["completed"], r["total_output_tokens"]), (2, 0))

    def test_failures_are_named_and_count_for_nothing(self):
        for mode, text in (("cut", "without finish_reason"), ("error", "out of blocks"),
                           ("refuse", "HTTP 429: the queue is full"), ("crash", "HTTP 500: Internal Server Error"), ("drop", "closed"),
                           ("garbage", "stream")):
            r = self.result("--num-prompts", 2, "--num-warmups", 0, "--random-output-len", 3, mock={"mode": mode},
                            status=1)
            self.assertEqual((r["completed"], r["failed"], r["total_output_tokens"]), (0, 2, 0), mode)
            self.assertIn(text, r["errors"][0])
            self.assertNotIn("mean_ttft_ms", r)
        done = self.call("--extra-body", '{"mock": {"mode": "refuse"}}', status=1)
        self.assertIn("the warm-up request failed: HTTP 429: the queue is full", done.stderr)

    def test_a_server_that_hangs_is_given_up(self):
        r = self.result("--num-prompts", 1, "--num-warmups", 0, "--timeout", 0.3, mock={"mode": "hang"}, status=1)
        self.assertIn("timed out", r["errors"][0])
        self.assertLess(r["duration"], 4)

    def test_nobody_listens(self):
        done = subprocess.run([NYBBLE, "bench", "serve", "--port", "1"], capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 1)
        self.assertIn("127.0.0.1:1", done.stderr)

    # ---- load ---------------------------------------------------------------------------------------

    def test_concurrency_is_limited(self):
        r = self.result("--num-prompts", 12, "--max-concurrency", 3, "--random-output-len", 2, "--num-warmups", 0,
                        mock={"ttft_ms": 50, "log": "limit"})
        self.assertEqual(r["max_concurrent_requests"], 3)
        self.assertLessEqual(max(e["open"] for e in self.seen("limit")), 3)
        self.assertGreaterEqual(r["duration"], 4 * 0.05)

    def test_arrivals_follow_rate_and_burstiness(self):
        spread = {}
        for burstiness in (0.3, 1000):
            r = self.result("--num-prompts", 60, "--request-rate", 60, "--burstiness", burstiness, "--seed", 3,
                            "--random-output-len", 1, "--num-warmups", 0)
            start = r["start_times"]
            gaps = [b - a for a, b in zip(start, start[1:])]
            spread[burstiness] = statistics.pstdev(gaps) / statistics.fmean(gaps)
            if burstiness == 1000:
                self.assertAlmostEqual(start[-1], 59 / 60, delta=SLACK_MS / 1e3)
        self.assertLess(spread[1000], 0.6)
        self.assertGreater(spread[0.3], spread[1000] + 0.3)

    def test_sampling_reaches_the_body(self):
        self.result("--num-prompts", 1, "--num-warmups", 0, "--temperature", 0.5, "--top-p", 0.9, "--top-k", 7, "--min-p",
                    0.1, "--ignore-eos", "--logprobs", 2, "--api-key", "secret", "--model", "m", mock={"log": "body"})
        entry = self.seen("body")[0]
        body = entry["body"]
        want = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "ignore_eos": True, "logprobs": True,
                "top_logprobs": 2, "model": "m", "stream": True, "max_tokens": 128}
        self.assertEqual({k: body[k] for k in want}, want)
        self.assertEqual(body["stream_options"], {"include_usage": True})
        self.assertEqual(entry["authorization"], "Bearer secret")

    def test_more_members_of_the_body(self):
        path = self.dir / "hyper.yaml"
        path.write_text("# sampling\ntemperature: 0.75\ntop_p: 1\nmetadata: {min_tokens: 7, note: '5'}\nstop: [a, \"b\"]\n"
                        "chat_template_kwargs:\n  enable_thinking: false\nnothing: ~\nbig: -1.5e3\n")
        self.result("--num-prompts", 1, "--num-warmups", 0, "--hyperparameter-path", path, "--top-p", 0.5,
                    "--frequency-penalty", 0.25, "--presence-penalty", -1, "--repetition-penalty", 1.5, "--use-beam-search",
                    mock={"log": "hyper"})
        body = self.seen("hyper")[0]["body"]
        want = {"temperature": 0.75, "top_p": 0.5, "metadata": {"min_tokens": 7, "note": "5"}, "stop": ["a", "b"],
                "chat_template_kwargs": {"enable_thinking": False}, "nothing": None, "big": -1500.0,
                "frequency_penalty": 0.25, "presence_penalty": -1, "repetition_penalty": 1.5, "use_beam_search": True}
        self.assertEqual({k: body[k] for k in want}, want)
        for text, say in (("- a\n", "expected a mapping"), ("a: 1\na: 2\n", "twice"), ("a: [1\n", "line 2"),
                          ("a: &x [*x]\n", "line 1"), ("? [a]\n: 1\n", "key")):
            path.write_text(text)
            self.assertIn(say, self.call("--hyperparameter-path", path, status=1).stderr)
        self.call("--hyperparameter-path", self.dir / "none", status=1)

    def test_headers_ids_and_adapters(self):
        r = self.result("--num-prompts", 20, "--num-warmups", 0, "--header", "X-One=1", "X-Two=a b", "--request-id-prefix",
                        "run-", "--lora-modules", "first", "second", "--random-output-len", 1, mock={"log": "adapters"})
        seen = self.seen("adapters")
        self.assertEqual({(e["headers"]["X-One"], e["headers"]["X-Two"]) for e in seen}, {("1", "a b")})
        self.assertEqual({e["headers"]["X-Request-Id"] for e in seen}, {"run-%d" % i for i in range(20)})
        self.assertEqual({e["body"]["model"] for e in seen}, {"first", "second"})
        self.assertEqual(r["completed"], 20)

    def test_several_servers(self):
        others = [Mock() for _ in range(2)]
        try:
            names = ["127.0.0.1:%d" % m.server_address[1] for m in [self.mock] + others]
            done = subprocess.run(
                [NYBBLE, "bench", "serve", "--ip-list", "%s,%s" % tuple(names[:2]), "--ip-list", "http://%s/v1/" % names[2],
                 "--num-prompts", "13", "--max-concurrency", "5", "--random-output-len", "2", "--json", "--extra-body",
                 json.dumps({"mock": {"log": "many", "ttft_ms": 20}})], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            r = json.loads(done.stdout)
            self.assertEqual((r["completed"], len(r["servers"])), (13, 3))
            logs = [list(m.seen["many"]) for m in [self.mock] + others]
            self.assertEqual([len(l) for l in logs], [5 + 1, 4 + 1, 4 + 1])  # and a warm-up each
            self.assertEqual([max(e["open"] for e in l) <= most for l, most in zip(logs, (2, 2, 1))], [True] * 3)
        finally:
            for m in others:
                m.shutdown()
                m.server_close()
        for args in (("--ip-list", "a,b"), ("--ip-list", "a,b", "--max-concurrency", "1")):
            done = subprocess.run([NYBBLE, "bench", "serve", *args], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--max-concurrency", done.stderr)
        self.call("--ip-list", "a", "--max-concurrency", 1, status=2)  # and --base-url

    def test_the_rate_ramps_up(self):
        for strategy in ("linear", "exponential"):
            r = self.result("--num-prompts", 41, "--ramp-up-strategy", strategy, "--ramp-up-start-rps", 20,
                            "--ramp-up-end-rps", 200, "--burstiness", 1e6, "--random-output-len", 1, "--num-warmups", 0)
            rate = lambda i: 20 + 180 * i / 40 if strategy == "linear" else 20 * 10 ** (i / 40)
            late = [t - sum(1 / rate(k) for k in range(i)) for i, t in enumerate(r["start_times"])]
            self.assertGreater(min(late), -0.01)
            self.assertLess(statistics.median(late), 0.1)  # the two strategies lie 0.2 s apart
            self.assertEqual((r["ramp_up_strategy"], r["request_rate"]), (strategy, "inf"))
        for args in (("--ramp-up-strategy", "linear"), ("--ramp-up-strategy", "steep"), ("--ramp-up-end-rps", 3),
                     ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", 1, "--ramp-up-end-rps", 2, "--request-rate", 1)):
            self.call(*args, status=2)

    def test_profilers_and_waiting(self):
        self.call("--num-prompts", 1, "--random-output-len", 1, "--profile")
        self.assertEqual(self.seen("profile"), ["/start_profile", "/stop_profile"])
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        late = []
        timer = threading.Timer(0.7, lambda: late.append(Mock(port)))
        timer.start()
        done = subprocess.run([NYBBLE, "bench", "serve", "--port", str(port), "--ready-check-timeout-sec", "20", "--model", "m",
                               "--num-prompts", "1", "--random-output-len", "1"], capture_output=True, text=True, timeout=60)
        timer.join()
        late[0].shutdown()
        late[0].server_close()
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_debug_shows_bodies_and_answers(self):
        text = self.call("--num-prompts", 1, "--num-warmups", 0, "--random-output-len", 2, "--debug").stderr
        self.assertIn('request 1: {"', text)
        self.assertIn("answer 1: tök0 tök1 ", text)

    def test_progress_bar(self):
        """Drawn where standard error is a terminal, and only there."""
        for args, drawn in (((), True), (("--disable-tqdm",), False)):
            main, side = pty.openpty()
            done = subprocess.run([NYBBLE, "bench", "serve", "--base-url", self.base, "--num-prompts", "6", "--max-concurrency",
                                   "1", "--random-output-len", "1", "--extra-body", '{"mock": {"ttft_ms": 120}}', *args],
                                  stdout=subprocess.DEVNULL, stderr=side, timeout=60)
            os.close(side)
            text = b""
            try:
                while part := os.read(main, 65536):
                    text += part
            except OSError:
                pass  # the terminal is closed
            os.close(main)
            self.assertEqual(done.returncode, 0)
            self.assertEqual(b"6/6 requests" in text or b"6 of 6 requests" in text, drawn, text)
            self.assertEqual(b"loading the server" in text, drawn, text)

    # ---- data sets ----------------------------------------------------------------------------------

    def bodies(self, name, *args, n=4):
        self.result("--num-prompts", n, "--num-warmups", 0, *args, mock={"log": name, "tokens": 1})
        return sorted((e["body"] for e in self.seen(name)), key=lambda b: json.dumps(b))

    def test_random(self):
        a = self.bodies("random a", "--random-input-len", 20, "--random-prefix-len", 5, "--random-range-ratio", 0.5,
                        "--seed", 1, n=20)
        text = [b["messages"][0]["content"].split() for b in a]
        self.assertTrue(all(15 <= len(t) <= 35 for t in text) and len({len(t) for t in text}) > 3)
        self.assertEqual(len({tuple(t[:5]) for t in text}), 1)
        self.assertGreater(len({tuple(t[:9]) for t in text}), 15)
        self.assertTrue(all(64 <= b["max_tokens"] <= 192 for b in a))
        strip = lambda bodies: [{k: v for k, v in b.items() if k != "mock"} for b in bodies]
        args = ("--random-input-len", 20, "--random-prefix-len", 5, "--random-range-ratio", 0.5)
        self.assertEqual(strip(a), strip(self.bodies("random b", *args, "--seed", 1, n=20)))
        self.assertNotEqual(strip(a), strip(self.bodies("random c", *args, "--seed", 2, n=20)))

    def test_ebchat(self):
        path = self.dir / "chat.jsonl"
        rows = [{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u%d" % i}],
                 "max_tokens": 10 + i, "response_format": {"type": "json_object"}, "temperature": 0.25} for i in range(2)]
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
        got = self.bodies("ebchat", "--dataset-name", "EBChat", "--dataset-path", path, n=5)
        for body in got:
            row = rows[int(body["messages"][1]["content"][1:])]
            self.assertEqual({k: body[k] for k in row}, row)
        self.assertEqual(len(got), 5)  # two rows are drawn from again
        path.write_text('{"messages": []}\n')
        self.assertIn("line 1", self.call("--dataset-name", "EBChat", "--dataset-path", path, status=1).stderr)
        path.write_text(json.dumps(rows[0]) + "\n{oops\n")
        self.assertIn("line 2", self.call("--dataset-name", "EBChat", "--dataset-path", path, status=1).stderr)

    def test_eb_and_custom(self):
        path = self.dir / "eb.jsonl"
        path.write_text(json.dumps({"text": "ask", "temperature": 0.5, "topp": 0.7, "penalty_score": 1.5, "frequency_score": 0.1,
                                    "presence_score": 0.2, "input_token_num": 9, "max_dec_len": 33}) + "\n")
        (body,) = self.bodies("eb", "--dataset-name", "EB", "--dataset-path", path, "--backend", "openai", n=1)
        want = {"prompt": "ask", "temperature": 0.5, "top_p": 0.7, "repetition_penalty": 1.5, "frequency_penalty": 0.1,
                "presence_penalty": 0.2, "max_tokens": 33}
        self.assertEqual({k: body[k] for k in want}, want)
        self.assertNotIn("topp", body)
        path.write_text('{"text": "a"}\n{"text": 5}\n')
        self.assertIn("line 2", self.call("--dataset-name", "EB", "--dataset-path", path, status=1).stderr)
        path.write_text('{"text": "a", "max_dec_len": 0}\n')
        self.assertIn("max_dec_len", self.call("--dataset-name", "EB", "--dataset-path", path, status=1).stderr)
        path.write_text('{"prompt": "a"}\n{"prompt": "b", "output_tokens": 5}\n')
        got = self.bodies("custom", "--dataset-name", "custom", "--dataset-path", path, "--custom-output-len", 9, n=2)
        self.assertEqual(sorted(b["max_tokens"] for b in got), [5, 9])

    def test_sharegpt(self):
        path = self.dir / "gpt.json"
        path.write_text(json.dumps([
            {"conversations": [{"from": "human", "value": "x" * 100}, {"from": "gpt", "value": "y" * 80}]},
            {"conversations": [{"from": "human", "value": "short"}, {"from": "gpt", "value": "y" * 80}]},
            {"conversations": [{"from": "human", "value": "z" * 100}]}]))
        got = self.bodies("gpt", "--dataset-name", "ShareGPT", "--dataset-path", path, "--backend", "openai", n=2)
        self.assertEqual([(b["prompt"], b["max_tokens"]) for b in got], [("x" * 100, 20)] * 2)
        got = self.bodies("gpt 2", "--dataset-name", "sharegpt", "--dataset-path", path, "--sharegpt-output-len", 9)
        self.assertEqual({b["max_tokens"] for b in got}, {9})

    def test_sonnet(self):
        path = self.dir / "poem.txt"
        path.write_text("".join("one two three four line%d\n" % i for i in range(40)))
        got = self.bodies("sonnet", "--dataset-name", "sonnet", "--dataset-path", path, "--sonnet-input-len", 120,
                          "--sonnet-prefix-len", 60, "--sonnet-output-len", 3)
        texts = [b["messages"][0]["content"] for b in got]
        self.assertTrue(all(115 <= len(t.split()) <= 130 for t in texts))
        self.assertEqual(len({t[:250] for t in texts}), 1)
        self.assertEqual(len(set(texts)), 4)

    def test_traces(self):
        azure = self.dir / "azure.csv"
        azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9000000,30,4\r\n"
                         "2023-11-17 00:00:02.9000000,500,2\r\n")
        args = ("--dataset-name", "trace", "--dataset-path", azure, "--trace-speed", 10, "--max-input-len", 100)
        r = self.result(*args, "--num-warmups", 0, mock={"log": "azure", "tokens": 1})
        self.assertEqual(r["num_prompts"], 2)  # a trace is not drawn from again
        self.assertGreaterEqual(r["start_times"][1], 0.299)
        self.assertLess(r["start_times"][1], 0.3 + SLACK_MS / 1e3)
        self.assertEqual(r["infer_input_lens"], [30, 100])
        self.assertEqual([e["body"]["max_tokens"] for e in self.seen("azure")], [4, 2])
        moon = self.dir / "moon.jsonl"
        moon.write_text("".join(json.dumps({"timestamp": t, "input_length": n, "output_length": 2, "hash_ids": ids}) + "\n"
                                for t, n, ids in ((0, 700, [0, 1]), (0, 600, [0, 2]), (100, 600, [3, 4]))))
        r = self.result("--dataset-name", "trace", "--dataset-path", moon)
        words = [t.split() for t in r["input_texts"]]
        self.assertEqual([len(w) for w in words], [700, 600, 600])
        self.assertEqual(words[0][:512], words[1][:512])
        self.assertNotEqual(words[0][512:600], words[1][512:600])
        self.assertNotEqual(words[0][:50], words[2][:50])
        self.assertIn("xz -dk", self.call("--dataset-name", "trace", "--dataset-path",
                                          self.packed(moon), status=1).stderr)
        azure.write_text("a,b\n1,2\n")
        self.assertIn("TIMESTAMP", self.call("--dataset-name", "trace", "--dataset-path", azure, status=1).stderr)

    def packed(self, path):
        import lzma
        out = path.with_suffix(".xz")
        out.write_bytes(lzma.compress(path.read_bytes()))
        return out

    def test_shared_traces(self):
        import lzma
        for name in ("AzureLLMInferenceTrace_conv.csv", "mooncake_conversation_trace.jsonl"):
            if not (SHARED / (name + ".xz")).exists():
                self.skipTest("no shared/eval")
            path = self.dir / name
            path.write_bytes(lzma.decompress((SHARED / (name + ".xz")).read_bytes()))
            r = self.result("--dataset-name", "trace", "--dataset-path", path, "--num-prompts", 30, "--trace-speed", 1000,
                            "--max-input-len", 50, "--max-output-len", 2)
            self.assertEqual(r["completed"], 30, name)

    # ---- reports ------------------------------------------------------------------------------------

    def test_golden_answers(self):
        path = self.dir / "golden.jsonl"
        args = ("--num-prompts", 3, "--random-output-len", 3)
        self.call(*args, "--save-golden", path)
        r = self.result(*args, "--golden", path)
        self.assertEqual((r["completed"], r["golden_wrong"]), (3, 0))
        rows = path.read_text().splitlines()
        row = json.loads(rows[1])
        self.assertEqual(row["text"], "tök0 tök1 tök2 ")
        row["text"] = "tök0 tök9 tök2 "
        path.write_text("\n".join([rows[0], json.dumps(row), rows[2]]) + "\n")
        r = self.result(*args, "--golden", path, status=1)
        self.assertEqual((r["completed"], r["failed"], r["golden_wrong"]), (2, 1, 1))
        self.assertIn("not the golden answer: from byte 10", "".join(r["errors"]))
        row["text"] = "tök0 tök1 tök2 " + "x" + "ö" * 50  # the message's excerpts end within a character
        path.write_text("\n".join([rows[0], json.dumps(row), rows[2]]) + "\n")
        r = self.result(*args, "--golden", path, status=1)
        self.assertEqual(len(r["errors"]), 3)
        self.assertIn("from byte 18", r["errors"][1])
        self.assertIn("no answer for request", self.call(*args, "--seed", 9, "--golden", path, status=1).stderr)

    def test_saved_results(self):
        args = ("--num-prompts", 2, "--random-output-len", 2, "--save-result", "--result-dir", self.dir, "--metadata",
                "gpu=none", "run=7", "--max-concurrency", 2, "--model", "org/m")
        self.call(*args)
        (path,) = self.dir.glob("openai-chat-infqps-concurrency2-m-*.json")
        r = json.loads(path.read_text())
        self.assertEqual((r["request_rate"], r["gpu"], r["run"], r["max_concurrency"]), ("inf", "none", "7", 2))
        self.assertNotIn("ttfts", r)
        self.call(*args, "--result-filename", "d.json", "--save-detailed")
        r = json.loads((self.dir / "d.json").read_text())
        self.call("--num-prompts", 1, "--random-output-len", 1, "--append-result", "--result-dir", self.dir,
                  "--result-filename", "a.jsonl", "--label", "one", "--tokenizer", "t")
        self.call("--num-prompts", 1, "--random-output-len", 1, "--append-result", "--result-dir", self.dir,
                  "--result-filename", "a.jsonl", "--label", "two")
        lines = [json.loads(line) for line in (self.dir / "a.jsonl").read_text().splitlines()]
        self.assertEqual([(line["label"], line["tokenizer_id"]) for line in lines], [("one", "t"), ("two", "mock-1")])
        lists = ("ttfts", "itls", "input_lens", "infer_input_lens", "output_lens", "generated_texts", "errors")
        self.assertEqual([len(r[k]) for k in lists], [2] * len(lists))

    def test_html(self):
        page = self.dir / "r.html"
        self.call("--num-prompts", 6, "--random-output-len", 3, "--html", page, "--model", "<m>")
        text = page.read_text()
        self.assertIn("&lt;m&gt;", text)
        self.assertNotIn("<m>", text)
        self.assertIn("<td>6</td>", text)
        for plot in ("Output by second", "Time to first token, by when the request was sent", "Time to first token (ttft)"):
            self.assertIn('aria-label="%s"' % plot, text)
        # One file: whatever is named by an address would be a reference to another.
        for outside in ("src=", "href=", "url(", "<script", "@import"):
            self.assertNotIn(outside, text)
        for svg in text.split("<svg")[1:]:
            root = ElementTree.fromstring("<svg" + svg.partition("</svg>")[0] + "</svg>")
            numbers = [float(root.get("viewBox").split()[k]) for k in (2, 3)]
            for dot in root.iter("circle"):
                self.assertTrue(0 <= float(dot.get("cx")) <= numbers[0] and 0 <= float(dot.get("cy")) <= numbers[1])
            self.assertNotIn("nan", svg.partition("</svg>")[0])
        self.call("--num-prompts", 2, "--num-warmups", 0, "--html", page, "--extra-body", '{"mock": {"mode": "refuse"}}', status=1)
        self.assertIn("2 of 2 requests failed", page.read_text())
        self.call("--num-prompts", 1, "--html", self.dir / "none" / "r.html", status=1)

    def test_table(self):
        text = self.call("--num-prompts", 2, "--percentile-metrics", "ttft,s_decode,reasoning_len").stdout
        self.assertIn("2 completed, 0 failed", text)
        self.assertIn("the server did not say", text)  # reasoning_len
        self.assertIn("p99", text)

    def test_mistakes(self):
        for args in (("--dataset-name", "poems"), ("--backend", "tgi"), ("--goodput", "itl:5"), ("--goodput", "ttft"),
                     ("--percentile-metrics", "speed"), ("--metric-percentiles", "101"), ("--extra-body", "[1]"),
                     ("--extra-body", "{"), ("--request-rate", "0"), ("--metadata", "x"), ("--port", "0"), ("word",),
                     ("--unknown",)):
            self.call(*args, status=2)
        for url in ("ftp://x", "127.0.0.1:8180", ""):
            self.assertIn("http://HOST:PORT", self.call("--base-url", url, status=2).stderr)
        self.assertIn("--dataset-path", self.call("--dataset-name", "sonnet", status=1).stderr)


if __name__ == "__main__":
    unittest.main()
