#!/bin/sh
# run.sh [quick|full|all]   (default: full; what each tier does: docs/testing.md)
# Installs what is missing, builds below build/, runs the tests. The last line is
# 'N passed, N failed, N skipped'; the exit status is 0 only when nothing failed.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/examples/setup.sh"
tier=${1:-full}
case $tier in quick | full | all) ;; *) fail "usage: tests/run.sh [quick|full|all]" ;; esac
cd "$here"

need_build_tools
need_packages catch2 zlib1g-dev libpcre2-dev python3=python3 ccache=ccache
if [ "$tier" = all ]; then
  need_packages clang=clang++ qemu-user=qemu-aarch64 \
    g++-aarch64-linux-gnu=aarch64-linux-gnu-g++ g++-mingw-w64-x86-64-posix=x86_64-w64-mingw32-g++-posix
  need_packages "libclang-rt-$(clang++ -dumpversion | cut -d . -f 1)-dev"
fi

if [ -z "${DECANT_GOLDEN_DIR:-}" ] && [ -d ../shared/golden ]; then
  DECANT_GOLDEN_DIR=$(cd ../shared/golden && pwd)
fi
[ -z "${DECANT_GOLDEN_DIR:-}" ] || export DECANT_GOLDEN_DIR

if [ "$tier" = quick ]; then
  DECANT_SMOLLM2=$(cached_model smollm2) || unset DECANT_SMOLLM2
  DECANT_GEMMA3=$(cached_model gemma3) || unset DECANT_GEMMA3
else
  DECANT_SMOLLM2=$(fetch_model smollm2)
  DECANT_GEMMA3=$(fetch_model gemma3)
  export DECANT_REQUIRE_MODELS=1
fi
[ -z "${DECANT_SMOLLM2:-}" ] || export DECANT_SMOLLM2
[ -z "${DECANT_GEMMA3:-}" ] || export DECANT_GEMMA3

jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
broken=0
results=

# step SENTENCE COMMAND...: a step that fails is counted, and the next ones still run.
step() {
  say ""
  say "== $1"
  shift
  "$@" && return 0
  say "== this step failed: $*"
  broken=$((broken + 1))
  return 1
}

# build PRESET [TARGET...]: from the newest sources, with progress.
build() {
  preset=$1
  shift
  cmake --preset "$preset" -DDECANT_TESTS=$([ "$preset" = mingw ] && echo OFF || echo ON) >/dev/null &&
    cmake --build "build/$preset" -j "$jobs" ${*:+--target "$@"}
}

# run_tests PRESET [CTEST ARGUMENTS...]: its failures are counted from the results file.
run_tests() {
  preset=$1
  shift
  say "== tests of build/$preset"
  file=$here/build/$preset/results.xml
  rm -f "$file"
  ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure --no-tests=error \
    --output-junit "$file" --test-output-size-passed 100000 "$@" || true
  if [ -s "$file" ]; then results="$results $file"; else broken=$((broken + 1)); fi
}

if [ "$tier" = quick ]; then
  step "release build" build release decant decant_unit && run_tests release -L '^(unit|kernels)$'
elif step "release build" build release; then
  step "one-file sources in build/dist" python3 src/tools/amalgamate.py build/dist || true
  run_tests release
fi

if [ "$tier" = all ]; then
  step "address and undefined-behaviour sanitizers" build asan &&
    run_tests asan -L '^(unit|kernels|golden|fault|fuzz)$'
  step "thread sanitizer" build tsan && run_tests tsan -L '^(unit|kernels)$'
  step "clang, warnings are errors" build clang && run_tests clang -L '^(unit|kernels|golden)$'
  step "the same bits on older x86 processors (emulated)" python3 tests/support/emulated.py \
    "$DECANT_SMOLLM2" 4 build/release/decant -- qemu-x86_64 -cpu Nehalem build/release/decant \
    -- qemu-x86_64 -cpu Haswell build/release/decant || true
  if step "aarch64 under qemu" build aarch64; then
    run_tests aarch64 -L '^(unit|kernels)$'
    step "the same bits on aarch64 (emulated)" python3 tests/support/emulated.py \
      "$DECANT_SMOLLM2" 64 build/release/decant \
      -- qemu-aarch64 -L /usr/aarch64-linux-gnu build/aarch64/decant || true
  fi
  step "Windows cross build" build mingw || true
  step "CUDA kernels for the other GPUs" python3 tests/cuda_host/kernel_table.py --check 86 89 100 120 || true
  step "CUDA kernels that lack a barrier, a wait or a mask are noticed" \
    python3 tests/cuda_host/mutate.py build/release -j "$jobs" || true
  if step "fuzz targets" build fuzz fuzzers; then
    for target in build/fuzz/tests/fuzz_*; do
      [ -x "$target" ] && [ -f "$target" ] || continue
      name=$(basename "$target")
      mkdir -p "build/fuzz/corpus/$name"
      step "$name for ${DECANT_FUZZ_SECONDS:-30} seconds" "$target" -rss_limit_mb=4096 -timeout=20 \
        -max_total_time="${DECANT_FUZZ_SECONDS:-30}" -print_final_stats=1 \
        -artifact_prefix="build/fuzz/" "build/fuzz/corpus/$name" "tests/fuzz/corpus/${name#fuzz_}" || true
    done
  fi
fi

strict=
if [ "$tier" != quick ] || [ -n "${CI:-}" ]; then strict=--strict; fi
say ""
exec python3 tests/support/count.py $strict --failed "$broken" $results
