#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# build-kernel.sh SOURCE BUILD FRAGMENT...: configures and builds a kernel out of tree from the unpacked SOURCE in BUILD.
# The result is BUILD/arch/x86/boot/bzImage; BUILD itself is what modules are built against.
set -euo pipefail
source=$1 build=$2
shift 2
jobs=$(nproc)

# These two have no prompt, so no fragment can ask for them: give them one.
for symbol in MMU_NOTIFIER HMM_MIRROR; do
    sed -i "/^config $symbol\$/,/^\tbool\$/ s/^\tbool\$/\tbool \"$symbol (asked for by a fragment)\"/" "$source/mm/Kconfig"
done

# Faults of the kernel's own allocations would only hide those that the module's calls meet. The filter by call stack works
# with frame pointers, which the fragments choose.
sed -i '/^config FAULT_INJECTION_STACKTRACE_FILTER$/,/^config / { /depends on !X86_64/d }' "$source/lib/Kconfig.debug"

mkdir -p "$build"
asked=$build/asked.config
cat "$@" >"$asked"
if ! cmp -s "$asked" "$build/configured"; then
    make -s -C "$source" O="$build" tinyconfig
    "$source/scripts/kconfig/merge_config.sh" -m -O "$build" "$build/.config" "$asked" >"$build/merge.log"
    make -s -C "$source" O="$build" olddefconfig
    # What kconfig dropped, it dropped for a dependency that a fragment must name. A later fragment may take back what an earlier one says.
    last=$(sed -nE 's/^# (CONFIG_[A-Z0-9_]+) is not set$/\1=n/; /^CONFIG_[A-Z0-9_]+=/p' "$asked" |
        awk -F= '{ said[$1] = $0 } END { for (name in said) print said[name] }' | grep -v '=n$' | sort)
    lost=$(grep -vxF -f "$build/.config" <<<"$last" || true)
    if [ -n "$lost" ]; then
        echo "build-kernel.sh: kconfig did not take:" $lost >&2
        exit 1
    fi
    cp "$asked" "$build/configured"
fi
make -C "$source" O="$build" -j "$jobs" bzImage modules KCFLAGS=-w
