#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# @NAME@: compiles and links @LANGUAGE@ programs against the MPI standard ABI as onecopy provides it. Takes the compiler's own options.
#   @VARIABLE@     the compiler (default: @COMPILER@)
#   -show            prints the command instead of running it
# The library's place becomes the program's RUNPATH, so LD_LIBRARY_PATH chooses another library of the same ABI when it runs.

own=$(readlink -f -- "$0") || exit 1
prefix=$(dirname -- "$(dirname -- "$own")")
show=
link=yes
for word do
    shift
    case $word in
        -show | --show | --showme) show=yes; continue ;;
        -c | -S | -E | -M | -MM | -fsyntax-only) link= ;;
    esac
    set -- "$@" "$word"
done
set -- "-I$prefix/include" "$@"
if [ -n "$link" ]; then
    set -- "$@" "-L$prefix/lib" "-Wl,-rpath,$prefix/lib" -Wl,--enable-new-dtags -lmpi_abi
fi
# The variable may hold a command with options.
# shellcheck disable=SC2086
if [ -n "$show" ]; then
    echo ${@VARIABLE@:-@COMPILER@} "$@"
else
    exec ${@VARIABLE@:-@COMPILER@} "$@"
fi
