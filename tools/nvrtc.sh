#!/bin/sh
# tools/nvrtc.sh BUILD [TARGET ...] -- every kernel of the operation driver, gradients included, compiled as CUDA C by NVRTC, without
# a GPU. Without targets: all cases for the newest of the usual ones, and one operation of each kind for the others.
set -eu
cd "$(dirname "$0")/.."
build=$1
shift
export QUERN_CACHE="${QUERN_CACHE:-$PWD/$build/cache}"
probe=$("$build/querntest" --mode compile --target sm_90 --op neg --dtype f32 3 2>&1) || case $probe in
*"is not installed"*)
  echo "nvrtc: skipped: NVRTC is not installed"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
  ;;
esac
failed=0
run() { # arguments
  echo "nvrtc: querntest --mode compile $*"
  "$build/querntest" --mode compile "$@" || failed=1
}
if [ $# -gt 0 ]; then
  for target in "$@"; do run --target "$target"; done
  exit $failed
fi
run --target sm_90
for target in sm_75 sm_80 sm_86 sm_89 sm_100 sm_120; do
  for op in softmax layer_norm gelu linear matmul cumsum sort scatter gather dropout conv2d cast; do
    run --target $target --op $op
  done
done
exit $failed
