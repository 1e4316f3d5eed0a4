#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The other arm of `moxie bench --vs`: a MoE layer by torch or Humming on the same weights and routing sets.

usage: peer.py ARM FOLDER. ARM is torch or humming; FOLDER holds problem.json and weights.bin as bench writes them.
Speaks JSON, one object a line: a greeting, then an answer to each line of stdin:
  {"do": "point", "folder": F, "tokens": T, "sets": R}  captures a graph of R calls, compares with moxie's results in F
  {"do": "go", "replays": N, "warm_s": S}               replays the last point; microseconds a call, after S seconds
An answer with "error" ends the process. Inside the timed region: gather, two grouped products, activation, weighted
sum. Outside: sorting slots by expert, which flatters this arm by a few microseconds.
"""

import json
import os
import pathlib
import sys
import time

# What libraries print goes to stderr; answers have the first stdout for themselves.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(**fields):
    ANSWERS.write(json.dumps(fields) + "\n")
    ANSWERS.flush()


def fail(kind, text):
    answer(error=kind, text=text)
    sys.exit(1)


try:
    import numpy as np
    import torch
    import triton
    import triton.language as tl
except ImportError as missing:
    fail("missing", f"{missing}; this arm needs numpy, torch and triton")

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
PAD = 128  # intermediate widths are padded to a multiple: Humming's tiles ask for it


@triton.jit
def activate_rows(src, dst, bias, expert, width, limit, KIND: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """[rows, 2 * width] of gate and up to [rows, width], one block of columns of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < width
    gate = tl.load(src + row * 2 * width + column, mask=real, other=0.0).to(tl.float32)
    up = tl.load(src + row * 2 * width + width + column, mask=real, other=0.0).to(tl.float32)
    if BIAS:
        at = bias + tl.load(expert + row).to(tl.int64) * 2 * width + column
        gate += tl.load(at, mask=real, other=0.0).to(tl.float32)
        up += tl.load(at + width, mask=real, other=0.0).to(tl.float32)
    if KIND == 0:
        value = gate * tl.sigmoid(gate) * up
    elif KIND == 1:
        gate = tl.minimum(gate, limit)
        value = gate * tl.sigmoid(gate) * tl.minimum(tl.maximum(up, -limit), limit)
    else:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        value = gate * tl.sigmoid(1.702 * gate) * (up + 1.0)
    tl.store(dst + row * width + column, value.to(tl.bfloat16), mask=real)


@triton.jit
def combine_rows(src, dst, rows, weights, bias, expert, width, K: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """The weighted sum over a token's slots, one block of columns of one token a program."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < width
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for k in range(K):
        row = tl.load(rows + token * K + k).to(tl.int64)
        weight = tl.load(weights + token * K + k)
        value = tl.load(src + row * width + column, mask=real, other=0.0).to(tl.float32)
        if BIAS:
            at = bias + tl.load(expert + row).to(tl.int64) * width + column
            value += tl.load(at, mask=real, other=0.0).to(tl.float32)
        total += weight * value
    tl.store(dst + token * width + column, total.to(tl.bfloat16), mask=real)


def cdiv(a, b):
    return -(-a // b)


class Weights:
    """The rank's experts as they are packed: codes, scales, globals and biases, gate above up."""

    def __init__(self, folder, problem):
        self.problem = problem
        self.experts = problem["experts"]
        self.hidden = problem["hidden"]
        self.inter = problem["inter"]
        self.padded = cdiv(self.inter, PAD) * PAD
        self.blobs = np.memmap(folder / "weights.bin", dtype=np.uint8, mode="r")
        self.blobs = self.blobs.reshape(self.experts, problem["stride"])
        self.group = 32 if problem["format"] == "mxfp4" else 16
        self.no_scale = 117 if problem["format"] == "mxfp4" else 0

    def tensor(self, name):
        segment = self.problem["segments"].get(name)
        if segment is None:
            return None
        first, rows, row_bytes = segment["offset"], segment["rows"], segment["row_bytes"]
        part = self.blobs[:, first : first + rows * row_bytes]
        return torch.from_numpy(np.ascontiguousarray(part)).cuda().view(self.experts, rows, row_bytes)

    def fused(self, kind, fill):
        """Gate and up, [experts, 2 * padded, bytes]."""
        halves = [self.tensor(f"{half}{kind}")[:, : self.inter] for half in ("gate", "up")]
        rest = self.padded - self.inter
        return torch.cat([torch.nn.functional.pad(half, (0, 0, 0, rest), value=fill) for half in halves], 1)

    def down(self, kind, fill, elems):
        real, padded = self.inter // elems, self.padded // elems
        return torch.nn.functional.pad(self.tensor(f"down{kind}")[..., :real], (0, padded - real), value=fill)

    def products(self):
        """(codes, scales) of both products."""
        return (
            (self.fused("", 0), self.fused("_scale", self.no_scale)),
            (self.down("", 0, 2).contiguous(), self.down("_scale", self.no_scale, self.group).contiguous()),
        )

    def global_of(self, name):
        value = self.tensor(f"{name}_dequant_mul")
        return None if value is None else value.contiguous().view(torch.float32).view(self.experts)

    def biases(self):
        """([experts, 2 * padded], [experts, hidden]) in fp32, or None."""
        if "up_bias" not in self.problem["segments"]:
            return None
        floats = [self.tensor(f"{name}_bias").contiguous().view(torch.float32).view(self.experts, -1)
                  for name in ("gate", "up", "down")]
        rest = self.padded - self.inter
        halves = [torch.nn.functional.pad(half[:, : self.inter], (0, rest)) for half in floats[:2]]
        return torch.cat(halves, 1).contiguous(), floats[2].contiguous()


class Arm:
    """What both arms share: buffers of a set, and the two small kernels."""

    ACTIVATIONS = {"silu": 0, "clamped_swiglu": 1, "oai_swiglu": 2}

    def __init__(self, weights):
        problem = weights.problem
        if problem["activation"] not in self.ACTIVATIONS:
            fail("unsupported", f"no activation {problem['activation']}")
        self.weights = weights
        self.kind = self.ACTIVATIONS[problem["activation"]]
        self.limit = float(problem["limit"] or 0.0)
        self.bias = weights.biases()
        self.top_k = problem["top_k"]

    def activate(self, src, dst, expert):
        width = self.weights.padded
        bias = self.bias[0] if self.bias else src
        activate_rows[(src.shape[0], cdiv(width, 1024))](
            src, dst, bias, expert, width, self.limit, self.kind, self.bias is not None, 1024)

    def combine(self, src, dst, one):
        bias = self.bias[1] if self.bias else src
        combine_rows[(dst.shape[0], cdiv(dst.shape[1], 1024))](
            src, dst, one["rows"], one["weights"], bias, one["expert"], dst.shape[1], self.top_k,
            self.bias is not None, 1024)

    def read_set(self, folder, number, tokens):
        """One routing set: its slots on this rank, its inputs, moxie's result."""
        ids = np.fromfile(folder / f"{number}.ids", dtype=np.int32)
        local = ids.astype(np.int64) - self.weights.problem["first_expert"]
        valid = (ids >= 0) & (local >= 0) & (local < self.weights.experts)
        weights = np.fromfile(folder / f"{number}.weights", dtype=np.float32) * valid
        bf16 = [torch.from_numpy(np.fromfile(folder / f"{number}.{name}", dtype=np.int16)).view(torch.bfloat16)
                .view(tokens, self.weights.hidden).cuda() for name in ("x", "y")]
        one = {"x": bf16[0], "moxie": bf16[1], "local": local, "valid": valid,
               "weights": torch.from_numpy(weights).cuda(), "y": torch.empty_like(bf16[0])}
        self.prepare(one)
        return one


class Torch(Arm):
    """bf16 weights, dequantised; grouped products where this torch has them, else a loop over the experts in use."""

    def __init__(self, weights):
        super().__init__(weights)
        self.name = "torch bf16"
        table = torch.tensor(CODES + tuple(-code for code in CODES), device="cuda")
        (w13, s13), (w2, s2) = weights.products()
        names = (("gate", "up"), ("down",))
        self.w13, self.w2 = (self.dequantised(table, *of) for of in ((w13, s13, names[0]), (w2, s2, names[1])))
        self.grouped = hasattr(torch, "_grouped_mm")

    def dequantised(self, table, codes, scales, names):
        experts, rows, packed = codes.shape
        out = torch.empty((experts, rows, 2 * packed), dtype=torch.bfloat16, device="cuda")
        globals_of = [self.weights.global_of(name) for name in names]
        for expert in range(experts):
            pairs = torch.stack((codes[expert] & 15, codes[expert] >> 4), -1).view(rows, -1)
            if self.weights.group == 32:
                scale = torch.exp2(scales[expert].float() - 127)
            else:
                scale = scales[expert].view(torch.float8_e4m3fn).float()
            values = table[pairs.int()] * scale.repeat_interleave(self.weights.group, 1)
            if globals_of[0] is not None:
                mul = torch.cat([one[expert].expand(rows // len(names)) for one in globals_of])
                values *= mul[:, None]
            out[expert] = values.bfloat16()
        return out

    def prepare(self, one):
        slots = np.flatnonzero(one["valid"])
        order = slots[np.argsort(one["local"][slots], kind="stable")]
        rows = np.zeros(len(one["valid"]), dtype=np.int32)
        rows[order] = np.arange(len(order), dtype=np.int32)
        counts = np.bincount(one["local"][order], minlength=self.weights.experts)
        one["gather"] = torch.from_numpy(order // self.top_k).cuda()
        one["rows"] = torch.from_numpy(rows).cuda()
        one["expert"] = torch.from_numpy(one["local"][order].astype(np.int32)).cuda()
        one["ends"] = torch.from_numpy(np.cumsum(counts).astype(np.int32)).cuda()
        one["counts"] = counts
        one["act"] = torch.empty((len(order), self.weights.padded), dtype=torch.bfloat16, device="cuda")

    def product(self, rows, weight, one):
        if self.grouped:
            return torch._grouped_mm(rows, weight.transpose(1, 2), offs=one["ends"])
        out = torch.empty((rows.shape[0], weight.shape[1]), dtype=torch.bfloat16, device="cuda")
        first = 0
        for expert in np.flatnonzero(one["counts"]):
            end = first + int(one["counts"][expert])
            torch.mm(rows[first:end], weight[expert].t(), out=out[first:end])
            first = end
        return out

    def call(self, one):
        self.activate(self.product(one["x"].index_select(0, one["gather"]), self.w13, one), one["act"], one["expert"])
        self.combine(self.product(one["act"], self.w2, one), one["y"], one)


class Humming(Arm):
    """Humming's indexed products with the schedules that it chooses itself."""

    def __init__(self, weights, inputs, name):
        super().__init__(weights)
        from humming.layer import HummingLayer
        from humming.tune import get_heuristics_config

        self.name = name
        self.heuristics = get_heuristics_config
        schema = {"quant_method": "mxfp4"}
        if weights.group == 16:
            schema = {"quant_method": "modelopt", "quant_algo": "nvfp4"}
        self.layers = []
        for (codes, scales), part in zip(weights.products(), ("gate", "down")):
            layer = HummingLayer(shape_n=codes.shape[1], shape_k=2 * codes.shape[2], weight_config=dict(schema),
                                 input_config=dict(inputs), num_experts=weights.experts,
                                 torch_dtype=torch.bfloat16).cuda()
            tensors = {"weight": codes, "weight_scale": scales}
            if weights.group == 16:
                mul = weights.global_of(part)
                if part == "gate" and not torch.equal(mul, weights.global_of("up")):
                    fail("unsupported", "gate and up have different global scales")
                tensors["weight_scale"] = scales.view(torch.float8_e4m3fn)
                tensors["weight_scale_2"] = mul.view(layer.weight_scale_2.shape)
            layer.load_from_tensors(tensors)
            layer.transform()
            self.layers.append(layer)

    def schedule(self, layer, slots):
        return self.heuristics(layer.humming_config, shape_m=slots, gemm_type="indexed")

    def aligned(self, one, block):
        """Slots by expert, each expert's filled up to whole blocks with the number of slots."""
        slots = np.flatnonzero(one["valid"])
        ids, blocks = [], []
        for expert in np.unique(one["local"][slots]):
            mine = slots[one["local"][slots] == expert]
            count = cdiv(len(mine), block)
            ids.append(np.concatenate((mine, np.full(count * block - len(mine), len(one["valid"])))))
            blocks += [expert] * count
        ids = np.concatenate(ids).astype(np.int32)
        def as_tensor(values):
            return torch.tensor(values, dtype=torch.int32, device="cuda")

        return {"sorted_ids": as_tensor(ids), "expert_ids": as_tensor(np.array(blocks)),
                "num_tokens_padded": as_tensor(len(ids))}

    def prepare(self, one):
        slots = len(one["valid"])
        wide = dict(dtype=torch.bfloat16, device="cuda")
        one["first"] = torch.zeros((slots, 2 * self.weights.padded), **wide)
        one["act"] = torch.zeros((slots, self.weights.padded), **wide)
        one["second"] = torch.zeros((slots, self.weights.hidden), **wide)
        one["rows"] = torch.arange(slots, dtype=torch.int32, device="cuda")
        one["expert"] = torch.from_numpy(np.where(one["valid"], one["local"], 0).astype(np.int32)).cuda()
        one["calls"] = []
        for layer in self.layers:
            tuning = self.schedule(layer, max(int(one["valid"].sum()), 1))
            one["calls"].append({"compute_config": {"gemm_type": "indexed"}, "tuning_config": dict(tuning),
                                 **self.aligned(one, tuning["block_shape"][0])})

    def call(self, one):
        self.layers[0](one["x"], outputs=one["first"], top_k=self.top_k, **one["calls"][0])
        self.activate(one["first"], one["act"], one["expert"])
        self.layers[1](one["act"], outputs=one["second"], top_k=1, **one["calls"][1])
        self.combine(one["second"], one["y"], one)


class Point:
    """The sets of one point as one graph of one arm."""

    def __init__(self, arm, request):
        folder = pathlib.Path(request["folder"])
        self.arm = arm
        self.sets = [arm.read_set(folder, number, request["tokens"]) for number in range(request["sets"])]
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                for one in self.sets:
                    one["y"].fill_(float("nan"))
                    arm.call(one)
        self.stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            for one in self.sets:
                arm.call(one)
        for one in self.sets:
            one["y"].fill_(float("nan"))
        torch.cuda.synchronize()
        self.times(3)
        self.relative = max(self.distance(one) for one in self.sets)

    @staticmethod
    def distance(one):
        error = (one["y"].double() - one["moxie"].double()).norm() / one["moxie"].double().norm()
        return float(error) if torch.isfinite(error) else 1e300

    def warm(self, seconds):
        """Replays until clocks are up, as the other arm does."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.times(1)

    def times(self, replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        with torch.cuda.stream(self.stream):
            for _ in range(replays):
                begin.record()
                self.graph.replay()
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) * 1e3 / len(self.sets))
        return times


def arms_of(name, weights):
    if name == "torch":
        return [Torch(weights)]
    try:
        import humming  # noqa: F401
    except ImportError as missing:
        fail("missing", f"{missing}; pip install humming-kernels")
    if weights.problem["act_format"] == "bf16":
        return [Humming(weights, {}, "humming bf16")]
    return [Humming(weights, {"dtype": "float8e4m3"}, "humming fp8 per token"),
            Humming(weights, {"dtype": "float8e4m3", "group_size": 128}, "humming fp8 per 128")]


def best_point(arms, request):
    """The fastest arm whose result is near moxie's; the nearest where none is."""
    points = [Point(arm, request) for arm in arms]
    near = [point for point in points if point.relative <= request["limit"]]
    if not near:
        return min(points, key=lambda point: point.relative)
    return min(near, key=lambda point: sorted(point.times(7))[3])


def versions(name):
    found = {"python": sys.version.split()[0], "torch": torch.__version__, "triton": triton.__version__}
    if name == "humming":
        import humming

        found["humming"] = humming.__version__
    return found


def main():
    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if not torch.cuda.is_available():
        fail("missing", "torch sees no GPU")
    with torch.inference_mode():
        arms = arms_of(name, Weights(folder, json.loads((folder / "problem.json").read_text())))
        answer(ready=True, versions=versions(name))
        point = None
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "point":
                point = None
                torch.cuda.empty_cache()
                point = best_point(arms, request)
                answer(arm=point.arm.name, relative=point.relative)
            else:
                point.warm(request["warm_s"])
                answer(times_us=point.times(request["replays"]))


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the parent says it; the traceback is on stderr
        import traceback

        traceback.print_exc()
        fail("failed", f"{type(error).__name__}: {error}")
