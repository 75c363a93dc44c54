#!/usr/bin/env bash
# What the README's table, the scan over batches and the profile of whole steps say, measured on this machine: the
# embedded model and, where its config.json is at hand, the shape of Qwen3-30B-A3B cut to 8 layers with random weights.
#
#     bench/run.sh [path to nybble] [threads, as 1,2] [folder for the results]
#
# Results: speed-*.json, scan-*.json, engine-*.json, scan.csv and scan.svg in the folder (build/bench); the table in
# Markdown on standard output. README=README.md puts it there too. REPEAT (default 5) runs of each; SHAPE another folder;
# TOKENIZER a tokenizer.json for the shape's profile; ONLY=speed, scan or engine leaves the others out. OTHERS=FILE has what other
# programs reached (as bench/llama.cpp.json); WITH="COMMAND ..." runs each call.
set -euo pipefail
cd "$(dirname "$0")/.."
nybble=${1:-build/release/nybble}
threads=${2:-1,$(nproc)}
out=${3:-build/bench}
[ "$threads" = 1,1 ] && threads=1
repeat=${REPEAT:-5}
shape=${SHAPE:-../shared/shapes/qwen3-30b-a3b-8l}
[ -x "$nybble" ] || { echo "bench/run.sh: no program at $nybble: make it first, or name it" >&2; exit 1; }
mkdir -p "$out"

# run FILE OPTIONS...: one call of the program into a file of its own
run() {
    local file=$1
    shift
    echo "bench/run.sh: $file" >&2
    # shellcheck disable=SC2086 # several words
    ${WITH:-} "$nybble" bench model --json "$@" >"$out/$file.part"
    mv "$out/$file.part" "$out/$file"
}

wants() { [ -z "${ONLY:-}" ] || [ "$ONLY" = "$1" ]; }

# measure NAME DEPTHS LONGEST OPTIONS...: the embedded model's context is too short for the long cases
measure() {
    local name=$1 depth=$2 prompt=$3
    shift 3
    if wants speed; then
        for compute in bf16 int8; do
            for n in ${threads//,/ }; do
                local file=speed-$name-$compute-$n options=(--repeat "$repeat" --compute "$compute" --threads "$n" "$@")
                for length in ${prompt//,/ }; do
                    run "$file-prompt-$length.json" --gen 0 --prompt "$length" "${options[@]}"
                done
                for cached in ${depth//,/ }; do
                    run "$file-decode-$cached.json" --prompt 0 --depth "$cached" "${options[@]}"
                done
            done
        done
    fi
    if wants scan; then
        run "scan-$name.json" --threads "$threads" --scan --gen 16 --repeat "$repeat" "$@"
    fi
    if wants engine; then
        run "engine-$name.json" --threads "$threads" --engine --prompt 0 --batch 1,32 --gen 16 --repeat 3 \
            ${TOKENIZER:+--tokenizer "$TOKENIZER"} "$@"
    fi
}

measure embedded 0 512
if [ -f "$shape/config.json" ]; then
    measure "$(basename "$shape")" 0,4096 512,2048 "$shape" --load-format dummy
fi

# verdict FILES...: what --scan found
verdict() {
    python3 - "$@" <<'PY'
import json, sys
for path in sys.argv[1:]:
    run = json.load(open(path))
    for c in run["cliffs"]:
        print("%s: %d threads: from %d to %d sequences tokens/s fall by %.1f %%" % (
            run["model"], c["threads"], c["from"], c["to"], 100 * c["fall"]), file=sys.stderr)
    print("%s: %d cliffs in %d batches" % (run["model"], len(run["cliffs"]), len(run["results"])), file=sys.stderr)
PY
}

# profile FILES...: the share of a step that is neither product nor attention
profile() {
    python3 - "$@" <<'PY'
import json, sys
for path in sys.argv[1:]:
    run = json.load(open(path))
    for r in run["results"]:
        if r["kind"] == "engine":
            us, p = r["profile"]["stage_us"], r["profile"]
            print("%s: %d threads, %d sequences: %.1f %% of a step of %.0f us are neither product nor attention (sampling "
                  "and delivery %.1f %%)" % (run["model"], r["threads"], r["batch"], 100 * p["rest"], p["step_us"],
                                             100 * us["sample, deliver"] / p["step_us"]), file=sys.stderr)
PY
}

shopt -s nullglob
scans=("$out"/scan-*.json) engines=("$out"/engine-*.json) speeds=("$out"/speed-*.json)
if [ ${#scans[@]} -gt 0 ]; then
    python3 bench/scan.py "$out" "${scans[@]}"
    verdict "${scans[@]}"
fi
[ ${#engines[@]} -eq 0 ] || profile "${engines[@]}"
[ ${#speeds[@]} -eq 0 ] || python3 bench/table.py ${README:+--readme "$README"} ${OTHERS:+--others "$OTHERS"} "${speeds[@]}"
