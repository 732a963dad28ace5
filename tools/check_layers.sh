#!/bin/sh
# tools/check_layers.sh [root | --selftest] -- prove that every folder includes only what it may.
# A folder of src/ includes itself, folders before it in the list, and public headers. nn, clifford and logic do not
# include each other. Public headers, cli/ and examples/ include public headers (and files beside them) only.
set -eu
export LC_ALL=C
order="base ir tensor grad nn clifford logic models optim dist pass kern sched plan codegen runtime io prof engine train"
apart="nn clifford logic"

check() ( # root
  cd "$1"
  folders=
  for folder in include src cli examples; do [ ! -d "$folder" ] || folders="$folders $folder"; done
  # shellcheck disable=SC2086  # a list of words
  find $folders -name '*.[ch]' -o -name '*.def' | sort | xargs grep -HnE '^[ 	]*#[ 	]*include' |
    awk -v order="$order" -v apart="$apart" '
      BEGIN {
        count = split(order, name, " "); for (i = 1; i <= count; i++) rank[name[i]] = i
        count = split(apart, name, " "); for (i = 1; i <= count; i++) alone[name[i]] = 1
      }
      function complain(why) { printf "%s:%s: %s: %s\n", file, line, target, why; bad = 1 }
      {
        split($0, place, ":"); file = place[1]; line = place[2]
        if (!match($0, /[<"][^">]*[">]/)) { target = $0; complain("not a plain include"); next }
        quoted = substr($0, RSTART, 1) == "\""
        target = substr($0, RSTART + 1, RLENGTH - 2)
        split(file, path, "/"); split(target, part, "/")
        seen++
        if (index(target, "..")) { complain("includes are written from the src root"); next }
        if (part[1] == "quern") next
        if (path[1] != "src") {
          if (part[1] in rank && index(target, "/")) complain(path[1] "/ may include public headers only")
          else if (quoted && (path[1] == "include" || index(target, "/"))) complain("not a public header")
          next
        }
        if (!(path[2] in rank)) { complain("src/" path[2] " is not in the list of layers"); next }
        if (!(part[1] in rank) || !index(target, "/")) {
          if (quoted) complain("includes are written from the src root")
          next
        }
        if (rank[part[1]] > rank[path[2]]) complain(path[2] "/ is below " part[1] "/ and may not include it")
        else if (part[1] != path[2] && (part[1] in alone) && (path[2] in alone))
          complain(path[2] "/ and " part[1] "/ do not know each other")
      }
      END { if (!bad) printf "check_layers: %d includes in order\n", seen; exit bad }'
)

plant() { # file, include line: the check of a tree with that line must fail
  mkdir -p "$tmp/$(dirname "$1")"
  echo "$2" >"$tmp/$1"
  if check "$tmp" >/dev/null; then echo "selftest: missed in $1: $2" >&2; exit 1; fi
  rm "$tmp/$1"
}

if [ "${1-}" = --selftest ]; then
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  mkdir -p "$tmp/src/ir" "$tmp/cli"
  printf '#include "base/base.h"\n#include <stdio.h>\n#include "quern/status.h"\n' >"$tmp/src/ir/good.c"
  printf '#include "cli.h"\n#include <stdio.h>\n#include "quern/quern.h"\n' >"$tmp/cli/good.c"
  check "$tmp" >/dev/null
  plant src/base/a.c '#include "ir/ir.h"'
  plant src/ir/a.h '  #  include "grad/grad.h"'
  plant src/nn/a.c '#include "clifford/clifford.h"'
  plant src/logic/a.c '#include "nn/nn.h"'
  plant src/ir/a.c '#include "../base/base.h"'
  plant src/ir/a.c '#include "ir.h"'
  plant src/ir/a.c '#include <tensor/tensor.h>'
  plant src/other/a.c '#include "base/base.h"'
  plant cli/a.c '#include "base/base.h"'
  plant examples/a.c '#include "ir/ir.h"'
  plant include/quern/a.h '#include "base/base.h"'
  echo "11 passed, 0 failed"
else
  check "${1:-$(dirname "$0")/..}"
fi
