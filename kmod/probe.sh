#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# probe.sh SOURCE OUT COMPILER...: compiles SOURCE (probe.c) and writes what the kernel has to OUT
# (probed.h). Fails, with what the compiler said, unless every error is that of a probe and the
# controls answer as they must.
set -eu
source=$1
out=$2
shift 2
names=$(sed -n 's/^#line 1 "\([A-Z0-9_]*\)"$/\1/p' "$source")
# Its exit status says nothing: that some probes fail is what is asked.
said=$(LC_ALL=C "$@" -fsyntax-only "$source" 2>&1) || true

command=$*
fail()
{
	echo "onecopy: error: $1 by: $command" >&2
	printf '%s\n' "$said" | tail -n 30 >&2
	exit 1
}

# The files in which there are errors; a compiler that cannot begin names itself.
wrong=$(printf '%s\n' "$said" |
	sed -n 's/^\([^: ]*\):\([0-9]*:\)* *\(fatal \)*error:.*/\1/p' | sort -u)
for file in $wrong; do
	case " $(echo $names) " in
	*" $file "*) ;;
	*) fail "the probes cannot be compiled ($file)" ;;
	esac
done
has()
{
	case " $(echo $wrong) " in
	*" $1 "*) return 1 ;;
	esac
}
has CONTROL_YES || fail "the probes cannot be compiled"
if has CONTROL_NO; then
	fail "the compiler finds no error where there is one"
fi
{
	echo "/* SPDX-License-Identifier: GPL-2.0 */"
	echo "/* Made by probe.sh for one kernel. */"
	for name in $names; do
		case $name in
		CONTROL_*) continue ;;
		esac
		if has "$name"; then
			echo "#define OC_HAVE_$name 1"
		else
			echo "#define OC_HAVE_$name 0"
		fi
	done
} >"$out.part"
mv "$out.part" "$out"
