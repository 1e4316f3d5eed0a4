#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds GPU kernels that spill registers or keep a stack frame, in the log of a build with MOXIE_CUDA.

usage: check_spills.py BUILD-LOG. The log is what nvcc prints under -Xptxas=-v, which MoxieCuda.cmake sets.
"""

import re
import sys

# Part of a kernel's mangled name -> why it may.
ALLOWED = {}

KERNEL = re.compile(r"Function properties for (\S+)")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")


def problems(lines):
    """(kernels seen, [text])."""
    seen, found, kernel, arch = 0, [], None, None
    for line in lines:
        if match := ENTRY.search(line):
            arch = match[2]
        elif match := KERNEL.search(line):
            kernel = match[1]
        elif (match := FRAME.search(line)) and kernel:
            seen += 1
            frame, stores, loads = map(int, match.groups())
            if (frame or stores or loads) and not any(part in kernel for part in ALLOWED):
                found.append(f"{kernel} ({arch}): stack frame {frame}, spill stores {stores}, spill loads {loads}")
            kernel = None
    return seen, found


def self_test():
    log = [
        "ptxas info    : Compiling entry function 'k' for 'sm_90'",
        "ptxas info    : Function properties for k",
        "    {} bytes stack frame, {} bytes spill stores, {} bytes spill loads",
    ]
    for numbers, bad in (((0, 0, 0), 0), ((8, 0, 0), 1), ((0, 4, 0), 1), ((0, 0, 4), 1)):
        seen, found = problems([*log[:2], log[2].format(*numbers)])
        if seen != 1 or len(found) != bad:
            sys.exit(f"self-test: {numbers} gave {found}")
    print("self-test: frames and spills are found")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit()
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        seen, found = problems(log)
    print("\n".join(found) or f"{seen} kernels without a spill or a stack frame")
    if seen == 0:
        print("the log holds no kernel: nothing was compiled")
    sys.exit(1 if found or seen == 0 else 0)
