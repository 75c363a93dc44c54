#!/usr/bin/env bash
# Several GPUs of one machine in one call of at most ten minutes: the operators that they run together against a scalar
# loop, golden models over two ranks, sums from 4 KB to 16 MB beside NCCL and the link's limit, and whole models of random
# weights on one GPU and on two, with sums fused and apart. Needs nvcc, and GPUs of compute capability 9.0 or later that
# reach each other's memory.
#
#     bench/gpus.sh [path to nybble, with libnybble_cuda.so beside it]
#
# Without a path it builds build/release first. GPUS is how many (default 2). GOLDEN and SHAPES name the folders of golden
# models and of shapes (config.json alone), NYBBLE_NCCL NCCL's library; what is missing is left out and said. PARTS chooses:
# check golden sanitize lost sums model overlap. The last: prefill and decode with two-batch overlap beside none, in turn in one
# process, and a picture of layers 20 to 22 of one step each way (overlap-SHAPE.svg in the folder OUT, default: this one).
set -uo pipefail
cd "$(dirname "$0")/.."
nybble=${1:-build/release/nybble}
if [ $# -eq 0 ]; then
    cmake --preset release >/dev/null && cmake --build build/release --target nybble nybble_cuda -j "$(nproc)" | tail -1
fi
[ -x "$nybble" ] || { echo "bench/gpus.sh: no program at $nybble: make it first, or name it" >&2; exit 1; }
GPUS=${GPUS:-2}
GOLDEN=${GOLDEN:-${NYBBLE_SHARED_DIR:-shared}/golden}
SHAPES=${SHAPES:-${NYBBLE_SHARED_DIR:-shared}/shapes}
PARTS=${PARTS:-check golden sanitize lost sums model overlap}
OUT=$(realpath "${OUT:-.}")
if [ -z "${NYBBLE_NCCL:-}" ]; then # the wheel's, where Python has it
    NYBBLE_NCCL=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null)
fi
[ -e "${NYBBLE_NCCL:-}" ] && export NYBBLE_NCCL || unset NYBBLE_NCCL
export NCCL_NVLS_ENABLE=0
status=0
failed() {
    echo "FAILED: $*"
    status=1
}
has() { [[ " $PARTS " == *" $1 "* ]]; }
part() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }
# A hang must not take the whole call.
limited() { timeout -k 5 "$@"; }

if has check; then
    part "operators of several GPUs against a scalar loop"
    for row in allreduce gather dispatch lanes lost_peer; do
        limited 60 "$nybble" checkkern --device cuda --filter "$row" --rounds "${ROUNDS:-48}" || failed "checkkern $row"
    done
fi
if has sums; then
    part "sums"
    limited 90 "$nybble" bench gpus --ranks "$GPUS" || failed "bench gpus"
    limited 60 "$nybble" bench gpus --ranks "$GPUS" --experts 128 --hidden 2048 || failed "bench gpus --experts"
fi
if has golden; then
    part "golden models over $GPUS GPUs"
    for model in "$GOLDEN"/*/; do
        [ -f "$model/golden.json" ] || continue
        for experts in "" --enable-expert-parallel; do
            # shellcheck disable=SC2086 # or nothing
            limited 60 "$nybble" verify --device cuda --tensor-parallel-size "$GPUS" $experts "$model" 2>&1 |
                grep -E '^(logits|greedy|verdict|nybble verify)' | sed "s|^|$(basename "$model")${experts:+, experts}: |"
            [ "${PIPESTATUS[0]}" = 0 ] || failed "verify $experts $model"
        done
    done
fi
if has sanitize && command -v compute-sanitizer >/dev/null; then
    part "compute-sanitizer memcheck"
    limited 120 compute-sanitizer --tool memcheck --error-exitcode 1 "$nybble" checkkern --device cuda \
        --filter allreduce --rounds 3 | tail -1
    [ "${PIPESTATUS[0]}" = 0 ] || failed memcheck
fi
if has lost; then
    part "a rank that is killed"
    shape=$SHAPES/qwen3-30b-a3b
    if [ -f "$shape/config.json" ]; then
        limited 120 "$nybble" bench model --device cuda --tensor-parallel-size "$GPUS" --load-format dummy --prompt 0 \
            --gen 40000 --depth 16 --batch 8 --repeat 1 --max-model-len 40960 "$shape" >/dev/null 2>lost.$$ &
        parent=$!
        for _ in $(seq 200); do
            sleep 0.3
            grep -q "steps of up to" lost.$$ && break
        done
        sleep 8
        child=$(pgrep -f "bench model --device cuda --tensor-parallel-size $GPUS --load-format dummy" | tail -1)
        began=$SECONDS
        if [ -n "$child" ] && kill -0 "$parent" 2>/dev/null; then
            kill -9 "$child"
            wait $parent
            echo "ended after $((SECONDS - began)) s, status $?: $(tail -1 lost.$$)"
            [ $((SECONDS - began)) -le 10 ] || failed "the others went on for more than 10 s"
        else
            failed "nothing ran that could be killed: $(tail -1 lost.$$)"
        fi
        rm -f lost.$$
    fi
fi
if has model; then
    for shape in ${MODELS:-qwen3-30b-a3b}; do
        [ -f "$SHAPES/$shape/config.json" ] || { echo "no shape $SHAPES/$shape"; continue; }
        for how in "1" "$GPUS" "$GPUS --enable-allreduce-fusion off" "$GPUS --enable-expert-parallel"; do
            part "$shape, GPUs: $how"
            # shellcheck disable=SC2086 # several words
            limited 150 "$nybble" bench model --device cuda --load-format dummy --prompt 2048 --chunk 8192 --gen 32 \
                --depth 512 --batch "${BATCH:-1,8,32,128}" --repeat 3 --max-model-len 16384 --tensor-parallel-size $how \
                "$SHAPES/$shape" || failed "$shape, GPUs: $how"
        done
    done
fi
if has overlap; then
    for shape in ${OVERLAP_MODELS:-wide-shape qwen3-30b-a3b glm-4.5-air}; do # the first: sums take longer than all else
        folder=$SHAPES/$shape
        [ -f "bench/$shape/config.json" ] && folder=bench/$shape
        [ -f "$folder/config.json" ] || { echo "no shape $folder"; continue; }
        part "$shape, two-batch overlap"
        limited 120 "$nybble" bench overlap --device cuda --tensor-parallel-size "$GPUS" --load-format dummy --prompt 2048,8192 \
            --batch 32,128 --depth 512 --rounds "${ROUNDS_OVERLAP:-24}" --max-model-len 16384 --trace "$OUT/overlap-$shape.json" \
            "$folder" || failed "$shape, two-batch overlap"
        python3 bench/overlap.py "$OUT/overlap-$shape.json" "$OUT/overlap-$shape.svg" 20 22 || failed "picture of $shape"
    done
fi
printf '\n== done in %d s, status %d\n' "$SECONDS" "$status"
exit $status
