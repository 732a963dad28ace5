#!/bin/sh
# tests/abi/run.sh [--freeze] -- programs and libraries go together when structs differ in size: docs/design/009-api.md
#   frozen headers, today's library      what people have compiled runs on
#   frozen headers, grown library        ... with a later version, whose structs have more members
#   grown headers, today's library       a newer program: what it leaves zero is accepted, what it sets is refused
# The grown library is made of today's sources with headers in which every sized struct has a member more (grow.py).
# --freeze: tests/abi/include becomes a copy of today's headers; only when the promise begins anew.
set -eu
cd "$(dirname "$0")/../.."
if [ "${1-}" = --freeze ]; then
  rm -rf tests/abi/include
  mkdir -p tests/abi/include
  cp -r include/quern tests/abi/include/
  echo "frozen: $(find tests/abi/include -name '*.h' | wc -l) headers"
  exit
fi
cc=${CC:-gcc}
[ -x /usr/bin/ccache ] && cc="ccache $cc"
out=build/abi
mkdir -p "$out"
rm -rf "$out/include" && /usr/bin/python3 tests/abi/grow.py include "$out/include"
export QUERN_CACHE="$PWD/build/abi/cache"

# The library of grown headers, without optimization: what matters is where its structs end.
cat >"$out/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(quern_grown C)
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_EXTENSIONS OFF)
find_package(Threads REQUIRED)
file(GLOB_RECURSE sources $PWD/src/*.c)
add_library(quern SHARED \${sources})
target_include_directories(quern PRIVATE $PWD/$out/include $PWD/src)
target_compile_options(quern PRIVATE -O0 -w -fvisibility=hidden -ffp-contract=off)
target_compile_definitions(quern PRIVATE QUERN_NO_PLACE _POSIX_C_SOURCE=200809L)
target_link_libraries(quern PRIVATE jansson m \${CMAKE_DL_LIBS} Threads::Threads)
END
[ -x /usr/bin/ccache ] && launcher=-DCMAKE_C_COMPILER_LAUNCHER=ccache || launcher=
cmake -G Ninja -S "$out" -B "$out/grown" $launcher >"$out/configure.log" 2>&1 || { cat "$out/configure.log"; exit 1; }
cmake --build "$out/grown" >"$out/build.log" 2>&1 || { tail -40 "$out/build.log"; exit 1; }

failed=0
pair() { # name, headers, folder of the library, flags
  # shellcheck disable=SC2086
  $cc -std=c17 -Wall -Wextra -Werror -Wno-missing-field-initializers -O1 $4 -I"$2" tests/abi/use.c -o "$out/use-$1" \
    -L"$3" -lquern -Wl,-rpath,"$PWD/$3"
  printf '%-16s ' "$1"
  "$out/use-$1" || failed=1
}
pair frozen-today tests/abi/include build ""
pair frozen-grown tests/abi/include "$out/grown" ""
pair grown-today "$out/include" build -DNEWER
pair grown-grown "$out/include" "$out/grown" ""
exit $failed
