#!/usr/bin/env bash
# eval: the reference perplexity of the embedded model within 0.5 %, and what is wrong is said.
. "$(dirname "$0")/lib.sh"
expect_status 2 "$NYBBLE" eval
printf 'too short' >"$WORK/short"
expect_status 1 "$NYBBLE" eval --text "$WORK/short"
expect_in err "one window takes 1025 (--ctx and one)"
expect_status 1 "$NYBBLE" eval --text "$WORK/none"
need_shared eval
# Windows of 1024 tokens: 96 are the whole text, of which the model's maker left the number (make long); 24 give what the
# scalar kernels do, in --compute strict; sanitized builds take two, whose number is only near the reference.
windows=${NYBBLE_EVAL_WINDOWS:-24}
[ "${NYBBLE_LONG:-0}" = 0 ] || windows=96
expect_status 0 "$NYBBLE" eval --text "$SHARED/eval/tales_test.txt" --windows "$windows" --json
python3 - "$WORK/out" "$SOURCE/models/tales-24m-moe-nvfp4/golden.json" "$windows" <<'PY'
import json, sys
got, golden, windows = json.load(open(sys.argv[1])), json.load(open(sys.argv[2])), int(sys.argv[3])
assert got["tokens"] == windows * golden["ctx"], got
whole = golden["nats_per_token"]
want, least = {96: (whole, 0.005), 24: (3.560511, 0.002)}.get(windows, (whole, 0.15))
assert abs(got["nats_per_token"] / want - 1) < least, (got, want)
print("nats per token %.4f, expected %.4f" % (got["nats_per_token"], want))
PY
