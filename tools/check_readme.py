#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of README.md, so that none of them can rot.

Commands are the lines of ```sh blocks that begin with `$ `, `moxie ` or `make `; a trailing backslash continues one.
`make X` is only checked to be a target of the Makefile, `cd` and `git clone` are not run. Everything else runs in one
temporary folder with the built moxie first in PATH and has to succeed; `# exit N` at its end asks for that status.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOT_RUN = re.compile(r"(cd|git clone)\b")
EXPECTED_STATUS = re.compile(r"#\s*exit (\d+)\s*$")


def commands(markdown):
    """(line number, command) of every command in a fenced sh block."""
    inside, started, text = False, 0, ""
    for number, line in enumerate(markdown.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside and line.strip() == "```sh"
            continue
        line = line.strip()
        if not inside or not (text or re.match(r"\$ |(moxie|make)\b", line)):
            continue
        started = started if text else number
        text += line.removeprefix("$ ") if not text else line
        if text.endswith("\\"):
            text = text[:-1]
            continue
        yield started, text
        text = ""


def failure(command, folder, environment):
    """Why this command is wrong, or None."""
    if NOT_RUN.match(command):
        return None
    if command.split()[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        words = [word for word in command.split("#")[0].split()[1:] if "=" not in word]
        unknown = [word for word in words if word not in targets]
        return f"no such target: {' '.join(unknown)}" if unknown else None
    status = EXPECTED_STATUS.search(command)
    expected = int(status.group(1)) if status else 0
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )
    if run.returncode != expected:
        return f"exit {run.returncode}, expected {expected}\n{run.stdout}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moxie", required=True, type=pathlib.Path, help="the built command")
    parser.add_argument("readme", nargs="?", type=pathlib.Path, default=ROOT / "README.md")
    arguments = parser.parse_args()

    path = f"{arguments.moxie.resolve().parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    failed = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for line, command in commands(arguments.readme.read_text()):
            count += 1
            reason = failure(command, folder, environment)
            print(f"{'FAILED' if reason else 'ok'}: {arguments.readme.name}:{line}: {command}")
            if reason:
                print(reason)
                failed += 1
    if not count:
        print("no command found")
    sys.exit(1 if failed or not count else 0)


if __name__ == "__main__":
    main()
