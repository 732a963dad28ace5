#!/bin/sh
# tools/sanitize_cuda.sh BUILD [TOOL ...] -- every case of the operation driver on an NVIDIA GPU under compute-sanitizer: generated
# kernels alone, then attention by tensor cores, then products and attention with the libraries. Without tools: memcheck, racecheck. As many parts as CPUs run
# side by side. Skipped, with what is missing, where there is none.
set -eu
cd "$(dirname "$0")/.."
build=$1
shift
[ $# -gt 0 ] || set -- memcheck racecheck
missing=$("$build/quern" devices | sed -n 's/^cuda .*\(cuda: .*\)$/\1/p')
command -v compute-sanitizer >/dev/null || missing="compute-sanitizer is not installed"
if [ -n "$missing" ]; then
  echo "sanitize_cuda: skipped: $missing"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
target=$("$build/quern" devices | awk '$1 == "cuda" { print $2 }')
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
parts=$(nproc)
cat tests/op/*.txt | grep -v -e '^#' -e '^$' | awk -v n="$parts" -v f="$folder" '{ print > (f "/part" NR % n ".txt") }'
grep -h -v -e '^#' -e '^$' tests/op/contract.txt tests/op/attention.txt >"$folder/libraries.txt"
for name in units units-grad; do grep -v -e '^#' -e '^$' tests/op/attention.txt >"$folder/$name.txt"; done

# One part: what the driver and the sanitizer say last, in a file of its own; a failure of either leaves a file.
part() { # tool, name, arguments of the driver
  tool=$1 name=$2
  shift 2
  mkdir -p -m 700 "$folder/cache-$name"
  log="$folder/$tool-$name.log"
  QUERN_CACHE="$folder/cache-$name" compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/querntest" \
    --cases "$folder/$name.txt" --device cuda "$@" >"$log" 2>&1 || touch "$folder/failed"
  echo "$tool $name: $(grep -E 'passed, ' "$log" | tail -1); $(grep 'SUMMARY' "$log" | tail -1)"
  grep -E '^FAIL|========= (Invalid|Error|Race|Misaligned|Out-of)' "$log" | head -5 || true
}
for tool; do
  i=0
  while [ $i -lt "$parts" ]; do
    part "$tool" part$i --mode bits --target "$target" &
    i=$((i + 1))
  done
  if [ "$target" != sm_75 ]; then
    part "$tool" units --mode value --target "$target+mma" &
    part "$tool" units-grad --mode grad --target "$target+mma" &
  fi
  if [ "$tool" = memcheck ]; then part "$tool" libraries --mode value & fi
  wait
done
[ ! -e "$folder/failed" ]
