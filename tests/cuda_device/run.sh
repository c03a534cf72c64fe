#!/bin/sh
# run.sh [OUTPUT.json]: the CUDA backend on this machine's GPU, in under four minutes once it is built.
# Builds for the GPU that is there, in build/cuda_device, then:
#   kernels    each against the same source on the processor; rows alone and among others, bit for bit
#   models     tiny ones on the GPU: reference logits; the same bits for every chunk and batch;
#              schedules, forks, prefixes
#   tokens     of a real model, against those of the CPU backend
#   sanitizer  compute-sanitizer, memory and races, on the kernels with short sequences
#   rates      bytes a second of each kernel that streams, and tokens a second of the real model
# Writes one JSON object to OUTPUT (default build/cuda_device/report.json) and prints it. Exit status:
# 0 all passed, 1 something failed, 77 there is no GPU (or no CUDA Toolkit) and nothing was tested.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$here" || exit 1
. "$here/examples/setup.sh"
out=$here/build/cuda_device
report=${1:-$out/report.json}

nothing() {
  echo "nothing was tested: $1"
  exit 77
}
command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU' ||
  nothing "there is no NVIDIA GPU here, or its driver does not answer (nvidia-smi -L)"
nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
[ -x "$nvcc" ] || nothing "there is no nvcc on PATH or in /usr/local/cuda/bin; install the CUDA Toolkit"
PATH=$(dirname "$nvcc"):$PATH

mkdir -p "$out/parts"
rm -f "$out"/parts/*
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 | tr -d .)
cmake -S . -B "$out" -DCMAKE_BUILD_TYPE=Release -DDECANT_CUDA=ON -DDECANT_TESTS=ON \
  -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="$capability-real" >"$out/parts/log" 2>&1 &&
  cmake --build "$out" -j --target decant_cli decant_cuda_device decant_cuda_models \
    >>"$out/parts/log" 2>&1 || { tail -50 "$out/parts/log"; echo "it does not build"; exit 1; }

model=$(fetch_model smollm2) || model=
device=$out/tests/decant_cuda_device
models=$out/tests/decant_cuda_models
failed=0

# part NAME COMMAND...: its output goes to a file of the name, its exit status into the report.
part() {
  name=$1
  shift
  "$@" >"$out/parts/$name" 2>"$out/parts/$name.errors"
  status=$?
  echo "$status" >"$out/parts/$name.status"
  [ "$status" = 0 ] || failed=1
}

part kernels timeout 40 "$device" cases
# Not those cases that are about the executor.
part models timeout 60 "$models" '~"cuda model: a device *"' -w NoAssertions
if [ -n "$model" ]; then
  for backend in cpu cuda; do
    timeout 15 "$out/decant" generate --model "$model" --backend $backend --preset greedy \
      --activations int16 --prompt 'Once upon a time' --max-tokens 48 >"$out/parts/text.$backend" 2>&1
  done
  # The CPU rounds activations to 16-bit integers, the GPU to bf16: a beginning must agree.
  part tokens python3 -c '
import os, sys
a, b = (open(path).read() for path in sys.argv[1:])
same = len(os.path.commonprefix([a, b]))
print("{\"characters\": %d, \"that_agree\": %d}" % (len(a), same))
sys.exit(same < 40)' "$out/parts/text.cpu" "$out/parts/text.cuda"
  part bench timeout 40 "$out/decant" bench --model "$model" --backend cuda --threads 1 --repeat 3 \
    --depth 0,1024 --batch 1,8,64 --json
fi
sanitizer=$(dirname "$nvcc")/compute-sanitizer
if [ -x "$sanitizer" ]; then
  for tool in memcheck racecheck; do
    part $tool timeout 30 "$sanitizer" --tool $tool --error-exitcode 1 "$device" small
  done
fi
part rates timeout 30 "$device" rates

python3 - "$out/parts" >"$report" <<'PYTHON'
import json, pathlib, sys
report = {}
for status in sorted(pathlib.Path(sys.argv[1]).glob("*.status")):
    text = status.with_suffix("").read_text(errors="replace")
    try:
        answer = json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        answer = (text + status.with_suffix(".errors").read_text(errors="replace"))[-2000:]
    report[status.stem] = {"status": int(status.read_text()), "answer": answer}
report["passed"] = all(part["status"] == 0 for part in report.values())
print(json.dumps(report, indent=1))
PYTHON
cat "$report"
exit $failed
