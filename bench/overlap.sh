#!/usr/bin/env bash
# What two-batch overlap gains over a network: two hosts made of namespaces, joined by a line of a given delay and rate
# (tests/dist; root). In turn in one process: a prefill step without overlap, with it, and left to itself; beside them
# the limit, and what auto costs where there is nothing to gain (the same ranks over shared memory). Draws a picture of
# one step each way: stages on their lanes.
#
#     bench/overlap.sh [BUILD] [SVG]        DELAY_US=500 RATE_MBIT=1000 TOKENS=256 ROUNDS=60 HOSTS_MTU=1500
#                                    HOSTS_CORES=1, of each host: 3 where there are many, for the rank, its messages and the rest
#
# So that the network takes as long as the arithmetic or longer on machines of any speed, it takes as many experts a
# token (6 or fewer) as fit.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
build=$(realpath "${1:-$here/build/release}")
svg=$(realpath "${2:-overlap.svg}")
delay=${DELAY_US:-500} rate=${RATE_MBIT:-1000} tokens=${TOKENS:-256} rounds=${ROUNDS:-60}
. "$here/tests/dist/hosts.sh"
hosts_check
work=$(mktemp -d)
trap 'hosts_down; rm -rf "$work"' EXIT
shape=$work/shape
options=(--load-format dummy --threads 1 --prompt "$tokens")
table=(python3 "$here/bench/overlap.py" "$work" "$delay" "$rate" "$tokens")

# arithmetic alone: the same two ranks over shared memory
local_rounds() {
    "$build/nybble" bench overlap "${options[@]}" --rounds "$1" --json --tensor-parallel-size 2 "$shape" >"$2" 2>/dev/null
}

for experts in 6 4 3 2 1; do
    hosts_shape "$experts" "$shape"
    local_rounds 8 "$work/local"
    "${table[@]}" fits && break
done
local_rounds "$rounds" "$work/local"
hosts_up "$build/tests/dist/netline" 2 "$delay" "$rate"
hosts_mpirun 2 "$build/nybble" bench overlap "${options[@]}" --rounds "$rounds" --json "$shape" >"$work/hosts" 2>/dev/null
for mode in off always; do
    hosts_mpirun 2 "$build/nybble" bench model "${options[@]}" --gen 0 --repeat 3 --json --two-batch-overlap "$mode" \
        --trace "$work/$mode.trace" "$shape" >/dev/null 2>&1
done
"${table[@]}" print "$svg"
