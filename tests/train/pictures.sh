#!/bin/sh
# tests/train/pictures.sh BUILD DEVICE [MODEL [SIDE [STEPS]]] -- a network of pictures trains, evaluates and goes on on a device: STEPS steps
# in one run, and the same in two, must give the same parameters; the loss must fall. Prints a line of figures.
set -eu
build=$(cd "$1" && pwd)
python=${PYTHON:-/usr/bin/python3} # Debian's, which has numpy
device=$2 model=${3:-resnet:18} side=${4:-112} steps=${5:-30}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# Four classes that differ by the corner that is bright.
"$python" - "$side" <<'EOF'
import sys
import numpy as np

side, n, rng = int(sys.argv[1]), 512, np.random.default_rng(1)
y = rng.integers(0, 4, n).astype(np.int32)
x = rng.integers(0, 120, (n, 3, side, side)).astype(np.uint8)
for i, c in enumerate(y):
    h, w = (c // 2) * side // 2, (c % 2) * side // 2
    x[i, :, h:h + side // 2, w:w + side // 2] += 100
np.save("x.npy", x)
np.save("y.npy", y)
EOF

run() { # keys: trains, what it prints goes to the log
  "$build/quern" "$@" >>log 2>&1 || { cat log; echo "pictures: quern $* failed"; exit 1; }
}
keys="model=$model data=x.npy,y.npy device=$device batch=32 lr=1e-3 log_every=1 save_every=0 eval_every=10 eval_batches=2 schedule=constant"
# shellcheck disable=SC2086  # a list of words
{
  run train $keys steps="$steps" out=whole
  run train $keys steps=$((steps / 2)) out=parts
  run resume parts steps="$steps"
}
same=different
newest() { ls -d "$1"/step-* | sort -t- -k2 -n | tail -1; }
a=$(newest whole) b=$(newest parts)
for file in "$a"/*.safetensors; do
  cmp -s "$file" "$b/${file##*/}" && same=equal
done
"$python" - "$same" "$model" "$side" "$device" <<'EOF'
import json
import sys

rows = [json.loads(line) for line in open("whole/metrics.jsonl")]
loss = [r["loss"] for r in rows if "norm" in r]
ms = sorted(r["ms"] for r in rows if "norm" in r)
first, last = sum(loss[:3]) / 3, sum(loss[-3:]) / 3
print(f"{sys.argv[2]} of {sys.argv[3]}x{sys.argv[3]} on {sys.argv[4]}: loss {first:.3f} -> {last:.3f}, "
      f"{ms[len(ms) // 2]:.2f} ms a step, parameters after a resume {sys.argv[1]}")
sys.exit(not (last < 0.7 * first and sys.argv[1] == "equal"))
EOF
grep -E '^eval|eval ' log | tail -2 || true
