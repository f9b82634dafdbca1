// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the knobs of the wire-up come to where they are not set, by jobs and addresses of this machine.

use super::meet::{BASES, Namespaces};
use super::{Wireup, address, foreign};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::net::IpAddr;
use std::sync::Mutex;

/// `ONECOPY_NODE`: one node, unless nothing is in common by which the ranks could meet.
pub(crate) fn node() {
    foreign::job(
        &["", "", ""],
        |_, _| {},
        |_, met| {
            let met = met.expect("they meet");
            assert_eq!([0, 1, 2].map(|rank| met.node(rank)), [0; 3]);
            assert!(met.net().is_none(), "nothing goes between nodes");
        },
    );
    let here = Namespaces::of_this_process(None);
    let nodes = |net: bool, proc: bool, shm: bool| {
        let mut other = here.clone();
        other.differ(net, proc, shm);
        Namespaces::nodes(&[here.clone(), other]).count()
    };
    assert_eq!(BASES[0], "/dev/shm");
    for differs in 0..8 {
        let [net, proc, shm] = [1, 2, 4].map(|bit| differs & bit != 0);
        let apart = net && proc && shm;
        let what = format!("other network: {net}, /proc: {proc}, /dev/shm: {shm}");
        assert_eq!(nodes(net, proc, shm) > 1, apart, "{what}");
    }
}

/// `ONECOPY_NET_ADDRESS`: where the nodes found one another, at an address that is up. It reaches beyond its link, or
/// it is the loopback's where all ranks share the network.
pub(crate) fn address() {
    let found = Mutex::new(Vec::new());
    foreign::job(
        &["a", "b", "a"],
        |_, knobs| assert_eq!(knobs.net_address, None),
        |_, met| {
            let net = met.expect("they meet").net().expect("two nodes");
            found.lock().expect("no rank panics").push(net.address);
        },
    );
    let found = found.into_inner().expect("no rank panics");
    assert_eq!(found.len(), 3);
    let together = address::candidates(None, true).expect("a loopback address");
    let among = |address: &IpAddr| together.contains(address) && address.is_loopback();
    assert!(found.iter().all(among), "{found:?}: not of {together:?}");
    let mut beyond = Vec::new();
    for one in getifaddrs().expect("addresses") {
        let Some(storage) = one.address else { continue };
        let v4 = storage
            .as_sockaddr_in()
            .map(|socket| IpAddr::V4(socket.ip()));
        let v6 = || {
            storage
                .as_sockaddr_in6()
                .map(|socket| IpAddr::V6(socket.ip()))
        };
        let Some(address) = v4.or_else(v6) else {
            continue;
        };
        let on_one_link = match address {
            IpAddr::V4(v4) => v4.octets()[..2] == [169, 254],
            IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
        };
        let up = one.flags.contains(InterfaceFlags::IFF_UP);
        if up && !on_one_link && !address.is_loopback() {
            beyond.push(address);
        }
    }
    // Sixteen are tried at most.
    match address::candidates(None, false) {
        Ok(found) => assert!(found.iter().all(|address| beyond.contains(address))),
        Err(reason) => assert_eq!(beyond, [] as [IpAddr; 0], "{reason}"),
    }
}
