#!/usr/bin/env python3
"""Make one checkpoint folder from another: the second one that tests of weight updates need.

    twin.py FROM TO [EDIT ...]
    twin.py --serve        such lines from standard input, words as a shell reads them; "made" for each, or what went
                           wrong. TO is made anew.

Edits, in the order given:
    --perturb SEED      other values everywhere, same shapes and types
    --permute SEED      experts in another order, routers to match: the same function in other bytes
    --compressed        ModelOpt's names, scales and declaration become compressed-tensors'
    --take B GLOB       tensors that match come from folder B
    --only GLOB         tensors that match nothing of all --only are left out (no config.json either)
    --drop GLOB         tensors that match are missing
    --add NAME          a tensor that nobody knows, F32 [4]
    --shape NAME        this one has a row less
    --dtype NAME        this one is F16 where it was BF16 and the other way round
    --nan NAME          its first byte is 0x7f: NaN for a block scale
    --nan-last NAME     its last byte is
    --negate NAME       bit 7 of every byte is set: negative block scales
    --hide MODULE SEED  every third block becomes worth nothing: its scale is zero, of either sign, over random
                        codes, or NaN over zeros of random signs
    --config KEY VALUE  a field of config.json, VALUE in JSON
    --truncate BYTES    model.safetensors ends that many bytes early
One model.safetensors is written whatever FROM has. Python's standard library only.
"""
import fnmatch
import gc
import json
import os
import random
import shlex
import shutil
import struct
import sys


def read_file(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head = json.loads(f.read(n))
        head.pop("__metadata__", None)
        data = f.read()
    return {name: [t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]]
            for name, t in head.items()}


read_before = {}  # of --serve: the folder that was read last, and which files those were


def read_folder(folder):
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))
             if name.endswith(".safetensors") and name != "golden.safetensors"]
    files = [(path, s.st_ino, s.st_mtime_ns, s.st_size) for path, s in ((p, os.stat(p)) for p in paths)]
    if read_before.get("files") != files:
        read_before["files"] = files
        read_before["tensors"] = {k: v for path in paths for k, v in read_file(path).items()}
    return {name: list(t) for name, t in read_before["tensors"].items()}


def write_file(path, tensors):
    head, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def xor(data, unit):
    """data with `unit` repeated over it."""
    mask = (unit * (len(data) // len(unit) + 1))[:len(data)]
    return (int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")).to_bytes(len(data), "little")


def f32(data):
    return struct.unpack("<f", data)[0]


def perturb(tensors, seed):
    rng = random.Random(seed)
    one_bit = bytes(b & 0x11 for b in range(256))
    neighbour = bytes(b ^ 1 if (b & 0x7e) != 0x7e else b for b in range(256))  # no scale becomes NaN
    for name, t in sorted(tensors.items()):
        dtype, shape, data = t
        if dtype == "U8":
            t[2] = xor(data, rng.randbytes(61).translate(one_bit))
        elif dtype == "F8_E4M3":
            t[2] = data.translate(neighbour)
        elif dtype == "F32" and len(data) == 4:
            t[2] = struct.pack("<f", f32(data) * (1 + rng.randint(1, 9) / 64))
        elif dtype in ("BF16", "F16"):
            t[2] = xor(data, bytes(b & 3 if i % 2 == 0 else 0 for i, b in enumerate(rng.randbytes(62))))
        elif dtype == "F32":
            t[2] = xor(data, bytes(b if i % 4 == 0 else 0 for i, b in enumerate(rng.randbytes(64))))


def permute(tensors, seed):
    rng = random.Random(seed)
    layers = sorted({n.split(".experts.")[0] for n in tensors if ".experts." in n})
    for layer in layers:
        n = 1 + max(int(k[len(layer) + 9:].split(".")[0]) for k in tensors if k.startswith(layer + ".experts."))
        order = list(range(n))
        rng.shuffle(order)  # expert i becomes what order[i] was
        old = {k: v for k, v in tensors.items() if k.startswith(layer + ".experts.")}
        for k in old:
            number, rest = k[len(layer) + 9:].split(".", 1)
            tensors[k] = list(old[f"{layer}.experts.{order[int(number)]}.{rest}"])
        for k in (layer + ".gate.weight", layer + ".gate.e_score_correction_bias"):
            if k in tensors:
                dtype, shape, data = tensors[k]
                row = len(data) // n
                tensors[k] = [dtype, shape, b"".join(data[o * row:(o + 1) * row] for o in order)]


def compress(tensors, folder):
    renamed = {}
    for name, (dtype, shape, data) in tensors.items():
        if name.endswith(".weight_scale_2"):
            name = name[:-len("_scale_2")] + "_global_scale"
            data = struct.pack("<f", 1 / f32(data))
        elif name.endswith(".input_scale"):
            name = name[:-len("_scale")] + "_global_scale"
            data = struct.pack("<f", 1 / f32(data))
        elif dtype == "U8" and name.endswith(".weight"):
            name += "_packed"
        renamed[name] = [dtype, shape, data]
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    side = os.path.join(folder, "hf_quant_config.json")
    ignore = config.get("quantization_config", {}).get("ignore")
    if ignore is None:
        ignore = json.load(open(side))["quantization"]["exclude_modules"]
    kind = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": 16, "strategy": "tensor_group"}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": dict(kind, dynamic=False),
                                      "input_activations": dict(kind, dynamic="local")}},
        "ignore": ["re:" + i.replace(".", "\\.").replace("*", ".*") + "$" if "*" in i else i for i in ignore]}
    json.dump(config, open(path, "w"))
    if os.path.exists(side):
        os.remove(side)
    tensors.clear()
    tensors.update(renamed)


def hide(tensors, module, seed):
    rng = random.Random(seed)
    codes, scales = bytearray(tensors[module + ".weight"][2]), bytearray(tensors[module + ".weight_scale"][2])
    for g in range(0, len(scales), 3):
        scales[g] = (0, 0x80, 0x7f)[g % 9 // 3]
        kept = 0x88 if scales[g] == 0x7f else 0xff
        codes[8 * g:8 * g + 8] = bytes(b & kept for b in rng.randbytes(8))
    tensors[module + ".weight"][2], tensors[module + ".weight_scale"][2] = bytes(codes), bytes(scales)


def other_shape(t):
    rows = t[1][0]
    t[2] = t[2][:len(t[2]) // rows * (rows - 1)]
    t[1] = [rows - 1] + t[1][1:]


def main(args):
    source, target = args[:2]
    os.makedirs(target)
    for name in os.listdir(source):
        if not name.endswith(".safetensors") and name != "model.safetensors.index.json":
            shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
    tensors, only, cut = read_folder(source), [], 0
    config_path = os.path.join(target, "config.json")
    rest = iter(args[2:])
    for edit in rest:
        if edit == "--compressed":
            compress(tensors, target)
            continue
        value = next(rest)
        if edit == "--perturb":
            perturb(tensors, int(value))
        elif edit == "--permute":
            permute(tensors, int(value))
        elif edit == "--take":
            glob = next(rest)
            tensors.update({k: v for k, v in read_folder(value).items() if fnmatch.fnmatchcase(k, glob)})
        elif edit == "--only":
            only.append(value)
        elif edit == "--drop":
            gone = fnmatch.filter(tensors, value)
            if not gone:
                sys.exit(f"twin.py: no tensor matches {value}")
            for name in gone:
                del tensors[name]
        elif edit == "--add":
            tensors[value] = ["F32", [4], bytes(16)]
        elif edit == "--shape":
            other_shape(tensors[value])
        elif edit == "--dtype":
            tensors[value][0] = {"BF16": "F16", "F16": "BF16"}[tensors[value][0]]
        elif edit == "--nan":
            tensors[value][2] = b"\x7f" + tensors[value][2][1:]
        elif edit == "--nan-last":
            tensors[value][2] = tensors[value][2][:-1] + b"\x7f"
        elif edit == "--negate":
            tensors[value][2] = bytes(b | 0x80 for b in tensors[value][2])
        elif edit == "--hide":
            hide(tensors, value, int(next(rest)))
        elif edit == "--config":
            config = json.load(open(config_path))
            config[value] = json.loads(next(rest))
            json.dump(config, open(config_path, "w"))
        elif edit == "--truncate":
            cut = int(value)
        else:
            sys.exit(f"twin.py: no such edit: {edit}")
    if only:
        tensors = {k: v for k, v in tensors.items() if any(fnmatch.fnmatchcase(k, g) for g in only)}
        os.remove(config_path)
    path = os.path.join(target, "model.safetensors")
    write_file(path, tensors)
    if cut:
        os.truncate(path, os.path.getsize(path) - cut)


def serve():
    gc.disable()  # hundreds of thousands of objects, none in a cycle
    for line in sys.stdin:
        words = shlex.split(line)
        shutil.rmtree(words[1], ignore_errors=True)
        try:
            main(words)
            print("made", flush=True)
        except (Exception, SystemExit) as e:
            print(repr(e).replace("\n", " "), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        main(sys.argv[1:])
