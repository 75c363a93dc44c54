#!/usr/bin/env bash
# The GPU's operators on the emulated plug-in: their own sources against float64 on this CPU. Under the address
# sanitizer this finds accesses out of bounds too, as every buffer there is exactly as large as it was asked for.
set -euo pipefail
plugin=$(dirname "$NYBBLE")/libnybble_cuda_emu.so
[ -e "$plugin" ] || { echo "no emulated plug-in in this build"; exit 77; }
export NYBBLE_CUDA_PLUGIN=$plugin
# What a GPU of compute capability 10.0 does with a libcublasLt that computes on this CPU.
export NYBBLE_SIMT_CAPABILITY=10 NYBBLE_CUBLASLT=$(dirname "$NYBBLE")/libnybble_fake_cublaslt.so
out=$("$NYBBLE" checkkern --device cuda --rounds "${NYBBLE_GPU_ROUNDS:-3}") || { echo "$out"; exit 1; }
echo "$out"
for kernel in linear.nvfp4 linear.rows linear.parts moe.nvfp4 prefill.nvfp4 pack embed norm dense qkv attention router chosen normed moe.plain swiglu argmax sample tiles quantize linear.w4a4 moe.w4a4 \
    allreduce sent gather lanes lost_peer; do
    grep -q "^cuda.$kernel .* ok " <<<"$out" || { echo "no line for $kernel"; exit 1; }
done
# The kernels for few rows, whose sums depend on the launch and for which plain ones stand in otherwise; and on more
# SMs, where products are shared out over clusters and an MLP of 40 rows is by wgmma at once.
for sms in 4 16; do
    for kernel in cuda.moe.nvfp4 cuda.normed cuda.linear.rows; do
        out=$(NYBBLE_SIMT_SMS=$sms NYBBLE_SIMT_FEW=gpu "$NYBBLE" checkkern --device cuda --filter $kernel --rounds 1)
        grep -q "^$kernel .* ok " <<<"$out" || { echo "$sms SMs: $out"; exit 1; }
    done
done
# Hopper's attention of prompts, which that GPU is not asked for: from images of keys and values, and without.
out=$(NYBBLE_SIMT_CAPABILITY=9 "$NYBBLE" checkkern --device cuda --filter cuda.attention --rounds 3)
grep -q "^cuda.attention .* ok " <<<"$out" || { echo "compute capability 9.0: $out"; exit 1; }
# With blocks enough for one of each expert the launch of one row's experts has its shorter form, and several look at
# one row's largest; with still more, clusters of 16 draw from it.
for case in "cuda.chosen 2 16" "cuda.argmax 12 16" "cuda.sample 8 16" "cuda.sample 24 64"; do
    read -r kernel rounds sms <<<"$case"
    out=$(NYBBLE_SIMT_SMS=$sms "$NYBBLE" checkkern --device cuda --filter "$kernel" --rounds "$rounds")
    grep -q "^$kernel .* ok " <<<"$out" || { echo "$sms SMs: $out"; exit 1; }
done
# Where that GPU cannot, no case of it passes unseen.
out=$(NYBBLE_SIMT_CAPABILITY=9 "$NYBBLE" checkkern --device cuda --filter w4a4 --rounds 1)
[ "$(grep -c '^cuda.*none .* 0 cases.*compute capability 10.0' <<<"$out")" = 2 ] || { echo "$out"; exit 1; }
# What is loaded under this name must be a plug-in.
if NYBBLE_CUDA_PLUGIN=/nowhere.so "$NYBBLE" checkkern --device cuda >/dev/null 2>&1; then
    echo "a plug-in that is not there was loaded"
    exit 1
fi
