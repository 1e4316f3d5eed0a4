#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Recomputes a layer call from the checkpoint with numpy, ml_dtypes and safetensors, which share no code with moxie.

    moxie run MODEL --check --output result.safetensors
    tools/independent_check.py MODEL result.safetensors

The result file holds the inputs as used (hidden_states, topk_ids, topk_weights) and output, reference and bound. Both
`output` and `reference` must lie within `bound` of what is computed here; exit 1 if not. With --routing model the ids
and weights themselves are recomputed from the router's tensors. Under an --act-format with groups those of the intermediate
axis start anew on every rank: say --tp as in the run.
"""

import argparse
import json
import pathlib
import sys

import ml_dtypes
import numpy as np
from safetensors import safe_open

E2M1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
ACT_GROUP = {"fp8": 128, "fp8x2": 128, "mxfp8": 32, "int8": 32, "int8x2": 32}  # columns that share a scale


class Checkpoint:
    """Tensors by name over all shards of a folder."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.config = {**self.config, **self.config.get("text_config", {})}
        self.files = {}
        for path in sorted(folder.glob("*.safetensors")):
            raw = path.read_bytes()
            length = int.from_bytes(raw[:8], "little")
            for name, entry in json.loads(raw[8 : 8 + length]).items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    self.files[name] = (entry["dtype"], entry["shape"], raw[8 + length + begin : 8 + length + end])

    def raw(self, name, dtype):
        """The bytes of a tensor, read as a numpy type of the same width."""
        _, shape, data = self.files[name]
        return np.frombuffer(data, dtype=dtype).reshape(shape)

    def __contains__(self, name):
        return name in self.files


CODES = (".weight", ".weight_packed")  # the second is compressed-tensors


def multiplier(checkpoint, stem):
    """The global of a projection, which compressed-tensors stores as its reciprocal; None for MXFP4."""
    if stem + ".weight_scale_2" in checkpoint:
        return np.float64(checkpoint.raw(stem + ".weight_scale_2", np.float32))
    if stem + ".weight_global_scale" in checkpoint:
        return np.float64(np.float32(1) / checkpoint.raw(stem + ".weight_global_scale", np.float32)[0])
    return None


def dequantise(checkpoint, stem):
    """One projection in float64, [rows, columns], and its scale group."""
    codes_name = next(stem + leaf for leaf in CODES if stem + leaf in checkpoint)
    packed = checkpoint.raw(codes_name, np.uint8)
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    scales_name = stem + (".weight_scale" if stem + ".weight_scale" in checkpoint else ".scale")
    factor = multiplier(checkpoint, stem)
    if factor is not None:
        scales = checkpoint.raw(scales_name, ml_dtypes.float8_e4m3fn).astype(np.float64) * factor
    else:
        scales = checkpoint.raw(scales_name, ml_dtypes.float8_e8m0fnu).astype(np.float64)
    group = codes.shape[1] // scales.shape[1]
    return E2M1[codes] * np.repeat(scales, group, axis=1), group


def e4m3(values):
    return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def quantise_fp8(part, pair):
    """One group of E4M3 codes, or of pairs of them, under a power of two."""
    amax = np.maximum(np.abs(part).max(axis=1, keepdims=True), np.float32(1e-4))
    mantissa, exponent = np.frexp(amax / np.float32(240 if pair else 448))
    scale = np.ldexp(np.float32(1), np.where(mantissa == 0.5, exponent - 1, exponent))
    high = e4m3(part / scale).astype(np.float64)
    low = e4m3((part / scale - high) * 32) if pair else 0
    return (high + low / 32) * scale


def quantise_int8(part, pair):
    """One group of int8 codes, or of pairs of them, under a scale in fp32; groups of numbers only."""
    scale = np.abs(part).max(axis=1, keepdims=True) / np.float32(127)
    is_zero = scale < np.float32(2.0**-100)
    divisor = np.where(is_zero, np.float32(1), scale)
    codes = np.rint(part / divisor).astype(np.float64)
    if pair:
        rest = (part - divisor.astype(np.float64) * codes).astype(np.float32)
        codes += np.rint(rest * np.float32(254) / divisor).astype(np.float64) / 254
    return np.where(is_zero, 0.0, codes * scale)


def quantise(values, act_format, starts=(0,)):
    """What rows of fp32 activations stand for; `starts` are the columns at which groups begin anew."""
    values = values.astype(np.float32)
    if act_format == "bf16":
        return values.astype(ml_dtypes.bfloat16).astype(np.float64)
    out = np.empty(values.shape, np.float64)
    for first, end in zip(starts, [*starts[1:], values.shape[1]]):
        for column in range(first, end, ACT_GROUP[act_format]):
            part = values[:, column : min(column + ACT_GROUP[act_format], end)]
            group = quantise_int8 if act_format.startswith("int8") else quantise_fp8
            out[:, column : column + part.shape[1]] = group(part, act_format.endswith("x2"))
    return out


def activate(gate, up, limit, is_oss):
    if limit is not None:
        gate = np.minimum(gate, limit)
        up = np.clip(up, -limit, limit)
    if is_oss:
        return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    return gate / (1 + np.exp(-gate)) * up


def stacked_expert(checkpoint, prefix, expert):
    """Gate, up and down of gpt-oss, each (weights, bias) in float64: even rows of the first stack are gate, odd ones up."""
    def part(stem):
        blocks = checkpoint.raw(f"{prefix}experts.{stem}_blocks", np.uint8)[expert]  # [rows, groups, 16]
        exponents = checkpoint.raw(f"{prefix}experts.{stem}_scales", np.uint8)[expert].astype(np.int64)
        pairs = np.empty((*blocks.shape[:2], 32), np.float64)
        pairs[:, :, 0::2] = E2M1[blocks & 15]
        pairs[:, :, 1::2] = E2M1[blocks >> 4]
        weights = pairs * np.exp2((exponents - 127).astype(np.float64))[:, :, None]
        bias = checkpoint.raw(f"{prefix}experts.{stem}_bias", ml_dtypes.bfloat16)[expert].astype(np.float64)
        return weights.reshape(len(blocks), -1), bias
    both, both_bias = part("gate_up_proj")
    return (both[0::2], both_bias[0::2]), (both[1::2], both_bias[1::2]), part("down_proj")


def part_starts(inter, group, tp):
    """First columns of the ranks' parts: whole scale groups, as equal as they can be, the last ones short."""
    local = -(-(inter // group) // tp) * group
    return [start for start in range(0, inter, local)]


def names_of(checkpoint, layer):
    for prefix, names in (
        (f"layers.{layer}.ffn.", ("w1", "w3", "w2")),
        (f"model.layers.{layer}.mlp.", ("gate_proj", "up_proj", "down_proj")),
    ):
        if any(f"{prefix}experts.0.{names[0]}{leaf}" in checkpoint for leaf in CODES):
            return prefix, names
    sys.exit(f"no experts of layer {layer} under a name known here")


def is_stacked(checkpoint, layer):
    return f"model.layers.{layer}.mlp.experts.gate_up_proj_blocks" in checkpoint


def expert_of(checkpoint, layer, expert):
    """Gate, up and down, each (weights, bias), and the scale group of down."""
    if is_stacked(checkpoint, layer):
        return *stacked_expert(checkpoint, f"model.layers.{layer}.mlp.", expert), 32
    prefix, names = names_of(checkpoint, layer)
    parts = [dequantise(checkpoint, f"{prefix}experts.{expert}.{name}") for name in names]
    return *((weights, 0.0) for weights, _ in parts), parts[2][1]


def run_layer(checkpoint, layer, x, ids, weights, act_format, tp):
    limit = checkpoint.config.get("swiglu_limit")
    is_oss = checkpoint.config["model_type"] == "gpt_oss"
    y = np.zeros(x.shape, np.float64)
    quantised_x = quantise(x, act_format)
    for expert in sorted({int(i) for i in ids.flatten() if i >= 0}):
        (gate, gate_bias), (up, up_bias), (down, down_bias), group = expert_of(checkpoint, layer, expert)
        tokens, choices = np.nonzero(ids == expert)
        rows = quantised_x[tokens]
        act = activate(rows @ gate.T + gate_bias, rows @ up.T + up_bias, limit, is_oss)
        act = quantise(act, act_format, part_starts(down.shape[1], group, tp))
        np.add.at(y, tokens, weights[tokens, choices, None].astype(np.float64) * (act @ down.T + down_bias))
    return y


def route(checkpoint, layer, x, token_ids, top_k):
    """Ids and weights of the model's own router."""
    config = checkpoint.config
    if is_stacked(checkpoint, layer):  # softmax over the chosen logits, bias included
        router = f"model.layers.{layer}.mlp.router."
        z = x.astype(np.float64) @ checkpoint.raw(router + "weight", ml_dtypes.bfloat16).astype(np.float64).T
        z = z + checkpoint.raw(router + "bias", ml_dtypes.bfloat16).astype(np.float64)
        ids = np.argsort(-z, axis=1, kind="stable")[:, :top_k]
        chosen = np.exp(np.take_along_axis(z, ids, axis=1) - z.max(axis=1, keepdims=True))
        return ids, chosen / chosen.sum(axis=1, keepdims=True)
    prefix, _ = names_of(checkpoint, layer)
    z = x.astype(np.float64) @ checkpoint.raw(prefix + "gate.weight", ml_dtypes.bfloat16).astype(np.float64).T
    is_v4 = config["model_type"].startswith("deepseek_v4")
    scores = np.sqrt(np.logaddexp(z, 0)) if is_v4 else 1 / (1 + np.exp(-z))
    biased = scores
    for name in ("gate.bias", "gate.e_score_correction_bias"):
        if prefix + name in checkpoint:
            biased = scores + checkpoint.raw(prefix + name, np.float32)
    groups = config.get("n_group", 1) or 1
    if not is_v4 and groups > 1:
        by_group = biased.reshape(len(x), groups, -1)
        best = np.sort(by_group, axis=2)[:, :, -2:].sum(axis=2)
        order = np.argsort(-best, axis=1, kind="stable")[:, : config["topk_group"]]
        kept = np.zeros((len(x), groups), bool)
        np.put_along_axis(kept, order, True, axis=1)
        biased = np.where(np.repeat(kept, by_group.shape[2], axis=1), biased, -np.inf)
    ids = np.argsort(-biased, axis=1, kind="stable")[:, :top_k]
    if prefix + "gate.tid2eid" in checkpoint:
        ids = checkpoint.raw(prefix + "gate.tid2eid", np.int64)[token_ids]
    chosen = np.take_along_axis(scores, ids, axis=1)
    if config.get("norm_topk_prob", True):
        chosen = chosen / chosen.sum(axis=1, keepdims=True)
    return ids, chosen * config.get("routed_scaling_factor", 1.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--act-format", choices=["bf16", *ACT_GROUP], default="bf16")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--routing", choices=["given", "model"], default="given")
    options = parser.parse_args()

    checkpoint = Checkpoint(options.model)
    result = {}
    with safe_open(options.result, framework="np") as file:
        for name in file.keys():
            result[name] = file.get_tensor(name)
    x = result["hidden_states"].astype(np.float32)
    ids, weights = result["topk_ids"].astype(np.int64), result["topk_weights"]
    failed = False

    if options.routing == "model":
        own_ids, own_weights = route(checkpoint, options.layer, x, result.get("token_ids"), ids.shape[1])
        same = np.array_equal(np.sort(own_ids), np.sort(ids))
        order = np.argsort(own_ids, axis=1), np.argsort(ids, axis=1)
        apart = np.abs(np.take_along_axis(own_weights, order[0], 1) - np.take_along_axis(weights, order[1], 1))
        worst = float(apart.max(initial=0.0))
        print(f"routing: ids {'equal' if same else 'DIFFER'}, weights within {worst:.2e}")
        failed = failed or not (same and worst <= 1e-5)

    own = run_layer(checkpoint, options.layer, x, ids, weights, options.act_format, options.tp)
    bound = result["bound"].astype(np.float64)
    for name in ("output", "reference"):
        error = np.abs(result[name].astype(np.float64) - own)
        within = error <= bound  # NaN is not within
        ratio = np.where(error == 0, 0.0, error / np.where(bound > 0, bound, np.finfo(np.float64).tiny))
        norm = np.linalg.norm(own)
        relative = float(np.linalg.norm(error) / norm) if norm > 0 else 0.0
        print(f"{name}: {int(within.sum())} of {within.size} within the bound, "
              f"largest error / bound {float(ratio.max(initial=0.0)):.3g}, relative {relative:.2e}")
        failed = failed or not within.all()
    print("FAILED" if failed else "ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
