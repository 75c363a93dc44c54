#!/usr/bin/env bash
# verify: the embedded model, then every golden checkpoint in the modes whose answers they hold.
. "$(dirname "$0")/lib.sh"

expect_status 0 "$NYBBLE" verify --compute strict
expect_in out "verdict      pass"
expect_status 0 "$NYBBLE" verify
expect_status 0 "$NYBBLE" verify --json
python3 -c 'import json,sys; r=json.load(open(sys.argv[1])); assert r["pass"] and r["greedy_steps"] > 0' "$WORK/out"

# A wrong answer is seen.
cp -r "$SOURCE/models/tales-24m-moe-nvfp4" "$WORK/wrong"
python3 - "$WORK/wrong/golden.json" <<'PY'
import json, sys
g = json.load(open(sys.argv[1]))
g["greedy"][0]["greedy_ids"][5] = (g["greedy"][0]["greedy_ids"][5] + 1000) % 4096
json.dump(g, open(sys.argv[1], "w"))
PY
expect_status 1 "$NYBBLE" verify --compute strict "$WORK/wrong"
expect_in out "FAIL"
rm "$WORK/wrong/golden.json"
expect_status 1 "$NYBBLE" verify "$WORK/wrong"
expect_in err "golden"
mkfifo "$WORK/wrong/golden.safetensors"
expect_status 1 timeout 20 "$NYBBLE" verify "$WORK/wrong"
expect_in err "not a regular file"

need_shared golden
for compute in strict bf16; do
    for model in "$SHARED"/golden/*/; do
        expect_status 0 "$NYBBLE" verify "$model" --compute $compute
    done
done
# Weights that are not numbers fail in every mode, and the report is still JSON.
cp -r "$SHARED/golden/qwen3_moe-modelopt" "$WORK/nan"
chmod -R u+w "$WORK/nan"
python3 - "$SHARED/tools" "$WORK/nan/model.safetensors" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import st_edit
tensors, meta = st_edit.read(sys.argv[2])
name = "model.layers.0.input_layernorm.weight"
dtype, shape, data = tensors[name]
tensors[name] = (dtype, shape, bytes.fromhex("c07f") + data[2:])
st_edit.write(sys.argv[2], tensors, meta)
PY
for compute in strict bf16 int8; do
    expect_status 1 "$NYBBLE" verify "$WORK/nan" --compute $compute --json
    python3 -c 'import json,sys; r=json.load(open(sys.argv[1])); assert not r["pass"], r' "$WORK/out"
done
passed=0
for model in "$SHARED"/golden/*/; do
    if "$NYBBLE" verify "$model" --compute w4a4 >"$WORK/out" 2>&1; then passed=$((passed + 1)); fi
done
[ $passed -ge 6 ] || fail "w4a4: $passed of 8 pass, at least 6 must"
for model in stories260K; do
    expect_status 0 "$NYBBLE" verify "$SHARED/models/$model" --compute strict
done
# Eight equal experts tell the same story as the dense model that they were made from.
cp -rL "$SHARED/models/stories260K_mixtral8x" "$WORK/mixtral"
chmod -R u+w "$WORK/mixtral"
cp "$SHARED/models/stories260K/golden.json" "$WORK/mixtral/"
expect_status 0 "$NYBBLE" verify "$WORK/mixtral" --compute strict
echo ok
