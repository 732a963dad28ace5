#!/bin/bash
# tests/kill/run.sh BUILD [ROUNDS] [SEED] -- kill -9 at random moments, as pid 1 of a PID namespace, as in a container:
# the run goes on each time, ends with the bits of one that was never killed, and leaves no temporary file and no
# process. A third of the rounds begins with an empty cache, so that the kill meets the compiler. Skipped where
# namespaces cannot be made.
set -eu
export LC_ALL=C
build=$(cd "${1:-build}" && pwd) rounds=${2:-5} seed=${3:-1}
quern=$build/quern
folder=$(mktemp -d)
child=
trap '[ -z "$child" ] || kill -KILL "$child" 2>/dev/null || true; rm -rf "$folder"' EXIT
mkdir "$folder/tmp"
export TMPDIR=$folder/tmp QUERN_CACHE=$folder/cache
cd "$folder"

skip() {
  echo "skipped: $1"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}
fail() {
  echo "FAILED: $1 (seed $seed, round $round)"
  [ ! -f log ] || tail -n 5 log
  echo "$passed passed, 1 failed"
  exit 1
}
command -v unshare >/dev/null || skip "there is no unshare(1)"
unshare --pid --fork --mount-proc true 2>/dev/null || skip "namespaces of processes cannot be made"
[ -e "/proc/$$/task/$$/children" ] || skip "the kernel does not list the children of a process"

# Numbers from 0 to $1 - 1, the same of the same seed.
random() {
  state=$(((state * 1103515245 + 12345) % 2147483648))
  number=$((state / 65536 % $1))
}
state=$seed passed=0 round=0

# ---- what runs --------------------------------------------------------------------------------------------------

# Starts the program as pid 1 of a namespace; its pid out here is left in child, that of unshare in outer.
start() { # arguments
  unshare --pid --fork --mount-proc "$quern" "$@" >log 2>&1 &
  outer=$!
  child=
  while [ -z "$child" ] && kill -0 "$outer" 2>/dev/null; do
    read -r child _ 2>/dev/null <"/proc/$outer/task/$outer/children" || true # it has no line end
  done
}

# Waits for a random time below $1 milliseconds, less than 10 s, and kills the program. False: it had ended by itself.
kill_within() { # milliseconds
  random "$1"
  sleep "$(printf '%d.%03d' $((number / 1000)) $((number % 1000)))"
  killed=true
  kill -KILL "$child" 2>/dev/null || killed=false
  wait "$outer" 2>/dev/null || true
  child=
  $killed
}

# What a command took, in milliseconds: moments of kills are drawn from that.
took() {
  local from
  from=$(date +%s%N)
  "$@" >log 2>&1 || fail "$*"
  milliseconds=$((($(date +%s%N) - from) / 1000000 + 1))
}

# Temporary and hidden files, of the compiler too.
leftovers() { find . -mindepth 1 \( -name '*.tmp' -o -name 'quern-tmp-*' -o -name '.*' -o -path './tmp/*' \) -print; }
none_left() {
  left=$(leftovers)
  [ -z "$left" ] || fail "files are left: $left"
}

# ---- tokens: written to a file while they are made --------------------------------------------------------------

yes 'the quick brown fox jumps over the lazy dog; 0123456789' | head -c 4000000 >text
head -c 30000 text >sample
"$quern" tokenize --train 300 sample -o tokenizer.json >/dev/null
took "$quern" tokenize tokenizer.json text -o whole.bin
kills=0
for round in $(seq "$rounds"); do
  start tokenize tokenizer.json text -o data.bin
  if kill_within "$milliseconds"; then kills=$((kills + 1)); fi
done
"$quern" tokenize tokenizer.json text -o data.bin >log 2>&1 || fail "the tokens cannot be written"
cmp data.bin whole.bin || fail "the tokens differ"
none_left
echo "$kills kills while tokens were written"
passed=$((passed + 2))

# ---- a run: a step of a few milliseconds, a checkpoint every few steps ------------------------------------------

config=(model=lm width=32 layers=1 heads=2 data=data.bin tokenizer=tokenizer.json length=32 batch=4 warmup=0
  schedule=constant eval_every=20 eval_batches=2 save_every=5 keep=2 threads=1 profile=0)
took "$quern" train "${config[@]}" out=probe steps=20 # with an empty cache
cold=$milliseconds
took "$quern" train "${config[@]}" out=probe2 steps=20
warm=$((3 * milliseconds))
for round in $(seq "$rounds"); do
  most=$warm
  random 3
  if [ "$number" = 0 ]; then
    rm -rf cache
    most=$cold
  fi
  start train "${config[@]}" out=killed steps=100000000
  kill_within "$most" || fail "the run ended by itself"
  passed=$((passed + 1))
done

# The steps of metrics.jsonl with their losses, without times.
curve() { sed 's/,"ms":.*//' "$1/metrics.jsonl"; }
last=$(sed -n '$s/{"step":\([0-9]*\),.*/\1/p' killed/metrics.jsonl 2>/dev/null) || last=
steps=$((${last:-0} + 10))
"$quern" train "${config[@]}" out=killed steps=$steps >log 2>&1 || fail "the run does not go on to its end"
echo "$rounds kills of a run of $steps steps"
none_left
printf '%s' "$folder" >pattern # grep's own command does not hold it
left=$(grep -lsFf pattern /proc/[0-9]*/cmdline 2>/dev/null) || true
[ -z "$left" ] || fail "processes are left: $left"
"$quern" info killed >/dev/null || fail "the last checkpoint is not whole"

"$quern" train "${config[@]}" out=whole steps=$steps >log 2>&1 || fail "the run without kills does not end"
name=$(printf 'step-%08d/model.safetensors' "$steps")
cmp "killed/$name" "whole/$name" || fail "the bits differ"
curve killed >a
curve whole >b
cmp a b || fail "the metrics differ"
echo "$((passed + 5)) passed, 0 failed"
