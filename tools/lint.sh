#!/usr/bin/env bash
# lint.sh [BUILD_DIR] [JOBS]: format, include directions, spelling, clang-tidy, self-contained public headers.
# BUILD_DIR is configured with the preset `lint`.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/lint}
jobs=${2:-$(nproc)}

step() { printf -- '-- %s\n' "$*"; }

step "clang-format"
find include src cli tests bench fuzz examples \( -name '*.[ch]' -o -name '*.[ch]pp' \) -print0 |
  xargs -0 clang-format-19 --dry-run -Werror

step "include directions"
python3 tools/check_layers.py

step "codespell"
codespell

step "public headers stand alone"
cmake --build "$build" --target all_verify_interface_header_sets -- -j "$jobs" --quiet

# Two headers that define the same name meet in some file sooner or later.
step "all headers go together"
find src -name '*.hpp' -printf '#include "%P"\n' | sort |
  g++ -std=c++20 -Iinclude -Isrc -Wall -Wextra -Wno-missing-field-initializers -Wno-psabi -fsyntax-only -x c++ -

step "clang-tidy"
find src cli -name '*.cpp' -print0 | sort -z |
  xargs -0 -n 1 -P "$jobs" clang-tidy-19 -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option
