#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the ids of known cases, pitfalls and laws that no test carries yet.

A test carries an id in its name or in a comment: `P-03` (in a name `P03` or `P_03`), `pit27`, `B5`, `C17`.
`pit27-30` and `R-01..R-04` stand for every id in between. With --require, a missing id of REQUIRED is a failure.
"""

import argparse
import collections
import pathlib
import re
import sys


def ids(prefix, *ranges, width=0):
    return [
        f"{prefix}{number:0{width}}"
        for first, last in ((r, r) if isinstance(r, int) else r for r in ranges)
        for number in range(first, last + 1)
    ]


REQUIRED = [
    *ids("R-", (1, 14), width=2),
    *ids("P-", (1, 6), width=2),
    *ids("L-", (1, 5), width=2),
    *ids("Q-", (1, 9), width=2),
    *ids("S-", (1, 9), width=2),
    *ids("K-", (1, 16), width=2),
    *ids("D-", (1, 5), width=2),
    *ids("C-", (1, 6), width=2),
    *ids("pit", (1, 49), (51, 72), (76, 81)),
    *ids("B", (1, 11)),
    *ids("C", 1, 2, (4, 17)),
]

KNOWN = [
    *ids("R-", (1, 14), width=2),
    *ids("P-", (1, 6), width=2),
    *ids("Q-", (1, 9), width=2),
    *ids("L-", (1, 5), width=2),
    *ids("S-", (1, 9), width=2),
    *ids("K-", (1, 16), width=2),
    *ids("D-", (1, 5), width=2),
    *ids("C-", (1, 6), width=2),
    *ids("pit", (1, 81)),
    *ids("B", (1, 11)),
    *ids("C", (1, 17)),
]

EDGE = r"(?<![A-Za-z0-9])"
CASE = re.compile(EDGE + r"(?!C[1-9])([RPQLSKDC])[-_]?(\d\d)(?!\d)(?:(?:\.\.|…|–)(?:\1-)?(\d\d)(?!\d))?")
PITFALL = re.compile(EDGE + r"[pP]it(\d{1,2})(?!\d)(?:(?:\.\.|…|–|-)(?:pit)?(\d{1,2})(?!\d))?")
LAW = re.compile(EDGE + r"([BC])(\d{1,2})(?:[a-c])?(?![A-Za-z0-9])")


def ids_of(line):
    for letter, first, last in CASE.findall(line):
        yield from ids(f"{letter}-", (int(first), int(last or first)), width=2)
    for first, last in PITFALL.findall(line):
        yield from ids("pit", (int(first), int(last or first)))
    for letter, number in LAW.findall(line):
        # "C17" is a law, "C01" the case C-01.
        if not number.startswith("0"):
            yield f"{letter}{number}"


def carriers(folder):
    """Id -> the files that carry it. In sources only comments and test names count."""
    found = collections.defaultdict(set)
    for file in sorted(folder.rglob("*")):
        if file.suffix not in {".cpp", ".hpp", ".py", ".sh"}:
            continue
        for line in file.read_text().splitlines():
            comment = line.partition("//" if file.suffix in {".cpp", ".hpp"} else "#")[2]
            name = re.search(r"\b(?:TYPED_)?TEST(?:_[FP])?\s*\((.*)", line)
            python_name = re.search(r"\bdef (test_\w+)", line)
            text = " ".join([comment, *(match.group(1) for match in (name, python_name) if match)])
            for found_id in ids_of(text):
                found[found_id].add(file.relative_to(folder).as_posix())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--require", action="store_true", help="exit 1 when a required id has no test")
    parser.add_argument("--where", action="store_true", help="print the files that carry each id")
    arguments = parser.parse_args()

    found = carriers(pathlib.Path(__file__).resolve().parent.parent / "tests")
    if arguments.where:
        for name in KNOWN:
            if name in found:
                print(f"{name}: {', '.join(sorted(found[name]))}")
    missing = [name for name in REQUIRED if name not in found]
    other = [name for name in KNOWN if name not in found and name not in REQUIRED]
    print(f"required: {len(REQUIRED) - len(missing)} of {len(REQUIRED)} have a test")
    if missing:
        print(f"required, no test yet: {' '.join(missing)}")
    print(f"not required, no test yet: {' '.join(other)}")
    sys.exit(1 if missing and arguments.require else 0)


if __name__ == "__main__":
    main()
