#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the finding codes in the code against docs/findings.md: each is described, and none is described in vain."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = re.compile(r"MOXIE-[A-Z]\d{3}")


def codes_in(paths):
    return {code for path in paths for code in CODE.findall(path.read_text(encoding="utf-8"))}


def main():
    sources = [p for folder in ("src", "cli") for p in (ROOT / folder).rglob("*.cpp")]
    sources += [p for p in (ROOT / "src").rglob("*.hpp")]
    used = codes_in(sources)
    described = {
        match.group(0)
        for line in (ROOT / "docs/findings.md").read_text(encoding="utf-8").splitlines()
        if (match := re.match(r"\| (MOXIE-[A-Z]\d{3}) \|", line)) and (match := CODE.search(line))
    }
    for code in sorted(used - described):
        print(f"{code} is used but not described in docs/findings.md")
    for code in sorted(described - used):
        print(f"{code} is described in docs/findings.md but not used")
    print(f"{len(used)} finding codes")
    return 1 if used != described else 0


if __name__ == "__main__":
    sys.exit(main())
