#!/usr/bin/env bash
# bench comm and bench overlap: every column is measured, and wrong use is refused.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$NYBBLE" bench comm --rounds 2 --max-bytes 8K --json >"$work/comm" 2>"$work/why"
"$NYBBLE" bench overlap --load-format dummy --tensor-parallel-size 2 --threads 1 --prompt 64 --rounds 4 --json \
    "$SOURCE/tests/dist/moe-shape" >"$work/overlap" 2>/dev/null
python3 - "$work" <<'END'
import json, sys
with open(sys.argv[1] + "/comm") as f:
    comm = json.load(f)
with open(sys.argv[1] + "/why") as f:
    why = f.read()
assert [s["bytes"] for s in comm["sizes"]] == [4096, 8192], comm
for size in comm["sizes"]:
    for what in ("fused", "composed", "allreduce"):
        assert 0 < size[what + "_us"] <= size[what + "_median_us"], size
    # MPI's own where there is Open MPI, else the reason
    assert size["mpi_us"] > 0 if "mpi_us" in size else "MPI's own all-reduce is not measured" in why, (size, why)
with open(sys.argv[1] + "/overlap") as f:
    overlap = json.load(f)
assert overlap["ranks"] == 2 and overlap["overlap"]["off"]["median_ratio"] == 1, overlap
for mode in ("off", "auto", "always"):
    assert 0 < overlap["overlap"][mode]["best_ms"] <= overlap["overlap"][mode]["median_ms"], overlap
END

# Several steps at once, and one of each way as a trace.
"$NYBBLE" bench overlap --load-format dummy --tensor-parallel-size 2 --threads 1 --prompt 64 --batch 16 --rounds 2 --json \
    --trace "$work/trace" "$SOURCE/tests/dist/moe-shape" >"$work/steps" 2>/dev/null
python3 - "$work" <<'END'
import json, sys
with open(sys.argv[1] + "/steps") as f:
    assert [s["step"] for s in json.load(f)] == ["prefill of 64 tokens", "decode of 16 sequences"]
with open(sys.argv[1] + "/trace") as f:
    events = json.load(f)["traceEvents"]
lanes = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and "tid" in e}
seen = {lanes[e["tid"]] for e in events if e["ph"] == "X"}
for lane in ("prefill of 64 tokens, overlap off", "prefill of 64 tokens, overlap always, half 0, communicate",
             "decode of 16 sequences, overlap always, half 1, compute"):
    assert lane in seen, (lane, seen)
END

# Ranks that mpirun has bound to cores of their own share none: their all-reduce is measured. Not where there is no
# Open MPI, or where it cannot bind two.
bound() {
    mpirun --allow-run-as-root -n 2 --bind-to core "$NYBBLE" bench model --load-format dummy --prompt 16 --gen 2 \
        --repeat 1 --verbose "$SOURCE/tests/dist/moe-shape" >"$work/out" 2>&1
}
if command -v mpirun >/dev/null && [ -e "$(dirname "$NYBBLE")/libnybble_mpi.so" ] && bound; then
    grep -q 'all-reduce of 2 ranks: .* us fused' "$work/out" || { cat "$work/out"; exit 1; }
fi

refused() {
    local status=0
    "$NYBBLE" bench "$@" >"$work/out" 2>&1 || status=$?
    [ "$status" -ne 0 ] || { echo "FAILED: bench $* was not refused"; exit 1; }
}
refused comm --only nothing
grep -q 'expected fused, composed, allreduce or mpi' "$work/out"
refused comm --only mpi
grep -q 'needs the ranks of mpirun' "$work/out"
refused overlap --load-format dummy "$SOURCE/tests/dist/moe-shape"
grep -q 'one rank has nothing to overlap' "$work/out"
refused overlap --tensor-parallel-size 2 --prompt 1 "$SOURCE/tests/dist/moe-shape"
grep -q 'one row cannot be cut apart' "$work/out"
refused overlap --two-batch-overlap auto "$SOURCE/tests/dist/moe-shape"
echo "bench comm and bench overlap: ok"
