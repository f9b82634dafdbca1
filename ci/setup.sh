#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs what the tests need and the machine lacks (Debian, Ubuntu). Changes nothing where all is there.
set -euo pipefail

packages=()
need() { # program, package
    command -v "$1" >/dev/null 2>&1 || packages+=("$2")
}
need cc gcc
need git git
need unshare util-linux
need ip iproute2
# Builds the programs that observe in the kernel anew, to compare them.
need clang clang
need llvm-strip llvm
need valgrind valgrind
# Virtual machines with other kernels. (What builds the debug kernels is not here: tests do without them.)
need make make
need qemu-system-x86_64 qemu-system-x86
need dpkg-deb dpkg
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || packages+=(debian-archive-keyring)
case $(ldd "$(command -v busybox || echo /nowhere)" 2>&1 || true) in
*'not a dynamic executable'* | *'statically linked'*) ;;
*) packages+=(busybox-static) ;;
esac
# Applications, built from their sources (`cargo xtask apps`).
need c++ g++
need perl perl
need xz xz-utils
# Other MPI libraries, to compare with: each in an environment of its own.
need python3 python3
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
[ -e /usr/include/stdlib.h ] || packages+=(libc6-dev)
# The C header that sys/verbs-sys is compared with.
[ -e /usr/include/infiniband/verbs.h ] || packages+=(libibverbs-dev)

if [ "${#packages[@]}" -gt 0 ]; then
    sudo=()
    [ "$(id -u)" -eq 0 ] || sudo=(sudo)
    echo "installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi

components=()
cargo fmt --version >/dev/null 2>&1 || components+=(rustfmt)
cargo clippy --version >/dev/null 2>&1 || components+=(clippy)
if [ "${#components[@]}" -gt 0 ]; then
    echo "installing ${components[*]}"
    rustup component add "${components[@]}"
fi
