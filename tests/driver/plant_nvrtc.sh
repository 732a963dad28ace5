#!/bin/sh
# tests/driver/plant_nvrtc.sh [build folder] -- a kernel that one target's compiler refuses must be found among many.
# Puts a libnvrtc in front of the real one that refuses kernels of tanh for sm_80, and demands of mode compile, quick and not, that it
# names just those cases, that target, the kernels, and where their text is.
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/texts"
${CC:-cc} -std=c17 -shared -fPIC -o "$folder/libnvrtc.so.13" tests/runtime/fake_nvrtc.c
export LD_LIBRARY_PATH="$folder" QUERN_CACHE="$folder/cache" TMPDIR="$folder/texts" FAKE_TEXT=_tanh_ FAKE_FLAG=sm_80

cat >"$folder/cases.txt" <<EOF
neg f32 5x7
tanh f32 5x7
softmax f32 4x7 axis=1
tanh f32 33
matmul f32 4x5,5x6
sort f32 4x9 axis=1
EOF
cases=$(grep -c tanh "$folder/cases.txt")

passed=0 failed=0
for quick in "" --quick; do
  log=$folder/compile$quick.log
  # shellcheck disable=SC2086  # none or one word
  "$build/querntest" --mode compile $quick --target sm_75,sm_80,sm_90 --cases "$folder/cases.txt" >"$log" 2>&1 && wrong="it passes" || wrong=
  grep '^FAIL' "$log" >"$folder/fail" || wrong="nothing fails"
  [ "$(wc -l <"$folder/fail")" = "$cases" ] || wrong="$(wc -l <"$folder/fail") cases fail, not $cases"
  if grep -qv ' tanh f32 .*: sm_80: NVRTC cannot compile kernel k_[0-9a-f]*_tanh.*: planted; the text is /' "$folder/fail"; then
    wrong="another case fails, or one without its target, kernel and text"
  fi
  sed -n 's/.*the text is //p' "$folder/fail" >"$folder/where"
  while read -r text; do
    grep -q '__global__.* k_[0-9a-f]*_tanh' "$text" || wrong="$text is not there, or has no such kernel"
  done <"$folder/where"
  grep -q '^16 passed, 2 failed$' "$log" || wrong="other cases or targets do not pass"
  grep -q 'repro: querntest --mode compile --device null --target sm_80 --op tanh ' "$log" || wrong="there is no repro line"
  if [ -n "$wrong" ]; then
    echo "plant_nvrtc: mode compile $quick: $wrong" && failed=$((failed + 1))
  else
    head -n 1 "$folder/fail"
    passed=$((passed + 1))
  fi
done
# Texts that are the same for an earlier target are compiled for a share of them: one of the shares has those that are refused.
found=0
for number in 0 1 2 3; do
  log=$folder/repeat$number.log
  "$build/querntest" --mode compile --quick --target sm_75,sm_80,sm_90 --cases "$folder/cases.txt" --repeat $number/4 >"$log" 2>&1 ||
    found=$((found + $(grep -c '^FAIL .* tanh f32 .*: sm_80: ' "$log")))
done
if [ "$found" = "$cases" ]; then
  passed=$((passed + 1))
else
  echo "plant_nvrtc: four shares find $found of $cases kernels that are refused" && failed=$((failed + 1))
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
