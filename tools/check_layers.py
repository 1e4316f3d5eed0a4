#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares every #include with the table of layers. `--self-test` proves that a wrong include is found."""

import pathlib
import re
import sys
import tempfile

# Layer -> the layers right below it. Everything further down is allowed too.
BELOW = {
    "base": [],
    "device": ["base"],
    "formats": ["base"],
    "catalog": ["formats"],
    "checkpoint": ["formats"],
    "model": ["checkpoint"],
    "plan": ["model", "catalog"],
    "pack": ["plan"],
    "kernels/contract": ["base"],
    "kernels/ref": ["formats"],
    "kernels/route_select": ["kernels/contract", "formats"],
    "kernels/cpu": ["kernels/route_select"],
    "kernels/cuda": ["kernels/route_select", "device"],
    "kernels/registry": ["kernels/cpu", "kernels/cuda", "catalog"],
    "layer": ["pack", "kernels/registry", "device"],
    "probe": ["checkpoint"],
    "verify": ["layer", "probe", "kernels/ref"],
    "measure": ["base", "device"],
    "synth": ["model"],
    "quantize": ["checkpoint"],
    "convert": ["model", "quantize"],
    "certificate": ["quantize", "pack"],
    "report": ["base"],
    "capi": ["layer", "report"],
}
# A public header belongs to the layer of its name; these to base, model and plan; moxie.hpp is for users only, moxie.h is
# capi.
BASE_HEADERS = {"api", "status", "types", "execution", "json"}
MODEL_HEADERS = {"tensors"}
PLAN_HEADERS = {"placement"}
CATALOG_HEADERS = {"engines"}
# Third-party header -> the files outside tests/, bench/ and fuzz/ that may include it.
CONFINED = {
    r"CLI/.*": {"cli/main.cpp", "cli/option_kinds.hpp"},
    r"nlohmann/.*": {"src/base/json_events.cpp"},
    r"xxhash\.h": {"src/base/hash.cpp"},
    r"omp\.h": set(),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".c", ".hpp", ".cpp", ".cuh", ".cu"}
FOLDERS = ("include", "src", "cli", "tests", "bench", "fuzz", "examples")
# What the C ABI may need of C.
C_HEADERS = {"stdbool.h", "stddef.h", "stdint.h"}


def reachable(layer):
    found = {layer}
    for lower in BELOW[layer]:
        found |= reachable(lower)
    return found


def layer_of(path):
    """The layer of a file, "cli", "examples", "free" (may include anything) or None (belongs nowhere)."""
    parts = path.split("/")
    if parts[0] == "src":
        # src/kernels has one layer per folder in it, and its contract.
        name = parts[1] if parts[1] != "kernels" else f"kernels/{parts[2].removesuffix('.hpp')}"
        return name if name in BELOW else None
    if parts[:2] == ["include", "moxie"]:
        name = pathlib.PurePath(path).stem
        if path.endswith(".h"):
            return "capi" if name == "moxie" else None
        if name == "moxie":
            return "free"
        for names, layer in ((BASE_HEADERS, "base"), (MODEL_HEADERS, "model"), (PLAN_HEADERS, "plan"),
                             (CATALOG_HEADERS, "catalog")):
            if name in names:
                return layer
        return name if name in BELOW else None
    return parts[0] if parts[0] in ("cli", "examples") else "free"


def resolve(root, path, name):
    for folder in (pathlib.PurePath(path).parent, "include", "src", "tests", "."):
        if (root / folder / name).is_file():
            return (root / folder / name).resolve().relative_to(root.resolve()).as_posix()
    return None


def problem(root, path, bracket, name):
    """Why this include is wrong, or None."""
    layer = layer_of(path)
    if layer is None:
        return "the file is in no known layer"
    for pattern, files in CONFINED.items():
        if layer != "free" and re.fullmatch(pattern, name) and path not in files:
            return f"<{name}> is confined to {', '.join(sorted(files)) or 'no file at all'}"
    target = resolve(root, path, name)
    if target is None:
        if bracket == '"':
            return "no such file in this project"
        standard = name in C_HEADERS if path.endswith(".h") else re.fullmatch(r"[a-z_]+", name)
        if path.startswith("include/") and not standard:
            return "a public header includes standard and public headers only"
        return None
    if path == "include/moxie/moxie.h":
        return "moxie.h includes standard C headers only"
    if path.startswith("include/") and not target.startswith("include/"):
        return "a public header includes standard and public headers only"
    if layer == "free":
        return None
    if layer in ("cli", "examples"):
        return None if target.startswith(("include/", f"{layer}/")) else f"{layer} sees include/moxie only"
    if layer_of(target) not in reachable(layer):
        return f"{layer} may not include {layer_of(target)} ({target})"
    return None


def check(root):
    problems = []
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.*")):
            if file.suffix not in SUFFIXES:
                continue
            path = file.relative_to(root).as_posix()
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                reason = match and problem(root, path, *match.groups())
                if reason:
                    problems.append(f"{path}:{number}: {line.strip()}: {reason}")
    return problems


def self_test():
    good = {
        "include/moxie/types.hpp": "#include <vector>",
        "include/moxie/plan.hpp": '#include "moxie/types.hpp"',
        "src/base/hash.cpp": "#include <xxhash.h>",
        "src/plan/axis.hpp": '#include "moxie/plan.hpp"',
        "src/pack/pack.cpp": '#include "plan/axis.hpp"',
        "cli/main.cpp": "#include <CLI/CLI.hpp>",
        "include/moxie/moxie.h": "#include <stdint.h>",
        "src/capi/plan.cpp": '#include "moxie/moxie.h"',
        "examples/call.c": '#include "moxie/moxie.h"',
        "tests/pack/pack_test.cpp": '#include "plan/axis.hpp"',
        "tests/base/json_test.cpp": "#include <nlohmann/json.hpp>",
    }
    bad = [
        ("src/plan/upward.cpp", '#include "moxie/pack.hpp"'),
        ("src/report/sideways.cpp", '#include "plan/axis.hpp"'),
        ("src/plan/json.cpp", "#include <nlohmann/json.hpp>"),
        ("src/base/threads.cpp", "#include <omp.h>"),
        ("src/kernels/ref/reference.cpp", '#include "kernels/cpu/portable/experts.hpp"'),
        ("src/kernels/ref/reference.cpp", '#include "moxie/pack.hpp"'),
        ("src/kernels/cpu/portable/route.cpp", '#include "moxie/plan.hpp"'),
        ("src/kernels/cpu/portable/route.cpp", '#include "kernels/ref/reference.hpp"'),
        ("src/layer/layer.cpp", '#include "kernels/ref/reference.hpp"'),
        ("src/kernels/cuda/portable/experts.cu", '#include "kernels/cpu/portable/route.hpp"'),
        ("src/kernels/other.cpp", "#include <vector>"),
        ("src/base/lost.cpp", '#include "base/absent.hpp"'),
        ("src/other/lost.cpp", "#include <vector>"),
        ("include/moxie/synth.hpp", "#include <fmt/core.h>"),
        ("include/moxie/model.hpp", '#include "moxie/plan.hpp"'),
        ("include/moxie/checkpoint.hpp", '#include "plan/axis.hpp"'),
        ("src/base/whole.cpp", '#include "moxie/moxie.hpp"'),
        ("cli/plan.cpp", '#include "plan/axis.hpp"'),
        ("cli/plan.cpp", "#include <CLI/CLI.hpp>"),
        ("include/moxie/moxie.h", "#include <string>"),
        ("include/moxie/moxie.h", '#include "moxie/plan.hpp"'),
        ("include/moxie/other.h", "#include <stdint.h>"),
        ("src/layer/layer.cpp", '#include "moxie/moxie.h"'),
        ("examples/call.c", '#include "plan/axis.hpp"'),
    ]
    good["src/kernels/ref/reference.hpp"] = good["src/kernels/cpu/portable/experts.hpp"] = ""
    good["src/kernels/cpu/portable/route.hpp"] = ""
    good["include/moxie/pack.hpp"] = good["include/moxie/moxie.hpp"] = ""
    for extra in [None, *bad]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in [*good.items(), *([extra] if extra else [])]:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text + "\n")
            found = check(root)
        if len(found) != (1 if extra else 0):
            sys.exit(f"self-test: {extra or 'the clean tree'} gave {found}")
    print(f"self-test: a clean tree passes, {len(bad)} wrong includes are found")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit()
    found = check(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(found) or "every include points downwards")
    sys.exit(1 if found else 0)
