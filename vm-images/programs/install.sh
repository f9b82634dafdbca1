#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the module as kmod/README.md says, in a tree of the kernel's own distribution, and looks for what that is to leave behind.
set -eu
tree=/payload/tree
release=$(uname -r)

# udevadm asks nothing of the daemon in a chroot if it is not told to: then a changed rule is seen some seconds later.
inside() {
    chroot "$tree" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp LC_ALL=C \
        SYSTEMD_IGNORE_CHROOT=1 "$@"
}
say() { echo "== $*"; }
fail() {
    echo "FAILED: $*"
    cat "$tree/var/lib/dkms/onecopy/0.1.0/build/make.log" 2>/dev/null || true
    exit 1
}
# is NAME EXPECTED FOUND
is() {
    [ "$2" = "$3" ] || fail "$1 is '$3' and not '$2'"
    echo "ok: $1 is $3"
}
has() {
    [ -e "$tree$1" ] || fail "there is no $1"
    echo "ok: $1"
}

rmmod onecopy
for folder in proc sys dev; do
    mkdir -p "$tree/$folder"
    mount -o bind "/$folder" "$tree/$folder"
done
mkdir -p "$tree/run" "$tree/tmp" "$tree/etc/udev/rules.d" "$tree/etc/modprobe.d" "$tree/etc/modules-load.d" "$tree/usr/src"
mount -t tmpfs run "$tree/run"
chmod 1777 "$tree/tmp"
cp /etc/passwd /etc/group "$tree/etc/"
# Root needs nobody's leave.
printf '#!/bin/sh\nexec "$@"\n' >"$tree/usr/bin/sudo"
chmod 755 "$tree/usr/bin/sudo"
udevd=/usr/lib/systemd/systemd-udevd
[ -x "$tree$udevd" ] || udevd=/lib/systemd/systemd-udevd
inside $udevd --daemon
# As the kernel's package does when it is configured; some versions of DKMS leave it alone where it was never done.
inside depmod "$release"

say "by DKMS: $(cat "$tree/root/dkms.sh")"
inside sh -exc 'cd /root && . ./dkms.sh' || fail "DKMS"
inside dkms status
case $(inside dkms status) in
*onecopy*0.1.0*"$release"*installed*) ;;
*) fail "DKMS has not installed it" ;;
esac
file=$(inside modinfo -n onecopy)
case $file in
*/"$release"/updates/dkms/onecopy.ko*) echo "ok: $file" ;;
*) fail "modinfo finds $file" ;;
esac
is "the version" 0.1.0 "$(inside modinfo -F version onecopy)"
is "the release it is for" "$release" "$(inside modinfo -F vermagic onecopy | cut -d' ' -f1)"
has /etc/udev/rules.d/60-onecopy.rules
has /etc/modprobe.d/onecopy.conf
is "what is loaded at boot" onecopy "$(grep -v '^#' "$tree/etc/modules-load.d/onecopy.conf")"
has /usr/local/share/man/man4/onecopy.4
[ -d /sys/module/onecopy ] || fail "it is not loaded"

say "what an administrator changes"
sed -i 's/MODE="0660"/MODE="0664"/' "$tree/etc/udev/rules.d/60-onecopy.rules"
sed -i 's/^#options/options/; s/fault_around=512/fault_around=256/' "$tree/etc/modprobe.d/onecopy.conf"
inside udevadm control --reload
inside modprobe -r onecopy
inside modprobe onecopy
inside udevadm settle
for device in xpmem knem onecopy; do
    is "the mode of /dev/$device" 664 "$(stat -c %a /dev/$device)"
    is "its group" "$(grep ^onecopy: "$tree/etc/group" | cut -d: -f3)" "$(stat -c %g /dev/$device)"
done
is fault_around 256 "$(cat /sys/module/onecopy/parameters/fault_around)"

say "loaded by the first open of its node"
inside modprobe -r onecopy
case $(grep ' onecopy ' "$tree/lib/modules/$release/modules.devname") in
"onecopy onecopy c10:244") echo "ok: modules.devname has the node" ;;
*) fail "modules.devname: $(cat "$tree/lib/modules/$release/modules.devname")" ;;
esac
# The kernel runs this in the guest, where the module is not installed.
printf '#!/bin/sh\nexec chroot %s /sbin/modprobe "$@"\n' "$tree" >/payload/modprobe
chmod 755 /payload/modprobe
before=$(cat /proc/sys/kernel/modprobe)
echo /payload/modprobe >/proc/sys/kernel/modprobe
# As systemd makes it at boot.
mknod -m 600 /dev/onecopy c 10 244
: </dev/onecopy || fail "the node cannot be opened"
[ -d /sys/module/onecopy ] || fail "the open has not loaded it"
echo "$before" >/proc/sys/kernel/modprobe
inside udevadm settle
# The kernel removes only the nodes that it made itself.
rm /dev/onecopy

say "removed: $(cat "$tree/root/remove.sh")"
inside sh -exc 'cd /root && . ./remove.sh'
! inside modinfo -n onecopy 2>/dev/null || fail "it is still there"
for file in /etc/udev/rules.d/60-onecopy.rules /etc/modprobe.d/onecopy.conf /usr/src/onecopy-0.1.0 /usr/local/share/man/man4/onecopy.4; do
    [ ! -e "$tree$file" ] || fail "$file is left"
done

say "for one kernel: $(cat "$tree/root/make.sh")"
inside sh -exc 'cd /root && . ./make.sh' || fail "make"
file=$(inside modinfo -n onecopy)
echo "ok: $file"
has /etc/udev/rules.d/60-onecopy.rules
has /etc/modprobe.d/onecopy.conf
has /etc/modules-load.d/onecopy.conf
has /usr/local/share/man/man4/onecopy.4
[ -d /sys/module/onecopy ] || fail "it is not loaded"

say "removed: $(cat "$tree/root/unmake.sh")"
inside sh -exc 'cd /root && . ./unmake.sh' || fail "make uninstall"
! inside modinfo -n onecopy 2>/dev/null || fail "it is still there"
for file in "$file" /etc/udev/rules.d/60-onecopy.rules /etc/modprobe.d/onecopy.conf /etc/modules-load.d/onecopy.conf \
    /usr/local/share/man/man4/onecopy.4; do
    [ ! -e "$tree$file" ] || fail "$file is left"
done
inside udevadm control --exit
# What follows finds it loaded.
insmod /payload/onecopy.ko
