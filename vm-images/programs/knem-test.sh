#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# knem-test.sh FOLDER: the C program that is written against KNEM.
set -eu
make -s -C kmod/lib "OUT=$1" "$1/knem-test"
