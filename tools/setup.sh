#!/bin/sh
# tools/setup.sh [build|test|opencl|neon|lint|bench] ... -- install the Debian packages these groups need and that are missing.
# The table below is the only list of packages: group, package, a test that succeeds when it is there.
set -eu

packages() {
  cat <<'EOF'
build gcc              command -v gcc
build libc6-dev        test -e /usr/include/stdio.h
build cmake            command -v cmake
build ninja-build      command -v ninja
build libjansson-dev   test -e /usr/include/jansson.h
test  libcmocka-dev    test -e /usr/include/cmocka.h
test  pkg-config       command -v pkg-config
test  clang            command -v clang
test  clang-tools      command -v clang-query
test  libclang-rt-dev  test -e "$(clang -print-runtime-dir)/libclang_rt.fuzzer-$(uname -m).a"
test  python3          test -x /usr/bin/python3
test  python3-numpy    /usr/bin/python3 -c 'import numpy'
test  python3-scipy    /usr/bin/python3 -c 'import scipy'
opencl ocl-icd-libopencl1     ls /usr/lib/*/libOpenCL.so.1
opencl pocl-opencl-icd        ls /etc/OpenCL/vendors/*.icd
neon  gcc-aarch64-linux-gnu   command -v aarch64-linux-gnu-gcc
neon  libc6-dev-arm64-cross   test -e /usr/aarch64-linux-gnu/include/stdio.h
neon  qemu-user        command -v qemu-aarch64
lint  clang-format     command -v clang-format
lint  clang-tidy       command -v clang-tidy
bench libdnnl-dev      test -e /usr/include/oneapi/dnnl/dnnl.h
bench libopenblas-dev  test -e "/usr/include/$(uname -m)-linux-gnu/cblas.h"
bench python3-numpy    /usr/bin/python3 -c 'import numpy'
bench python3-torch    /usr/bin/python3 -c 'import torch'
EOF
}

missing=
for group in "$@"; do
  while read -r owner package probe; do
    if [ "$owner" = "$group" ] && ! (eval "$probe") >/dev/null 2>&1; then missing="$missing $package"; fi
  done <<EOF
$(packages)
EOF
done
[ -n "$missing" ] || exit 0

echo "setup: missing:$missing"
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "setup: as root on Debian:  apt-get install --no-install-recommends$missing" >&2
  echo "setup: elsewhere, install the equivalents; then run make again" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # a list of words
install() { apt-get install -y -q --no-install-recommends $missing; }
if ! ls /var/lib/apt/lists/*Packages* >/dev/null 2>&1; then apt-get update -q; fi
install || { apt-get update -q && install; }
echo "setup: installed:$missing"
