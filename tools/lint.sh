#!/bin/sh
# tools/lint.sh [file ...] -- clang-tidy over the sources of the library and the programs (.clang-tidy has the checks), after
# the order of evaluation when no files are named.
set -eu
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
  tools/check_order.sh --selftest
  tools/check_order.sh
fi
tools/build.sh clang
# shellcheck disable=SC2046  # a list of words
[ $# != 0 ] || set -- $(find src cli examples tests/driver tests/prop -name '*.c' | sort)
printf '%s\n' "$@" | xargs -P2 -n4 clang-tidy -p build/clang --quiet
