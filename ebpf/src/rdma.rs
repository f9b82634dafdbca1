// SPDX-License-Identifier: MIT OR Apache-2.0
//! What devices for RDMA sent and received, by the kernel's counters of their ports: of all programs of the node
//! together. No probe sees the copies of a device, so these totals are all there is of programs that are not
//! onecopy's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where the kernel lists devices.
pub const DEVICES: &str = "/sys/class/infiniband";
/// Counters of data are in words of so many bytes, whatever the link.
const WORD: u64 = 4;

/// What went over one port. A counter that the device does not have is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u32,
    /// Bytes, with headers.
    pub sent_bytes: Option<u64>,
    /// The same, of what came.
    pub received_bytes: Option<u64>,
    /// Packets.
    pub sent_packets: Option<u64>,
    /// The same, of what came.
    pub received_packets: Option<u64>,
}

impl Port {
    fn read(device: &str, port: u32, folder: &Path) -> Self {
        // The first of several files that is there: software devices have counters of their own.
        let value = |files: &[&str]| {
            let texts = files
                .iter()
                .map(|file| fs::read_to_string(folder.join(file)));
            texts
                .flatten()
                .find_map(|text| text.trim().parse::<u64>().ok())
        };
        let words = |file| value(&[file]).and_then(|words| words.checked_mul(WORD));
        Self {
            device: device.to_owned(),
            port,
            sent_bytes: words("counters/port_xmit_data"),
            received_bytes: words("counters/port_rcv_data"),
            sent_packets: value(&["counters/port_xmit_packets", "hw_counters/sent_pkts"]),
            received_packets: value(&["counters/port_rcv_packets", "hw_counters/rcvd_pkts"]),
        }
    }

    /// What was added since.
    fn since(&self, before: &Self) -> Self {
        let added = |now: Option<u64>, before: Option<u64>| {
            let now = now?;
            // Somebody may have set it to zero meanwhile.
            Some(now.checked_sub(before.unwrap_or(0)).unwrap_or(now))
        };
        Self {
            device: self.device.clone(),
            port: self.port,
            sent_bytes: added(self.sent_bytes, before.sent_bytes),
            received_bytes: added(self.received_bytes, before.received_bytes),
            sent_packets: added(self.sent_packets, before.sent_packets),
            received_packets: added(self.received_packets, before.received_packets),
        }
    }

    fn is_silent(&self) -> bool {
        let all = [
            self.sent_bytes,
            self.received_bytes,
            self.sent_packets,
            self.received_packets,
        ];
        all.iter().all(|value| value.unwrap_or(0) == 0)
    }
}

/// The ports of this node, as they were when observing began.
#[derive(Debug)]
pub struct Ports {
    root: PathBuf,
    before: BTreeMap<(String, u32), Port>,
}

impl Ports {
    /// Looks at all ports: below [`DEVICES`], or another folder of the same form.
    #[must_use]
    pub fn look(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            before: ports(root),
        }
    }

    /// What went over each port since, where something did. A device that came meanwhile began at zero.
    #[must_use]
    pub fn traffic(&self) -> Vec<Port> {
        let none = Port::default();
        ports(&self.root)
            .into_iter()
            .map(|(key, now)| now.since(self.before.get(&key).unwrap_or(&none)))
            .filter(|port| !port.is_silent())
            .collect()
    }
}

fn ports(root: &Path) -> BTreeMap<(String, u32), Port> {
    let mut found = BTreeMap::new();
    // None without devices.
    let devices = fs::read_dir(root).into_iter().flatten().flatten();
    for device in devices {
        let Ok(name) = device.file_name().into_string() else {
            continue;
        };
        let folder = device.path().join("ports");
        for port in crate::proc::numbers(&folder) {
            let read = Port::read(&name, port, &folder.join(port.to_string()));
            found.insert((name.clone(), port), read);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, place: &str, value: &str) {
        let file = root.join(place);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, value).expect("written");
    }

    #[test]
    fn what_went_over_a_port_is_what_was_added() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let counters = "mlx5_0/ports/1/counters";
        let four = |values: [&str; 4]| {
            let files = ["xmit_data", "rcv_data", "xmit_packets", "rcv_packets"];
            for (file, value) in files.into_iter().zip(values) {
                put(root, &format!("{counters}/port_{file}"), value);
            }
        };
        four(["1000\n", "2000\n", "10\n", "20\n"]);
        put(root, "mlx5_0/ports/2/counters/port_xmit_data", "5\n");
        put(root, "rxe0/ports/1/hw_counters/sent_pkts", "7\n");
        // Not a port, and not a number.
        put(root, "rxe0/ports/x/counters/port_xmit_data", "5\n");
        put(root, "bad/ports/1/counters/port_xmit_data", "N/A\n");
        let ports = Ports::look(root);
        assert_eq!(ports.traffic(), []);
        // One was set to zero, and counted on.
        four(["1250\n", "100\n", "13\n", "21\n"]);
        put(root, "rxe0/ports/1/hw_counters/sent_pkts", "9\n");
        put(root, "new/ports/1/counters/port_rcv_packets", "3\n");
        let mlx5 = Port {
            device: "mlx5_0".to_owned(),
            port: 1,
            sent_bytes: Some(1000),
            received_bytes: Some(400),
            sent_packets: Some(3),
            received_packets: Some(1),
        };
        let new = Port {
            device: "new".to_owned(),
            port: 1,
            received_packets: Some(3),
            ..Port::default()
        };
        let rxe = Port {
            device: "rxe0".to_owned(),
            port: 1,
            sent_packets: Some(2),
            ..Port::default()
        };
        assert_eq!(ports.traffic(), [mlx5, new, rxe]);
    }

    #[test]
    fn a_node_without_devices_has_no_traffic() {
        assert_eq!(Ports::look(Path::new("/nonexistent")).traffic(), []);
    }
}
