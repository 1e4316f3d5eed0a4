#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of `moxie bench --vs ggml` against moxie: the same experts must give nearly the same result.

    tests/cli/ggml_check.py MOXIE

Both formats, several experts and tokens, few and many threads. 77 (skipped) where llama-cpp-python is absent.
"""

import importlib.util
import json
import subprocess
import sys

if importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("numpy") is None:
    print("skipped: llama-cpp-python is absent")
    sys.exit(77)

MOXIE = sys.argv[1]
COMMON = ("--problem", "tiny", "--tokens", "1,5", "--samples", "1", "--vs", "ggml", "--python", sys.executable, "--json", "-q")


def cold_records(*options):
    lines = subprocess.run((MOXIE, "bench", *COMMON, *options), check=True, capture_output=True, text=True).stdout
    records = [json.loads(line) for line in lines.splitlines()]
    assert len(records) == 4, records
    assert all(("vs" in record) == (record["timing"]["mode"] == "cold") for record in records), records
    return [record for record in records if "vs" in record]


for options, arms in ((("--format", "mxfp4"), {"ggml plain", "ggml repacked"}), (("--format", "nvfp4"), {"ggml plain"}),
                      (("--threads", "1", "--top-k", "1"), {"ggml plain", "ggml repacked"})):
    for record in cold_records(*options):
        other = record["vs"]
        assert {arm["arm"] for arm in other["arms"]} <= arms, other
        assert other["arm"] in arms and 1e-4 < other["relative"] < other["limit"] == 0.03, other
        assert other["timing"]["samples"] >= 2 and other["timing"]["median_us"] > 0 and other["ratio"] > 0, other
        print(options, record["problem"]["tokens"], other["arm"], f"relative {other['relative']:.4f}")
print("6 passed, 0 failed")
