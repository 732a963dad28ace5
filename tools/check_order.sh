#!/bin/sh
# tools/check_order.sh [root | --selftest] -- prove that no result depends on the order in which C evaluates operands.
# C leaves the order of a call's arguments, of an initializer's elements and of an operator's operands open. Of these at most one
# may append an instruction, make a node or change another object, so that node ids and the text of kernels are the
# same whatever compiler compiled Quern. (Programs that use it may nest as they like.) What changes something: a call of a function that returns a tensor or a kern_id, or
# that takes a pointer to a struct which is not const. Memory of a heap or an arena does not count: no result depends on addresses.
set -eu
export LC_ALL=C
most=40 # operands that are looked at

# Pairs of operands that both change something: matcher(i, changes), matcher(j, changes), for all i < j.
pairs() { # matcher
  awk -v m="$1" -v n=$most 'BEGIN {
    for (j = 1; j < n; j++) for (i = 0; i < j; i++)
      printf "%sallOf(%s(%d, changes), %s(%d, changes))", (j > 1 ? ", " : ""), m, i, m, j }'
}

query() {
  cat <<EOF
set bind-root false
set output diag
set traversal IgnoreUnlessSpelledInSource
let memory namedDecl(hasAnyName("base_heap", "base_arena"))
let object recordType(unless(hasDeclaration(memory)))
let taken hasType(pointsTo(qualType(hasUnqualifiedDesugaredType(object), unless(isConstQualified()))))
let tensor qualType(pointsTo(namedDecl(hasName("quern_tensor"))))
let value qualType(hasDeclaration(typedefDecl(hasName("kern_id"))))
let maker functionDecl(anyOf(hasAnyParameter(taken), returns(tensor), returns(value)))
let made callExpr(callee(maker), unless(hasAncestor(unaryExprOrTypeTraitExpr())))
let changes expr(anyOf(made, hasDescendant(made)))
m callExpr(anyOf($(pairs hasArgument))).bind("call")
m initListExpr(anyOf($(pairs hasInit))).bind("list")
m binaryOperator(unless(hasAnyOperatorName("&&", "||", ",")), hasLHS(changes), hasRHS(changes)).bind("operator")
EOF
}

check() ( # root
  cd "$1"
  log=$(mktemp) asked=$(mktemp)
  trap 'rm -f "$log" "$asked"' EXIT
  query >"$asked"
  folders=
  for folder in src tests/golden tests/prop; do [ ! -d "$folder" ] || folders="$folders $folder"; done
  # shellcheck disable=SC2046,SC2086  # lists of words
  set -- $(find $folders -name '*.c' | sort)
  printf '%s\n' "$@" | xargs -n 40 sh -c 'asked=$0; exec clang-query -f "$asked" "$@" -- -std=c17 -D_POSIX_C_SOURCE=200809L \
    -DQUERN_NO_PLACE -Werror=implicit-function-declaration \
    -Iinclude -Isrc -Itests' "$asked" >"$log" 2>&1
  if grep -A1 -E 'error:' "$log"; then exit 1; fi
  if grep -A1 'binds here$' "$log" | grep -v '^--' | sed 's/: note: "\(.*\)" binds here/: this \1 changes something in two operands:/' |
    awk '!(/: this [a-z]* changes/ && seen[$0]++)' | grep .; then
    exit 1
  fi
  echo "check_order: $# files"
)

plant() { # body of a function: the check of a tree with it must fail
  printf '#include "a.h"\nint f(struct object *o) { %s }\n' "$1" >"$tmp/src/a.c"
  if check "$tmp" >/dev/null; then echo "selftest: missed: $1" >&2; exit 1; fi
}

if [ "${1-}" = --selftest ]; then
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  mkdir "$tmp/src"
  cat >"$tmp/src/a.h" <<'EOF'
#include <stdint.h>
typedef int32_t kern_id;
typedef struct quern_tensor quern_tensor;
struct object;
struct base_arena;
int next(struct object *o);
int look(const struct object *o);
int take(struct base_arena *a);
kern_id value(int x);
quern_tensor *make(int x);
int two(int x, int y);
int three(int x, int y, int z);
int both(const quern_tensor *x, const quern_tensor *y);
struct pair {
  int x, y;
};
EOF
  cat >"$tmp/src/good.c" <<'EOF'
#include "a.h"
int good(struct object *o, struct base_arena *a) {
  int x = next(o), y = next(o);
  struct pair p = {x, next(o)};
  y += two(next(o), look(o)) + look(o) + p.x + (int)(sizeof(next(o)) + sizeof(next(o)));
  return next(o) && next(o) ? two(take(a), take(a)) : three(x, next(o), y);
}
EOF
  check "$tmp" >/dev/null
  plant 'return two(next(o), next(o));'
  plant 'return three(next(o), 0, 1 + two(2, next(o)));'
  plant 'return two(value(1), value(2));'
  plant 'return both(make(1), make(2));'
  plant 'return next(o) - next(o);'
  plant 'struct pair p = {next(o), next(o)}; return p.x;'
  plant 'return ((struct pair){.y = next(o), .x = value(1)}).x;'
  plant 'int at[2] = {value(1), value(2)}; return at[0] + look(o);'
  plant 'return two(1, unknown(o));'
  echo "9 passed, 0 failed"
else
  check "${1:-$(dirname "$0")/..}"
fi
