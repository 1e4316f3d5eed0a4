#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF files against the gguf package, which shares no code with moxie.

    tests/cli/gguf_check.py MOXIE

Files that the package writes are packed, and what is packed must dequantise to what the package's own `dequantize`
gives. Files that synth writes must read back through the package as the same weights written in safetensors. 77
(skipped) where the package is absent.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
from independent_check import Checkpoint, dequantise  # noqa: E402

try:
    import gguf
except ImportError:
    print("skipped: the gguf package is absent")
    sys.exit(77)

EXPERTS, HIDDEN, INTER = 3, 128, 192
SHAPES = {"gate": (INTER, HIDDEN), "up": (INTER, HIDDEN), "down": (HIDDEN, INTER)}
TYPES = {"mxfp4": gguf.GGMLQuantizationType.MXFP4, "nvfp4": gguf.GGMLQuantizationType.NVFP4}
CONFIG = {"model_type": "qwen3_moe", "hidden_size": HIDDEN, "moe_intermediate_size": INTER, "num_experts": EXPERTS,
          "num_experts_per_tok": 2, "num_hidden_layers": 1}


def blocks_of(rng, form, shape):
    """Stacked blocks: the package's own encoder where it has one, else any bytes that are legal."""
    try:
        return gguf.quants.quantize(rng.standard_normal((EXPERTS, *shape)).astype(np.float32), TYPES[form])
    except NotImplementedError:
        elems, size = gguf.GGML_QUANT_SIZES[TYPES[form]]
        raw = rng.integers(0, 256, (EXPERTS, shape[0], shape[1] // elems, size), np.uint8)
        raw[..., :4] = rng.integers(1, 0x7F, raw[..., :4].shape, np.uint8)
        return raw.reshape(EXPERTS, shape[0], -1)


def write(path, rng, form):
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(1)
    writer.add_embedding_length(HIDDEN)
    writer.add_expert_feed_forward_length(INTER)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_token_list([f"token {i}" for i in range(5000)])
    writer.add_tensor("token_embd.weight", rng.standard_normal((7, HIDDEN)).astype(np.float16))
    expected = {}
    for kind, shape in SHAPES.items():
        raw = blocks_of(rng, form, shape)
        writer.add_tensor(f"blk.0.ffn_{kind}_exps.weight", raw, raw_dtype=TYPES[form])
        values = gguf.quants.dequantize(raw, TYPES[form]).astype(np.float64)
        scale = np.ones(EXPERTS, np.float32)
        if form == "nvfp4" and kind != "up":  # absent means 1
            scale = rng.uniform(1e-4, 1e-3, EXPERTS).astype(np.float32)
            writer.add_tensor(f"blk.0.ffn_{kind}_exps.scale", scale)
        expected[kind] = values * scale[:, None, None].astype(np.float64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def moxie(*arguments):
    subprocess.run([sys.argv[1], *map(str, arguments), "-q"], check=True, stdout=subprocess.DEVNULL)


def packed(path, work):
    """The experts of the one logical file that `pack` makes of a model, proven by `verify`."""
    moxie("pack", path, "--out", work / "set", "--layout", "logical")
    moxie("verify", work / "set", "--against", path)
    (work / "logical").mkdir()
    shutil.copy(work / "set/rank-000/model-00000.safetensors", work / "logical")
    (work / "logical/config.json").write_text("{}")
    return experts_of(Checkpoint(work / "logical"))


def experts_of(checkpoint):
    stem = "model.layers.0.mlp.experts.{}.{}_proj"
    return {kind: np.stack([dequantise(checkpoint, stem.format(e, kind))[0] for e in range(EXPERTS)])
            for kind in SHAPES}


def read(path, form):
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    experts = {}
    for kind, shape in SHAPES.items():
        tensor = tensors[f"blk.0.ffn_{kind}_exps.weight"]
        assert tensor.tensor_type == TYPES[form] and list(tensor.shape) == [shape[1], shape[0], EXPERTS]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        scale = tensors.get(f"blk.0.ffn_{kind}_exps.scale")
        if form == "nvfp4":
            assert len(set(scale.data.tolist())) == EXPERTS
            values = values * scale.data[:, None, None].astype(np.float64)
        experts[kind] = values
    return experts


def require_equal(expected, got, what):
    for kind in SHAPES:
        same = np.array_equal(expected[kind], got[kind])
        print(f"{what}, {kind}: {got[kind].size} values {'equal' if same else 'DIFFER'}")
        if not same or not np.any(expected[kind]):
            sys.exit("FAILED")


def main():
    seed = int(os.environ.get("MOXIE_SEED", int.from_bytes(os.urandom(4))))
    print(f"MOXIE_SEED={seed}")
    rng = np.random.default_rng(seed)
    for form in TYPES:
        with tempfile.TemporaryDirectory(prefix="moxie-gguf-") as name:
            work = pathlib.Path(name)
            expected = write(work / "theirs.gguf", rng, form)
            require_equal(expected, packed(work / "theirs.gguf", work), f"{form} of the package, packed")
            moxie("run", work / "theirs.gguf", "--check", "--tokens", 3, "--tp", "1,3")

            (work / "config.json").write_text(json.dumps(CONFIG))
            for dialect in ("gguf", "quark" if form == "mxfp4" else "modelopt"):
                moxie("synth", work / dialect, "--config", work / "config.json", "--dialect", dialect, "--format", form,
                      "--seed", seed)
            other = Checkpoint(work / ("quark" if form == "mxfp4" else "modelopt"))
            require_equal(experts_of(other), read(work / "gguf/model.gguf", form), f"{form} of synth, by the package")
    print("ok")


if __name__ == "__main__":
    main()
