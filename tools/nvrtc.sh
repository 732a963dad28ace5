#!/bin/sh
# tools/nvrtc.sh BUILD [TARGET ...] -- every kernel of the operation driver, gradients included, compiled as CUDA C by NVRTC, without
# a GPU, to code of each target. Targets that are named are compiled as programs are: a kernel at a time. Without any all are compiled
# quickly, many kernels at a time and little optimized; and kernels of one operation as programs are.
# Most texts are the same for all targets. With TEST_SEED each is compiled for the first target that has it, and every tenth of them for
# the others; the seed chooses the tenth, and the target that comes first.
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
for target in "$@"; do run --target "$target"; done
if [ $# = 0 ]; then
  run --target sm_90 --op softmax
  run --quick --target sm_80+mma,sm_90+mma --op attention --dtype f32
  run --quick --target sm_90+mma --op attention --dtype bf16
  set -- sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120
  for _ in $(seq $((${TEST_SEED:-0} % $#))); do
    first=$1
    shift
    set -- "$@" "$first"
  done
  targets=$(echo "$*" | tr ' ' ,)
  if [ -n "${TEST_SEED-}" ]; then run --quick --target "$targets" --repeat "$TEST_SEED/10"; else run --quick --target "$targets"; fi
fi
exit $failed
