#!/bin/sh
# tools/opencl.sh BUILD -- the GPU's kernels executed: every instruction, every operation with its gradients, random graphs, on the
# device that OpenCL finds, which is the CPU by PoCL where there is no GPU. PoCL keeps what it compiles beside Quern's cache.
# With TEST_SEED the share of the cases that the seed chooses.
set -eu
cd "$(dirname "$0")/.."
build=$1
export QUERN_CACHE="${QUERN_CACHE:-$PWD/$build/cache}"
export POCL_CACHE_DIR="$QUERN_CACHE/pocl"
mkdir -p "$POCL_CACHE_DIR"
chmod 700 "$QUERN_CACHE"
failed=0
run() { # command
  echo "opencl: $*"
  "$build/$@" || failed=1
}
for test in test_c test_control test_math; do run tests/codegen/$test opencl; done
run tests/engine/test_remote
run tests/engine/test_eager_device
seed=1 every=1
if [ -n "${TEST_SEED-}" ]; then seed=$TEST_SEED every=5; fi
run querntest --mode value --device opencl --share "$seed/$every"
run querntest --mode grad --device opencl --share "$seed/$every"
run quernprop --device opencl --graphs $((100 / every)) --seed "$seed"
exit $failed
