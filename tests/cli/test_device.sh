#!/usr/bin/env bash
# --device: whole models on the emulated plug-in (the operators' own sources, on this CPU), and what is said where
# there is no GPU, too little of it, or something that it cannot do.
. "$(dirname "$0")/lib.sh"

# Without a GPU `auto` says why and goes on; `cuda` ends with one line.
model=$SOURCE/models/tales-24m-moe-nvfp4
unset NYBBLE_DEVICE NYBBLE_MOE_BACKEND NYBBLE_GEMM_BACKEND
export NYBBLE_CUDA_PLUGIN=$WORK/nowhere.so
expect_status 1 "$NYBBLE" verify --device cuda "$model"
[ "$(wc -l <"$WORK/err")" = 1 ] || fail "more than one line: $(cat "$WORK/err")"
expect_in err "cannot load the CUDA plug-in"
expect_status 0 "$NYBBLE" verify --device auto "$model"
expect_in err "the CPU computes: cannot load the CUDA plug-in"
expect_in out "verdict      pass"
expect_status 2 "$NYBBLE" verify --device tpu "$model"
expect_in err "--device takes cpu, cuda or auto"
expect_status 2 env NYBBLE_MOE_BACKEND=fastest "$NYBBLE" verify "$model"
expect_in err "NYBBLE_MOE_BACKEND takes auto, sm90-w4a16, cublaslt-nvfp4 or reference"

plugin=$(dirname "$NYBBLE")/libnybble_cuda_emu.so
[ -e "$plugin" ] || { echo "no emulated plug-in in this build"; exit $SKIPPED; }
export NYBBLE_CUDA_PLUGIN=$plugin

# What is refused, by name.
expect_status 1 "$NYBBLE" verify --device cuda --compute strict "$model"
expect_in err "compute: strict: a GPU computes in bf16 or w4a4"
expect_status 1 "$NYBBLE" verify --device cuda --moe-backend cublaslt-nvfp4 "$model"
expect_in err "moe-backend: cublaslt-nvfp4: needs the block-scaled matrix units of compute capability 10.0"
expect_status 1 env NYBBLE_GEMM_BACKEND=cublaslt-nvfp4 NYBBLE_DEVICE=cuda "$NYBBLE" verify "$model"
expect_in err "gemm-backend: cublaslt-nvfp4: needs the block-scaled"

# cuBLASLt where the GPU could: none, one that is too old or none at all, and modes that do not go with it.
export NYBBLE_SIMT_CAPABILITY=10 NYBBLE_CUBLASLT=$WORK/nowhere.so
both=(--device cuda --moe-backend cublaslt-nvfp4 --gemm-backend cublaslt-nvfp4)
expect_status 1 "$NYBBLE" verify "${both[@]}" --compute w4a4 "$model"
expect_in err "gemm-backend: cublaslt-nvfp4: cannot load cuBLASLt: $WORK/nowhere.so"
NYBBLE_CUBLASLT=$plugin expect_status 1 "$NYBBLE" verify "${both[@]}" --compute w4a4 "$model"
expect_in err "cuBLASLt has no function cublasLtCreate"
export NYBBLE_CUBLASLT=$(dirname "$NYBBLE")/libnybble_fake_cublaslt.so
NYBBLE_FAKE_CUBLASLT_VERSION=120602 expect_status 1 "$NYBBLE" verify "${both[@]}" --compute w4a4 "$model"
expect_in err "cuBLASLt 12.6.2 is too old for it: 12.8.0 is the first that can"
expect_status 1 "$NYBBLE" verify "${both[@]}" "$model"
expect_in err "gemm-backend: cublaslt-nvfp4 rounds the inputs of products to NVFP4: it takes --compute w4a4, not bf16"
expect_status 1 "$NYBBLE" verify --device cuda --gemm-backend cublaslt-nvfp4 --compute w4a4 "$model"
expect_in err "compute: w4a4: a GPU computes so with --gemm-backend and --moe-backend cublaslt-nvfp4 only"
expect_status 0 "$NYBBLE" verify "${both[@]}" --device auto "$model"
expect_in err "the CPU computes: gemm-backend: cublaslt-nvfp4 rounds"
unset NYBBLE_SIMT_CAPABILITY
experts=(--device cuda --tensor-parallel-size 2 --enable-expert-parallel)
expect_status 1 "$NYBBLE" verify "${experts[@]}" --dispatch-dtype fp8 "$model"
expect_in err "dispatch_dtype: is fp8: GPUs send rows as the bf16 that their kernels read"
expect_status 1 "$NYBBLE" verify "${experts[@]}" --num-redundant-experts 2 "$model"
expect_in err "num_redundant_experts: is 2: on GPUs every expert is there once"
expect_status 1 env NYBBLE_SIMT_DEVICES=1 "$NYBBLE" verify --device cuda --tensor-parallel-size 2 "$model"
expect_in err "no GPU 1: this machine has 1"
expect_status 0 env NYBBLE_SIMT_DEVICES=1 "$NYBBLE" verify --device auto --tensor-parallel-size 2 "$model"
expect_in err "the CPU computes: cuda: no GPU 1: this machine has 1"
expect_status 1 env NYBBLE_SIMT_MEMORY=4 "$NYBBLE" verify --device cuda "$model"
expect_in err "the weights need"
expect_status 0 env NYBBLE_SIMT_MEMORY=4 "$NYBBLE" verify --device auto "$model"
expect_in err "the CPU computes:"

need_shared golden
# How the other folders spell the same models (make long) matters to loading alone: golden.test_device_weights has them.
models=("$SHARED"/golden/*-modelopt/)
[ "${NYBBLE_LONG:-0}" = 0 ] || models=("$SHARED"/golden/*/)
for golden in "${models[@]}"; do
    expect_status 0 "$NYBBLE" verify --device cuda "$golden"
    expect_in out "verdict      pass"
done
# Two ranks, each with a GPU of its own, and all that they send each other through memory that both have.
for golden in qwen3_moe-modelopt ernie4_5_moe-modelopt; do
    expect_status 0 "$NYBBLE" verify --device cuda --tensor-parallel-size 2 "$SHARED/golden/$golden"
    expect_in out "verdict      pass"
done
# Experts and sequences instead of features: the experts of one rank are not the other's.
expect_status 0 "$NYBBLE" verify "${experts[@]}" "$SHARED/golden/glm4_moe-modelopt"
expect_in out "verdict      pass"
expect_in err "experts over 2 GPUs: buffers of"
NYBBLE_NCCL=$WORK/nowhere.so expect_status 0 "$NYBBLE" verify --device cuda --tensor-parallel-size 2 --enable-allreduce-fusion off \
    "$SHARED/golden/qwen3_moe-modelopt"
expect_in out "verdict      pass"
expect_in err "sums of GPUs that are not fused are this program's own: NCCL: $WORK/nowhere.so"
NYBBLE_NCCL=$WORK/nowhere.so expect_status 0 "$NYBBLE" bench gpus --ranks 2 --max-bytes 16K --rounds 2 --calls 8 --hidden 512 --json
expect_in out '"bytes": 16384, "limit_us": '
expect_in err "NCCL is not measured: NCCL: $WORK/nowhere.so"
expect_status 0 "$NYBBLE" bench gpus --experts 16 --top-k 4 --max-rows 4 --rounds 1 --calls 8 --hidden 256 --json
expect_in out '"rows": 4, "dispatch_us": '
expect_status 2 "$NYBBLE" bench gpus --experts 4
expect_in err "--top-k is 8 of 4 experts"
expect_status 2 "$NYBBLE" bench gpus --calls 7
expect_in err "--calls is 7: expected an even number"
for option in --moe-backend --gemm-backend; do
    expect_status 0 "$NYBBLE" verify --device cuda $option reference "$SHARED/golden/qwen3_moe-modelopt"
done

export NYBBLE_SIMT_CAPABILITY=10
for golden in qwen3_moe-modelopt ernie4_5_moe-modelopt glm4_moe-compressed-tensors-sharded llama-dense-modelopt; do
    expect_status 0 "$NYBBLE" verify "${both[@]}" --compute w4a4 "$SHARED/golden/$golden"
    expect_in out "verdict      pass"
done
unset NYBBLE_SIMT_CAPABILITY

# Two-batch overlap over two emulated GPUs: both halves are on their lanes. Times of several ranks.
expect_status 0 "$NYBBLE" bench overlap --device cuda --tensor-parallel-size 2 --prompt 16 --rounds 1 --trace "$WORK/trace" \
    "$SHARED/golden/llama-dense-modelopt"
expect_in out "always "
expect_status 0 python3 "$SOURCE/bench/overlap.py" "$WORK/trace" "$WORK/svg" 0 1
for text in "half 0, compute" "half 1, communicate" "sum, norm" "send, " "all rows"; do
    grep -q "$text" "$WORK/svg" || fail "the picture has no $text"
done
expect_status 0 "$NYBBLE" bench model --device cuda --tensor-parallel-size 2 --prompt 4 --gen 0 --repeat 1 --trace "$WORK/trace" \
    "$SHARED/golden/llama-dense-modelopt"
expect_in out "    sum, norm "
expect_in out "    head "
grep -q '"name": "sum, norm", "ph": "X"' "$WORK/trace" || fail "no sum in the trace"

# The bench reports both kinds of points and every kernel.
expect_status 0 "$NYBBLE" bench model --device cuda --prompt 20 --gen 2 --batch 1,3 --repeat 1 --profile --json \
    "$SHARED/golden/qwen3_moe-modelopt"
python3 - "$WORK/out" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
assert [x["kind"] for x in r["results"]] == ["prefill", "decode", "decode"], r
kernels = {k["kernel"] for k in r["results"][1]["profile"]}
assert {"q, k, v", "attend", "experts", "head", "route"} <= kernels, kernels
assert all(x["tokens_per_second"] > 0 and x["weight_bytes_a_step"] > 0 for x in r["results"])
PY
echo ok
