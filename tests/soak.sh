#!/bin/sh
# soak.sh [MINUTES] [SEED]   (default: 30)
# Random load, cancel, fork, save and restore for so long; memory must stay flat (tests/soak/soak.cpp).
# Linux. Not part of the tests.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/examples/setup.sh"
cd "$here"
need_build_tools
need_packages catch2 zlib1g-dev python3=python3
model=${DECANT_SMOLLM2:-$(fetch_model smollm2)}
cmake --preset release -DDECANT_TESTS=ON >/dev/null
cmake --build build/release --target decant_soak
exec build/release/tests/decant_soak "$model" "${1:-30}" ${2:+"$2"}
