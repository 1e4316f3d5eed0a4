#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the codec tables of tests/golden with ml_dtypes, which shares no code with moxie.

    pip install numpy ml_dtypes
    tools/regen_golden.py            # writes the tables
    tools/regen_golden.py --check    # exit 1 if the committed tables differ from a fresh run

Inputs are in the finite range of each format. What lies outside (saturation, NaN, negative UE4M3)
is a choice, moxie's is not that of ml_dtypes, and it is tested from docs/formats.md.
"""

import argparse
import fractions
import math
import pathlib
import random
import sys

import ml_dtypes
import numpy as np

GOLDEN_DIR = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
RANDOM_INPUTS = 1500


def decode_rows(dtype, codes):
    """One row per code: the code and the bits of its value in fp32, or the word nan."""
    carrier = np.arange(codes, dtype=np.uint8)
    values = carrier.view(dtype).astype(np.float32)
    for code, value in zip(carrier, values):
        bits = "nan" if np.isnan(value) else f"0x{value.view(np.uint32):08X}"
        yield f"0x{code:02X},{bits}"


def with_neighbours(value):
    """The fp32 value and the fp32 numbers next to it on both sides."""
    centre = np.float32(value)
    yield np.nextafter(centre, np.float32(-np.inf))
    yield centre
    yield np.nextafter(centre, np.float32(np.inf))


def encode_rows(dtype, inputs):
    """One row per input: its fp32 bits and the bits of the code. Sorted, without repeats."""
    bits = np.array(sorted({int(np.float32(x).view(np.uint32)) for x in inputs}), dtype=np.uint32)
    codes = bits.view(np.float32).astype(dtype)
    width = 2 * codes.itemsize
    carrier = codes.view(np.uint16 if codes.itemsize == 2 else np.uint8)
    for value_bits, code in zip(bits, carrier):
        yield f"0x{value_bits:08X},0x{code:0{width}X}"


def small_float_inputs(dtype, finite_codes, seed):
    """Grid points, midpoints and their neighbours in both signs, and random values in range."""
    grid = np.arange(finite_codes, dtype=np.uint8).view(dtype).astype(np.float64)
    points = list(grid) + [(low + high) / 2 for low, high in zip(grid, grid[1:])]
    inputs = [sign * x for point in points for x in with_neighbours(point) for sign in (1, -1)]
    rng = random.Random(seed)
    largest = float(grid[-1])
    lowest_exponent = math.frexp(grid[1])[1] - 4  # a sixteenth of the smallest code
    highest_exponent = math.frexp(largest)[1]
    for _ in range(RANDOM_INPUTS // 2):
        inputs.append(rng.uniform(-largest, largest))
        exponent = rng.randint(lowest_exponent, highest_exponent)
        inputs.append(math.ldexp(rng.uniform(-1, 1), exponent))
    return [x for x in inputs if abs(np.float32(x)) <= largest]


def bf16_inputs(seed):
    """Random finite fp32 bit patterns; for some of them the midpoint above and its neighbours."""
    rng = random.Random(seed)
    inputs = []
    while len(inputs) < RANDOM_INPUTS:
        bits = rng.getrandbits(32)
        if (bits >> 23) & 0xFF >= 0xFE:  # keeps clear of Inf and of rounding up to it
            continue
        inputs.append(np.uint32(bits).view(np.float32))
        if len(inputs) % 3 == 0:
            inputs.extend(with_neighbours(np.uint32((bits & 0xFFFF0000) | 0x8000).view(np.float32)))
    return inputs


def blocks(elems, count, seed):
    """Rows of fp32 values: normal numbers of very different size per row, some of them halves of the grid, zeros."""
    rng = random.Random(seed)
    rows = []
    for row in range(count):
        size = 2.0 ** rng.uniform(-14, 3)
        kind = row % 4
        values = [size * (rng.gauss(0, 1) if kind else rng.randint(-24, 24) / 4) for _ in range(elems)]
        rows.append([0.0 if kind == 3 and rng.random() < 0.5 else value for value in values])
    rows[1] = [-0.0] * elems
    return np.array(rows, dtype=np.float32)


def hex_list(numbers, width):
    return " ".join(f"0x{int(number):0{width}X}" for number in numbers)


def nvfp4_rows(count, seed):
    """The amax recipe in fp32: one tensor, a block per row, with its global, scale and codes."""
    tensor = blocks(16, count, seed)
    one = np.float32
    dequant_mul = one(np.abs(tensor).max()) / one(2688)
    for values in tensor:
        amax = np.abs(values).max()
        raw = amax / (one(6) * dequant_mul) if amax > 0 else one(1)
        scale = np.clip(raw, one(2.0**-9), one(448)).astype(ml_dtypes.float8_e4m3fn)
        codes = (values / (scale.astype(np.float32) * dequant_mul)).astype(ml_dtypes.float4_e2m1fn)
        yield ",".join([
            f"0x{dequant_mul.view(np.uint32):08X}", hex_list(values.view(np.uint32), 8),
            f"0x{int(scale.view(np.uint8)):02X}", hex_list(codes.view(np.uint8), 1)])


def power_at_most(value):
    """The exponent of the largest power of two that is at most the fraction."""
    exponent = -200
    while fractions.Fraction(2) ** (exponent + 1) <= value:
        exponent += 1
    return exponent


def mxfp4_scales(amax):
    """Scale exponents of the variants ceil, floor and even, in exact fractions."""
    two = fractions.Fraction(2)
    floor = power_at_most(amax)
    ceil = next(k for k in range(-200, 200) if two**k * 6 >= amax)
    even = floor + 1 if amax >= two**floor * fractions.Fraction(7, 4) else floor
    return ceil, floor - 2, even - 2


def mxfp4_rows(count, seed):
    """A group per row, with scale and codes of every variant."""
    for values in blocks(32, count, seed):
        amax = fractions.Fraction(float(np.abs(values).max()))
        cells = [hex_list(values.view(np.uint32), 8)]
        for exponent in mxfp4_scales(amax) if amax else (-127,) * 3:
            scaled = np.clip(values * np.float32(2.0**-exponent), -6, 6)
            codes = scaled.astype(ml_dtypes.float4_e2m1fn)
            cells += [f"0x{exponent + 127:02X}", hex_list(codes.view(np.uint8), 1)]
        yield ",".join(cells)


def tables():
    """File name -> header and rows."""
    e2m1, e4m3 = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn
    e2m1_inputs = small_float_inputs(e2m1, finite_codes=8, seed=1)
    e4m3_inputs = small_float_inputs(e4m3, finite_codes=127, seed=2)
    return {
        "e2m1_decode.csv": ("code,fp32_bits", decode_rows(e2m1, 16)),
        "e4m3fn_decode.csv": ("code,fp32_bits", decode_rows(e4m3, 256)),
        "e8m0_decode.csv": ("code,fp32_bits", decode_rows(ml_dtypes.float8_e8m0fnu, 256)),
        "e2m1_encode.csv": ("fp32_bits,code", encode_rows(e2m1, e2m1_inputs)),
        "e4m3fn_encode.csv": ("fp32_bits,code", encode_rows(e4m3, e4m3_inputs)),
        "bf16_encode.csv": ("fp32_bits,code", encode_rows(ml_dtypes.bfloat16, bf16_inputs(seed=3))),
        "nvfp4_amax.csv": ("dequant_mul_bits,fp32_bits,scale,codes", nvfp4_rows(96, seed=4)),
        "mxfp4_groups.csv": (
            "fp32_bits,ceil_scale,ceil_codes,floor_scale,floor_codes,even_scale,even_codes", mxfp4_rows(64, seed=5)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check

    stale = []
    for name, (header, rows) in tables().items():
        path = GOLDEN_DIR / name
        text = "\n".join([header, *rows]) + "\n"
        if not check:
            path.write_text(text, encoding="ascii", newline="\n")
        elif not path.exists() or path.read_bytes() != text.encode("ascii"):
            stale.append(name)

    for name in stale:
        print(f"{name}: differs from a fresh run", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
