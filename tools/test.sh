#!/bin/sh
# tools/test.sh quick|all -- run the steps of a table, all of them whatever fails, and sum up their tests. Steps that keep one
# processor busy for long run beside the others, one after another.
# A step's output is build/logs/<step>.log, shown when it fails. A step counts the tests that its log reports (lines of
# cmocka, and closing lines "N passed, N failed"); one that reports none counts as one test.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/.."
export QUERN_CACHE="$PWD/build/cache"
python=/usr/bin/python3 # Debian's, which has numpy

steps_quick() {
  cat <<EOF
unit             ctest --test-dir build --no-tests=error -j2 -V
value            build/querntest --mode value
grad             build/querntest --mode grad
value-interp     build/querntest --mode value --device interp
grad-interp      build/querntest --mode grad --device interp
bits-interp      build/querntest --mode bits --device interp
value-calls      build/querntest --mode value --device interp --target sm_90+blas+dnn
EOF
}
steps_quick_beside() { :; }

# Every case runs on every device, optimised and not. Programs that are compiled share a cache, which the first of those steps
# removes, so that each kernel is compiled once.
steps_all() {
  cat <<EOF
layers-self      tools/check_layers.sh --selftest
layers           tools/check_layers.sh
place-self       tools/check_place.sh --selftest
place            tools/check_place.sh
wrong-calls-self tools/check_wrong_calls.sh --selftest
wrong-calls      tools/check_wrong_calls.sh
order-self       tools/check_order.sh --selftest
order            tools/check_order.sh
headers-self     tools/check_headers.sh --selftest
headers          tools/check_headers.sh
symbols-self     tools/check_symbols.sh --selftest
symbols          tools/check_symbols.sh
mutate-self      $python tools/mutate.py --selftest
docs-self        $python tools/docs.py --selftest
unit             ctest --test-dir build --no-tests=error -j2 -V
value            build/querntest --mode value
grad             build/querntest --mode grad
grad2            build/querntest --mode grad2
jvp              build/querntest --mode jvp
bits             build/querntest --mode bits
ulp              build/querntest --mode ulp
coverage         build/querntest --mode coverage
value-interp     build/querntest --mode value --device interp
value-interp-0   build/querntest --mode value --device interp --optimise 0
grad-interp      build/querntest --mode grad --device interp
grad-interp-0    build/querntest --mode grad --device interp --optimise 0
bits-interp      build/querntest --mode bits --device interp
value-calls      build/querntest --mode value --device interp --target sm_90+blas+dnn
value-calls-0    build/querntest --mode value --device interp --target sm_90+blas+dnn --optimise 0
grad-calls       build/querntest --mode grad --device interp --target sm_90+blas+dnn
value-mma        build/querntest --mode value --device interp --target sm_90+mma --op attention
value-mma-mask   build/querntest --mode value --device interp --target sm_90+mma --op attention_mask
grad-mma         build/querntest --mode grad --device interp --target sm_90+mma --op attention
grad-mma-mask    build/querntest --mode grad --device interp --target sm_90+mma --op attention_mask
cache            rm -rf build/cache
value-cpu        build/querntest --mode value --device cpu
value-cpu-0      build/querntest --mode value --device cpu --optimise 0
grad-cpu         build/querntest --mode grad --device cpu
grad-cpu-0       build/querntest --mode grad --device cpu --optimise 0
bits-cpu         build/querntest --mode bits --device cpu
memory-cpu       build/querntest --mode memory --device cpu
memory-large     build/quernbytes
ref-cpu          QUERN_REF=1 build/querntest --mode value --device cpu
property         build/quernprop --graphs 20000
property-interp  build/quernprop --device interp --graphs 20000
property-cpu     build/quernprop --device cpu --graphs 1000
property-calls   build/quernprop --device interp --target sm_90+blas+dnn --graphs 5000
nets             build/quernnets --models short --random 20
nets-run         build/quernnets --run 60 --run-models short
judge-self       $python tests/oracle/judge.py --selftest
judge-io-self    $python tests/oracle/safetensors_judge.py --selftest
plant            tests/driver/plant.sh build
plant-nvrtc      tests/driver/plant_nvrtc.sh build
program          build/quern --help
install          tests/install/run.sh
kill             tests/kill/run.sh build 5
docs             $python tools/docs.py
asan             tools/sanitize.sh asan
fuzz             tools/fuzz.sh 10
EOF
}
steps_all_beside() {
  cat <<EOF
opencl           tools/opencl.sh build
nvrtc            tools/nvrtc.sh build
neon             tools/neon.sh
EOF
}

# Prints "passed failed skipped" of a log.
count() { # log
  awk '
    { sub(/^[0-9]+: /, "") }
    /^\[  PASSED  \] [0-9]+ test/ { passed += $4 }
    /^\[  FAILED  \] [0-9]+ test/ { failed += $4 }
    /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4 }
    /^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?\.?$/ { passed += $1; failed += $3; skipped += $5 }
    END { print passed + 0, failed + 0, skipped + 0 }' "$1"
}

run() { # name command: its output, exit status and seconds go to files
  start=$(date +%s)
  rc=0
  sh -c "$2" >"build/logs/$1.log" 2>&1 </dev/null || rc=$?
  echo "$rc $(($(date +%s) - start))" >"build/logs/$1.result"
}

show() { # name command: what became of it
  read -r rc seconds <"build/logs/$1.result"
  log=build/logs/$1.log
  read -r p f s <<EOF
$(count "$log")
EOF
  if [ "$rc" != 0 ] && [ "$f" = 0 ]; then f=1; fi
  if [ "$((p + f + s))" = 0 ]; then p=1; fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  if [ "$f" = 0 ]; then
    printf '  ok      %-16s %6d passed %5d s\n' "$1" "$p" "$seconds"
  else
    broken="$broken $1"
    printf '  FAILED  %-16s %6d passed, %d failed, exit %d: %s\n' "$1" "$p" "$f" "$rc" "$2"
    { grep -E '\[  ERROR|\[   LINE|\[  FAILED|\*\*\*|error:|Sanitizer' "$log" | head -n 40; echo ...; tail -n 40 "$log"; } |
      sed 's/^/  | /'
  fi
}

run_beside() { # table: with a cache of its own, since a step removes the other
  export QUERN_CACHE="$PWD/build/cache-beside"
  while read -r name command; do
    if [ -n "$name" ]; then run "$name" "$command"; fi
  done <<EOF
$("steps_$1_beside")
EOF
}

mkdir -p build/logs
rm -f build/logs/*.result
passed=0 failed=0 skipped=0 broken=
if [ "$1" = all ]; then
  run build "tools/build.sh release"
  show build "tools/build.sh release"
fi
run_beside "$1" &
beside=$!
trap 'kill $beside 2>/dev/null || true' EXIT
while read -r name command; do
  run "$name" "$command"
  show "$name" "$command"
done <<EOF
$("steps_$1")
EOF
wait $beside
while read -r name command; do
  if [ -n "$name" ]; then show "$name" "$command"; fi
done <<EOF
$("steps_$1_beside")
EOF

[ -z "$broken" ] || echo "failed steps:$broken (whole output in build/logs/)"
if [ "$skipped" = 0 ]; then echo "$passed passed, $failed failed"; else echo "$passed passed, $failed failed, $skipped skipped"; fi
[ "$failed" = 0 ]
