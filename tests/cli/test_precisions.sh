#!/usr/bin/env bash
# The same weights in other forms give the same answers: a quantized checkpoint dequantized to F32, F16 and BF16
# against F32 of the rounded values, FP8 attention beside NVFP4 experts, and a head quantized on its own.
. "$(dirname "$0")/lib.sh"
need_shared tools
python3 - "$SHARED" "$NYBBLE" "$WORK" <<'PY'
import array, json, math, os, shutil, struct, subprocess, sys
shared, nybble, work = sys.argv[1:]
sys.path.insert(0, shared + "/tools")
import st_edit

E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6]
def e4m3(b):
    e, m = b >> 3 & 15, b & 7
    v = m * 2.0 ** -9 if e == 0 else (8 + m) * 2.0 ** (e - 10)
    return -v if b & 0x80 else v
E4M3 = [e4m3(b) for b in range(127)]
def nearest(table, x):
    return min(range(len(table)), key=lambda i: abs(table[i] - x))

def f32(values):
    return array.array("f", values)
def bf16(values):  # round to nearest, ties to even
    u = array.array("I", f32(values).tobytes())
    return array.array("H", [(x + 0x7fff + (x >> 16 & 1)) >> 16 for x in u]).tobytes()
def from_bf16(data):
    return array.array("f", array.array("I", [h << 16 for h in array.array("H", data)]).tobytes())
def f16(values):
    return struct.pack("<%de" % len(values), *values)
def from_f16(data):
    return f32(struct.unpack("<%de" % (len(data) // 2), data))

def dequantize(codes, scales, scale):
    scale, out = struct.unpack("<f", scale)[0], f32([])
    for g, s in enumerate(scales):
        factor = e4m3(s) * scale
        for byte in codes[8 * g:8 * g + 8]:
            out.append(E2M1[byte & 15] * factor)
            out.append(E2M1[byte >> 4] * factor)
    return out

def to_nvfp4(values):
    scale = max(map(abs, values)) / (6 * 448)
    scales, codes = bytearray(), bytearray()
    for g in range(0, len(values), 16):
        block = values[g:g + 16]
        s = nearest(E4M3, max(2.0 ** -9, max(map(abs, block)) / (6 * scale)))
        c = [nearest(E2M1, x / (e4m3(s) * scale)) for x in block]
        scales.append(s)
        codes += bytes(c[i] | c[i + 1] << 4 for i in range(0, 16, 2))
    return bytes(codes), bytes(scales), struct.pack("<f", scale)

source = shared + "/golden/qwen3_moe-modelopt"
stored, _ = st_edit.read(source + "/model.safetensors")
plain = {}  # name -> (shape, float32 values): what the checkpoint means
for name, (dtype, shape, data) in stored.items():
    base = name[:-len(".weight")]
    if dtype == "U8":
        plain[name] = ([shape[0], 2 * shape[1]],
                       dequantize(data, stored[base + ".weight_scale"][2], stored[base + ".weight_scale_2"][2]))
    elif name.endswith(".weight"):
        plain[name] = (shape, from_bf16(data) if dtype == "BF16" else f32(struct.unpack("<%df" % (len(data) // 4), data)))
    else:
        assert name.endswith("scale") or name.endswith("scale_2"), name
as_f32 = {name: ("F32", shape, v.tobytes()) for name, (shape, v) in plain.items()}

def logits_error(tensors, compute="strict"):
    folder = work + "/m"
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    for file in ("config.json", "golden.json", "golden.safetensors"):
        shutil.copyfile(source + "/" + file, folder + "/" + file)
    st_edit.write(folder + "/model.safetensors", tensors)
    run = subprocess.run([nybble, "verify", folder, "--json", "--compute", compute], capture_output=True, text=True)
    assert run.returncode in (0, 1) and run.stdout, run.stderr
    return json.loads(run.stdout)["logits_error"]

def same(name, tensors, reference):
    a, b = logits_error(tensors), logits_error(reference)
    assert math.isfinite(a) and b > 1e-4 and abs(a - b) < 1e-4 * b + 1e-5, (name, a, b)
    print("%-14s differs from the golden logits by %.6f, as F32 of the same values does by %.6f" % (name, a, b))

exact = logits_error(as_f32)
assert exact < 1e-4, exact
for dtype, pack, unpack in ("BF16", bf16, from_bf16), ("F16", f16, from_f16):
    packed = {n: (dtype, s, pack(v)) for n, (s, v) in plain.items()}
    same(dtype, packed, {n: ("F32", s, unpack(d).tobytes()) for n, (_, s, d) in packed.items()})

# FP8 with one scale a tensor, [] or [1], beside the NVFP4 rest.
mixed, reference = dict(stored), dict(as_f32)
for n, (shape, v) in plain.items():
    if "self_attn.o_proj" in n:
        base, scale = n[:-len(".weight")], f32([max(map(abs, v)) / 448])
        codes = [nearest(E4M3, abs(x) / scale[0]) | (0x80 if x < 0 else 0) for x in v]
        del mixed[base + ".weight_scale_2"]
        mixed[n] = ("F8_E4M3", shape, bytes(codes))
        mixed[base + ".weight_scale"] = ("F32", [1] if ".0." in n else [], scale.tobytes())
        reference[n] = ("F32", shape, f32(e4m3(c) * scale[0] for c in codes).tobytes())
same("FP8 o_proj", mixed, reference)

mixed, reference = dict(stored), dict(as_f32)
shape, v = plain["lm_head.weight"]
codes, scales, scale = to_nvfp4(v)
mixed["lm_head.weight"] = ("U8", [shape[0], shape[1] // 2], codes)
mixed["lm_head.weight_scale"] = ("F8_E4M3", [shape[0], shape[1] // 16], scales)
mixed["lm_head.weight_scale_2"] = ("F32", [], scale)
reference["lm_head.weight"] = ("F32", shape, dequantize(codes, scales, scale).tobytes())
same("NVFP4 lm_head", mixed, reference)
PY
echo ok
