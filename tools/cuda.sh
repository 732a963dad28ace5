#!/bin/sh
# tools/cuda.sh BUILD -- everything of the GPU on an NVIDIA GPU: every instruction, every operation with its gradients, bits, random
# graphs. Skipped, with what is missing, where there is none.
set -eu
cd "$(dirname "$0")/.."
build=$1
export QUERN_CACHE="${QUERN_CACHE:-$PWD/$build/cache}"
mkdir -p "$QUERN_CACHE"
chmod 700 "$QUERN_CACHE"
missing=$("$build/quern" devices | sed -n 's/^cuda .*\(cuda: .*\)$/\1/p')
if [ -n "$missing" ]; then
  echo "cuda: skipped: $missing"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
failed=0
run() { # command
  echo "cuda: $*"
  "$build/$@" || failed=1
}
for test in test_c test_control test_math test_signs test_tables test_gpu; do run tests/codegen/$test cuda; done
run querntest --mode value --device cuda
run querntest --mode value --device cuda --optimize 0
run querntest --mode grad --device cuda
# sums of libraries have an order of their own: bits are those of generated kernels
target=$("$build/quern" devices | awk '$1 == "cuda" { print $2 }')
run querntest --mode bits --device cuda --target "$target"
run quernprop --device cuda --graphs 1000
run quernnets --run 150 --device cuda
tools/examples.sh "$build" || failed=1
tests/train/pictures.sh "$build" cuda resnet:18 112 || failed=1
exit $failed
