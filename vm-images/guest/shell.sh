# SPDX-License-Identifier: MIT OR Apache-2.0
# What a person finds done who gets a shell.
for module in /payload/onecopy.ko; do
    [ -e "$module" ] && insmod "$module"
done
cat <<END

The module is loaded, its devices are /dev/xpmem, /dev/knem and /dev/onecopy. Programs lie in /payload/bin: $(ls /payload/bin | tr '\n' ' ')
Try: onecopy info, onecopy bench, onecopy run -n 2 -- id. Users: root, alice and bob (su alice). 'exit' switches the machine off.

END
