#!/usr/bin/env bash
# The main job, end to end: one DeepSeek-V4-Flash layer at full width, planned for three ranks, packed, proven byte for
# byte; one wrong byte is planted in a copy and found; then 64 tokens go through the layer on three ranks and on one, and
# every output is held against a reference in double precision. Once in MXFP4, once in NVFP4.
# Usage: tools/demo.sh path/to/moxie
set -euo pipefail

moxie=$(realpath "${1:-build/release/bin/moxie}")
tables=$(realpath "$(dirname "$0")/demo_tables.py")
work=$(mktemp -d "${TMPDIR:-/tmp}/moxie-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

show() {
  printf '\n$ moxie %s\n' "$*"
  "$moxie" "$@"
}

# The first whole number under a key of a JSON document on stdin.
number() { sed -n 's/^ *"'"$1"'": \([0-9][0-9]*\).*/\1/p' | head -n 1; }

# Replaces the byte in the middle of a file by its complement.
plant() {
  local middle byte
  middle=$(($(stat -c %s "$1") / 2))
  byte=$(od -An -tu1 -j "$middle" -N 1 "$1" | tr -d ' ')
  # shellcheck disable=SC2059
  printf "\\x$(printf %02x $((byte ^ 255)))" | dd of="$1" bs=1 seek="$middle" conv=notrunc status=none
  echo "byte $middle of $1: $byte -> $((byte ^ 255))"
}

failed=0
rows=()
for format in mxfp4 nvfp4; do
  started=$SECONDS
  printf '\n=== DeepSeek-V4-Flash, one layer, 16 experts, %s, three ranks ===\n' "$format"
  show synth layer --model deepseek-v4-flash --format "$format" --seed 1
  show inspect layer
  show plan layer --tp 3 --kernel-align 128
  show pack layer --out packed --tp 3 --kernel-align 128
  show verify packed --against layer || failed=1
  proven=$("$moxie" verify packed --against layer --json -q | number real_bytes)

  printf '\nPlant one wrong byte in a copy and look for it:\n'
  cp -r packed planted
  plant planted/rank-001/model-00000.safetensors
  if show verify planted --against layer; then
    found="MISSED"
    failed=1
  else
    found="found"
  fi
  printf '\nRun 64 tokens on three ranks and on one, and check every output:\n'
  printf '\n$ moxie run layer --tp 1,3 --kernel-align 128 --tokens 64 --check\n'
  "$moxie" run layer --tp 1,3 --kernel-align 128 --tokens 64 --check --json >"run-$format.json" || failed=1
  plan=$("$moxie" plan layer --tp 3 --kernel-align 128 --json -q)
  rows+=("$format|$(number virtual <<<"$plan")|$(number local <<<"$plan")|$(number kernel <<<"$plan")|$proven|$found|$((SECONDS - started)) s")
  rm -rf layer packed planted
done

printf '\n=== Verdict: bytes ===\n'
{
  echo "format|virtual|logical|kernel|bytes proven|planted byte|time"
  printf '%s\n' "${rows[@]}"
} | column -t -s '|'
printf '\n=== Verdict: numbers, 64 tokens, top 6 of 16 experts ===\n'
python3 "$tables" run-mxfp4.json run-nvfp4.json || failed=1
if ((failed)); then
  echo "FAILED"
  exit 1
fi
echo "Every byte of every expert is on exactly one rank, every tail is zero, and a single wrong byte is named."
echo "Every output of three ranks and of one is within the derived bound of the double-precision reference."
