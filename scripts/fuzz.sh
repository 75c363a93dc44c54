#!/usr/bin/env bash
# fuzz.sh BUILD SECONDS: run every fuzz target for so long, from its seed corpus in tests/fuzz/corpus/NAME.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
seconds=$2
found=0
for target in "$build"/tests/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    found=1
    name=$(basename "$target")
    work=$(mktemp -d)
    seeds=()
    [ -d "tests/fuzz/corpus/$name" ] && seeds=("tests/fuzz/corpus/$name")
    echo "fuzz: $name, $seconds s"
    if ! "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -close_fd_mask=1 \
        -artifact_prefix="$work/" "$work" "${seeds[@]}" >"$work/log" 2>&1; then
        tail -40 "$work/log"
        ls -l "$work" | tail -3
        exit 1
    fi
    sed -n 's/.*\(stat::number_of_executed_units: .*\)/  \1/p; s/.*Done \([0-9]* runs\).*/  \1/p' "$work/log"
    rm -rf "$work"
done
[ $found -eq 1 ] || { echo "fuzz: no targets in $build/tests"; exit 1; }
echo "fuzz: ok"
