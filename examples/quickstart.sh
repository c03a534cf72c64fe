#!/bin/sh
# quickstart.sh ["PROMPT"]: builds the decant program, fetches a small model and answers the prompt.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/examples/setup.sh"
prompt=${1:-Why is the sky blue?}

need_build_tools
cd "$here"
say "building build/release/decant (one to three minutes the first time) ..."
build_log=$(mktemp)
trap 'rm -f "$build_log"' EXIT
if ! { cmake --preset release -DDECANT_TESTS=OFF &&
  cmake --build build/release --target decant_cli; } >"$build_log" 2>&1; then
  tail -n 50 "$build_log" >&2
  fail "the build failed; its last lines stand above"
fi
model=$(fetch_model smollm2)
say "answering with $model"
build/release/decant generate --model "$model" --chat --preset precise --prompt "$prompt"
