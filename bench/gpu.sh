#!/usr/bin/env bash
# The GPU's kernels: build them, check them against float64, look for bad accesses and races, and time them beside the
# rate at which the same GPU reads its memory. Needs nvcc and a GPU of compute capability 9.0 or later.
#
#     bench/gpu.sh [path to nybble, with libnybble_cuda.so beside it]
#
# Without a path it builds build/release first. Two minutes; SANITIZE=0 leaves compute-sanitizer out.
set -euo pipefail
cd "$(dirname "$0")/.."
nybble=${1:-build/release/nybble}
if [ $# -eq 0 ]; then
    cmake --preset release >/dev/null
    cmake --build build/release --target nybble nybble_cuda -j "$(nproc)" | tail -1
fi
[ -x "$nybble" ] || { echo "bench/gpu.sh: no program at $nybble: make it first, or name it" >&2; exit 1; }

"$nybble" checkkern --device cuda
if [ "${SANITIZE:-1}" = 1 ] && command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer memcheck"
    compute-sanitizer --tool memcheck --error-exitcode 1 "$nybble" checkkern --device cuda --rounds 2 | tail -1
    # Not cuda.prefill: racecheck reports the cp.async writes of its ring, which are ordered by
    # cp.async.mbarrier.arrive.noinc.
    for kernels in linear moe; do
        echo "compute-sanitizer racecheck, $kernels"
        compute-sanitizer --tool racecheck --error-exitcode 1 "$nybble" checkkern --device cuda --rounds 2 \
            --filter "$kernels" | tail -1
    done
fi
"$nybble" checkkern --device cuda --bench
