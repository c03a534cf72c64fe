#!/bin/sh
# run.sh CASE ROOT BUILD CXX: builds and runs one consumer of the library, as a host would.
# ROOT is the checkout, BUILD a finished build of it, CXX the compiler.
set -eu
case=$1 root=$2 build=$3 cxx=$4
here=$root/tests/consume
work=$build/consume/$case
dist=$build/tests/dist
rm -rf "$work"
mkdir -p "$work"
cd "$work"

model=
golden=${DECANT_GOLDEN_DIR:-}/models/llama-tied/model-f32.gguf
[ ! -f "$golden" ] || model=$golden

plain="$cxx -std=c++20 -Wall -Wextra -Werror"
# The launcher is ccache where the machine has it.
cmake_host() {
  source=$1
  shift
  cmake -S "$here/$source" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" "$@"
  cmake --build build
}

case $case in
  find_package)
    cmake --install "$build" --prefix "$work/prefix" >/dev/null
    cmake_host find_package -DCMAKE_PREFIX_PATH="$work/prefix"
    build/host $model
    ;;
  add_subdirectory)
    cmake_host add_subdirectory -DDECANT_ROOT="$root" \
      -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16
    build/host $model
    library=$(find build/decant -name 'libdecant.so')
    python3 "$root/tests/rules/symbol_rules.py" --shared "$library"
    ;;
  two_files) # the body was compiled with plain flags by the main build
    $plain -DDECANT_DIST -I"$dist" "$here/host.cpp" "$here/host_other.cpp" \
      "$(find "$build/tests" -path '*decant_dist.dir*' -name 'decant.cpp.o')" -pthread -o host
    ./host $model
    ;;
  one_header) # DECANT_IMPLEMENTATION in one file; without Eigen, thus without the reference backend
    $cxx -std=c++20 -O1 -DDECANT_DIST -DDECANT_IMPLEMENTATION -DDECANT_NO_EIGEN -I"$dist" \
      -c "$here/host_other.cpp"
    $plain -DDECANT_DIST -I"$dist" "$here/host.cpp" host_other.o -pthread -o host
    ./host
    ;;
  no_exceptions)
    $plain -fno-exceptions -fno-rtti -I"$root/include" "$here/host.cpp" "$here/host_other.cpp" \
      "$build/libdecant.a" -pthread -o host
    ./host $model
    ;;
  c_host)
    ${CC:-cc} -std=c99 -Wall -Wextra -pedantic -Werror -I"$root/include" -c "$here/host.c"
    $cxx host.o "$build/libdecant.a" -pthread -o host
    ./host $model
    ;;
  must_not_compile)
    check="$plain -fsyntax-only -I$root/include $here/must_not_compile.cpp"
    $check
    $check -fno-exceptions
    for refused in "-fno-exceptions -DCASE_1:value" "-DCASE_2:nodiscard\|unused-result" \
      "-DCASE_3:deleted"; do
      if $check ${refused%%:*} 2>errors; then
        echo "${refused%%:*} compiled, and must not"
        exit 1
      fi
      grep -q "${refused#*:}" errors || { cat errors; exit 1; }
    done
    ;;
  *) echo "unknown case $case"; exit 2 ;;
esac
