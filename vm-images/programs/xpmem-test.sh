#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# xpmem-test.sh FOLDER: the C program that is written against libxpmem, and the library that it links with.
set -eu
make -s -C kmod/lib "OUT=$1" "$1/libxpmem.so" "$1/xpmem-test"
