#!/usr/bin/env bash
# independent_check.sh MOXIE: results of `moxie run` against another implementation, on `tiny` in both formats and all
# plain activation formats, with the model's own router on a hash layer and on a scored one, in every other dialect, and on
# gpt-oss with its biases and its router. A result of other weights fails.
# 77 (skipped) where build/venv is absent.
set -euo pipefail

moxie=$(realpath "$1")
root=$(realpath "$(dirname "$0")/../..")
python=$root/build/venv/bin/python
if ! [ -x "$python" ]; then
  echo "skipped: build/venv is absent (make test creates it)"
  exit 77
fi
check=("$python" "$root/tools/independent_check.py")
work=$(mktemp -d "${TMPDIR:-/tmp}/moxie-independent.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

for format in mxfp4 nvfp4; do
  "$moxie" synth "$format" --model tiny --format "$format" --num-layers 2 --seed 5 -q >/dev/null
  "$moxie" synth "$format-other" --model tiny --format "$format" --num-layers 2 --seed 6 -q >/dev/null
  for layer in 0 1; do
    "$moxie" run "$format" --layer $layer --routing model --check --output result -q >/dev/null
    echo "$format, layer $layer, the model's routing"
    "${check[@]}" "$format" result --layer $layer --routing model
  done
  for act in bf16 mxfp8 fp8 fp8x2 int8 int8x2; do
    for tp in 1 3; do
      "$moxie" run "$format" --tp $tp --act-format $act --tokens 33 --check --output result -q >/dev/null
      echo "$format, $act, tp $tp"
      "${check[@]}" "$format" result --act-format $act --tp $tp
    done
  done
  if "${check[@]}" "$format-other" result --act-format fp8 --tp 3 >/dev/null; then
    echo "a result of other weights passed"
    exit 1
  fi
done
for dialect in modelopt/nvfp4 compressed-tensors/nvfp4 compressed-tensors/mxfp4 quark/mxfp4; do
  name=${dialect%/*} format=${dialect#*/}
  "$moxie" synth "$name-$format" --model tiny --format "$format" --dialect "$name" -q >/dev/null
  "$moxie" run "$name-$format" --check --output result -q >/dev/null
  echo "$name, $format"
  "${check[@]}" "$name-$format" result
done
for seed in 5 6; do
  "$moxie" synth "gpt-oss-$seed" --model gpt-oss-20b --experts 6 --hidden 160 --inter 352 --num-layers 2 --seed $seed -q \
    >/dev/null
done
for act in bf16 mxfp8; do
  for tp in 1 3; do
    "$moxie" run gpt-oss-5 --layer 1 --routing model --tp $tp --act-format $act --check --output result -q >/dev/null
    echo "gpt-oss, $act, tp $tp"
    "${check[@]}" gpt-oss-5 result --layer 1 --routing model --act-format $act --tp $tp
  done
done
if "${check[@]}" gpt-oss-6 result --layer 1 --act-format mxfp8 --tp 3 >/dev/null; then
  echo "a result of other weights passed"
  exit 1
fi
