#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the demo's tables from documents of `moxie run --check --json`; exit 1 when a check did not pass."""

import json
import pathlib
import sys


def aligned(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def main():
    checks = [["format", "tp", "check", "error/bound", "relative L2", "against unquantised", "stages", "bytes per rank"]]
    times = []
    passed = True
    for path in sys.argv[1:]:
        document = json.loads(pathlib.Path(path).read_text())
        for run in document["runs"]:
            check = run["check"]
            passed = passed and check["passed"]
            checks.append([
                document["problem"]["format"], str(run["tp"]), "passed" if check["passed"] else "FAILED",
                f"{check['max_err_over_bound']:.3f}", f"{check['relative_l2']:.1e}", f"{check['unquantised_l2']:.1e}",
                "passed" if all(stage["passed"] for stage in check["stages"]) else "FAILED",
                f"{max(run['bytes_per_rank']):,}",
            ])
            if not times:
                times.append(["format", "tp", "total ms", *(stage["name"] for stage in run["stages"])])
            times.append([
                document["problem"]["format"], str(run["tp"]), f"{run['timing']['median_us'] / 1e3:.1f}",
                *(f"{stage['median_us'] / 1e3:.2f}" for stage in run["stages"]),
            ])
    print(aligned(checks))
    print()
    print(aligned(times))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
