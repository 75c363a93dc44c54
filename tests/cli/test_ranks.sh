#!/usr/bin/env bash
# Any number of ranks (all from 2 to 8 for one model, some for the others) gives what one gives: the golden logits in strict mode, and the same greedy tokens.
set -euo pipefail
golden="$SOURCE/../shared/golden"
[ -d "$golden" ] || { echo "skipped: no golden checkpoints"; exit 77; }

# The steps on which a default run differs from the golden tokens are the same for every number of ranks, but for
# ties: partial sums round in another order.
greedy() {
    "$NYBBLE" verify --threads 1 --tensor-parallel-size "$1" "$2" 2>/dev/null | sed -n 's/^greedy *//p' |
        awk '/apart/ && $NF != "apart" {next} {n = $1} /apart/ && $(NF - 1) < 0.01 {n = $3} {print n}'
}

for model in "$golden"/*/; do
    one=$(greedy 1 "$model")
    counts="2 3 8"
    [[ $model == */qwen3_moe-modelopt/ ]] && counts="2 3 4 5 6 7 8"
    for ranks in $counts; do
        strict=$("$NYBBLE" verify --compute strict --threads 1 --tensor-parallel-size $ranks "$model" 2>/dev/null) ||
            { echo "$model, $ranks ranks, strict:"; echo "$strict"; exit 1; }
        grep -q '24 of 24 steps equal' <<<"$strict" || { echo "$model, $ranks ranks: $strict"; exit 1; }
    done
    many=$(greedy 3 "$model")
    [ "$many" = "$one" ] || { echo "$model: 3 ranks: $many; one: $one"; exit 1; }
    # Expert parallel: each product is computed whole by one rank, so the whole report has the same bits. All ways for
    # one checkpoint of each kind of experts; for the others, and models without experts, the two that differ most
    # (make long: all).
    hows=(2 "4 --two-batch-overlap always --num-redundant-experts 2")
    case $model in
    */qwen3_moe-modelopt/ | */ernie* | */glm4_moe-modelopt/ | */mixtral*) all=1 ;;
    *) all=${NYBBLE_LONG:-0} ;;
    esac
    [ "$all" = 0 ] || hows+=("2 --two-batch-overlap always" "3 --num-redundant-experts 3" 4)
    for compute in strict bf16; do
        whole=$("$NYBBLE" verify --threads 1 --compute $compute "$model" 2>/dev/null)
        for how in "${hows[@]}"; do
            # shellcheck disable=SC2086 # several words
            many=$("$NYBBLE" verify --threads 1 --compute $compute --enable-expert-parallel \
                --tensor-parallel-size $how "$model" 2>/dev/null) || true
            [ "$many" = "$whole" ] || { echo "$model: experts over $how ranks, $compute: $many"; exit 1; }
        done
    done
    echo "$(basename "$model"): equal"
done

# A rank that cannot open the checkpoint ends all of them with one error.
if "$NYBBLE" verify --tensor-parallel-size 3 /nonexistent 2>/tmp/ranks.$$; then exit 1; fi
[ "$(grep -c nonexistent /tmp/ranks.$$)" -eq 1 ] || { cat /tmp/ranks.$$; exit 1; }
rm -f /tmp/ranks.$$
