#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# mpi-hosts.sh FOLDER: a C program for ranks on several hosts, on our MPI library. It finds that at the same place in the guest.
set -eu
"${CARGO:-cargo}" build --quiet --package onecopy-mpi
# What debuggers want of it would take the guest's memory.
strip -o "$1/libmpi_abi.so.1" "${CARGO_TARGET_DIR:-target}/debug/libmpi_abi.so"
cc -std=c11 -O1 -Wall -Wextra -Werror -o "$1/mpi-hosts" mpi/tests/programs/hosts.c -I mpi/include -L "$1" -l:libmpi_abi.so.1 -Wl,-rpath,"$1"
