// SPDX-License-Identifier: MIT OR Apache-2.0
//! By which of its addresses a node may be reached.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use onecopy_obs::NetAddress;

/// The knob that chooses.
pub(super) const KNOB: &str = "ONECOPY_NET_ADDRESS";
/// More are not tried. Chosen by magnitude: nodes have a few; at two seconds for each, so many take about the default
/// of `ONECOPY_JOIN_TIMEOUT`.
const MOST: usize = 16;

/// An address of this node, and of which interface it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InterfaceAddress {
    interface: String,
    address: IpAddr,
}

/// Those of interfaces that are up. Addresses that count on one link only are not among them.
fn own() -> Result<Vec<InterfaceAddress>, String> {
    let all =
        getifaddrs().map_err(|errno| format!("the addresses of this node: getifaddrs: {errno}"))?;
    let up = all.filter(|one| one.flags.contains(InterfaceFlags::IFF_UP));
    let found = up.filter_map(|one| {
        let storage = one.address?;
        let v4 = storage
            .as_sockaddr_in()
            .map(|socket| IpAddr::V4(socket.ip()));
        let address = v4.or_else(|| {
            storage
                .as_sockaddr_in6()
                .map(|socket| IpAddr::V6(socket.ip()))
        })?;
        let interface = one.interface_name;
        Some(InterfaceAddress { interface, address })
    });
    let mut found: Vec<InterfaceAddress> = found.filter(|one| is_wide(one.address)).collect();
    // Stable: in the order of the kernel otherwise.
    found.sort_by_key(|one| one.address.is_ipv6());
    Ok(found)
}

fn is_wide(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_unspecified() && !v4.is_multicast(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_unspecified() && !v6.is_multicast(),
    }
}

/// The addresses by which other ranks may reach this node, the best first, or in words what is wrong. `together`: all
/// ranks share this network namespace, so that nothing need be visible outside.
pub(super) fn candidates(
    wanted: Option<&NetAddress>,
    together: bool,
) -> Result<Vec<IpAddr>, String> {
    choose(&own()?, wanted, together)
}

fn choose(
    own: &[InterfaceAddress],
    wanted: Option<&NetAddress>,
    together: bool,
) -> Result<Vec<IpAddr>, String> {
    let is_wanted = |one: &&InterfaceAddress| match wanted {
        Some(wanted) => wanted.means(&one.interface, one.address),
        None => one.address.is_loopback() == together,
    };
    let found: Vec<IpAddr> = own
        .iter()
        .filter(is_wanted)
        .map(|one| one.address)
        .take(MOST)
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let list: Vec<String> = own
        .iter()
        .map(|one| format!("{} ({})", one.address, one.interface))
        .collect();
    let list = match list.is_empty() {
        true => "no address".to_owned(),
        false => list.join(", "),
    };
    Err(match wanted {
        Some(wanted) => format!(
            "{KNOB}={wanted}: this node has no such address, it has {list}; give a subnet or the name of an interface that all nodes have"
        ),
        None => format!(
            "this node has no address by which ranks of other nodes could reach it. It has {list}. Bring a network up, or name one of these by {KNOB}"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_obs::values::{Kind, NetAddresses};

    fn node() -> Vec<InterfaceAddress> {
        let own = |interface: &str, address: &str| InterfaceAddress {
            interface: interface.to_owned(),
            address: address.parse().expect("an address"),
        };
        vec![
            own("lo", "127.0.0.1"),
            own("eth0", "192.0.2.7"),
            own("ib0", "10.1.0.7"),
            own("lo", "::1"),
            own("ib0", "fd00::7"),
        ]
    }

    fn chosen(wanted: &str, together: bool) -> Result<Vec<String>, String> {
        let wanted = (wanted != "auto").then(|| NetAddresses.parse(wanted).expect("a value"));
        let found = choose(&node(), wanted.as_ref(), together)?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn only_ranks_that_are_together_meet_where_nobody_else_comes() {
        assert_eq!(
            chosen("auto", true),
            Ok(vec!["127.0.0.1".to_owned(), "::1".to_owned()])
        );
        let all = ["192.0.2.7", "10.1.0.7", "fd00::7"].map(str::to_owned);
        assert_eq!(chosen("auto", false), Ok(all.to_vec()));
    }

    #[test]
    fn the_knob_decides() {
        for (wanted, found) in [
            ("ib0", &["10.1.0.7", "fd00::7"][..]),
            ("10.0.0.0/8", &["10.1.0.7"]),
            ("192.0.2.7", &["192.0.2.7"]),
            ("127.0.0.1", &["127.0.0.1"]),
        ] {
            assert_eq!(
                chosen(wanted, false),
                Ok(found.iter().map(|&one| one.to_owned()).collect())
            );
        }
        let error = chosen("eth9", false).expect_err("no such interface");
        assert!(
            error.contains("ONECOPY_NET_ADDRESS=eth9") && error.contains("192.0.2.7 (eth0)"),
            "{error}"
        );
        let error = choose(&node()[..1], None, false).expect_err("only loopback");
        assert!(
            error.contains("127.0.0.1 (lo)") && error.contains(KNOB),
            "{error}"
        );
    }

    #[test]
    fn this_machine_has_a_loopback_or_nothing() {
        for one in own().expect("addresses") {
            assert!(is_wide(one.address), "{one:?}");
        }
    }
}
