// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two hosts out of one machine: network namespaces that a pair of devices joins. Made by a test, and gone with it.

use std::path::PathBuf;
use std::process::Command;

use onecopy_shm::sync::{AtomicU32, Ordering};

use crate::processes::{limit, say};

/// Two network namespaces, of nodes `a` and `b`.
#[derive(Debug)]
pub(crate) struct Bed {
    name: String,
    third: u32,
    subnet: String,
    folder: tempfile::TempDir,
}

impl Bed {
    /// None, after saying why, where they cannot be made.
    pub(crate) fn new(what: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let third = NEXT.fetch_add(1, Ordering::Relaxed);
        let bed = Self {
            name: format!("onecopy-{what}-{}", std::process::id()),
            third,
            // Reserved for tests of networks.
            subnet: format!("198.18.{third}.0/24"),
            folder: tempfile::tempdir().expect("a folder"),
        };
        let made = bed.make();
        if let Err(error) = &made {
            say(&format!("skipped: no network namespaces: {error}"));
        }
        made.is_ok().then_some(bed)
    }

    fn make(&self) -> Result<(), String> {
        let [a, b] = ["a", "b"].map(|node| self.name(node));
        for name in [&a, &b] {
            ip(&["netns", "add", name])?;
        }
        ip(&[
            "-n", &a, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", &b,
        ])?;
        for node in ["a", "b"] {
            let (name, address) = (self.name(node), format!("{}/24", self.address(node)));
            ip(&["-n", &name, "address", "add", &address, "dev", "veth0"])?;
            for device in ["lo", "veth0"] {
                ip(&["-n", &name, "link", "set", device, "up"])?;
            }
        }
        Ok(())
    }

    /// The namespace of a node.
    pub(crate) fn name(&self, node: &str) -> String {
        format!("{}-{node}", self.name)
    }

    pub(crate) fn address(&self, node: &str) -> String {
        let last = if node == "a" { 1 } else { 2 };
        format!("198.18.{}.{last}", self.third)
    }

    pub(crate) fn subnet(&self) -> &str {
        &self.subnet
    }

    /// What starts a process on a node.
    pub(crate) fn wrapper(&self, node: &str) -> Vec<String> {
        let name = self.name(node);
        ["ip", "netns", "exec", &name].map(str::to_owned).to_vec()
    }

    /// Nothing comes from this node any more.
    pub(crate) fn cut(&self, node: &str) {
        let name = self.name(node);
        ip(&["-n", &name, "link", "set", "veth0", "down"]).expect("down");
    }

    /// What starts a command on the host that is its first argument, as a remote shell does.
    pub(crate) fn remote_shell(&self) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let file = self.folder.path().join("remote-shell");
        let text = format!(
            "#!/bin/sh\nwhile :; do case $1 in -*) shift ;; *) break ;; esac; done\ncase $1 in {}) node=a ;; *) node=b ;; esac\nshift\nexec ip netns exec {}-$node sh -c \"$*\"\n",
            self.address("a"),
            self.name
        );
        std::fs::write(&file, text).expect("write");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("permissions");
        file
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for node in ["a", "b"] {
            // What could not be made is not there.
            let _ = ip(&["netns", "del", &self.name(node)]);
        }
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = limit::try_output(Command::new("ip").args(args));
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", args.join(" "), text.trim()))
}
