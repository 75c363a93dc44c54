"""Random small models of every architecture, in shapes that no golden checkpoint has, run in every way that the program
has: all must say the same of a text, in nats a token.

usage: random_models.py NYBBLE TOKENIZER_FOLDER WORK_FOLDER FIRST_SEED COUNT

Threads and expert parallelism change no bit. Features shared out over ranks change the order of sums. Other levels of
processors, integers and the emulated GPU round elsewhere, so that models of random weights may well differ a little."""
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys

ARCHITECTURES = {
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
ROUNDS_ELSEWHERE = 0.15  # nats a token, of 8
SUMS_ELSEWHERE = 0.02


class Checkpoint:
    """Tensors in the order of their making, and the file that they end in."""

    def __init__(self, rng):
        self.rng = rng
        self.tensors = []

    def add(self, name, dtype, shape, data):
        self.tensors.append((name, dtype, shape, data))

    def floats(self, name, values, shape):
        self.add(name, "F32", shape, struct.pack("<%df" % len(values), *values))

    def bf16(self, name, shape, deviation, mean=0.0):
        some = [struct.pack("<f", self.rng.gauss(mean, deviation))[2:] for _ in range(4096)]
        self.add(name, "BF16", shape, b"".join(self.rng.choices(some, k=math.prod(shape))))

    def matrix(self, name, n, k, kind, bias):
        if bias:
            self.bf16(name + ".bias", [n], 0.3)
        if kind == "bf16":
            self.bf16(name + ".weight", [n, k], 1 / math.sqrt(k))
            return
        scale = self.rng.uniform(0.8, 1.2) / (3 * math.sqrt(k))
        if kind == "fp8":
            codes = [c for c in range(256) if c & 0x7F < 0x50]
            self.add(name + ".weight", "F8_E4M3", [n, k], bytes(self.rng.choices(codes, k=n * k)))
            self.floats(name + ".weight_scale", [scale], [])
        else:
            self.add(name + ".weight", "U8", [n, k // 2], self.rng.randbytes(n * k // 2))
            blocks = self.rng.choices(range(0x28, 0x48), k=n * k // 16)
            self.add(name + ".weight_scale", "F8_E4M3", [n, k // 16], bytes(blocks))
            self.floats(name + ".weight_scale_2", [scale], [])
        self.floats(name + ".input_scale", [0.01], [])

    def save(self, path):
        header, at = {}, 0
        for name, dtype, shape, data in self.tensors:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for tensor in self.tensors:
                f.write(tensor[3])


def make_config(rng, arch, vocab):
    kv_heads = rng.choice([1, 1, 2, 3, 4])
    layers = rng.choice([1, 2, 3])
    experts = rng.choice([2, 3, 4, 5, 8, 12, 33, 64])
    groups = rng.choice([1, 1, 2, 4]) if arch == "glm4_moe" else 1
    experts = max(2 * groups, experts // groups * groups)
    top_groups = rng.randint(1, groups)
    chosen = min(rng.choice([1, 2, 3, 4, 6, 8]), experts // groups * top_groups)
    inner = rng.choice([16, 32, 48, 64, 80, 96, 128, 192])
    c = {
        "model_type": arch,
        "architectures": [ARCHITECTURES[arch]],
        "vocab_size": vocab,
        "hidden_size": rng.choice([32, 64, 96, 128, 160, 192, 256]),
        "intermediate_size": rng.choice([32, 64, 160]),
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * rng.choice([1, 1, 2, 3, 5, 8]),
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([16, 32, 64, 80, 96, 128, 256]),
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": rng.random() < 0.3,
        "rope_theta": 10000,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    first_with_experts = rng.choice([0, 1]) if layers > 1 else 0
    if arch == "qwen3_moe":
        c |= {"num_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": inner,
              "norm_topk_prob": rng.random() < 0.7, "decoder_sparse_step": 1,
              "mlp_only_layers": list(range(first_with_experts))}
    elif arch == "ernie4_5_moe":
        c |= {"moe_num_experts": experts, "moe_k": chosen, "moe_intermediate_size": inner,
              "moe_num_shared_experts": rng.choice([0, 1, 2]), "moe_layer_start_index": first_with_experts,
              "moe_layer_end_index": layers - 1, "moe_layer_interval": 1, "use_bias": rng.random() < 0.5}
    elif arch == "glm4_moe":
        c |= {"n_routed_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": inner,
              "n_shared_experts": rng.choice([0, 1, 2]), "n_group": groups, "topk_group": top_groups,
              "routed_scaling_factor": rng.choice([1.0, 2.5]), "first_k_dense_replace": first_with_experts,
              "norm_topk_prob": True, "use_qk_norm": rng.random() < 0.5, "attention_bias": rng.random() < 0.5,
              "partial_rotary_factor": rng.choice([0.5, 1.0])}
    elif arch == "mixtral":
        c |= {"num_local_experts": experts, "num_experts_per_tok": chosen}
    elif arch == "llama":
        c |= {"attention_bias": rng.random() < 0.5, "mlp_bias": rng.random() < 0.7}
    return c


def add_mlp(w, c, prefix, inner, kind):
    names = ("w1", "w3", "w2") if c["model_type"] == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    bias = c.get("use_bias") or c.get("mlp_bias")
    w.matrix(prefix + names[0], inner, c["hidden_size"], kind, bias)
    w.matrix(prefix + names[1], inner, c["hidden_size"], kind, bias)
    w.matrix(prefix + names[2], c["hidden_size"], inner, kind, bias)


def add_layer(w, c, i, attention, mlp):
    arch, hidden, dim = c["model_type"], c["hidden_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    layer = "model.layers.%d." % i
    w.bf16(layer + "input_layernorm.weight", [hidden], 0.1, 1.0)
    w.bf16(layer + "post_attention_layernorm.weight", [hidden], 0.1, 1.0)
    for name, n, k in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
        bias = c.get("use_bias") or (c.get("attention_bias") and (name != "o" or arch == "llama"))
        w.matrix(layer + "self_attn.%s_proj" % name, n, k, attention, bias)
    if arch in ("qwen3_moe", "qwen3") or c.get("use_qk_norm"):
        w.bf16(layer + "self_attn.q_norm.weight", [dim], 0.1, 1.0)
        w.bf16(layer + "self_attn.k_norm.weight", [dim], 0.1, 1.0)
    dense = {"llama": True, "qwen3": True, "qwen3_moe": i in c.get("mlp_only_layers", []),
             "ernie4_5_moe": i < c.get("moe_layer_start_index", 0), "glm4_moe": i < c.get("first_k_dense_replace", 0)}
    if dense.get(arch):
        add_mlp(w, c, layer + "mlp.", c["intermediate_size"], mlp)
        return
    block = layer + ("block_sparse_moe." if arch == "mixtral" else "mlp.")
    keys = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
    experts = next(c[key] for key in keys if key in c)
    inner = c.get("moe_intermediate_size", c["intermediate_size"])
    for e in range(experts):
        add_mlp(w, c, block + "experts.%d." % e, inner, mlp)
    w.bf16(block + "gate.weight", [experts, hidden], 1.5 / math.sqrt(hidden))
    shared = c.get("moe_num_shared_experts", c.get("n_shared_experts", 0))
    if shared:
        add_mlp(w, c, block + "shared_experts.", inner * shared, mlp)
    correction = [w.rng.gauss(0, 0.05) for _ in range(experts)]
    if arch == "ernie4_5_moe":
        w.floats(block + "moe_statics.e_score_correction_bias", correction, [1, experts])
    if arch == "glm4_moe":
        w.floats(block + "gate.e_score_correction_bias", correction, [experts])


def make_model(rng, arch, tokenizer, folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, name), folder)
    with open(os.path.join(tokenizer, "config.json"), encoding="utf-8") as f:
        vocab = json.load(f)["vocab_size"]
    c = make_config(rng, arch, vocab)
    w = Checkpoint(rng)
    attention, mlp = rng.choice(["nvfp4", "nvfp4", "bf16"]), rng.choice(["nvfp4"] * 5 + ["bf16", "fp8"])
    w.bf16("model.embed_tokens.weight", [vocab, c["hidden_size"]], 1.0)
    w.bf16("model.norm.weight", [c["hidden_size"]], 0.1, 1.0)
    if not c["tie_word_embeddings"]:
        w.bf16("lm_head.weight", [vocab, c["hidden_size"]], 2 / math.sqrt(c["hidden_size"]))
    for i in range(c["num_hidden_layers"]):
        add_layer(w, c, i, attention, mlp)
    w.save(os.path.join(folder, "model.safetensors"))
    quant = {"quant_algo": "NVFP4", "group_size": 16}
    if rng.random() < 0.3:
        quant["kv_cache_quant_algo"] = "FP8"
    left_out = ["lm_head"] + (["model.layers.*.self_attn*"] if attention == "bf16" else [])
    c["quantization_config"] = quant | {"quant_method": "modelopt", "ignore": left_out}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(c, f)
    with open(os.path.join(folder, "hf_quant_config.json"), "w", encoding="utf-8") as f:
        json.dump({"producer": {"name": "modelopt", "version": "0.33.0"},
                   "quantization": quant | {"exclude_modules": left_out}}, f)
    return c


def nats(nybble, folder, text, *options, **environment):
    command = [nybble, "eval", "--text", text, "--ctx", "96", "--windows", "2", "--json", *options, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | environment)
    if done.returncode:
        raise SystemExit("%s\n%s%s" % (" ".join(command), done.stdout, done.stderr))
    return json.loads(done.stdout)["nats_per_token"]


def check(nybble, folder, text, gpu):
    def run(*options, **environment):
        return nats(nybble, folder, text, *options, **environment)

    two, three = ("--tensor-parallel-size", "2"), ("--tensor-parallel-size", "3")
    experts = "--enable-expert-parallel"
    exact, one = run("--compute", "strict", "--threads", "1"), run("--threads", "1")
    same = {"2 threads": run("--threads", "2"), "experts on 2": run(*two, experts), "on 3": run(*three, experts),
            "and copies": run(*two, experts, "--num-redundant-experts", "2")}
    sums = {"2 ranks": run(*two), "3 ranks": run(*three), "overlap": run(*two, "--two-batch-overlap", "always")}
    rounds = {"bf16": one, "int8": run("--compute", "int8"), "avx2": run(NYBBLE_CPU="avx2"),
              "scalar": run(NYBBLE_CPU="scalar")}
    if gpu:
        hopper = {"NYBBLE_SIMT_CAPABILITY": "9", "NYBBLE_SIMT_SMS": "16", "NYBBLE_SIMT_FEW": "gpu"}
        rounds |= {"gpu": run("--device", "cuda", NYBBLE_SIMT_CAPABILITY="9"),
                   "gpu of 16": run("--device", "cuda", **hopper),
                   "2 gpus": run("--device", "cuda", *two, NYBBLE_SIMT_CAPABILITY="9")}
    wide = max(1.0, exact / 8)
    wrong = ["%s: %f, not %f" % (what, v, one) for what, v in same.items() if v != one]
    wrong += ["%s: %f beside %f" % (what, v, one) for what, v in sums.items() if abs(v - one) > SUMS_ELSEWHERE * wide]
    wrong += ["%s: %f beside %f" % (what, v, exact) for what, v in rounds.items()
              if not abs(v - exact) <= ROUNDS_ELSEWHERE * wide]
    return exact, wrong


def main():
    nybble, tokenizer, work, first, count = sys.argv[1:]
    text = os.path.join(work, "text")
    with open(text, "w", encoding="utf-8") as f:
        f.write(" ".join("the king had a horse and a cart of %d apples, which she sold." % i for i in range(60)))
    failed = 0
    for seed in range(int(first), int(first) + int(count)):
        folder = os.path.join(work, "model")
        arch = list(ARCHITECTURES)[seed % len(ARCHITECTURES)]
        config = make_model(random.Random(seed), arch, tokenizer, folder)
        exact, wrong = check(nybble, folder, text, "NYBBLE_CUDA_PLUGIN" in os.environ)
        print("%d %s %.6f %s" % (seed, config["model_type"], exact, "; ".join(wrong) or "ok"), flush=True)
        if wrong:
            print(json.dumps(config))
            failed += 1
    raise SystemExit(1 if failed else 0)


main()
