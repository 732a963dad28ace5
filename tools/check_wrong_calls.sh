#!/bin/sh
# tools/check_wrong_calls.sh [root | --selftest] -- prove that every function of the public headers has at least two rows in
# the tables of wrong calls (tests/api/wrong_*.def), and every builder of quern/tensor.h one in tests/api/hostile.def.
set -eu
export LC_ALL=C

# The functions that the headers of a folder declare.
functions() { sed -n 's/^QUERN_API .*[ *]\(quern_[a-z_0-9]*\)(.*/\1/p' "$1"/*.h | sort; } # folder

# Those of a header that return a tensor, or build some and return a status.
builders() { sed -n 's/^QUERN_API quern_\(tensor \*\|status \)\(quern_[a-z_0-9]*\)(.*/\2/p' "$1" | sort; } # header

# The functions that have at least $1 different rows: MACRO(function, mistake, ...) at the beginning of a line.
rows() { # least, tables
  least=$1
  shift
  sed -n 's/^[A-Z_]*(\(quern_[a-z_0-9]*\), *\([a-z_0-9]*\).*/\1 \2/p' "$@" | sort -u |
    awk -v least="$least" '{ n[$1]++ } END { for (f in n) if (n[f] >= least) print f }' | sort
}

check() ( # root
  functions "$1/include/quern" >"$tmp/functions"
  builders "$1/include/quern/tensor.h" >"$tmp/builders"
  rows 2 "$1"/tests/api/wrong_*.def >"$tmp/twice"
  rows 1 "$1"/tests/api/wrong_*.def >"$tmp/once"
  rows 1 "$1/tests/api/hostile.def" >"$tmp/hostile"
  {
    comm -23 "$tmp/functions" "$tmp/twice" | sed 's/$/: less than two rows in tests\/api\/wrong_*.def/'
    comm -13 "$tmp/functions" "$tmp/once" | sed 's/$/: rows of wrong calls, but no such function/'
    comm -23 "$tmp/builders" "$tmp/hostile" | sed 's/$/: no row in tests\/api\/hostile.def/'
    comm -13 "$tmp/builders" "$tmp/hostile" | sed 's/$/: a row in tests\/api\/hostile.def, but no such builder/'
    [ -s "$tmp/functions" ] || echo "the headers declare no functions"
  } >"$tmp/wrong"
  cat "$tmp/wrong"
  [ ! -s "$tmp/wrong" ] || return 1
  echo "check_wrong_calls: $(wc -l <"$tmp/functions") functions, $(cat "$1"/tests/api/wrong_*.def |
    grep -c '^[A-Z_]*(quern_') rows"
)

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if [ "${1-}" = --selftest ]; then
  self=$tmp/self
  mkdir -p "$self/include/quern" "$self/tests/api"
  header=$self/include/quern/tensor.h wrong=$self/tests/api/wrong_a.def hostile=$self/tests/api/hostile.def
  passed=0
  # The headers and the tables as they should be.
  whole() {
    echo 'QUERN_API quern_tensor *quern_neg(quern_tensor *x);' >"$header"
    echo 'QUERN_API const char *quern_tensor_name(const quern_tensor *x); /* of an input */' >>"$header"
    echo 'LOST(quern_neg, null, INVALID, "null", quern_neg(NULL))' >"$wrong"
    echo 'WRONG(quern_neg, bool, DTYPE, "bool", quern_neg(T(BOOL, 2)))' >>"$wrong"
    echo 'HOLDS(quern_tensor_name, null, quern_tensor_name(NULL) == NULL)' >>"$wrong"
    echo 'HOLDS(quern_tensor_name, poison, quern_tensor_name(POISON) == NULL)' >>"$wrong"
    echo 'BUILD(quern_neg, quern_neg(any()))' >"$hostile"
  }
  expect() { # fails or passes, what
    if check "$self" >"$tmp/out"; then got=passes; else got=fails; fi
    [ "$got" = "$1" ] || { echo "selftest: $2 $got" >&2; cat "$tmp/out" >&2; exit 1; }
    passed=$((passed + 1))
  }
  whole
  expect passes "a whole table"
  sed -i '/neg, bool/d' "$wrong"
  expect fails "a function with one row"
  whole
  sed -i 's/neg, bool/neg, null/' "$wrong"
  expect fails "the same row twice"
  whole
  sed -i 's/^WRONG/ WRONG/' "$wrong"
  expect fails "a row inside another"
  whole
  sed -i '/tensor_name/d' "$wrong"
  expect fails "a function without rows"
  whole
  sed -i '/tensor_name/d' "$header"
  expect fails "rows without a function"
  whole
  : >"$hostile"
  expect fails "a builder without a hostile row"
  whole
  echo 'BUILD(quern_abs, quern_abs(any()))' >>"$hostile"
  expect fails "a hostile row without a builder"
  whole
  : >"$header"
  : >"$wrong"
  : >"$hostile"
  expect fails "an empty header"
  echo "$passed passed, 0 failed"
else
  check "${1:-$(dirname "$0")/..}"
fi
