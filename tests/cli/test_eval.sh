#!/usr/bin/env bash
# eval: the reference perplexity of the embedded model within 0.5 %, and what is wrong is said.
. "$(dirname "$0")/lib.sh"
expect_status 2 "$NYBBLE" eval
printf 'too short' >"$WORK/short"
expect_status 1 "$NYBBLE" eval --text "$WORK/short"
expect_in err "window"
expect_status 1 "$NYBBLE" eval --text "$WORK/none"
need_shared eval
# Sanitized builds take a few windows: then the number is only near the reference.
windows=${NYBBLE_EVAL_WINDOWS:-96}
expect_status 0 "$NYBBLE" eval --text "$SHARED/eval/tales_test.txt" --windows "$windows" --json
python3 - "$WORK/out" "$SOURCE/models/tales-24m-moe-nvfp4/golden.json" "$windows" <<'PY'
import json, sys
got, want, windows = json.load(open(sys.argv[1])), json.load(open(sys.argv[2])), int(sys.argv[3])
assert got["tokens"] == windows * want["ctx"], got
off = abs(got["nats_per_token"] / want["nats_per_token"] - 1)
assert off < (0.005 if got["tokens"] == want["tokens"] else 0.15), (got, want["nats_per_token"])
print("nats per token %.4f, reference %.4f" % (got["nats_per_token"], want["nats_per_token"]))
PY
