#!/bin/sh
# tests/install/run.sh -- install build/ into an empty prefix, move it, and build and run programs against it with
# pkg-config and with CMake. The prefix is moved because a package must not remember where it was made.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
prefix=$tmp/prefix
cmake --install "$here/../../build" --prefix "$tmp/first" >"$tmp/install.log" || { cat "$tmp/install.log"; exit 1; }
mv "$tmp/first" "$prefix"
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig" LD_LIBRARY_PATH="$prefix/lib"
passed=0

expect() { # what, command: must print 12
  what=$1
  shift
  out=$("$@") || { echo "$what: fails with $?: $out"; exit 1; }
  [ "$out" = 12 ] || { echo "$what: prints '$out', not 12"; exit 1; }
  echo "$what: $out"
  passed=$((passed + 1))
}

# shellcheck disable=SC2046  # lists of words
gcc -std=c17 -Wall -Wextra -Werror $(pkg-config --cflags quern) "$here/program.c" $(pkg-config --libs quern) -o "$tmp/shared"
expect "pkg-config, shared" "$tmp/shared"
# shellcheck disable=SC2046
gcc -std=c17 $(pkg-config --cflags quern) "$here/program.c" "$(pkg-config --variable=libdir quern)/libquern.a" \
  $(pkg-config --libs --static quern | sed 's/-lquern//') -o "$tmp/static"
expect "pkg-config, static" "$tmp/static"
# The examples are programs of users: they compile without warnings, and two of them run elsewhere.
for source in "$here"/../../examples/*.c; do
  name=$(basename "$source" .c)
  # shellcheck disable=SC2046
  gcc -std=c17 -O2 -Wall -Wextra -Werror $(pkg-config --cflags quern) "$source" $(pkg-config --libs quern) -lm -o "$tmp/$name"
  passed=$((passed + 1))
done
for name in embed_in_app train_mlp; do
  (cd "$tmp" && "./$name") || { echo "$name fails with $?"; exit 1; }
  passed=$((passed + 1))
done
cmake -S "$here" -B "$tmp/build" -G Ninja -DCMAKE_C_COMPILER=gcc -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$tmp/build"
expect "find_package, shared" "$tmp/build/shared"
expect "find_package, static" "$tmp/build/static"
"$prefix/bin/quern" --help >/dev/null
passed=$((passed + 1))

# What is installed and nothing else.
# The peers of quern bench that are programs depend on what else is installed.
(cd "$prefix" && find . -type f -o -type l | sed 's,^\./,,' | grep -v '^include/quern/\|/peers/peer_' | sort) >"$tmp/files"
version=$(pkg-config --modversion quern)
printf '%s\n' bin/quern lib/cmake/quern/quernConfig.cmake lib/cmake/quern/quernConfigVersion.cmake \
  lib/cmake/quern/quernTargets-release.cmake lib/cmake/quern/quernTargets.cmake lib/libquern.a lib/libquern.so \
  "lib/libquern.so.${version%%.*}" "lib/libquern.so.$version" lib/pkgconfig/quern.pc \
  libexec/quern/peers/compile_peer.py libexec/quern/peers/cuda_peer.py libexec/quern/peers/eager_peer.py libexec/quern/peers/numpy_peer.py libexec/quern/peers/peer.py libexec/quern/peers/torch_models.py libexec/quern/peers/torch_peer.py \
  libexec/quern/peers/zoo_images.py libexec/quern/peers/zoo_models.py libexec/quern/peers/zoo_pictures.py libexec/quern/peers/zoo_sequences.py libexec/quern/peers/zoo_serve.py libexec/quern/peers/zoo_tables.py libexec/quern/peers/zoo_text.py >"$tmp/wanted"
diff "$tmp/wanted" "$tmp/files"
passed=$((passed + 1))
echo "$passed passed, 0 failed"
