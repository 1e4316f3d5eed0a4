#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what the multiply loops of the sm_90a kernels execute per weight, from their machine code. Needs no GPU.

usage: count_sass.py [--check] [--json FILE] OBJECT-OR-BUILD-FOLDER...

A multiply loop is an innermost loop with HMMAs, HGMMAs or QGMMAs. Counted is one turn of it (tools/sass.py): the wait for
weights once, the arrival of one lane, addresses, branches, instructions of the uniform path. 32 lanes execute an
instruction. The A operand of an HMMA.16816 is 16 x 16 weights, to be multiplied with 8 rows of activations; what a warp
brings to an HGMMA.64xNx16 or a QGMMA.64xNx32 in registers is 16 x 16 or 16 x 32 weights, for N rows. Instructions that read the same A multiply the
same weights with other rows. cuobjdump and nvdisasm are looked for on PATH, beside nvcc, and in build/venv.

--check fails above the limits below, on local memory (spills, stack frames) and on a loop that is expected and not
found.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import sass  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARCH = "sm_90a"

# What issues where on compute capability 9.0. Nsight Compute's profiling guide (section Pipelines): ALU executes bit
# manipulation and logic, integer instructions except IMAD and IMUL, comparisons, and conversions of fp32 to fp16; FMA
# executes fp32, IMAD in all its forms, and packed fp16 (fmaheavy and fmalite together); XU transcendentals and
# conversions. The programming guide's throughputs agree: 64 results a clock and multiprocessor for what is in ALU
# here, conversions from FP8 included, 16 for BREV, POPC and FLO. Measured on an H200: BREV 15.9, LOP3 63.2, and 75.2
# for four LOP3 with one BREV, so BREV does not take a slot of ALU. MOV, CS2R and the DPX instructions (VIADD, VIMNMX)
# are taken for ALU, which can only count too many.
PIPES = {
    "alu": """BMSK CS2R F2FP FMNMX FSEL FSET FSETP IABS IADD3 ICMP IMNMX ISETP LEA LOP3 MOV P2R PLOP3 PRMT R2P SEL SGXT
              SHF VABSDIFF VIADD VIADDMNMX VIMNMX VIMNMX3 VOTE""",
    "fma": "FADD FFMA FMUL HADD2 HFMA2 HMNMX2 HMUL2 HSET2 HSETP2 IDP IMAD",
    "xu": "BREV F2F F2I FLO FRND I2F MUFU POPC",
    "tensor": "HGMMA HMMA QGMMA",
    "lsu": "ATOM ATOMG ATOMS LD LDG LDGSTS LDL LDS LDSM RED REDG SHFL ST STG STL STS STSM SYNCS",
    "uniform": """ELECT R2UR UFLO UIADD3 UIMAD UISETP ULEA ULOP3 UMOV UPLOP3 UPOPC UPRMT USEL USHF UBLKCP VOTEU S2UR
                  UP2UR UR2UP""",
    "other": """BAR BRA BREAK BSSY BSYNC CALL DEPBAR ENDCOLLECTIVE ERRBAR EXIT FENCE LDC LEPC MEMBAR NANOSLEEP NOP RET
                S2R ULDC WARPGROUP WARPSYNC YIELD""",
}
# The format of the weights of an arithmetic that has only one.
FORMATS = {"Fp8": ("mxfp4",)}
PIPE_OF = {name: pipe for pipe, names in PIPES.items() for name in names.split()}

# Thread instructions and ALU slots a weight that --check allows: (kernel, arithmetic, format, rows of activations) ->
# limits. The budget of decode loops, which have 8 rows, is 1.9 and 0.8. For more rows the limit is what they measure,
# rounded up. A warp that ptxas does not know to be together behind its wait costs 0.1 to 0.2 a weight: see
# Multiplier::run().
LIMITS = {
    ("experts", "fp16", "mxfp4", 8): (1.9, 0.75),
    ("experts", "fp16", "nvfp4", 8): (1.9, 0.62),
    ("experts", "fp16", "mxfp4", 16): (2.31, 0.75),
    ("experts", "fp16", "nvfp4", 16): (2.04, 0.62),
    ("experts", "fp16", "mxfp4", 24): (2.56, 0.75),
    ("experts", "fp16", "nvfp4", 24): (2.04, 0.62),
    ("experts", "fp16", "mxfp4", 32): (2.83, 0.75),
    ("experts", "fp16", "nvfp4", 32): (2.04, 0.62),
    ("experts", "fp8", "mxfp4", 8): (1.73, 0.58),
    ("experts", "fp8", "mxfp4", 16): (1.85, 0.54),
    ("experts", "fp8", "mxfp4", 24): (2.24, 0.54),
    ("experts", "fp8", "mxfp4", 32): (2.68, 0.54),
    ("small_experts", "fp16", "mxfp4", 8): (1.9, 0.75),
    ("small_experts", "fp16", "nvfp4", 8): (1.9, 0.62),
    ("small_experts", "fp8", "mxfp4", 8): (1.73, 0.54),
}


@dataclasses.dataclass(frozen=True)
class LoopCount:
    at: int  # bytes from the kernel's start
    rows: int  # of activations
    weights: int  # of one turn of a warp
    multiplies: dict  # {"HMMA.16816.F32": how many of one turn}
    pipes: dict  # {pipe: instructions of one turn of a lane}

    @property
    def instructions(self):
        return sum(self.pipes.values())

    @property
    def per_weight(self):
        return self.instructions * 32 / self.weights

    @property
    def alu_per_weight(self):
        return self.pipes["alu"] * 32 / self.weights


@dataclasses.dataclass
class KernelCount:
    symbol: str
    name: str  # "experts"
    kinds: tuple  # ("fp8", "mxfp4"): its arithmetic and the format of its weights
    others: tuple  # ("Direction 1",): its other enumerators
    paces: tuple  # ("7", "5"): stages in flight for 8 rows, for more
    tiles: int  # of 8 rows that it multiplies at most; 0 where its name does not tell
    loops: list
    stray: list  # (address, {"HMMA.16816.F32": how many}) of blocks that multiply in no loop
    local: int  # instructions that load from or store to local memory: spills, arrays not in registers
    moves: list  # registers a thread has after each setmaxnreg
    registers: int = 0  # a thread at entry
    stack_bytes: int = 0

    @property
    def label(self):
        arguments = ", ".join(self.kinds + self.others + self.paces)
        return f"{self.name}<{arguments}>" if arguments else self.name


def block_formats():
    """Names of BlockFormat in their order, from the header that defines it."""
    header = (ROOT / "include/moxie/types.hpp").read_text(encoding="utf-8")
    body = re.search(r"enum class BlockFormat[^{]*\{(.*?)\}", header, re.S)[1]
    return re.findall(r"^\s*(\w+),", body, re.M)


def name_of(symbol):
    """('experts', ('fp16', 'mxfp4'), (), ('7', '5'), 2) of a mangled name; a pace of 0 is left out."""
    name, rest = symbol, symbol.removeprefix("_ZN") if symbol.startswith("_ZN") else ""
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match[0])
        name, rest = rest[match.end() : end], rest[end:]
    if not rest.startswith("I"):
        return name, (), (), (), 0
    enumerators = re.findall(r"\d([A-Z][A-Za-z]+)E(\d+)E", rest)
    kinds = tuple(block_formats()[int(value)] for kind, value in enumerators if kind == "BlockFormat")
    others = tuple(f"{kind} {value}" for kind, value in enumerators if kind != "BlockFormat")
    if name not in ("experts", "small_experts"):
        return name, kinds, others, (), 0
    arithmetic = re.match(r"INS[0-9A-Z]*_\d(Fp\d+)", rest)
    numbers = re.findall(r"Li(\d+)E", rest)
    kinds = kinds or FORMATS.get(arithmetic and arithmetic[1], ())
    if name == "small_experts":
        numbers += ["0", "0"]  # no items of more rows
    if not arithmetic or len(kinds) != 1 or len(numbers) != 3:
        raise sass.Unreadable(f"{symbol}: its template arguments are unknown")
    narrow, wide, tiles = numbers
    paces = (narrow,) if wide == "0" else (narrow, wide)
    return name, (arithmetic[1].lower(), *kinds), others, paces, max(int(tiles), 1)


def shape_of(instruction):
    """(weights of a warp, rows of activations) of an instruction for the tensor cores; None of any other."""
    if not re.search(r"MMA$", instruction.name):
        return None
    text = instruction.name + instruction.suffix
    if text.startswith("HMMA.16816."):
        shape = (256, 8)
    elif match := re.match(r"(?:HGMMA\.64x(\d+)x16|QGMMA\.64x(\d+)x32)\.", text):
        shape = (256, int(match[1])) if match[1] else (512, int(match[2]))
    else:
        shape = None
    if not shape or instruction.register(1) is None:
        raise sass.Unreadable(f"{text} at {instruction.at:#x}: weights of it are unknown")
    return shape


def multiplies_of(instructions):
    """{"HMMA.16816.F32": how many}."""
    return dict(collections.Counter(i.name + i.suffix for i in instructions if shape_of(i)))


def operands_of(turn):
    """[(weights of a warp, rows they are multiplied with)] of each different A operand of a turn."""
    writes, used = collections.Counter(), collections.Counter()
    for instruction in turn:
        if shape := shape_of(instruction):
            first = instruction.register(1)
            weights, rows = shape
            used[(weights, first, *(writes[r] for r in range(first, first + 4)))] += rows
        for register in instruction.written:
            writes[register] += 1
    return [(key[0], rows) for key, rows in used.items()]


def count_loop(kernel, loop):
    turn = kernel.turn(loop, lambda i: shape_of(i) is not None)
    at = kernel.blocks[loop.header][0].at
    operands = operands_of(turn)
    rows = sorted({rows for _, rows in operands})
    if len(rows) != 1:
        raise sass.Unreadable(f"loop at {at:#x}: its weights are multiplied with {rows} rows")
    pipes = dict.fromkeys(PIPES, 0)
    for instruction in turn:
        if instruction.name not in PIPE_OF:
            raise sass.Unreadable(f"{instruction.name} at {instruction.at:#x}: in none of PIPES of count_sass.py")
        pipes[PIPE_OF[instruction.name]] += 1
    return LoopCount(at, rows[0], sum(weights for weights, _ in operands), multiplies_of(turn), pipes)


def count_kernel(symbol, instructions):
    kernel = sass.Kernel(instructions)
    multiplies = {n: found for n, block in enumerate(kernel.blocks) if (found := multiplies_of(block))}
    loops = [
        loop
        for loop in kernel.loops()
        if loop.blocks & multiplies.keys() and not any(inner.blocks & multiplies.keys() for inner in loop.inner)
    ]
    stray = multiplies.keys() - frozenset().union(*(loop.blocks for loop in loops))
    moves = [int(i.operands[-1], 16) for i in instructions if i.name == "USETMAXREG"]
    return KernelCount(
        symbol,
        *name_of(symbol),
        loops=sorted((count_loop(kernel, loop) for loop in loops), key=lambda loop: loop.at),
        stray=[(kernel.blocks[block][0].at, multiplies[block]) for block in sorted(stray)],
        local=sum(i.name in ("LDL", "STL") for i in instructions),
        moves=sorted(set(moves)),
    )


def count(text, resources):
    """[KernelCount] of what cuobjdump says under -sass and -res-usage."""
    kernels = [count_kernel(*item) for item in sass.parse(text).items()]
    used = dict(re.findall(r"^ Function (\S+):\n\s*(.*)$", resources, re.M))
    for kernel in kernels:
        match = re.search(r"REG:(\d+) STACK:(\d+)", used.get(kernel.symbol, ""))
        if not match:
            raise sass.Unreadable(f"{kernel.symbol}: cuobjdump -res-usage does not name its registers")
        kernel.registers, kernel.stack_bytes = int(match[1]), int(match[2])
    return kernels


def problems(kernels):
    """[text]: what --check fails for."""
    found = [] if any(kernel.loops for kernel in kernels) else ["no multiply loop was found: nothing was counted"]
    for kernel in kernels:
        if kernel.local or kernel.stack_bytes:
            found.append(f"{kernel.label}: {kernel.local} accesses to local memory, stack frame {kernel.stack_bytes}")
        # A loop of two steps a turn leaves an odd one behind it: half as many of the same instructions, once.
        halves = [{text: count // 2 for text, count in loop.multiplies.items()} for loop in kernel.loops]
        for at, multiplies in kernel.stray:
            if multiplies in halves:
                halves.remove(multiplies)
            else:
                names = ", ".join(multiplies)
                found.append(f"{kernel.label}: {names} at {at:#x} in no loop that is counted")
        rows = {loop.rows for loop in kernel.loops}
        for wanted in (8 * (n + 1) for n in range(kernel.tiles)):
            if wanted not in rows:
                found.append(f"{kernel.label}: no loop for {wanted} rows, of up to {8 * kernel.tiles}")
        for loop in kernel.loops:
            place = f"{kernel.label}: loop at {loop.at:#x} for {loop.rows} rows"
            limits = LIMITS.get((kernel.name, *kernel.kinds, loop.rows))
            if limits is None:
                found.append(f"{place}: no limit in LIMITS of count_sass.py")
                continue
            values = ((loop.per_weight, "thread instructions"), (loop.alu_per_weight, "ALU slots"))
            for (value, what), limit in zip(values, limits):
                if not value <= limit:
                    found.append(f"{place}: {value:.3f} {what} a weight, at most {limit}")
    return found


def table(kernels):
    """Markdown: a line for a kernel's loops of equal counts, and one per kernel that has none."""
    shown = ("alu", "fma", "xu", "tensor", "lsu", "uniform", "other")
    head = ("registers", "local", "rows", "loops", "weights", "instr./weight", "ALU/weight", *shown)
    lines = [f"| kernel | {' | '.join(head)} |", "|---" + "|--:" * len(head) + "|"]
    for kernel in sorted(kernels, key=lambda k: (not k.loops, k.label)):
        moves = f" ({', '.join(map(str, kernel.moves))})" if kernel.moves else ""
        start = f"| `{kernel.label}` | {kernel.registers}{moves} | {kernel.local} |"
        equal = collections.Counter((loop.rows, loop.weights, *loop.pipes.values()) for loop in kernel.loops)
        for (rows, weights, *pipes), loops in sorted(equal.items()):
            pipes = dict(zip(PIPES, pipes))
            loop = LoopCount(0, rows, weights, {}, pipes)
            values = (rows, loops, weights, f"{loop.per_weight:.3f}", f"{loop.alu_per_weight:.3f}")
            lines.append(f"{start} {' | '.join(map(str, (*values, *(pipes[pipe] for pipe in shown))))} |")
        if not kernel.loops:
            lines.append(start + " |" * (len(head) - 2))
    return "\n".join(lines)


def to_json(kernels):
    return {
        "arch": ARCH,
        "kernels": [
            {
                "kernel": kernel.label,
                "symbol": kernel.symbol,
                "registers": kernel.registers,
                "registers_moved": kernel.moves,
                "stack_bytes": kernel.stack_bytes,
                "local_accesses": kernel.local,
                "loops": [
                    {
                        **dataclasses.asdict(loop),
                        "instructions": loop.instructions,
                        "per_weight": loop.per_weight,
                        "alu_per_weight": loop.alu_per_weight,
                    }
                    for loop in kernel.loops
                ],
            }
            for kernel in kernels
        ],
    }


def find_tool(name):
    folders = [f"{os.environ[root]}/bin" for root in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(root)]
    if nvcc := shutil.which("nvcc"):
        folders.append(str(pathlib.Path(nvcc).resolve().parent))
    folders += map(str, (ROOT / "build/venv").glob("lib/python*/site-packages/nvidia/cu*/bin"))
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    if not found:
        sys.exit(f"{name} is not on PATH, not beside nvcc and not in build/venv: install tools/requirements.txt there")
    return found


def run_cuobjdump(option, path):
    environment = {**os.environ, "NVDISASM_PATH": str(pathlib.Path(find_tool("nvdisasm")).parent)}
    command = [find_tool("cuobjdump"), "-arch", ARCH, option, str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(command)}: {result.stderr.strip() or result.returncode}")
    return result.stdout


def objects_of(argument):
    path = pathlib.Path(argument)
    if path.is_dir():
        found = sorted(path.glob("src/kernels/cuda/sm90/**/*.o"))
        return found or sys.exit(f"{path} holds no object of src/kernels/cuda/sm90: build moxie_kernels_cuda_sm90")
    return [path] if path.exists() else sys.exit(f"{path} does not exist")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="OBJECT-OR-BUILD-FOLDER")
    parser.add_argument("--check", action="store_true", help="fail above the limits")
    parser.add_argument("--json", metavar="FILE", help="write all counts; - is standard output, in place of the table")
    arguments = parser.parse_args()
    kernels = []
    for path in (path for argument in arguments.paths for path in objects_of(argument)):
        try:
            kernels += count(run_cuobjdump("-sass", path), run_cuobjdump("-res-usage", path))
        except sass.Unreadable as reason:
            sys.exit(f"{path}: {reason}")
    if arguments.json != "-":
        print(table(kernels))
    if arguments.json:
        with sys.stdout if arguments.json == "-" else open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(to_json(kernels), file, indent=2)
            file.write("\n")
    found = problems(kernels) if arguments.check else []
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
