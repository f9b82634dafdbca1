# SPDX-License-Identifier: MIT OR Apache-2.0
# What a person finds done who gets a shell.
if [ -d /payload/modules ]; then
    # The lines of the script before the one that runs a command.
    grep -v '^test_\|^exit' /payload/run >/tmp/bed
    . /tmp/bed
    cat <<END

The device for RDMA is $BED_DEVICE (rdma link, ibv_devices where it was copied), the sides of the bed are a and b (at b COMMAND). 'exit'
switches the machine off.

END
    return 0 2>/dev/null || exit 0
fi
for module in /payload/onecopy.ko; do
    [ -e "$module" ] && insmod "$module"
done
cat <<END

The module is loaded, its devices are /dev/xpmem, /dev/knem and /dev/onecopy. Programs lie in /payload/bin: $(ls /payload/bin | tr '\n' ' ')
Try: onecopy info, onecopy bench, onecopy run -n 2 -- id. Users: root, alice and bob (su alice). 'exit' switches the machine off.

END
