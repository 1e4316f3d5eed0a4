#!/usr/bin/env bash
# cuda_checks.sh [JOBS] [WERROR]: builds the GPU kernels and their test program in build/cuda, and checks what the
# machine code tells without a GPU: spills and stack frames, instructions per weight. 77 (skipped) where nvcc is absent.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-$(nproc)}
werror=${2:-OFF}

nvcc=
for candidate in "${CUDACXX:-}" nvcc "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" \
  /usr/local/cuda/bin/nvcc; do
  if [[ -n $candidate ]] && command -v "$candidate" >/dev/null; then
    nvcc=$(command -v "$candidate")
    break
  fi
done
if [[ -z $nvcc ]]; then
  echo "skipped: no nvcc in CUDACXX, on PATH, in CUDA_HOME or CUDA_PATH, or in /usr/local/cuda"
  exit 77
fi
export CUDACXX=$nvcc
PATH=$(dirname "$nvcc"):$PATH

cmake --preset cuda -DMOXIE_WERROR="$werror"
# ptxas speaks while it compiles and never again: the log must hold every kernel.
find build/cuda -name '*.cu.o' -delete
targets=(moxie_kernels_cuda_portable moxie_kernels_cuda_sm90 moxie_kernels_cuda_gpu_tests)
cmake --build build/cuda --target "${targets[@]}" -- -j "$jobs" 2>&1 | tee build/cuda/build.log |
  sed '/^ptxas info/d; /bytes stack frame, .* bytes spill loads/d'

status=0
tools/check_spills.py build/cuda/build.log || status=1
tools/count_sass.py --check --json build/cuda/count_sass.json build/cuda || status=1
exit "$status"
