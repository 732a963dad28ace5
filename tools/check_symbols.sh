#!/bin/sh
# tools/check_symbols.sh [--update | --selftest] -- prove that the shared library exports exactly the functions that
# the public headers declare, all named quern_*, and that these are the ones of tools/symbols.txt.
set -eu
export LC_ALL=C
root=$(cd "$(dirname "$0")/.." && pwd)

exported() { nm -D --defined-only "$1" | awk '{print $3}' | sort; } # library

# The names of the functions that the headers of a folder declare, as the compiler sees them.
declared() { # include folder
  for file in "$1"/quern/*.h; do echo "#include \"$file\""; done >"$tmp/all.c"
  gcc -std=c17 -DQUERN_NO_PLACE -I"$1" -fsyntax-only -aux-info "$tmp/all.x" "$tmp/all.c"
  # A line is: /* file:line:kind */ extern type name (arguments); nothing of system headers, nothing static.
  grep -F "/* $1/quern/" "$tmp/all.x" | grep -v ' static ' |
    sed 's,^/\*[^*]*\*/ *,,; s/[ *]*(\*\([a-z_0-9]* *(\)/ \1/; s/ *(.*//; s/.*[ *]//' | sort -u
}

check() { # include folder, library, list
  exported "$2" >"$tmp/exported"
  declared "$1" >"$tmp/declared"
  {
    grep -v '^quern_' "$tmp/exported" | sed 's/$/: exported, but not named quern_*/'
    comm -23 "$tmp/exported" "$tmp/declared" | sed 's/$/: exported, but not declared in include\/quern/'
    comm -13 "$tmp/exported" "$tmp/declared" | sed 's/$/: declared in include\/quern, but not exported/'
    comm -23 "$tmp/exported" "$3" | sed 's/$/: exported, but not in tools\/symbols.txt (make symbols)/'
    comm -13 "$tmp/exported" "$3" | sed 's/$/: in tools\/symbols.txt, but not exported (make symbols)/'
    [ -s "$tmp/exported" ] || echo "no symbol is exported"
  } >"$tmp/wrong"
  cat "$tmp/wrong"
  [ ! -s "$tmp/wrong" ] || return 1
  echo "check_symbols: $(wc -l <"$tmp/exported") exported functions"
}

# A library of two functions in $tmp/self, with a header and a list of symbols that the caller may spoil.
selftest() { # what, header, list of symbols, source: must fail unless what is "good"
  mkdir -p "$tmp/self/quern"
  printf '%b' "$2" >"$tmp/self/quern/q.h"
  printf '%b' "$3" >"$tmp/self/list"
  printf '%b' "$4" | gcc -shared -fPIC -fvisibility=hidden -I"$tmp/self" -xc - -o "$tmp/self/libq.so"
  if check "$tmp/self" "$tmp/self/libq.so" "$tmp/self/list" >"$tmp/self/log"; then result=good; else result=bad; fi
  case $1.$result in
  good.good | [!g]*.bad) ;;
  *) echo "selftest: $1: the result is $result" >&2; cat "$tmp/self/log" >&2; exit 1 ;;
  esac
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
case ${1-} in
--update)
  exported "$root/build/libquern.so" >"$root/tools/symbols.txt"
  check "$root/include" "$root/build/libquern.so" "$root/tools/symbols.txt"
  ;;
--selftest)
  api='#define API __attribute__((visibility("default")))\n'
  header="${api}API int quern_a(int);\nAPI const char *quern_b(void);\nAPI void (*quern_c(int))(void);\n"
  list='quern_a\nquern_b\nquern_c\n'
  source='#include "quern/q.h"\nint quern_a(int x) { return x; }\nconst char *quern_b(void) { return 0; }\n'
  source="${source}void (*quern_c(int x))(void) { (void)x; return 0; }\n"
  selftest good "$header" "$list" "$source"
  selftest list-too-long "$header" "${list}quern_d\n" "$source"
  selftest list-too-short "$header" 'quern_a\nquern_b\n' "$source"
  selftest not-exported "${header}int quern_d(void);\n" "$list" "$source"
  selftest not-declared "$header" "${list}quern_d\n" "${source}API int quern_d(void) { return 0; }\n"
  selftest wrong-name "${header}API int other(void);\n" "other\n$list" "${source}int other(void) { return 0; }\n"
  echo "6 passed, 0 failed"
  ;;
*)
  check "$root/include" "$root/build/libquern.so" "$root/tools/symbols.txt"
  ;;
esac
