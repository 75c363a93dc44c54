#!/usr/bin/env bash
# bench model: the figures agree with each other, the profile adds up, the trace is JSON, and mistakes are said.
. "$(dirname "$0")/lib.sh"
expect_status 2 "$NYBBLE" bench
expect_in err "or serve"
expect_status 2 "$NYBBLE" bench melody
expect_in err '"melody"'
expect_status 2 "$NYBBLE" bench model --batch 1,0
expect_in err "--batch"
expect_status 2 "$NYBBLE" bench model --threads ""
expect_status 2 "$NYBBLE" bench model --prompt 0 --gen 0
expect_status 1 "$NYBBLE" bench model --depth 100000
expect_in err "the model's context is 1024"
expect_status 1 "$NYBBLE" bench model --trace "$WORK/none/trace.json"
expect_in err "trace.json"
expect_status 0 "$NYBBLE" bench model --prompt 33 --gen 3 --batch 1,5 --depth 0,40 --threads 1,2 --chunk 16 \
    --repeat 2 --trace "$WORK/trace.json" --json
python3 - "$WORK/out" "$WORK/trace.json" <<'PY'
import json, statistics, sys
run, trace = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
names = [(r["threads"], r["name"]) for r in run["results"]]
assert names == [(t, n) for t in (1, 2) for n in ("pp33", "tg3", "tg3x5", "tg3@40", "tg3x5@40")], names
by_name = {r["name"]: r for r in run["results"]}
for r in run["results"]:
    n = r["tokens"] * r["batch"]
    best, roof, step = min(r["run_seconds"]), r["roofline"], r["a_step"]
    steps = 3 if r["kind"] == "decode" else 3  # 33 tokens in chunks of 16
    near = lambda a, b: abs(a - b) <= 1e-3 * abs(b)
    assert len(r["run_seconds"]) == 2 and near(r["tokens_per_second"], n / best), r
    bytes_ = (step["weight_bytes"] + step["kv_bytes"]) * steps
    assert near(r["gbs"], bytes_ / best * 1e-9), r
    assert near(r["of_read"], r["gbs"] / roof["read_gbs"]), r
    assert near(r["gflops"], step["flops"] * steps / best * 1e-9), r
    assert near(r["of_roofline"], max(r["of_read"], r["of_peak"])), r
    # Each run beside what was measured right before and after it. The shares are of the same bytes and operations.
    beside = r["runs_and_limits_beside"]
    assert sorted(b["seconds"] for b in beside) == r["run_seconds"], r
    for b in beside:
        assert near(b["of_read"], bytes_ / (b["read_gbs"] * 1e9) / b["seconds"]), r
        assert near(b["of_peak"], step["flops"] * steps / (b["peak_gflops"] * 1e9) / b["seconds"]), r
        assert near(b["of_limits"], max(b["of_read"], b["of_peak"])), r
        assert 0 < b["peak_gflops"] < 1.3 * max(roof.values()), r
    assert near(r["median_of_limits_beside"], statistics.median(b["of_limits"] for b in beside)), r
    profile = r["profile"]
    assert near(sum(profile["stage_us"].values()), profile["step_us"]) and 0 < profile["rest"] < 1, profile
# By hand, for the embedded model: 6 layers, hidden 384, 6 heads and 2 KV heads of 64, top 4 of 32.
one = by_name["tg3"]["a_step"]
assert one["experts_a_layer"] == 4, one
key = 6 * 2 * 64 * 2 * 2  # a key and its value in bf16; where keys are integers, 4 bytes more for each
a_key = one["kv_bytes"] / 2  # positions 1, 2 and 3: two on average
assert a_key in (key, key + 6 * 2 * 4), one
assert by_name["tg3@40"]["a_step"]["kv_bytes"] == 42 * a_key
assert by_name["tg3x5@40"]["a_step"]["kv_bytes"] == 5 * by_name["tg3@40"]["a_step"]["kv_bytes"]
assert 4 < by_name["tg3x5"]["a_step"]["experts_a_layer"] <= 20
events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
assert sum(e["name"] == "step" for e in events) == 2 * 5 * 3, len(events)
assert sum(e["name"] == "experts" for e in events) == 2 * 5 * 3 * 6
print("%d points, %d events" % (len(names), len(events)))
PY
# Longer runs, which a disturbance of a moment does not bend. Prompts are bound by arithmetic; these weights fit into a last
# cache, which is faster than memory.
expect_status 0 "$NYBBLE" bench model --prompt 512 --gen 64 --threads 1 --repeat 5 --json
python3 - "$WORK/out" <<'PY'
import json, sys
for r in json.load(open(sys.argv[1]))["results"]:
    assert 0 < r["median_of_limits_beside"] < (1.3 if r["kind"] == "prefill" else 8), r
PY
# The README's table has both shares of both, and what a file says of others.
cp "$WORK/out" "$WORK/speed.json"
printf 'before\n<!-- bench/table.py: begin -->\nold\n<!-- bench/table.py: end -->\nafter\n' >"$WORK/README.md"
expect_status 0 python3 "$SOURCE/bench/table.py" --others "$SOURCE/bench/llama.cpp.json" --readme "$WORK/README.md" "$WORK/speed.json"
python3 - "$WORK/speed.json" "$WORK/README.md" <<'PY' || fail "$(cat "$WORK/README.md")"
import json, sys
lines = open(sys.argv[2]).read().splitlines()
assert (lines[0], lines[-1]) == ("before", "after") and "old" not in lines, lines
row, = (l.split(" | ") for l in lines if l.startswith("| tales"))
for at, r in zip((3, 5), json.load(open(sys.argv[1]))["results"]):
    assert row[at] == "%.0f (%.0f, %.0f)" % (
        r["tokens_per_second"], 100 * r["median_of_limits_beside"], 100 * r["of_roofline"]), row
assert any(l.startswith("| llama.cpp") for l in lines), lines
PY
expect_status 0 "$NYBBLE" bench model --scan --gen 1 --repeat 1 --threads 1 --json
cp "$WORK/out" "$WORK/scan.json"
expect_status 0 "$NYBBLE" bench model --scan --gen 1 --repeat 1 --threads 1 --batch 1,2
grep -q "cliff" "$WORK/out" || fail "no verdict"
expect_status 0 "$NYBBLE" bench model --engine --prompt 0 --gen 3 --batch 1,5 --depth 0,40 --chunk 16 --repeat 2 \
    --threads 1,2 --json
python3 - "$WORK/scan.json" "$WORK/out" <<'PY'
import json, sys
scan, whole = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
rates = [(r["batch"], r["tokens_per_second"]) for r in scan["results"]]
assert [b for b, _ in rates] == [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64], rates
falls = {(a, b): 1 - y / x for (a, x), (b, y) in zip(rates, rates[1:]) if y < 0.97 * x}
assert {(c["from"], c["to"]) for c in scan["cliffs"]} == falls.keys(), (scan["cliffs"], falls)
assert all(abs(c["fall"] - falls[c["from"], c["to"]]) < 1e-6 for c in scan["cliffs"])
assert "cliffs" not in whole
engine = [r for r in whole["results"] if r["kind"] == "engine"]
assert [(r["threads"], r["depth"], r["batch"]) for r in engine] == [
    (t, d, b) for t in (1, 2) for d in (0, 40) for b in (1, 5)], engine
for r in engine:
    profile = r["profile"]
    stages = profile["stage_us"]
    assert {"schedule", "experts", "head", "sample, deliver", "detokenize"} <= stages.keys(), stages
    assert abs(sum(stages.values()) / profile["step_us"] - 1) < 1e-3 and 0 < profile["rest"] < 1, profile
    best = min(r["run_seconds"])
    assert len(r["run_seconds"]) == 2 and r["detokenized"]
    assert abs(r["tokens_per_second"] * best / (3 * r["batch"]) - 1) < 1e-6, r
    assert abs(profile["step_us"] * 1e-6 * 3 / best - 1) < 1e-3, r
print("%d cliffs, %d engine points" % (len(falls), len(engine)))
PY
expect_status 1 "$NYBBLE" bench model --engine --prompt 0 --gen 1 --tokenizer "$WORK/none"
expect_status 2 "$NYBBLE" bench load --load-format dummy
expect_status 0 "$NYBBLE" bench load --repeat 2 --json
python3 - "$WORK/out" <<'PY'
import json, sys
warm, cold = json.load(open(sys.argv[1]))["results"]
assert (warm["from"], cold["from"]) == ("page cache", "disk")
for r in warm, cold:
    assert len(r["run_seconds"]) == 2 and r["seconds"] == min(r["run_seconds"]), r
    assert abs(r["gbs"] * r["seconds"] * 1e9 / r["tensor_bytes"] - 1) < 1e-6, r
    assert r["copy_gbs"] > 0 and r["copy_fresh_gbs"] > 0, r
# The files are copied from the page cache where they are read from it, the disk is measured where it is read.
assert warm["copy_cached_gbs"] > 0 and "disk_gbs" not in warm, warm
assert cold["disk_gbs"] > 0 and "copy_cached_gbs" not in cold, cold
print("page cache %.2f of %.2f GB/s" % (warm["gbs"], warm["copy_cached_gbs"]))
PY
