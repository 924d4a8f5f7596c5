"""Checkpoints whose products' weights are e4m3 with scales of 128 x 128, as DeepSeek-V3 and Qwen3-FP8 are published,
made with NumPy from a checkpoint of bfloat16 or float32; and the way back. Usage: fp8_checkpoint.py FROM TO"""

import json
import pathlib
import shutil
import struct
import sys

import numpy as np

BLOCK = 128
PRODUCTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
CONFIG = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK],
          "modules_to_not_convert": ["lm_head"]}


def _decoded():
    """The numbers of all codes, by IEEE's rules with a bias of 7 and no infinity (OCP 8-bit floating point)."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0**(exponent - 10.0))
    value[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, value, -value)


E4M3 = _decoded()


def to_e4m3(values):
    """Codes of the nearest numbers, of two the even code, 448 at most."""
    positive = E4M3[:127]
    size = np.minimum(np.abs(values).astype(np.float64), 448)
    above = np.clip(np.searchsorted(positive, size), 1, 126)
    below = above - 1
    up, down = positive[above] - size, size - positive[below]
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    return (code | np.where(np.signbit(values), 128, 0)).astype(np.uint8)


def _by_blocks(matrix, rows, cols):
    """Views of [rows, cols] pieces with their place among the pieces."""
    for i in range(0, matrix.shape[0], rows):
        for j in range(0, matrix.shape[1], cols):
            yield (i // rows, j // cols), matrix[i:i + rows, j:j + cols]


def quantized(matrix, rows=BLOCK, cols=BLOCK):
    """float32 [n, k] -> codes [n, k], scales; rows=1 as activations are."""
    codes = np.empty(matrix.shape, np.uint8)
    scales = np.zeros((-(-matrix.shape[0] // rows), -(-matrix.shape[1] // cols)), np.float32)
    targets = dict(_by_blocks(codes, rows, cols))
    for place, block in _by_blocks(matrix, rows, cols):
        largest = np.abs(block).max()
        scales[place] = largest / np.float32(448)
        times = np.float32(448) / largest if largest > 0 else np.float32(0)
        targets[place][...] = to_e4m3(block * times)
    return codes, scales


def dequantized(codes, scales, rows=BLOCK, cols=BLOCK):
    wide = np.repeat(np.repeat(scales, rows, 0), cols, 1)[:codes.shape[0], :codes.shape[1]]
    return E4M3[codes] * wide.astype(np.float64)


def read_tensors(path):
    """name -> (dtype, shape, bytes)"""
    data = pathlib.Path(path).read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            for name, t in header.items()}


def read_folder(folder):
    """The same of all shards."""
    return {name: tensor for path in sorted(pathlib.Path(folder).glob("*.safetensors"))
            for name, tensor in read_tensors(path).items()}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def as_float32(tensor):
    dtype, shape, data = tensor
    if dtype == "BF16":
        words = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return words.view(np.float32).reshape(shape)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32).reshape(shape)


def is_product(name):
    return name.startswith("model.layers.") and any(name.endswith(f".{p}.weight") for p in PRODUCTS)


def convert(source, target):
    source, target = pathlib.Path(source), pathlib.Path(target)
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIG}))
    for old in [*target.glob("*.safetensors"), *target.glob("*.index.json")]:
        old.unlink()
    tensors = {}
    for name, tensor in read_folder(source).items():
        if not is_product(name):
            tensors[name] = tensor
            continue
        codes, scales = quantized(as_float32(tensor))
        tensors[name] = ("F8_E4M3", codes.shape, codes.tobytes())
        tensors[name + "_scale_inv"] = ("F32", scales.shape, scales.tobytes())
    write_tensors(target / "model.safetensors", tensors)
    return target


def weights(folder):
    """name -> float64, scales multiplied in"""
    tensors = read_folder(folder)
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        if tensor[0] == "F8_E4M3":
            codes = np.frombuffer(tensor[2], np.uint8).reshape(tensor[1])
            out[name] = dequantized(codes, as_float32(tensors[name + "_scale_inv"]))
        else:
            out[name] = as_float32(tensor).astype(np.float64)
    return out


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(*sys.argv[1:])
