#!/bin/sh
# fetch_model.sh smollm2|gemma3: prints the path of a real model file, downloaded once into the
# user's cache folder and checked by its sha256. Gemma is subject to the Gemma Terms of Use.
set -eu
. "$(dirname "$0")/setup.sh"
[ $# = 1 ] || fail "usage: fetch_model.sh smollm2|gemma3"
fetch_model "$1"
