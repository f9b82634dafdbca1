# SPDX-License-Identifier: MIT OR Apache-2.0
# Functions for what runs in the guest.

failed=0

# test_ NAME SECONDS COMMAND...: runs a test, says how it went, goes on.
test_() {
    name=$1
    limit=$2
    shift 2
    echo
    echo "VM-BEGIN $name"
    read -r begin _ </proc/uptime
    timeout -s KILL "$limit" "$@" </dev/null
    code=$?
    [ "$code" -eq 137 ] && echo "$name: killed, most likely because it took more than $limit s"
    read -r end _ </proc/uptime
    echo
    echo "VM-END $name rc=$code seconds=$((${end%.*} - ${begin%.*}))"
    [ "$code" -eq 0 ] || failed=$((failed + 1))
}
