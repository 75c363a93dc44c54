#!/usr/bin/env python3
"""Write a checkpoint of random NVFP4 weights for a Qwen3-MoE config.json: make_checkpoint.py CONFIG_FOLDER OUT

For measuring how fast a model loads (nybble bench load OUT): as large as the real one, in the same files and
order, without meaning. Experts and attention are NVFP4 as ModelOpt exports them, except what the
configuration's list of ignored modules names; embedding, head, router and norms are BF16."""
import fnmatch
import json
import os
import shutil
import struct
import sys

SHARD_BYTES = 4 << 30
BLOCK = 1 << 20
GROUP = 16

random_block = os.urandom(BLOCK)
finite_scale = random_block.translate(bytes(0x38 | i & 7 for i in range(256)))
# Little-endian bf16 whose magnitudes lie from 1 to 2: the high byte is 0x3f or 0xbf, the low one 0x80 upwards.
finite_bf16 = bytearray(BLOCK)
finite_bf16[0::2] = random_block[0::2].translate(bytes(0x80 | i for i in range(256)))
finite_bf16[1::2] = random_block[1::2].translate(bytes(0x3f | i & 0x80 for i in range(256)))
finite_bf16 = bytes(finite_bf16)


def contents(dtype, size):
    """Blocks of together `size` bytes."""
    block = {"U8": random_block, "F8_E4M3": finite_scale, "BF16": finite_bf16}.get(dtype)
    if block is None:  # one F32 scale
        yield struct.pack("<f", 0.01)
        return
    while size > 0:
        yield block[:size]
        size -= len(block)


def tensors_of(config):
    """(name, dtype, shape, bytes) of every tensor, in order of layers."""
    quant = config.get("quantization_config", {})
    ignored = quant.get("ignore", []) + quant.get("exclude_modules", [])
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    found = []

    def plain(name, *shape):
        size = 2
        for n in shape:
            size *= n
        found.append((name + ".weight", "BF16", list(shape), size))

    def linear(name, n, k):
        if any(fnmatch.fnmatch(name, pattern) for pattern in ignored):
            plain(name, n, k)
            return
        found.append((name + ".weight", "U8", [n, k // 2], n * k // 2))
        found.append((name + ".weight_scale", "F8_E4M3", [n, k // GROUP], n * k // GROUP))
        found.append((name + ".weight_scale_2", "F32", [], 4))
        found.append((name + ".input_scale", "F32", [], 4))

    plain("model.embed_tokens", config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        plain(layer + "input_layernorm", hidden)
        for name, n, k in (("q", heads * head_dim, hidden), ("k", kv_heads * head_dim, hidden),
                           ("v", kv_heads * head_dim, hidden), ("o", hidden, heads * head_dim)):
            linear(f"{layer}self_attn.{name}_proj", n, k)
        plain(layer + "self_attn.q_norm", head_dim)
        plain(layer + "self_attn.k_norm", head_dim)
        plain(layer + "post_attention_layernorm", hidden)
        plain(layer + "mlp.gate", config["num_experts"], hidden)
        for e in range(config["num_experts"]):
            inner = config["moe_intermediate_size"]
            linear(f"{layer}mlp.experts.{e}.gate_proj", inner, hidden)
            linear(f"{layer}mlp.experts.{e}.up_proj", inner, hidden)
            linear(f"{layer}mlp.experts.{e}.down_proj", hidden, inner)
    plain("model.norm", hidden)
    if not config.get("tie_word_embeddings"):
        linear("lm_head", config["vocab_size"], hidden)
    return found


def shards_of(tensors):
    shard, size = [], 0
    for tensor in tensors:
        if shard and size + tensor[3] > SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor[3]
    yield shard


def write_shard(path, tensors):
    header, at = {}, 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, dtype, _, size in tensors:
            for block in contents(dtype, size):
                f.write(block)
        f.flush()
        os.fsync(f.fileno())  # so that it can be dropped from the page cache


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = sys.argv[1:]
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
    if config.get("model_type") != "qwen3_moe":
        sys.exit(f"make_checkpoint.py: {source} is a {config.get('model_type')}, expected qwen3_moe")
    os.makedirs(out, exist_ok=True)
    shutil.copy(os.path.join(source, "config.json"), out)
    shards, weight_map = list(shards_of(tensors_of(config))), {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(os.path.join(out, name), shard)
        weight_map.update({tensor[0]: name for tensor in shard})
    total = sum(tensor[3] for shard in shards for tensor in shard)
    with open(os.path.join(out, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    print(f"{out}: {total / 1e9:.2f} GB in {len(shards)} files")


main()
