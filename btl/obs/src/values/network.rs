// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of knobs about the network between nodes.

use std::fmt;
use std::net::IpAddr;

use super::Kind;

/// A name: letters, digits and a few marks, so that it is one word wherever it is written.
#[derive(Clone, Copy, Debug)]
pub struct Name;

/// Longest name. As long as a host name of Linux may be (`HOST_NAME_MAX`, gethostname(2)).
const NAME_MAX: usize = 64;

fn is_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(good)
}

impl Kind for Name {
    type Value = String;
    fn type_name(&self) -> String {
        "name".to_owned()
    }
    fn parse(&self, text: &str) -> Result<String, String> {
        let text = text.trim();
        match is_name(text) {
            true => Ok(text.to_owned()),
            false => Err("not a name".to_owned()),
        }
    }
    fn show(&self, value: &String) -> String {
        value.clone()
    }
    fn range(&self) -> String {
        format!("a name of up to {NAME_MAX} letters, digits, and - _ .")
    }
}

/// Several names with commas between them, in the order in which they are preferred.
#[derive(Clone, Copy, Debug)]
pub struct Names;

impl Kind for Names {
    type Value = String;
    fn type_name(&self) -> String {
        "names".to_owned()
    }
    fn parse(&self, text: &str) -> Result<String, String> {
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        if !names.iter().all(|name| is_name(name)) {
            return Err("not a list of names".to_owned());
        }
        let mut others = names.iter().enumerate();
        if others.any(|(index, name)| names[..index].contains(name)) {
            return Err("a name that is there twice".to_owned());
        }
        Ok(names.join(","))
    }
    fn show(&self, value: &String) -> String {
        value.clone()
    }
    fn range(&self) -> String {
        format!("names of up to {NAME_MAX} letters, digits, and - _ ., with commas between them")
    }
}

/// Which of a node's addresses the others are to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetAddress {
    /// This one.
    Address(IpAddr),
    /// One out of this network: the bits in front that addresses have in common with it.
    Subnet(IpAddr, u8),
    /// One of this interface.
    Interface(String),
}

impl NetAddress {
    /// Whether it means this address of the interface of this name.
    #[must_use]
    pub fn means(&self, interface: &str, address: IpAddr) -> bool {
        match self {
            Self::Address(wanted) => *wanted == address,
            Self::Interface(wanted) => wanted == interface,
            Self::Subnet(network, bits) => match (network, address) {
                (IpAddr::V4(network), IpAddr::V4(address)) => {
                    let shift = 32 - u32::from(*bits);
                    let differing = network.to_bits() ^ address.to_bits();
                    differing.checked_shr(shift).unwrap_or(0) == 0
                }
                (IpAddr::V6(network), IpAddr::V6(address)) => {
                    let shift = 128 - u32::from(*bits);
                    let differing = network.to_bits() ^ address.to_bits();
                    differing.checked_shr(shift).unwrap_or(0) == 0
                }
                _ => false,
            },
        }
    }
}

impl fmt::Display for NetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Subnet(network, bits) => write!(f, "{network}/{bits}"),
            Self::Interface(name) => f.write_str(name),
        }
    }
}

/// An address (`10.1.0.7`), a subnet (`10.1.0.0/16`) or the name of an interface (`eth1`).
#[derive(Clone, Copy, Debug)]
pub struct NetAddresses;

impl Kind for NetAddresses {
    type Value = NetAddress;
    fn type_name(&self) -> String {
        "address".to_owned()
    }
    fn parse(&self, text: &str) -> Result<NetAddress, String> {
        let text = text.trim();
        if let Some((network, bits)) = text.split_once('/') {
            let network: IpAddr = network.parse().map_err(|_| "not a subnet".to_owned())?;
            let most = if network.is_ipv4() { 32 } else { 128 };
            return match bits.parse::<u8>() {
                Ok(bits) if bits <= most => Ok(NetAddress::Subnet(network, bits)),
                _ => Err(format!("a subnet of this family has 0 to {most} bits")),
            };
        }
        if let Ok(address) = text.parse() {
            return Ok(NetAddress::Address(address));
        }
        // The kernel's limit is 15 bytes; names with colons are aliases, and end in digits behind one.
        let named = !text.is_empty() && text.len() <= 15;
        let numbers = text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
        match named && !numbers && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(NetAddress::Interface(text.to_owned())),
            false => Err("neither an address nor a subnet nor the name of an interface".to_owned()),
        }
    }
    fn show(&self, value: &NetAddress) -> String {
        value.to_string()
    }
    fn range(&self) -> String {
        "an address, a subnet (10.1.0.0/16) or the name of an interface".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_means_what_it_says() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        for (text, interface, address, means) in [
            ("10.1.0.7", "eth0", "10.1.0.7", true),
            ("10.1.0.7", "eth0", "10.1.0.8", false),
            ("10.1.0.0/16", "eth0", "10.1.255.8", true),
            ("10.1.7.7/16", "eth0", "10.1.255.8", true),
            ("10.1.0.0/16", "eth0", "10.2.0.1", false),
            ("10.1.0.0/16", "eth0", "fd00::1", false),
            ("0.0.0.0/0", "eth0", "192.0.2.1", true),
            ("192.0.2.1/32", "eth0", "192.0.2.1", true),
            ("fd00::/8", "eth0", "fd12::1", true),
            ("::/0", "eth0", "2001:db8::1", true),
            ("::/0", "eth0", "10.1.0.7", false),
            ("fd00::/8", "eth0", "fe80::1", false),
            ("eth1", "eth1", "10.1.0.7", true),
            ("eth1", "eth0", "10.1.0.7", false),
        ] {
            let read = NetAddresses.parse(text).expect(text);
            assert_eq!(read.means(interface, ip(address)), means, "{text}");
            assert_eq!(NetAddresses.parse(&NetAddresses.show(&read)), Ok(read));
        }
        for bad in [
            "",
            "10.1.0.0/33",
            "fd00::/129",
            "eth0/8",
            "10.1.0",
            "a b",
            "a-name-that-is-too-long",
        ] {
            assert!(NetAddresses.parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_words() {
        assert_eq!(Name.parse(" node-1.x_y "), Ok("node-1.x_y".to_owned()));
        for bad in ["", "a b", "a:b", "a|b", "ä", &"x".repeat(65)] {
            assert!(Name.parse(bad).is_err(), "{bad}");
        }
    }
}
