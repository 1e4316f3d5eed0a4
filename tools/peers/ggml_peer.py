#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The other arm of `moxie bench --vs ggml`: a MoE layer as one graph of ggml's CPU backend, through ctypes.

usage: ggml_peer.py ggml FOLDER. FOLDER holds problem.json and weights.bin as bench writes them: for every expert its
tensors as a checkpoint holds them. The libraries are those of the package llama-cpp-python.
Speaks JSON, one object a line: a greeting, then an answer to each line of stdin:
  {"do": "point", "folder": F, "tokens": T, "sets": R, "limit": L}  builds a graph, compares with moxie's results in F
  {"do": "go", "replays": N}  one call that is not counted, then N, the sets in turn; microseconds and waits of each
An answer with "error" ends the process. Inside the timed region: three MUL_MAT_ID, activation, weighted sum. Outside:
copying x, ids and weights into the graph. Activations become int8 in blocks of 32, which is ggml's own choice.
"""

import ctypes
import importlib.util
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
except ImportError as missing:
    fail("missing", f"{missing}; this arm needs numpy and llama-cpp-python")

F32, I32, MXFP4, NVFP4 = 0, 26, 39, 40  # enum ggml_type
WEIGHTS_USAGE = 1  # enum ggml_backend_buffer_usage
P, SIZE, INT, I64, F32_ARG = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64, ctypes.c_float


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", SIZE), ("mem_buffer", P), ("no_alloc", ctypes.c_bool)]


class Ggml:
    """The functions that are used, with their types."""

    TYPES = {
        "ggml_init": (P, InitParams), "ggml_free": (None, P), "ggml_version": (ctypes.c_char_p,),
        "ggml_new_tensor_2d": (P, P, INT, I64, I64), "ggml_new_tensor_3d": (P, P, INT, I64, I64, I64),
        "ggml_log_set": (None, P, P), "ggml_set_input": (None, P), "ggml_set_output": (None, P), "ggml_nbytes": (SIZE, P),
        "ggml_mul_mat_id": (P, P, P, P, P), "ggml_mul": (P, P, P, P), "ggml_add": (P, P, P, P),
        "ggml_swiglu_split": (P, P, P, P), "ggml_swiglu_clamp": (P, P, P, P, F32_ARG),
        "ggml_view_2d": (P, P, P, I64, I64, SIZE, SIZE), "ggml_cont": (P, P, P),
        "ggml_new_graph": (P, P), "ggml_build_forward_expand": (None, P, P),
        "ggml_gallocr_new": (P, P), "ggml_gallocr_alloc_graph": (ctypes.c_bool, P, P), "ggml_gallocr_free": (None, P),
        "ggml_backend_alloc_ctx_tensors_from_buft": (P, P, P), "ggml_backend_buffer_set_usage": (None, P, INT),
        "ggml_backend_tensor_set": (None, P, P, SIZE, SIZE), "ggml_backend_tensor_get": (None, P, P, SIZE, SIZE),
        "ggml_backend_graph_compute": (INT, P, P), "ggml_backend_get_device": (P, P),
        "ggml_backend_dev_backend_reg": (P, P), "ggml_backend_dev_buffer_type": (P, P),
        "ggml_backend_dev_supports_op": (ctypes.c_bool, P, P),
        "ggml_backend_reg_get_proc_address": (P, P, ctypes.c_char_p), "ggml_backend_buft_name": (ctypes.c_char_p, P),
        "ggml_backend_cpu_init": (P,), "ggml_backend_cpu_set_n_threads": (None, P, INT),
    }

    def __init__(self, folder):
        try:
            self.libraries = [ctypes.CDLL(str(folder / f"lib{name}.so"), mode=ctypes.RTLD_GLOBAL)
                              for name in ("ggml-base", "ggml-cpu")]
        except OSError as error:
            fail("missing", f"{error}; pip install llama-cpp-python")
        for name, (result, *arguments) in self.TYPES.items():
            function = next((getattr(one, name) for one in self.libraries if hasattr(one, name)), None)
            if function is None:
                fail("unsupported", f"this llama-cpp-python has no {name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)
        self.quiet = ctypes.CFUNCTYPE(None, INT, ctypes.c_char_p, P)(lambda *_: None)  # it reports every tensor
        self.log_set(ctypes.cast(self.quiet, P), None)
        self.backend = self.backend_cpu_init()
        self.device = self.backend_get_device(self.backend)

    def context(self):
        return self.init(InitParams(1 << 20, None, True))

    def buffer_types(self):
        """(name, type) of the plain memory and of what repacks weights."""
        found = [("plain", self.backend_dev_buffer_type(self.device))]
        address = self.backend_reg_get_proc_address(self.backend_dev_backend_reg(self.device),
                                                    b"ggml_backend_dev_get_extra_bufts")
        if address:
            extra = ctypes.CFUNCTYPE(ctypes.POINTER(P), P)(address)(self.device)
            at = 0
            while extra and extra[at]:
                if self.backend_buft_name(extra[at]) == b"CPU_REPACK":
                    found.append(("repacked", extra[at]))
                at += 1
        return found


class Weights:
    """A layer's experts as moxie wrote them, and as ggml's blocks."""

    def __init__(self, folder, problem):
        self.problem = problem
        self.experts, self.hidden, self.inter = (problem[key] for key in ("experts", "hidden", "inter"))
        blobs = np.memmap(folder / "weights.bin", dtype=np.uint8, mode="r")
        self.blobs = blobs.reshape(self.experts, problem["stride"])
        self.nvfp4 = problem["format"] == "nvfp4"
        self.type = NVFP4 if self.nvfp4 else MXFP4
        unit = 64 if self.nvfp4 else 32
        if self.hidden % unit or self.inter % unit:
            fail("unsupported", f"widths that are no multiples of {unit}")
        if problem["activation"] not in ("silu", "clamped_swiglu") or "gate_bias" in problem["segments"]:
            fail("unsupported", f"activation {problem['activation']}, or biases")

    def part(self, name, expert):
        segment = self.problem["segments"][name]
        rows, row_bytes = segment["rows"], segment["row_bytes"]
        return self.blobs[expert, segment["offset"] : segment["offset"] + rows * row_bytes].reshape(rows, row_bytes)

    def multipliers(self, name):
        if not self.nvfp4:
            return None
        key = f"{name}_dequant_mul"
        return np.concatenate([self.part(key, expert).reshape(-1)[:4].view(np.float32) for expert in range(self.experts)])

    @staticmethod
    def halves(codes, half):
        """Neighbours in one byte, as in checkpoints, to elements half a group apart, as in ggml; `half` is half a group
        as one unsigned number."""
        pairs = np.ascontiguousarray(codes).view(half).reshape(-1, 2)
        low, high = (np.frombuffer(bytes([mask]) * half().itemsize, dtype=half)[0] for mask in (0x0F, 0xF0))
        first, second, four = pairs[:, 0], pairs[:, 1], half(4)
        out = np.empty((len(pairs), 2 * half().itemsize), dtype=np.uint8)
        out[:, 0::2] = ((first & low) | ((second & low) << four)).view(np.uint8).reshape(len(pairs), -1)
        out[:, 1::2] = (((first >> four) & low) | (second & high)).view(np.uint8).reshape(len(pairs), -1)
        return out

    def blocks(self, name):
        """All experts of one projection, [experts, rows, blocks, block bytes]."""
        rows = self.problem["segments"][name]["rows"]
        width = self.problem["segments"][name]["row_bytes"] * 2
        group, scales = (64, 4) if self.nvfp4 else (32, 1)
        out = np.empty((self.experts, rows * width // group, scales + group // 2), dtype=np.uint8)
        for expert in range(self.experts):
            out[expert, :, :scales] = self.part(f"{name}_scale", expert).reshape(-1, scales)
            halves = self.halves(self.part(name, expert), np.uint32 if self.nvfp4 else np.uint64)
            out[expert, :, scales:] = halves.reshape(-1, group // 2)
        return out


class Arm:
    """The layer's weights in one kind of memory."""

    SHAPES = {"gate": ("hidden", "inter"), "up": ("hidden", "inter"), "down": ("inter", "hidden")}

    def __init__(self, ggml, weights, name, buffer_type):
        self.name = f"ggml {name}"
        context = ggml.context()
        self.tensors = {key: ggml.new_tensor_3d(context, weights.type, *(getattr(weights, width) for width in shape),
                                                weights.experts) for key, shape in self.SHAPES.items()}
        self.buffer = ggml.backend_alloc_ctx_tensors_from_buft(context, buffer_type)
        if not self.buffer:
            fail("failed", f"no memory for {self.name}")
        ggml.backend_buffer_set_usage(self.buffer, WEIGHTS_USAGE)

    def fill(self, ggml, name, blocks):
        ggml.backend_tensor_set(self.tensors[name], blocks.ctypes.data, 0, blocks.nbytes)


def arms_of(ggml, weights):
    """MXFP4 can be repacked; NVFP4 can not, and its memory is the plain one."""
    types = [one for one in ggml.buffer_types() if one[0] == "plain" or not weights.nvfp4]
    arms = [Arm(ggml, weights, *one) for one in types]
    for name in Arm.SHAPES:
        blocks = weights.blocks(name)
        for arm in arms:
            arm.fill(ggml, name, blocks)
    return arms


def read_sets(folder, request, weights):
    sets = []
    top_k = weights.problem["top_k"]
    muls = {name: weights.multipliers(name) for name in Arm.SHAPES}
    for number in range(request["sets"]):
        bf16 = [(np.fromfile(folder / f"{number}.{name}", dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)
                for name in ("x", "y")]
        ids = np.fromfile(folder / f"{number}.ids", dtype=np.int32) - weights.problem["first_expert"]
        if ids.min() < 0 or ids.max() >= weights.experts or len(ids) != request["tokens"] * top_k:
            fail("unsupported", "slots of experts that are not here")
        one = {"x": bf16[0], "moxie": bf16[1], "ids": ids,
               "weights": np.fromfile(folder / f"{number}.weights", dtype=np.float32)}
        if weights.nvfp4:
            one["gate_mul"], one["up_mul"] = muls["gate"][ids], muls["up"][ids]
            one["weights"] = one["weights"] * muls["down"][ids]
        sets.append(one)
    return sets


class Point:
    """One arm's graph for so many tokens, whose inputs are exchanged."""

    def __init__(self, ggml, weights, arm, sets, tokens):
        self.ggml, self.arm, self.sets, self.next = ggml, arm, sets, 0
        self.context = ggml.context()
        top_k = weights.problem["top_k"]
        new, at = ggml.new_tensor_3d, self.context
        self.inputs = {"x": new(at, F32, weights.hidden, 1, tokens), "ids": ggml.new_tensor_2d(at, I32, top_k, tokens)}
        for name in ("weights", "gate_mul", "up_mul") if weights.nvfp4 else ("weights",):
            self.inputs[name] = new(at, F32, 1, top_k, tokens)
        for tensor in self.inputs.values():
            ggml.set_input(tensor)
        product = {name: ggml.mul_mat_id(at, arm.tensors[name], self.inputs["x"], self.inputs["ids"])
                   for name in ("gate", "up")}
        if weights.nvfp4:
            product = {name: ggml.mul(at, one, self.inputs[f"{name}_mul"]) for name, one in product.items()}
        if weights.problem["activation"] == "silu":
            act = ggml.swiglu_split(at, product["gate"], product["up"])
        else:
            act = ggml.swiglu_clamp(at, product["gate"], product["up"], weights.problem["limit"])
        down = ggml.mul_mat_id(at, arm.tensors["down"], act, self.inputs["ids"])
        if not ggml.backend_dev_supports_op(ggml.device, down):
            fail("unsupported", f"{arm.name} does not multiply these weights")
        down = ggml.mul(at, down, self.inputs["weights"])
        row = 4 * weights.hidden
        parts = [ggml.view_2d(at, down, weights.hidden, tokens, top_k * row, k * row) for k in range(top_k)]
        total = parts[0] if top_k > 1 else ggml.cont(at, parts[0])
        for part in parts[1:]:
            total = ggml.add(at, total, part)
        ggml.set_output(total)
        self.total, self.y = total, np.empty(tokens * weights.hidden, dtype=np.float32)
        self.graph = ggml.new_graph(at)
        ggml.build_forward_expand(self.graph, total)
        self.allocator = ggml.gallocr_new(ggml.backend_dev_buffer_type(ggml.device))
        if not ggml.gallocr_alloc_graph(self.allocator, self.graph):
            fail("failed", "no memory for the graph")
        self.relative = max(self.distance(one) for one in sets)

    def close(self):
        self.ggml.gallocr_free(self.allocator)
        self.ggml.free(self.context)

    def call(self, one):
        """Microseconds, and the share of them that this process waited for a core."""
        for name, tensor in self.inputs.items():
            self.ggml.backend_tensor_set(tensor, one[name].ctypes.data, 0, one[name].nbytes)
        waited, begin = run_delay_ns(), time.perf_counter_ns()
        status = self.ggml.backend_graph_compute(self.ggml.backend, self.graph)
        taken = time.perf_counter_ns() - begin
        if status != 0:
            fail("failed", f"ggml answers {status}")
        return taken * 1e-3, max(run_delay_ns() - waited, 0) / taken

    def distance(self, one):
        self.call(one)
        self.ggml.backend_tensor_get(self.total, self.y.ctypes.data, 0, self.y.nbytes)
        error = np.linalg.norm(self.y.astype(np.float64) - one["moxie"]) / np.linalg.norm(one["moxie"].astype(np.float64))
        return float(error) if np.isfinite(error) else 1e300

    def calls(self, count):
        made = []
        for _ in range(1 + count):
            made.append(self.call(self.sets[self.next % len(self.sets)]))
            self.next += 1
        return made[1:]


def run_delay_ns():
    """What the threads of this process waited for a core, as the scheduler counts it; 0 where it does not."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError, ValueError):
            pass
    return total


def best_point(ggml, weights, arms, request):
    """The fastest arm whose result is near moxie's, or the nearest; and what there was to choose from."""
    sets = read_sets(pathlib.Path(request["folder"]), request, weights)
    points = [Point(ggml, weights, arm, sets, request["tokens"]) for arm in arms]
    times = [sorted(us for us, _ in point.calls(3))[1] for point in points]
    tried = [{"arm": point.arm.name, "relative": point.relative, "median_us": us} for point, us in zip(points, times)]
    near = [(us, number) for number, us in enumerate(times) if points[number].relative <= request["limit"]]
    best = min(near)[1] if near else min(range(len(points)), key=lambda number: points[number].relative)
    for number, point in enumerate(points):
        if number != best:
            point.close()
    return points[best], tried


def main():
    folder = pathlib.Path(sys.argv[2])
    package = importlib.util.find_spec("llama_cpp")
    if package is None or package.origin is None:
        fail("missing", "no module llama_cpp; pip install llama-cpp-python")
    ggml = Ggml(pathlib.Path(package.origin).parent / "lib")
    problem = json.loads((folder / "problem.json").read_text())
    ggml.backend_cpu_set_n_threads(ggml.backend, problem["threads"])
    weights = Weights(folder, problem)
    arms = arms_of(ggml, weights)
    version = ggml.version().decode()
    answer(ready=True, versions={"python": sys.version.split()[0], "ggml": version})
    point = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "point":
            if point is not None:
                point.close()
            point, tried = best_point(ggml, weights, arms, request)
            answer(arm=point.arm.name, relative=point.relative, arms=tried)
        else:
            made = point.calls(request["replays"])
            answer(times_us=[us for us, _ in made], core_wait=[wait for _, wait in made])


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the parent says it; the traceback is on stderr
        import traceback

        traceback.print_exc()
        fail("failed", f"{type(error).__name__}: {error}")
