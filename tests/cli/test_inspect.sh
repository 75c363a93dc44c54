#!/usr/bin/env bash
# inspect: sizes add up, every expert is counted, the reference error is near the estimate.
. "$(dirname "$0")/lib.sh"
expect_status 0 "$NYBBLE" inspect
expect_in out "qwen3_moe"
expect_status 0 "$NYBBLE" inspect --json
python3 - "$WORK/out" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["experts"] == 32 and r["layers"] == 6 and len(r["layer_error"]) == 6, r
experts = [m for m in r["modules"] if ".experts.*." in m["name"]]
assert len(experts) == 18 and all(m["count"] == 32 and m["type"] == "NVFP4" for m in experts)
assert all(0.05 < m["error"] < 0.15 for m in experts)
assert 24.0e6 < r["weights"] < 25.5e6, r["weights"]
PY
expect_status 0 "$NYBBLE" inspect --modules
[ "$(grep -c 'experts\.[0-9]*\.up_proj' "$WORK/out")" -eq 192 ] || fail "192 up projections expected"
if [ -f "$SHARED/models/tales-24m-moe-bf16.tar.xz" ]; then
    mkdir "$WORK/bf16"
    tar -xJf "$SHARED/models/tales-24m-moe-bf16.tar.xz" -C "$WORK/bf16"
    folder=$(dirname "$(find "$WORK/bf16" -name config.json | head -1)")
    expect_status 0 "$NYBBLE" inspect --json --reference "$folder"
    python3 -c 'import json,sys; r=json.load(open(sys.argv[1])); assert r["measured_against_reference"] and all(0.03<e<0.2 for e in r["layer_error"]), r["layer_error"]' "$WORK/out"
fi
echo ok
