# SPDX-License-Identifier: MIT OR Apache-2.0
# Functions for guests with a software device for RDMA. Names: a and b are the two sides of a bed; `at` runs a command on one of them.

# What a person or a test finds in the environment, beside /etc/hosts:
#   BED           loop, spaces, rails or pair
#   BED_SELF      the own side
#   BED_DEVICE    the own device
#   BED_PEER_DEVICE  the other side's

# busybox's shell would take its own program of that name.
ip() {
    /payload/bin/ip "$@"
}

rdma_hosts() {
    printf '127.0.0.1 localhost\n%s a\n%s b\n' "$1" "$2" >/etc/hosts
}

rdma_modules() {
    for module in /payload/modules/*.ko; do
        insmod "$module" || { echo "insmod $module failed"; return 1; }
    done
}

# rdma_wait DEVICE: until it has an address of IPv4, which the kernel gives it a moment after its port is there.
rdma_wait() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        cat /sys/class/infiniband/"$1"/ports/1/gids/* 2>/dev/null | grep -q ':ffff:' && return 0
        sleep 0.5
    done
    echo "$1 has no address after ten seconds"
    return 1
}

# rdma_join LINK DEVICE NET: joins the namespaces by interfaces LINKa and LINKb, in a network of their own, with a device each.
rdma_join() {
    mac=52:54:00:00:0$3
    ip link add "$1"a netns a mtu 9000 address $mac:01 type veth peer name "$1"b netns b mtu 9000 address $mac:02 || return 1
    for side in a b; do
        case $side in a) number=1 other=2 ;; b) number=2 other=1 ;; esac
        ip -n $side link set "$1"$side up
        ip -n $side addr add 10.77.$3.$number/24 dev "$1"$side
        # Addresses are not looked for: a lost answer would cost a second.
        ip -n $side neigh replace 10.77.$3.$other lladdr $mac:0$other dev "$1"$side nud permanent
        ip netns exec $side rdma link add "$2"$side type rxe netdev "$1"$side || return 1
    done
    rdma_wait "$2"a && rdma_wait "$2"b
}

# rdma_bed BED SIDE: makes devices and names.
rdma_bed() {
    export BED="$1" BED_SELF="$2"
    [ -e /var/run ] || ln -s /run /var/run
    mkdir -p /run/netns /etc
    rdma_modules || return 1
    case $BED in
    loop)
        export BED_DEVICE=rxe0 BED_PEER_DEVICE=rxe0
        rdma_hosts 127.0.0.1 127.0.0.1
        rdma link add rxe0 type rxe netdev lo && rdma_wait rxe0
        ;;
    spaces)
        export BED_DEVICE=rxa BED_PEER_DEVICE=rxb
        rdma_hosts 10.77.1.1 10.77.1.2
        ip netns add a && ip netns add b || return 1
        ip -n a link set lo up && ip -n b link set lo up || return 1
        rdma_join v rx 1 && rdma_join w ry 2
        ;;
    rails)
        export BED_DEVICE=rxe0 BED_PEER_DEVICE=rxe0
        rdma_hosts 127.0.0.1 127.0.0.1
        for rail in 0 1; do
            # The other end gives the interface a link. A rank's packets to another one here do not leave the device.
            ip link add v$rail mtu 9000 type veth peer name w$rail mtu 9000 || return 1
            ip link set w$rail up
            ip link set v$rail up
            ip addr add 10.78.$rail.1/24 dev v$rail
            # An address that a link loses with its state would be another row of the device's table.
            echo 1 >/proc/sys/net/ipv6/conf/v$rail/disable_ipv6
            rdma link add rxe$rail type rxe netdev v$rail && rdma_wait rxe$rail || return 1
        done
        ;;
    pair)
        export BED_DEVICE=rxe0 BED_PEER_DEVICE=rxe0
        rdma_hosts 10.77.0.1 10.77.0.2
        case $BED_SELF in a) number=1 other=2 ;; b) number=2 other=1 ;; esac
        hostname "$BED_SELF"
        ip link set eth0 mtu 9000 up || return 1
        ip addr add 10.77.0.$number/24 dev eth0
        ip neigh replace 10.77.0.$other lladdr 52:54:00:00:00:0$other dev eth0 nud permanent
        rdma link add rxe0 type rxe netdev eth0 && rdma_wait rxe0
        ;;
    esac || return 1
    export -p | grep ' BED' >/etc/bed
}

# rdma_serve: runs what the other machine asks for, until this one is switched off.
rdma_serve() {
    while :; do
        nc -ll -p 5000 -e /bin/dash
        sleep 1
    done
}

# rdma_meet: waits for the other machine.
rdma_meet() {
    for _ in $(seq 120); do
        [ "$(at b 'echo here' 2>/dev/null)" = here ] && return 0
        sleep 1
    done
    echo "the machine b did not answer within two minutes"
    return 1
}
