// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be observed here, and what would permit more.

use std::path::Path;

use super::attach::{self, Group};
use super::privileges::{Privileges, SETCAP, remedy, tracefs};
use super::probe::{Error, Probe};
use super::{Options, sys, translate};

const MAPS: &str = "maps and programs of the kernel";
const NOTHING: &str = "copies of programs that are not onecopy's own";
const NAMESPACE: &str = "ids of processes";

/// Tries every probe, and detaches it again.
#[must_use]
pub fn check() -> Vec<Probe> {
    let options = Options {
        pairs: 64,
        ring_bytes: 64 << 10,
        ..Options::default()
    };
    let mut probes = Vec::new();
    if !translate::outermost() {
        probes.push(Probe::refused(
            NAMESPACE,
            0,
            "names of processes outside of this pid namespace",
            "run it in the node's outermost pid namespace (docker run --pid=host)",
        ));
    }
    if let Err((errno, advice)) = tracefs(&Privileges::own()) {
        probes.push(Probe::fallback(
            "tracefs",
            errno,
            "tracepoints of system calls: every other system call of the node gets several times as much slower",
            advice,
        ));
    }
    if let Err(error) = permitted(&options) {
        probes.push(Probe::refused(MAPS, libc::EPERM, NOTHING, error.remedy));
        return probes;
    }
    let mut ebpf = match attach::load(&options) {
        Ok((ebpf, has_btf)) => {
            probes.push(Probe::attached(MAPS));
            if !has_btf {
                probes.push(without_btf());
            }
            ebpf
        }
        Err(error) => {
            let advice = format!("{}: {}", error.reason, error.remedy);
            probes.push(Probe::refused(MAPS, 0, NOTHING, advice));
            return probes;
        }
    };
    let mut links = Vec::new();
    for group in [Group::Tasks, Group::Causes, Group::Module] {
        links.extend(attach::group(&mut ebpf, group, &mut probes));
    }
    links.extend(attach::ioctls(&mut ebpf, &options, &mut probes));
    match attach::copies(&mut ebpf, &mut probes) {
        Ok(found) => links.extend(found),
        Err(error) => probes.push(Probe::refused(
            "process_vm_readv, process_vm_writev",
            0,
            NOTHING,
            format!("{}: {}", error.reason, error.remedy),
        )),
    }
    probes.push(uprobes());
    probes
}

/// Whether this process has what the kernel asks for. It is looked at first, because the kernel does not say what is
/// missing.
pub(super) fn permitted(options: &Options) -> Result<(), Error> {
    if options.follow.is_some() && !translate::outermost() {
        return Err(Error {
            call: "following",
            object: "a program".to_owned(),
            reason: "this pid namespace is not the node's outermost one".to_owned(),
            remedy: "run it there (docker run --pid=host), or observe the whole node".to_owned(),
        });
    }
    match Privileges::own().missing() {
        None => Ok(()),
        Some(missing) => Err(Error {
            call: "loading",
            object: "the observing programs".to_owned(),
            reason: "Operation not permitted".to_owned(),
            remedy: format!("{missing}: {SETCAP}"),
        }),
    }
}

pub(super) fn without_btf() -> Probe {
    Probe::refused(
        "types of the kernel (/sys/kernel/btf/vmlinux)",
        libc::ENOENT,
        "names in inner pid namespaces, waits for address spaces, descendants of the program that is followed",
        "a kernel with CONFIG_DEBUG_INFO_BTF",
    )
}

/// Whether probe points can be watched, tried on this program.
fn uprobes() -> Probe {
    const NAME: &str = "probe points of programs (uprobes)";
    match sys::watch(Path::new("/proc/self/exe"), 0, 0) {
        Ok(_) => Probe::attached(NAME),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            let lost = "events of onecopy's runtime; its counters come from its statistics pages";
            Probe::refused(NAME, errno, lost, uprobe_remedy(errno))
        }
    }
}

pub(super) fn uprobe_remedy(errno: i32) -> String {
    let privileges = Privileges::own();
    match errno {
        libc::EPERM | libc::EACCES if !privileges.admin => {
            "uprobes need CAP_SYS_ADMIN: run as root".to_owned()
        }
        _ => remedy(errno, &privileges),
    }
}
