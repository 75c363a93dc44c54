#!/usr/bin/env bash
# Everything on a GPU in one call of a few minutes: the kernels against float64, golden models end to end, bad accesses
# and races, times of the kernels beside the rate at which the same GPU reads its memory, and whole models of random
# weights. Needs nvcc and a GPU of compute capability 9.0 or later.
#
#     bench/gpu.sh [path to nybble, with libnybble_cuda.so beside it]
#
# Without a path it builds build/release first. GOLDEN and SHAPES name the folders of golden models and of shapes
# (config.json alone); what is missing is left out. PARTS chooses: check golden sanitize kernels model.
set -uo pipefail
cd "$(dirname "$0")/.."
nybble=${1:-build/release/nybble}
if [ $# -eq 0 ]; then
    cmake --preset release >/dev/null && cmake --build build/release --target nybble nybble_cuda -j "$(nproc)" | tail -1
fi
[ -x "$nybble" ] || { echo "bench/gpu.sh: no program at $nybble: make it first, or name it" >&2; exit 1; }
GOLDEN=${GOLDEN:-${NYBBLE_SHARED_DIR:-shared}/golden}
SHAPES=${SHAPES:-${NYBBLE_SHARED_DIR:-shared}/shapes}
PARTS=${PARTS:-check golden sanitize kernels model}
status=0
failed() {
    echo "FAILED: $*"
    status=1
}
has() { [[ " $PARTS " == *" $1 "* ]]; }
part() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

if has check; then
    part "kernels against float64"
    "$nybble" checkkern --device cuda || failed checkkern
fi
if has golden; then
    part "golden models"
    for model in "$GOLDEN"/*/; do
        [ -f "$model/golden.json" ] || continue
        "$nybble" verify --device cuda "$model" 2>&1 |
            grep -E '^(logits|greedy|verdict|nybble verify)' | sed "s|^|$(basename "$model"): |"
        [ "${PIPESTATUS[0]}" = 0 ] || failed "verify $model"
    done
fi
if has sanitize && command -v compute-sanitizer >/dev/null; then
    part "compute-sanitizer memcheck"
    compute-sanitizer --tool memcheck --error-exitcode 1 "$nybble" checkkern --device cuda --rounds 1 | tail -1
    [ "${PIPESTATUS[0]}" = 0 ] || failed memcheck
    # all groups but those that only take memory, and lost_peer, whose waits are long
    for kernels in norm router attention qkv joined sample chosen argmax linear dense moe prefill allreduce sent dispatch lanes; do
        part "compute-sanitizer racecheck, $kernels"
        compute-sanitizer --tool racecheck --error-exitcode 1 "$nybble" checkkern --device cuda --rounds 1 \
            --filter "$kernels" | tail -1
        [ "${PIPESTATUS[0]}" = 0 ] || failed "racecheck $kernels"
    done
fi
if has kernels; then
    part "times of kernels"
    "$nybble" checkkern --device cuda --bench || failed "checkkern --bench"
fi
if has model; then
    for shape in ${MODELS:-qwen3-30b-a3b}; do
        [ -f "$SHAPES/$shape/config.json" ] || continue
        part "$shape, decode"
        "$nybble" bench model --device cuda --load-format dummy --prompt 0 --gen 32 --depth "${DEPTH:-512}" \
            --batch "${BATCH:-1,8,32,64,128,256}" --repeat 3 --profile --max-model-len 16384 "$SHAPES/$shape" ||
            failed "decode of $shape"
        part "$shape, prefill"
        "$nybble" bench model --device cuda --load-format dummy --prompt 2048,8192 --gen 0 --chunk 8192 --repeat 3 \
            --profile --max-model-len 16384 "$SHAPES/$shape" || failed "prefill of $shape"
    done
fi
printf '\n== done in %d s, status %d\n' "$SECONDS" "$status"
exit $status
