#!/usr/bin/env bash
# What two-batch overlap gains over a network: two hosts made of namespaces, joined by a line of a given delay and rate
# (tests/dist; root). Prints the best and the median of a prefill step without overlap, with it, and left to itself,
# beside the limit, and draws a picture of one step each way: stages on their lanes.
#
#     bench/overlap.sh [BUILD] [SVG]        DELAY_US=500 RATE_MBIT=1000 TOKENS=256 REPEAT=10
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
build=$(realpath "${1:-$here/build/release}")
svg=$(realpath "${2:-overlap.svg}")
delay=${DELAY_US:-500} rate=${RATE_MBIT:-1000} tokens=${TOKENS:-256} repeat=${REPEAT:-10}
shape=$here/tests/dist/moe-shape
# Packets as large as a network card hands them on (segmentation offload); with small ones the processors, which here
# also have to be the network, limit everything.
HOSTS_MTU=${HOSTS_MTU:-65000}
. "$here/tests/dist/hosts.sh"
hosts_check
work=$(mktemp -d)
trap 'hosts_down; rm -rf "$work"' EXIT
options=(bench model --load-format dummy --threads 1 --prompt "$tokens" --gen 0 --repeat "$repeat" --json)

hosts_up "$build/tests/dist/netline" 2 "$delay" "$rate"
for round in 1 2 3; do # in turn, so that a busy moment of the machine meets all
    # arithmetic alone: the same two ranks over shared memory
    "$build/nybble" "${options[@]}" --tensor-parallel-size 2 "$shape" >"$work/local.$round" 2>/dev/null
    for mode in off always auto; do
        hosts_mpirun 2 "$build/nybble" "${options[@]}" --two-batch-overlap "$mode" \
            --trace "$work/$mode.trace" "$shape" >"$work/$mode.$round" 2>/dev/null
    done
done
python3 "$here/bench/overlap.py" "$work" "$shape/config.json" "$delay" "$rate" "$tokens" "$svg"
