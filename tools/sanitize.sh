#!/bin/sh
# tools/sanitize.sh asan [unit [1|2] | driver] | tsan -- tests and quick driver runs in a build with a sanitizer.
# asan: everything built by clang, as elsewhere by gcc; generated code is compiled with it too (QUERN_CC): all values, and
# gradients of ops that make all kinds of kernels. unit or driver: one half of it, in a build that is there; unit 1, unit 2: every
# other test.
# tsan: the tests of threads, and programs with threads that yield and sleep at random.
# With TEST_SEED generated code is that of the share of the cases which the seed chooses, and a fifth of the slow tests run.
set -eu
cd "$(dirname "$0")/.."
build=build/$1 part=${2-}
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
export LSAN_OPTIONS="suppressions=$PWD/tools/lsan.supp:print_suppressions=0"
export QUERN_CACHE="$PWD/$build/cache" CTEST_PARALLEL_LEVEL="${CTEST_PARALLEL_LEVEL:-2}"
[ -n "$part" ] || tools/build.sh "$1"
if [ "$1" = tsan ]; then
  ctest --test-dir "$build" --no-tests=error -V -R '^(base|runtime|engine)/|thread'
  "$build/querntest" --mode bits --device interp
  "$build/quernbits" reduce gpt2
  exit
fi
seed=1 every=1 without=none
if [ -n "${TEST_SEED-}" ]; then seed=$TEST_SEED every=5 without="slow-[^$((TEST_SEED % 10))$(((TEST_SEED + 5) % 10))]"; fi
if [ "$part" != driver ]; then
  ctest --test-dir "$build" --no-tests=error -V -E '^bits/' -LE "$without" ${3:+-I "$3,,2"}
fi
[ "$part" != unit ] || exit 0
"$build/querntest" --mode value
"$build/querntest" --mode grad
"$build/querntest" --mode value --device interp
"$build/querntest" --mode grad --device interp
"$build/quernprop" --graphs 200 --seed "$seed"
"$build/quernprop" --device interp --graphs 200 --seed "$seed"
export QUERN_CC="clang -fsanitize=address,undefined -fno-sanitize-recover=all"
"$build/querntest" --mode value --device cpu --share "$seed/$every"
for op in softmax layer_norm attention conv2d cumsum sort scatter; do
  "$build/querntest" --mode grad --device cpu --op $op --share "$seed/$every"
done
