#!/bin/sh
# bench/decode.sh QUERN DEVICE -- milliseconds per token of GPT-2 124M when it generates, one prompt, in f32 and bf16
# A run of 2 steps on a small text makes the weights, in a temporary folder; then each precision writes 200 tokens twice: the most
# likely ones, which the device chooses, and ones that the host draws from the logits. QUERN_DEBUG=1 prints the captured graph's steps.
set -eu
quern=${1:?usage: bench/decode.sh QUERN DEVICE}
device=${2:-cuda}
tokens=${TOKENS:-200}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
i=0
while [ $i -lt 4000 ]; do
  echo "the quick brown fox number $i jumps over the lazy dog and counts to $((i * 7 % 1000)) before it sleeps"
  i=$((i + 1))
done >"$dir/text.txt"
"$quern" train data="$dir/text.txt" model=gpt2:124M batch=4 length=64 steps=2 eval_every=0 eval_batches=1 report=false \
  device="$device" out="$dir/run" >"$dir/train.log" 2>&1 || {
  cat "$dir/train.log"
  exit 1
}
for precision in f32 bf16; do
  for how in "greedy:--temperature 0" "top-k:--temperature 0.8 --top-k 8"; do
    echo "$precision ${how%%:*}"
    # shellcheck disable=SC2086
    "$quern" generate "$dir/run" --prompt "the quick brown fox" --tokens "$tokens" ${how#*:} --precision $precision \
      --device "$device" --times 2>&1 >/dev/null | sed 's/^/  /'
  done
done
