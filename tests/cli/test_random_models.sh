#!/usr/bin/env bash
# Random models of all architectures, types and biases in odd shapes, run in all ways: random_models.py. And one with
# a prompt so long that Hopper's attention (the emulated GPU's) reads keys and values from images.
. "$(dirname "$0")/lib.sh"
tokenizer=$SOURCE/models/tales-24m-moe-nvfp4
plugin=$(dirname "$NYBBLE")/libnybble_cuda_emu.so
[ -e "$plugin" ] && export NYBBLE_CUDA_PLUGIN=$plugin
first=22 count=6 # features of the first are fewer units than ranks, and have biases
[ "${NYBBLE_LONG:-0}" = 0 ] || first=1 count=90
python3 "$(dirname "$0")/random_models.py" "$NYBBLE" "$tokenizer" "$WORK" $first $count || fail "ways differ"

[ -e "$plugin" ] || exit 0
model=$WORK/long
mkdir "$model"
cp "$tokenizer"/tokenizer*.json "$model"
write_config() { # what else the quantization says
    cat >"$model/config.json" <<JSON
{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 4096, "hidden_size": 64,
 "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 128, "hidden_act": "silu",
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000,
 "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": true,
 "intermediate_size": 64, "bos_token_id": 1, "eos_token_id": 2,
 "quantization_config": {"quant_algo": "NVFP4", "quant_method": "modelopt", "group_size": 16, "ignore": ["lm_head"]$1}}
JSON
}
for i in $(seq 300); do printf 'in line %d of a long text the king rides on, ' "$i"; done >"$WORK/text"
nats() {
    "$NYBBLE" eval --load-format dummy --text "$WORK/text" --ctx 1300 --windows 1 --json "$@" "$model" 2>"$WORK/err" |
        sed -n 's/.*"nats_per_token": \([0-9.]*\).*/\1/p'
}
for cache in "" ', "kv_cache_quant_algo": "FP8"'; do
    write_config "$cache"
    cpu=$(nats) gpu=$(NYBBLE_SIMT_CAPABILITY=9 nats --device cuda)
    awk -v a="$cpu" -v b="$gpu" 'BEGIN {d = a - b; exit !(a > 0 && b > 0 && d < 0.01 && d > -0.01)}' ||
        fail "a prompt of 1300 tokens$cache: $gpu, on the CPU $cpu: $(cat "$WORK/err")"
done
