#!/usr/bin/env bash
# fuzz.sh BUILD SECONDS: run every fuzz target for so long, one a core at a time, from its seed corpus in
# tests/fuzz/corpus/NAME.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --one ]; then # TARGET SECONDS
    target=$2
    name=$(basename "$target")
    work=$(mktemp -d)
    seeds=()
    [ -d "tests/fuzz/corpus/$name" ] && seeds=("tests/fuzz/corpus/$name")
    if ! "$target" -max_total_time="$3" -timeout=10 -rss_limit_mb=2048 -close_fd_mask=1 \
        -artifact_prefix="$work/" "$work" "${seeds[@]}" >"$work/log" 2>&1; then
        echo "fuzz: $name failed; what it was given is in $work"
        tail -40 "$work/log"
        exit 255 # no further target is started
    fi
    echo "fuzz: $name, $(sed -n 's/.*Done \([0-9]* runs\).*/\1/p' "$work/log") in $3 s"
    rm -rf "$work"
    exit 0
fi

build=$1
seconds=$2
targets=()
for target in "$build"/tests/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] && targets+=("$target")
done
[ ${#targets[@]} -gt 0 ] || { echo "fuzz: no targets in $build/tests"; exit 1; }
printf '%s\0' "${targets[@]}" | xargs -0 -P "$(nproc)" -I{} scripts/fuzz.sh --one {} "$seconds"
echo "fuzz: ok"
