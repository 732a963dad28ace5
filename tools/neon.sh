#!/bin/sh
# tools/neon.sh [build|run] -- the operation driver on AArch64: library and driver built by the cross compiler, run under qemu-user, with
# kernels that the cross compiler makes. qemu hands the compiler, a program of this machine, to the kernel.
# All values on both devices; of random graphs as many as fit (qemu is ten times slower than the machine). With TEST_SEED the
# share of the cases that the seed chooses. build or run: one half of it.
set -eu
cd "$(dirname "$0")/.."
export QUERN_CACHE="$PWD/build/neon/cache" QUERN_CC=aarch64-linux-gnu-gcc
part=${1-} seed=1 every=1
if [ -n "${TEST_SEED-}" ]; then seed=$TEST_SEED every=5; fi
[ "$part" = run ] || tools/build.sh neon querntest_program quernprop_program
[ "$part" != build ] || exit 0
run() { # program, arguments
  echo "neon: $*"
  program=$1
  shift
  qemu-aarch64 "build/neon/$program" "$@"
}
failed=0
for optimize in 1 0; do
  run querntest --mode value --device interp --optimize $optimize --share "$seed/$every" || failed=1
  run querntest --mode value --device cpu --optimize $optimize --share "$seed/$every" || failed=1
done
run querntest --mode grad --device interp --share "$seed/$every" || failed=1
run quernprop --device interp --graphs $((400 / every)) --seed "$seed" || failed=1
run quernprop --device cpu --graphs $((80 / every)) --seed "$seed" || failed=1
exit $failed
