#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quantized_check.py MOXIE: the `safetensors` package reads what `moxie quantize` writes, and another decoder gets the source's values back."""

import json
import pathlib
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
from safetensors import deserialize

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
DTYPES = {
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F32": np.float32,
    "U8": np.uint8,
    "I8": np.uint8,
    "I64": np.int64,
}


def tensors_of(folder):
    """Every tensor by name, as the index says where it is."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found = {}
    for name in sorted(set(index["weight_map"].values())):
        for tensor, info in deserialize((folder / name).read_bytes()):
            assert index["weight_map"][tensor] == name, tensor
            found[tensor] = np.frombuffer(info["data"], DTYPES[info["dtype"]]).reshape(info["shape"])
    assert set(found) == set(index["weight_map"])
    assert sum(t.nbytes for t in found.values()) == index["metadata"]["total_size"]
    return found


def decode(codes, scales, group, factor):
    pairs = np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)
    return E2M1[pairs] * np.repeat(scales.astype(np.float64), group, axis=1) * factor


def e8m0(scales):
    return np.exp2(scales.view(np.uint8).astype(np.float64) - 127)


def value(tensors, stem, dialect, fmt):
    if fmt == "mxfp4" and dialect == "deepseek":
        return decode(tensors[stem + "weight"], e8m0(tensors[stem + "scale"]), 32, 1)
    if fmt == "mxfp4":
        return decode(tensors[stem + "weight_packed"], e8m0(tensors[stem + "weight_scale"]), 32, 1)
    if dialect == "compressed-tensors":
        factor = 1 / np.float64(tensors[stem + "weight_global_scale"][0])
        return decode(tensors[stem + "weight_packed"], tensors[stem + "weight_scale"], 16, factor)
    factor = np.float64(tensors[stem + "weight_scale_2"])
    return decode(tensors[stem + "weight"], tensors[stem + "weight_scale"], 16, factor)


def snr_db(exact, got):
    return 10 * np.log10(np.sum(exact**2) / np.sum((exact - got) ** 2))


def main():
    moxie = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)

        def run(*words):
            subprocess.run([moxie, *words, "-q"], check=True, stdout=subprocess.DEVNULL, cwd=work)

        run("synth", "in", "--model", "tiny", "--format", "bf16", "--num-layers", "2", "--seed", "3")
        source = tensors_of(work / "in")
        for fmt, dialect, recipe in [
            ("nvfp4", "modelopt", "amax"),
            ("nvfp4", "deepseek", "46"),
            ("nvfp4", "compressed-tensors", "mse"),
            ("mxfp4", "deepseek", "ceil"),
            ("mxfp4", "compressed-tensors", "floor"),
        ]:
            out = f"{fmt}-{dialect}"
            run("quantize", "in", out, "--format", fmt, "--dialect", dialect, "--recipe", recipe)
            made = tensors_of(work / out)
            worst = np.inf
            for layer in range(2):
                prefix = f"layers.{layer}.ffn.experts"
                for expert in range(8):
                    for leaf in ("w1", "w2", "w3"):
                        stem = f"{prefix}.{expert}.{leaf}."
                        exact = source[stem + "weight"].astype(np.float64)
                        got = value(made, stem, dialect, fmt)
                        assert got.shape == exact.shape, (stem, got.shape)
                        worst = min(worst, snr_db(exact, got))
            print(f"{out}: {len(made)} tensors, worst SNR {worst:.2f} dB")
            assert worst > 17, out
            others = [name for name in source if ".experts." not in name]
            assert others and all(source[n].tobytes() == made[n].tobytes() for n in others)
    return 0


if __name__ == "__main__":
    sys.exit(main())
