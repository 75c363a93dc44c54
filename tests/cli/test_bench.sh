#!/usr/bin/env bash
# bench model: the figures agree with each other, the profile adds up, the trace is JSON, and mistakes are said.
. "$(dirname "$0")/lib.sh"
expect_status 2 "$NYBBLE" bench
expect_in err "model or serve"
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
import json, sys
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
    profile = r["profile"]
    assert near(sum(profile["stage_us"].values()), profile["step_us"]) and 0 < profile["rest"] < 1, profile
# By hand, for the embedded model: 6 layers, hidden 384, 6 heads and 2 KV heads of 64, top 4 of 32.
one = by_name["tg3"]["a_step"]
assert one["experts_a_layer"] == 4, one
assert one["kv_bytes"] == 2 * 6 * 2 * 64 * 2 * 2, one  # positions 1, 2 and 3: two on average
assert by_name["tg3@40"]["a_step"]["kv_bytes"] == 42 * 6 * 2 * 64 * 2 * 2
assert by_name["tg3x5@40"]["a_step"]["kv_bytes"] == 5 * by_name["tg3@40"]["a_step"]["kv_bytes"]
assert 4 < by_name["tg3x5"]["a_step"]["experts_a_layer"] <= 20
events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
assert sum(e["name"] == "step" for e in events) == 2 * 5 * 3, len(events)
assert sum(e["name"] == "experts" for e in events) == 2 * 5 * 3 * 6
print("%d points, %d events" % (len(names), len(events)))
PY
