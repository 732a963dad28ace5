#!/bin/sh
# tools/demo.sh [STEPS] -- train a language model on Quern's own sources and documents, write text with it, sum up the run.
set -eu
cd "$(dirname "$0")/.."
steps=${1:-450}
out=build/demo
data=README.md,CHANGELOG.md,docs,include,src,cli,examples
PATH=$PWD/build:$PATH

rm -rf "$out"
cat <<EOT
== What this machine can do

\$ quern devices
EOT
quern devices

cat <<EOT

== A transformer learns to write like this project, byte by byte
   $steps steps: about a minute on two cores that have nothing else to do. Ctrl-C ends it earlier, with a checkpoint.

\$ quern train chars data=$data out=$out steps=$steps
EOT
quern train chars data="$data" out="$out" steps="$steps"

cat <<EOT

== What it writes now

\$ quern generate $out --prompt "/* " --tokens 250 --temperature 0.7 --seed 1
EOT
quern generate "$out" --prompt "/* " --tokens 250 --temperature 0.7 --seed 1

cat <<EOT

== The run in a few lines

\$ quern report $out
EOT
quern report "$out"
