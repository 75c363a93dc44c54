#!/usr/bin/env bash
# inspect --checksum: the same for every spelling of the same numbers and for every CPU, another for others.
. "$(dirname "$0")/lib.sh"
TALES=$SOURCE/models/tales-24m-moe-nvfp4
twin() { python3 "$SOURCE/tests/tools/twin.py" "$@"; }
checksum() {
    expect_status 0 "$NYBBLE" inspect --checksum "$1"
    cut -d' ' -f1 "$WORK/out"
}
a=$(checksum "$TALES")
[[ $a =~ ^[0-9a-f]{32}$ ]] || fail "not a checksum: $a"
twin "$TALES" "$WORK/dress" --compressed
twin "$TALES" "$WORK/other" --perturb 4
twin "$TALES" "$WORK/one" --take "$WORK/other" model.layers.3.mlp.experts.7.up_proj.input_scale
twin "$TALES" "$WORK/negative" --negate model.layers.3.mlp.experts.7.up_proj.weight_scale
[ "$(checksum "$WORK/dress")" = "$a" ] || fail "compressed-tensors dress has another checksum"
[ "$(NYBBLE_CPU=avx2 checksum "$TALES")" = "$a" ] || fail "an older CPU has another checksum"
for name in other one negative; do
    [ "$(checksum "$WORK/$name")" != "$a" ] || fail "$name has the same checksum"
done
# Codes under a block scale of zero or NaN are worth nothing.
for seed in 1 2; do
    twin "$TALES" "$WORK/hidden-$seed" --hide model.layers.3.mlp.experts.7.up_proj $seed
done
cmp -s "$WORK/hidden-1/model.safetensors" "$WORK/hidden-2/model.safetensors" && fail "twins without a difference"
hidden=$(checksum "$WORK/hidden-1")
[ "$hidden" != "$a" ] || fail "zero scales have the same checksum as others"
[ "$(checksum "$WORK/hidden-2")" = "$hidden" ] || fail "codes under a scale of zero count"
expect_status 0 "$NYBBLE" inspect --checksum --modules --json "$WORK/one"
python3 - "$WORK/out" "$a" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["checksum"] != sys.argv[2] and len(r["tensors"]) == len({t["checksum"] for t in r["tensors"]}) > 600
assert any(t["name"] == "kv_scales" and t["shape"] == [6, 2] for t in r["tensors"])
PY
"$NYBBLE" inspect --checksum --modules "$TALES" | sort >"$WORK/a"
"$NYBBLE" inspect --checksum --modules "$WORK/one" | sort >"$WORK/b"
changed=$(comm -13 "$WORK/a" "$WORK/b" | grep -c 'model\.layers' || true)
[ "$changed" -eq 1 ] || fail "one tensor differs, $changed do by checksum"
twin "$TALES" "$WORK/short" --truncate 9
expect_status 1 "$NYBBLE" inspect --checksum "$WORK/short"
expect_in err "truncated"
expect_status 2 "$NYBBLE" inspect --checksum --reference "$TALES" "$TALES"
echo ok
