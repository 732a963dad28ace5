#!/bin/sh
# bench/bits.sh -- the same bits with 1, 2, 3 and 8 threads that yield and sleep at random, from run to run, fused or not, with and
# without a memory limit: every operation, the twelve products, a sum of 10^7 elements, attention and a step of GPT-2 124M.
# `make test` does the same with smaller products and a smaller model. Needs `make` and about 8 GiB of memory.
set -eu
cd "$(dirname "$0")/.."
export QUERN_CACHE="$PWD/build/cache"
build/querntest --mode bits --device interp
build/querntest --mode bits --device cpu
build/quernbits --full
