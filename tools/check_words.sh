#!/bin/sh
# tools/check_words.sh [root | --selftest] -- keep retired words out of the tree, and the words of the trade in it (docs/glossary.md).
# tools/words.txt has a line for each: "retired <regular expression> | <say instead> [| <files that may have it>]" or "present <word>".
# Files are those that git tracks, but for the table itself, the glossary, the changelog, golden files, results of benchmarks and binary ones.
set -eu
export LC_ALL=C

check() ( # root
  cd "$1"
  failed=0
  git ls-files -- '*.c' '*.h' '*.def' '*.md' '*.sh' '*.py' '*.txt' '*.cmake' CMakeLists.txt Makefile |
    grep -vE '^(tools/(words\.txt|check_words\.sh)|docs/glossary\.md|docs/design/009-api\.md|CHANGELOG\.md|bench/results/|tests/(golden|abi)/)' >"$tmp/files"
  rules=0
  while IFS= read -r line; do
    case $line in
    'retired '*)
      rules=$((rules + 1))
      rest=${line#retired }
      # columns: the expression may hold '\|' but no ' | '
      regex=${rest%% | *}
      rest=${rest#* | }
      say=${rest%% | *}
      echo | grep -qE -- "$regex" 2>/dev/null || [ $? = 1 ] || {
        failed=1
        echo "words.txt: not a regular expression: $regex"
        continue
      }
      allowed='^$'
      [ "$say" = "$rest" ] || allowed=${rest#* | }
      grep -vE "$allowed" "$tmp/files" | tr '\n' '\0' | xargs -0 grep -nIE -- "$regex" /dev/null >"$tmp/found" || true
      if [ -s "$tmp/found" ]; then
        failed=1
        echo "retired: $regex: say $say"
        head -n 20 "$tmp/found" | cut -c1-160 | sed 's/^/  /'
      fi
      ;;
    'present '*)
      rules=$((rules + 1))
      word=${line#present }
      grep '^src/' "$tmp/files" | tr '\n' '\0' | xargs -0 grep -liIE -- "$word" /dev/null >"$tmp/found" || true
      [ -s "$tmp/found" ] || {
        failed=1
        echo "nowhere in src/: $word"
      }
      ;;
    '' | '#'*) ;;
    *)
      failed=1
      echo "words.txt: not a rule: $line"
      ;;
    esac
  done <tools/words.txt
  # Lines end at 120 columns, in Markdown too; tables, code and links are as long as they must be.
  grep '\.md$' "$tmp/files" | tr '\n' '\0' |
    xargs -0 awk '/^ *```/ { code = !code } FNR == 1 { code = 0 } length($0) > 120 && !code && !/^ *\|/ && !/^    / && !/^\[[^]]*\]:/ && !/^ *</ && !/\]\([^)]*$/ {
      print FILENAME ":" FNR ": " length($0) " columns" }' >"$tmp/found"
  if [ -s "$tmp/found" ]; then
    failed=1
    cat "$tmp/found"
  fi
  [ "$rules" -gt 0 ] || { failed=1; echo "words.txt has no rules"; }
  [ "$failed" = 0 ] && echo "check_words: $rules rules, $(wc -l <"$tmp/files") files"
)

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if [ "${1-}" = --selftest ]; then
  self=$tmp/self
  mkdir -p "$self/src" "$self/tools"
  git -C "$self" init -q
  expect() { # fails or passes
    git -C "$self" add -A
    if check "$self" >"$tmp/out"; then got=passes; else got=fails; fi
    [ "$got" = "$1" ] || { echo "selftest: $2 $got" >&2; cat "$tmp/out" >&2; exit 1; }
  }
  printf 'retired [Gg]roups? of threads | thread block | ^src/old\\.c$\npresent tensor core\n' >"$self/tools/words.txt"
  echo '/* tensor cores */' >"$self/src/a.c"
  expect passes "a tree of good words"
  echo '/* a thread block */' >"$self/src/old.c"
  expect passes "a file that may have the word"
  echo '/* Groups of threads */' >"$self/src/b.c"
  expect fails "a retired word"
  rm "$self/src/b.c"
  echo '/* units */' >"$self/src/a.c"
  expect fails "a word of the trade that is missing"
  echo '/* tensor cores */' >"$self/src/a.c"
  awk 'BEGIN { for (i = 0; i < 30; i++) printf "words "; print "" }' >"$self/long.md"
  expect fails "a long line of Markdown"
  awk 'BEGIN { printf "| "; for (i = 0; i < 30; i++) printf "words "; print "|" }' >"$self/long.md"
  expect passes "a long row of a table"
  echo 'retired (a | b' >"$self/tools/words.txt"
  expect fails "a rule that is no regular expression"
  : >"$self/tools/words.txt"
  expect fails "a table without rules"
  echo "check_words: selftest ok"
  exit
fi
check "${1:-$(dirname "$0")/..}"
