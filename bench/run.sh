#!/usr/bin/env bash
# The README's table: prefill and decode of the embedded model and, where its config.json is at hand, of the shape of
# Qwen3-30B-A3B cut to 8 layers with random weights. Usage: bench/run.sh [path to nybble] [threads, as 1,2]
# REPEAT (default 5) runs of each; SHAPE another folder. Markdown on standard output.
set -euo pipefail
cd "$(dirname "$0")/.."
nybble=${1:-build/release/nybble}
threads=${2:-1,$(nproc)}
[ "$threads" = 1,1 ] && threads=1
repeat=${REPEAT:-5}
shape=${SHAPE:-../shared/shapes/qwen3-30b-a3b-8l}
[ -x "$nybble" ] || { echo "bench/run.sh: no program at $nybble: make it first, or name it" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$nybble" bench model --threads "$threads" --repeat "$repeat" --json >"$work/1.json"
if [ -f "$shape/config.json" ]; then
    "$nybble" bench model "$shape" --load-format dummy --threads "$threads" --repeat "$repeat" --json >"$work/2.json"
fi

python3 - "$work"/*.json <<'PY'
import json, os, sys

runs = [json.load(open(path)) for path in sys.argv[1:]]
print("%s, best of %d; in brackets the share of what the machine was measured to do in the same run: for prefill of\n"
      "its arithmetic, for decode of its read bandwidth.\n" % (runs[0]["cpu"], runs[0]["repeat"]))
print("| model | threads | pp512, tokens/s | tg64, tokens/s | read bandwidth | arithmetic |")
print("|---|---|---|---|---|---|")
for run in runs:
    model = os.path.basename(os.path.normpath(run["model"]))
    by_threads = {}
    for r in run["results"]:
        by_threads.setdefault(r["threads"], {})[r["kind"]] = r
    for threads, r in sorted(by_threads.items()):
        p, d = r["prefill"], r["decode"]
        peak = p["gflops"] / p["of_peak"]
        print("| %s | %d | %.1f (%.0f %%) | %.1f (%.0f %%) | %.1f GB/s | %.0f GFLOP/s |" % (
            model, threads, p["tokens_per_second"], 100 * p["of_peak"], d["tokens_per_second"],
            100 * d["of_read"], d["roofline"]["read_gbs"], peak))
PY
