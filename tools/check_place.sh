#!/bin/sh
# tools/check_place.sh [root | --selftest] -- prove that every builder of quern/tensor.h has its line in quern/place.h, every one
# of quern/nn.h in quern/nn_place.h, and that there are no others: the line that makes a builder's errors carry the caller's
# file and line.
set -eu
export LC_ALL=C

# The functions of a header that return a tensor, a scope or a source of random numbers, a status, or nothing.
builders() { # header
  tr '\n' ' ' <"$1" | grep -oE 'QUERN_API (quern_(tensor \*|scope \*|random |status )|void ) *quern_[a-z_0-9]*\(' | sed 's/.*[ *]\(quern_[a-z_0-9]*\)(/\1/' | sort
}

pair() { # folder, header, place header: what is wrong goes to $tmp/wrong, builders to $tmp/all
  builders "$1/$2" |
    sed 's/.*/#define &(...) (quern_place_set(__FILE__, __LINE__), &(__VA_ARGS__))/' >"$tmp/wanted"
  grep '^#define quern_' "$1/$3" | sort >"$tmp/there" || true
  comm -23 "$tmp/wanted" "$tmp/there" | sed "s/^/$3 lacks: /" >>"$tmp/wrong"
  comm -13 "$tmp/wanted" "$tmp/there" | sed "s/^/$3 has no builder for: /" >>"$tmp/wrong"
  [ -s "$tmp/wanted" ] || echo "$2 declares no builders" >>"$tmp/wrong"
  cat "$tmp/wanted" >>"$tmp/all"
}

check() ( # root
  : >"$tmp/wrong"
  : >"$tmp/all"
  pair "$1/include/quern" tensor.h place.h
  [ ! -e "$1/include/quern/nn.h" ] || pair "$1/include/quern" nn.h nn_place.h
  cat "$tmp/wrong"
  [ ! -s "$tmp/wrong" ] || return 1
  echo "check_place: $(wc -l <"$tmp/all") builders"
)

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if [ "${1-}" = --selftest ]; then
  mkdir -p "$tmp/self/include/quern"
  self=$tmp/self/include/quern
  line() { echo "#define $1(...) (quern_place_set(__FILE__, __LINE__), $2(__VA_ARGS__))"; }
  expect() { # fails or passes
    if check "$tmp/self" >"$tmp/out"; then got=passes; else got=fails; fi
    [ "$got" = "$1" ] || { echo "selftest: $2 $got" >&2; cat "$tmp/out" >&2; exit 1; }
  }
  echo 'QUERN_API quern_tensor *quern_neg(quern_tensor *x);' >"$self/tensor.h"
  printf '%s\n%s\n' 'QUERN_API quern_status' 'quern_split(quern_tensor *x) QUERN_NODISCARD;' >>"$self/tensor.h"
  echo 'QUERN_API int quern_tensor_rank(const quern_tensor *x);' >>"$self/tensor.h"
  { line quern_neg quern_neg; line quern_split quern_split; } >"$self/place.h"
  expect passes "a whole list"
  line quern_neg quern_neg >"$self/place.h"
  expect fails "a list that lacks a line"
  { line quern_neg quern_neg; line quern_split quern_neg; } >"$self/place.h"
  expect fails "a line that calls another function"
  { line quern_neg quern_neg; line quern_split quern_split; line quern_abs quern_abs; } >"$self/place.h"
  expect fails "a line without a builder"
  { line quern_neg quern_neg; line quern_split quern_split; } >"$self/place.h"
  echo 'QUERN_API quern_scope *quern_scope_in(quern_scope *scope, const char *name);' >"$self/nn.h"
  : >"$self/nn_place.h"
  expect fails "a second header without its line"
  line quern_scope_in quern_scope_in >"$self/nn_place.h"
  expect passes "two whole lists"
  rm "$self/nn.h" "$self/nn_place.h"
  : >"$self/tensor.h"
  : >"$self/place.h"
  expect fails "an empty header"
  echo "7 passed, 0 failed"
else
  check "${1:-$(dirname "$0")/..}"
fi
