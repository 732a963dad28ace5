#!/bin/sh
# tools/sanitize.sh asan|tsan -- unit tests and quick driver runs in a build with a sanitizer.
set -eu
cd "$(dirname "$0")/.."
build=build/$1
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
tools/build.sh "$1"
ctest --test-dir "$build" --no-tests=error -j2 -V
"$build/querntest" --mode value
"$build/querntest" --mode grad
"$build/quernprop" --graphs 200
