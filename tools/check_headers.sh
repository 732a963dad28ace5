#!/bin/sh
# tools/check_headers.sh [root | --selftest] -- prove that each header compiles alone and twice, with gcc and clang;
# public headers also as C++.
set -eu
export LC_ALL=C
warnings="-Wall -Wextra -Wshadow -Wconversion -Werror"

check() ( # root
  cd "$1"
  bad=0 seen=0
  compile() { # header, compiler and flags
    header=$1
    shift
    # shellcheck disable=SC2086  # a list of words
    "$@" $warnings -fsyntax-only -D_POSIX_C_SOURCE=200809L -Iinclude -Isrc \
      -include "$header" -include "$header" /dev/null || { echo "$header: fails with $*"; bad=1; }
    seen=$((seen + 1))
  }
  for header in $(find include src -name '*.h' | sort); do
    compile "$header" gcc -std=c17 -Wstrict-prototypes -xc
    compile "$header" clang -std=c17 -Wstrict-prototypes -xc
    case $header in include/*) compile "$header" clang++ -std=c++17 -pedantic -xc++ ;; esac
  done
  [ $bad = 0 ] && echo "check_headers: $seen compilations"
)

plant() { # file, text: the check of a tree with that header must fail
  echo "$2" >"$tmp/$1"
  if check "$tmp" >/dev/null 2>&1; then echo "selftest: missed in $1: $2" >&2; exit 1; fi
  rm "$tmp/$1"
}

if [ "${1-}" = --selftest ]; then
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  mkdir -p "$tmp/include/quern" "$tmp/src/ir"
  printf '#ifndef A\n#define A\n#include <stdint.h>\nint32_t f(void);\n#endif\n' >"$tmp/include/quern/good.h"
  check "$tmp" >/dev/null
  plant src/ir/a.h 'int32_t g(void);'
  plant src/ir/a.h 'struct twice { int x; };'
  plant include/quern/a.h 'int h(int class);'
  echo "3 passed, 0 failed"
else
  check "${1:-$(dirname "$0")/..}"
fi
