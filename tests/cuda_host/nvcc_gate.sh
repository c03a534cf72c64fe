#!/bin/sh
# nvcc_gate.sh ROOT ARCHITECTURE...: compiles the kernels for GPUs (80 = compute capability 8.0) with
# warnings as errors; registers that spill are one. Skipped without nvcc, or where it is too old.
set -eu
root=$1
shift
nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
if ! [ -x "$nvcc" ]; then
  echo "DECANT_SKIPPED: there is no nvcc on PATH or in /usr/local/cuda/bin; install the CUDA Toolkit"
  exit 0
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for architecture; do
  if ! "$nvcc" --list-gpu-code | grep -qx "sm_$architecture"; then
    echo "DECANT_SKIPPED: this nvcc does not know sm_$architecture; it takes a newer CUDA Toolkit"
    exit 0
  fi
  echo "sm_$architecture"
  "$nvcc" -cubin -arch="sm_$architecture" -std=c++20 --expt-relaxed-constexpr -fmad=false -O3 \
    -Xptxas -v,-warn-spills -Werror all-warnings \
    -I"$root" -I"$root/src" -I"$root/include" "$root/cuda/backend.cu" -o "$out/kernels.cubin" \
    >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
  grep -c 'Compiling entry function' "$out/log" | sed 's/$/ kernels, none spills/'
done
