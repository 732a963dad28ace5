#!/bin/sh
# tools/kill.sh <build folder> [folder of src] -- the tests a mutant has to pass, fastest first, stopping at the first
# failure; those of the folder the mutant is in go before the others. Memory is limited: mutants run away.
set -eu
cd "$(dirname "$0")/.."
build=$1 folder=${2:-base}
export QUERN_CACHE=$PWD/$build/cache
# shellcheck disable=SC3045  # dash and bash have it
ulimit -v 8000000
ctest() { command ctest --test-dir "$build" --stop-on-failure --timeout 60 -Q "$@"; }
ctest -R "^$folder/"
ctest -E "^($folder|golden|bits)/" # golden kernels change without being wrong
for mode in value grad jvp bits ulp grad2 coverage; do
  "$build/querntest" --mode $mode >/dev/null
done
"$build/quernprop" --graphs 500 >/dev/null
for mode in value grad bits; do
  "$build/querntest" --mode $mode --device interp >/dev/null
done
"$build/quernprop" --device interp --graphs 500 >/dev/null
case $folder in sched | codegen | runtime | engine) "$build/querntest" --mode value --device cpu --dtype f32 >/dev/null ;; esac
