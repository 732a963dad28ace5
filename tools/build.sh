#!/bin/sh
# tools/build.sh <preset> [target ...] -- configure a CMake preset and build it.
set -eu
cd "$(dirname "$0")/.."
preset=$1
shift
mkdir -p build
cmake --preset "$preset" >"build/configure-$preset.log" 2>&1 || { cat "build/configure-$preset.log"; exit 1; }
exec cmake --build --preset "$preset" ${1:+--target "$@"}
