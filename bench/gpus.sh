#!/usr/bin/env bash
# Several GPUs of one machine in one call of at most eight minutes: the operators that they run together against a scalar
# loop, 100,000 sums in a row, golden models and the embedded one over two ranks with and without overlap beside one GPU, sums
# from 4 KB to 16 MB beside NCCL and the link's limit, and whole models of random weights on one GPU and on two, with sums fused
# and apart, with overlap and without. Needs nvcc, and GPUs of compute capability 9.0 or later that reach each other's memory.
#
#     bench/gpus.sh [path to nybble, with libnybble_cuda.so beside it]
#
# Without a path it builds build/release first. GPUS is how many (default 2). GOLDEN and SHAPES name the folders of golden
# models and of shapes (config.json alone), MODELS the shapes, NYBBLE_NCCL NCCL's library; what is missing is left out and said. PARTS
# chooses: check many golden sanitize lost sums model overlap. In the folder OUT (default: one of its own) lie the JSON of all
# that was measured, of which bench/gpus_table.py makes the tables at the end, and a picture of layers 20 to 22 of a step
# without overlap and of one with it (overlap-SHAPE.svg).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
nybble=${1:-build/release/nybble}
if [ $# -eq 0 ]; then
    cmake --preset release >/dev/null && cmake --build build/release --target nybble nybble_cuda -j "$(nproc)" | tail -1
fi
[ -x "$nybble" ] || { echo "bench/gpus.sh: no program at $nybble: make it first, or name it" >&2; exit 1; }
GPUS=${GPUS:-2}
GOLDEN=${GOLDEN:-${NYBBLE_SHARED_DIR:-shared}/golden}
SHAPES=${SHAPES:-${NYBBLE_SHARED_DIR:-shared}/shapes}
MODELS=${MODELS:-qwen3-30b-a3b glm-4.5-air}
PARTS=${PARTS:-check many golden sanitize lost sums model overlap}
OUT=$(realpath "${OUT:-$(mktemp -d)}")
if [ -z "${NYBBLE_NCCL:-}" ]; then # the wheel's, where Python has it
    NYBBLE_NCCL=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null)
fi
if [ -e "${NYBBLE_NCCL:-}" ]; then export NYBBLE_NCCL; else unset NYBBLE_NCCL; fi
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
# quiet FILE COMMAND...: what it prints goes there; what it says on the way is shown only where it fails.
quiet() {
    local to=$1 code
    shift
    limited "$@" >"$OUT/$to" 2>"$OUT/$to.log"
    code=$?
    [ "$code" = 0 ] || tail -3 "$OUT/$to.log"
    return "$code"
}

if has check; then
    part "operators of several GPUs against a scalar loop"
    for row in allreduce sent gather dispatch lanes lost_peer; do
        limited 60 "$nybble" checkkern --device cuda --filter "cuda.$row" --rounds "${ROUNDS:-24}" || failed "checkkern $row"
    done
fi
if has many; then
    part "sums in a row between two GPUs"
    limited 90 "$nybble" checkkern --device cuda --filter cuda.allreduce --rounds "${ROUNDS_MANY:-100000}" || failed "sums in a row"
fi

if has golden; then
    part "golden models and the embedded one on one GPU and over $GPUS"
    for model in "$GOLDEN"/*/ models/tales-24m-moe-nvfp4/; do
        [ -f "$model/golden.json" ] || continue
        for how in one features experts features-overlap experts-overlap; do
            options=(--tensor-parallel-size "$GPUS")
            case $how in
            one) options=() ;;
            experts*) options+=(--enable-expert-parallel) ;;
            esac
            case $how in *-overlap) options+=(--two-batch-overlap always) ;; esac
            quiet "golden-$(basename "$model").$how.json" 60 "$nybble" verify --device cuda --json "${options[@]}" "$model" ||
                failed "$(basename "$model"), $how"
        done
    done
    # A thousand rows at once, which golden models do not have.
    for how in one features experts; do
        options=(--tensor-parallel-size "$GPUS")
        case $how in
        one) options=() ;;
        experts) options+=(--enable-expert-parallel) ;;
        esac
        quiet "eval.$how.json" 60 "$nybble" eval --device cuda --json --text docs/SPEED.md --ctx 1000 --windows 8 "${options[@]}" \
            models/tales-24m-moe-nvfp4 || failed "eval, $how"
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
            --gen 40000 --depth 16 --batch 8 --repeat 1 --max-model-len 40960 "$shape" >/dev/null 2>"$OUT/lost.log" &
        parent=$!
        for _ in $(seq 200); do
            sleep 0.3
            grep -q "steps of up to" "$OUT/lost.log" && break
        done
        sleep 8
        child=$(pgrep -f "bench model --device cuda --tensor-parallel-size $GPUS --load-format dummy" | tail -1)
        began=$SECONDS
        if [ -n "$child" ] && kill -0 "$parent" 2>/dev/null; then
            kill -9 "$child"
            wait $parent
            echo "ended after $((SECONDS - began)) s, status $?: $(tail -1 "$OUT/lost.log")"
            [ $((SECONDS - began)) -le 10 ] || failed "the others went on for more than 10 s"
        else
            failed "nothing ran that could be killed: $(tail -1 "$OUT/lost.log")"
        fi
    fi
fi
if has sums; then
    part "sums; rows to experts and products back"
    for hidden in 1024 4096; do
        quiet "sums-$hidden.json" 90 "$nybble" bench gpus --ranks "$GPUS" --hidden "$hidden" --json || failed "bench gpus, rows of $hidden"
    done
    quiet experts.json 60 "$nybble" bench gpus --ranks "$GPUS" --experts 128 --hidden 2048 --json || failed "bench gpus --experts"
fi
if has model; then
    for shape in $MODELS; do
        [ -f "$SHAPES/$shape/config.json" ] || { echo "no shape $SHAPES/$shape"; continue; }
        for how in "one 1" "two $GPUS" "apart $GPUS --enable-allreduce-fusion off" "experts $GPUS --enable-expert-parallel"; do
            part "$shape, ${how%% *}: GPUs ${how#* }"
            # shellcheck disable=SC2086 # several words
            quiet "model-$shape.${how%% *}.json" 120 "$nybble" bench model --json --device cuda --load-format dummy --prompt 2048 \
                --chunk 8192 --gen "${GEN:-24}" --depth 512 --batch "${BATCH:-1,8,32,128}" --repeat "${REPEAT:-2}" \
                --max-model-len 16384 --tensor-parallel-size ${how#* } "$SHAPES/$shape" || failed "$shape, GPUs: ${how#* }"
        done
    done
fi
if has overlap; then
    for shape in ${OVERLAP_MODELS:-wide-shape $MODELS}; do # the first: sums take longer than all else
        folder=$SHAPES/$shape
        [ -f "bench/$shape/config.json" ] && folder=bench/$shape
        [ -f "$folder/config.json" ] || { echo "no shape $folder"; continue; }
        part "$shape, two-batch overlap"
        quiet "overlap-$shape.json" 120 "$nybble" bench overlap --json --device cuda --tensor-parallel-size "$GPUS" --load-format dummy \
            --prompt 2048,8192 --batch 32,128 --depth 512 --rounds "${ROUNDS_OVERLAP:-16}" --max-model-len 16384 \
            --trace "$OUT/trace-$shape.json" "$folder" || failed "$shape, two-batch overlap"
        python3 bench/overlap.py "$OUT/trace-$shape.json" "$OUT/overlap-$shape.svg" 20 22 || failed "picture of $shape"
    done
fi
printf '\n== everything in one table\n'
python3 bench/gpus_table.py "$OUT" || failed "golden models, or long prompts"
printf '\n== done in %d s, status %d; %s\n' "$SECONDS" "$status" "$OUT"
exit $status
