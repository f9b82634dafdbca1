// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stream sockets: the wire to ranks on other nodes that any network has. What makes connections and talks by them is
//! the library's endpoint; this says whether the machine lets it.

use crate::contract::{NodeFacts, Probe, Refusal};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

/// Whether this process may listen for others at all.
#[must_use]
pub fn probe(_: &NodeFacts) -> Probe {
    let listens = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .or_else(|_| TcpListener::bind((Ipv6Addr::LOCALHOST, 0)));
    match listens {
        Ok(_) => Probe::Available {
            detail: "stream sockets, between nodes".into(),
        },
        Err(error) => Probe::Unavailable(Refusal::new(
            format!("listening at the loopback address: {error}"),
            "permit sockets of the Internet to this process; jobs of one node do not need them",
        )),
    }
}
