#!/usr/bin/env bash
# header_and_doc.sh: moxie.h as plain C11 and as C++, and the C code of docs/abi.md, without a warning.
set -euo pipefail
cd "$(dirname "$0")/../.."

strict=(-Wall -Wextra -Wconversion -Wshadow -Wpedantic -Werror -Iinclude -fsyntax-only)
printf '#include "moxie/moxie.h"\nint only_the_header;\n' | "${CC:-cc}" -std=c11 "${strict[@]}" -x c -
printf '#include "moxie/moxie.h"\n' | "${CXX:-c++}" -std=c++20 "${strict[@]}" -x c++ -
# The C++ headers beside it define the same macro.
printf '#include "moxie/moxie.hpp"\n#include "moxie/moxie.h"\n' | "${CXX:-c++}" -std=c++20 "${strict[@]}" -x c++ -

code=$(sed -n '/^```c$/,/^```$/{/^```/d;p}' docs/abi.md)
if ! grep -q moxie_forward <<<"$code"; then
  echo "docs/abi.md holds no C code"
  exit 1
fi
"${CC:-cc}" -std=c11 "${strict[@]}" -x c - <<<"$code"
echo "the header and the code of docs/abi.md compile"
