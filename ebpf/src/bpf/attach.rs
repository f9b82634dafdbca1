// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads the programs and attaches what the kernel permits.

use std::os::fd::OwnedFd;
use std::path::Path;

use aya::programs::kprobe::KProbeLink;
use aya::programs::raw_trace_point::RawTracePointLink;
use aya::programs::trace_point::TracePointLink;
use aya::programs::{KProbe, ProgramError, RawTracePoint, TracePoint, UProbe};
use aya::{Btf, Ebpf, EbpfLoader, VerifierLogLevel};
use nix::unistd::{SysconfVar, sysconf};

use super::privileges::{Privileges, remedy, tracefs};
use super::probe::{Error, Probe, errno_of};
use super::usdt::Site;
use super::{Options, read, sys};

/// The programs, as `cargo xtask bpf` built them.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../prebuilt/onecopy.bpf.o");

/// What is attached together and given up together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Tasks,
    Copies,
    Causes,
    Module,
    Runtime,
}

/// What is attached for as long as it lives.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) group: Group,
    _held: Attachment,
}

#[derive(Debug)]
#[expect(dead_code, reason = "they are only kept")]
enum Attachment {
    Raw(RawTracePointLink),
    Trace(TracePointLink),
    Ioctl(KProbeLink, KProbeLink),
    Watch(OwnedFd, OwnedFd),
}

/// A raw tracepoint: its program, its name, and what is lost without it.
struct Raw {
    group: Group,
    program: &'static str,
    event: &'static str,
    lost: &'static str,
}

const fn raw(group: Group, program: &'static str, event: &'static str, lost: &'static str) -> Raw {
    Raw {
        group,
        program,
        event,
        lost,
    }
}

/// Raw tracepoints need no tracefs, and cost less than others. Their arguments are those of the kernel's source.
const RAW: [Raw; 10] = [
    raw(
        Group::Tasks,
        "task_exec",
        "sched_process_exec",
        "names after exec",
    ),
    raw(
        Group::Tasks,
        "task_fork",
        "sched_process_fork",
        "descendants of the program that is followed",
    ),
    raw(
        Group::Tasks,
        "task_exit",
        "sched_process_exit",
        "names of peers that end soon",
    ),
    raw(
        Group::Causes,
        "fault",
        "page_fault_kernel",
        "page faults in calls",
    ),
    raw(
        Group::Causes,
        "flush",
        "tlb_flush",
        "flushes of translations in calls",
    ),
    raw(
        Group::Causes,
        "wait_end",
        "contention_end",
        "waits for address spaces",
    ),
    raw(
        Group::Causes,
        "wait_begin",
        "contention_begin",
        "waits for address spaces",
    ),
    raw(
        Group::Module,
        "module_attach",
        "onecopy_attach",
        "attachments of memory",
    ),
    raw(
        Group::Module,
        "module_fault",
        "onecopy_fault",
        "faults in attached memory",
    ),
    raw(
        Group::Module,
        "module_copy",
        "onecopy_copy",
        "copies by onecopy's extension",
    ),
];

/// Programs for tracepoints that had fewer arguments in older releases of the module.
const OLDER: [(&str, &str); 1] = [("module_copy", "module_copy_older")];

/// Where XPMEM's own module answers ioctls. onecopy's tells of its attachments by tracepoints.
pub(super) const XPMEM_IOCTL: &str = "xpmem_ioctl";

/// What the names of the probes of these functions begin with.
const KPROBE: &str = "kprobe ";

/// Functions that answer ioctls of modules that report none of those: the function, what is lost without it, and its
/// module.
const fn ioctls_of(xpmem: &'static str) -> [(&'static str, &'static str, &'static str); 3] {
    [
        (xpmem, "attachments by the module xpmem", "xpmem"),
        ("knem_miscdev_ioctl", "copies by the module knem", "knem"),
        (
            "oc_knem_ioctl",
            "copies by the plain /dev/knem of onecopy's module",
            "onecopy",
        ),
    ]
}

/// System calls: exits before entries, so that a call under way is not taken for a short one.
const SYSCALLS: [(&str, &str); 4] = [
    ("readv_exit", "sys_exit_process_vm_readv"),
    ("writev_exit", "sys_exit_process_vm_writev"),
    ("readv_enter", "sys_enter_process_vm_readv"),
    ("writev_enter", "sys_enter_process_vm_writev"),
];
const RAW_SYSCALLS: [(&str, &str); 2] = [("raw_exit", "sys_exit"), ("raw_enter", "sys_enter")];
const SLOWER: &str =
    "little: every other system call of the node gets several times as much slower";

/// Whether the kernel was seen as it is. What it can do is found once in the life of a process, by programs that it
/// checks. SIGSTOP interrupts that, and nobody can hold it back. Then nothing can be loaded as long as this process
/// is the same program.
#[must_use]
pub fn sees_the_kernel() -> bool {
    if Privileges::own().missing().is_some() {
        return true;
    }
    // All kernels that these programs are made for can do this.
    let found = aya::features();
    if found.bpf_name() && found.bpf_global_data() {
        return true;
    }
    // In an inner user namespace, say, the kernel refuses every program: that is an answer.
    match sys::load_least_program() {
        Ok(_) => false,
        Err(error) => error.raw_os_error() != Some(libc::EAGAIN),
    }
}

/// Loads maps and programs into the kernel. Nothing runs yet.
pub(super) fn load(options: &Options) -> Result<(Ebpf, bool), Error> {
    load_for(options, page_size())
}

/// The same for pages of so many bytes.
pub(super) fn load_for(options: &Options, page: u64) -> Result<(Ebpf, bool), Error> {
    let btf = Btf::from_sys_fs().ok();
    let (dev, ino) = initial_namespace();
    let registers = registers();
    let has_btf = u32::from(btf.is_some());
    let follows = u32::from(options.follow.is_some());
    let (readv, writev) = (
        number(libc::SYS_process_vm_readv),
        number(libc::SYS_process_vm_writev),
    );
    let mut loader = EbpfLoader::new();
    loader
        .btf(btf.as_ref())
        // What fails is tried once more with a log, whose level must not be none: the kernel would refuse that.
        .verifier_log_level(VerifierLogLevel::STATS)
        .map_max_entries("pairs", options.pairs)
        .map_max_entries("ring", options.ring_bytes)
        .override_global("has_btf", &has_btf, true)
        .override_global("follows", &follows, true)
        .override_global("nr_readv", &readv, true)
        .override_global("nr_writev", &writev, true)
        .override_global("register_offsets", &registers.0, true)
        .override_global("number_offset", &registers.1, true)
        .override_global("result_offset", &registers.2, true)
        .override_global("page_size", &page, true)
        .override_global("initial_dev", &dev, true)
        .override_global("initial_ino", &ino, true);
    let refused = |error: &(dyn std::error::Error + 'static)| {
        Error::new("loading", "the observing programs", error)
    };
    let mut ebpf = loader.load(OBJECT).map_err(|error| refused(&error))?;
    read::furnish(&mut ebpf).map_err(|error| refused(&error))?;
    Ok((ebpf, btf.is_some()))
}

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// The device and inode of the outermost pid namespace, if this process lives there.
fn initial_namespace() -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata("/proc/self/ns/pid");
    found.map_or((0, 0), |found| match found.ino() {
        super::translate::INITIAL => (found.dev(), found.ino()),
        _ => (0, 0),
    })
}

/// Bytes of a page of memory.
fn page_size() -> u64 {
    let known = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    known
        .and_then(|bytes| u64::try_from(bytes).ok())
        .unwrap_or(4096)
}

/// Where the kernel saves the arguments of a system call, its number, and what a function returns. The first three
/// arguments of a function are at the same places.
const fn registers() -> ([u32; 6], u32, u32) {
    if cfg!(target_arch = "aarch64") {
        ([0, 8, 16, 24, 32, 40], 280, 0)
    } else {
        ([112, 104, 96, 56, 72, 64], 120, 80)
    }
}

fn attach_raw(ebpf: &mut Ebpf, program: &str, event: &str) -> Result<Attachment, ProgramError> {
    let program: &mut RawTracePoint = program_of(ebpf, program)?.try_into()?;
    load_once(|| program.load())?;
    let id = program.attach(event)?;
    Ok(Attachment::Raw(program.take_link(id)?))
}

/// Attaches a raw tracepoint. The kernel refuses a program that reads more arguments than the tracepoint has: then one
/// that reads what it had before.
fn attach_wish(ebpf: &mut Ebpf, wish: &Raw) -> Result<Attachment, ProgramError> {
    let attached = attach_raw(ebpf, wish.program, wish.event);
    let older = OLDER.iter().find(|(program, _)| *program == wish.program);
    match (attached, older) {
        (Err(error), Some((_, older))) if errno_of(&error) == libc::EINVAL => {
            attach_raw(ebpf, older, wish.event)
        }
        (attached, _) => attached,
    }
}

fn attach_trace(ebpf: &mut Ebpf, program: &str, event: &str) -> Result<Attachment, ProgramError> {
    let program: &mut TracePoint = program_of(ebpf, program)?.try_into()?;
    load_once(|| program.load())?;
    let id = program.attach("syscalls", event)?;
    Ok(Attachment::Trace(program.take_link(id)?))
}

fn program_of<'a>(
    ebpf: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut aya::programs::Program, ProgramError> {
    ebpf.program_mut(name).ok_or(ProgramError::NotLoaded)
}

/// Loads a program that may be there already. The kernel gives up one whose check a signal interrupts.
fn load_once(mut load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    /// More signals than come by chance in the time of a check.
    const TRIES: usize = 100;
    let mut loaded = load();
    for _ in 1..TRIES {
        match &loaded {
            Err(error) if errno_of(error) == libc::EAGAIN => loaded = load(),
            _ => break,
        }
    }
    match loaded {
        Err(ProgramError::AlreadyLoaded) => Ok(()),
        other => other,
    }
}

/// Attaches to system calls, by tracefs or without it.
///
/// # Errors
/// Neither is permitted: then nothing can be observed.
pub(super) fn copies(ebpf: &mut Ebpf, probes: &mut Vec<Probe>) -> Result<Vec<Link>, Error> {
    const NAME: &str = "process_vm_readv, process_vm_writev";
    let privileges = Privileges::own();
    let (errno, advice) = match tracefs(&privileges) {
        Ok(_) => match all(ebpf, &SYSCALLS, attach_trace) {
            Ok(links) => {
                probes.push(Probe::attached(NAME));
                return Ok(links);
            }
            Err(error) => {
                let errno = errno_of(&error);
                (errno, remedy(errno, &privileges))
            }
        },
        Err(refusal) => refusal,
    };
    let links = all(ebpf, &RAW_SYSCALLS, attach_raw)
        .map_err(|error| Error::new("attaching", NAME, &error))?;
    probes.push(Probe::fallback(NAME, errno, SLOWER, advice));
    Ok(links)
}

fn all(
    ebpf: &mut Ebpf,
    wanted: &[(&str, &str)],
    attach: impl Fn(&mut Ebpf, &str, &str) -> Result<Attachment, ProgramError>,
) -> Result<Vec<Link>, ProgramError> {
    let mut links = Vec::new();
    for (program, event) in wanted {
        links.push(Link {
            group: Group::Copies,
            _held: attach(ebpf, program, event)?,
        });
    }
    Ok(links)
}

/// Attaches the raw tracepoints of a group. What is refused is reported, and the rest goes on.
pub(super) fn group(ebpf: &mut Ebpf, group: Group, probes: &mut Vec<Probe>) -> Vec<Link> {
    let privileges = Privileges::own();
    let mut links = Vec::new();
    for wish in RAW.iter().filter(|wish| wish.group == group) {
        match attach_wish(ebpf, wish) {
            Ok(held) => {
                probes.push(Probe::attached(wish.event));
                links.push(Link { group, _held: held });
            }
            Err(error) => {
                let errno = errno_of(&error);
                let advice = match (group, errno) {
                    (Group::Module, libc::ENOENT) => {
                        "load onecopy's module, if it is to be used".to_owned()
                    }
                    (_, libc::ENOENT) => "this kernel does not have it".to_owned(),
                    _ => remedy(errno, &privileges),
                };
                let probe = Probe::refused(wish.event, errno, wish.lost, advice);
                probes.push(match group {
                    Group::Module => probe.of_module("onecopy"),
                    _ => probe,
                });
            }
        }
    }
    links
}

/// Attaches to the functions that answer ioctls.
pub(super) fn ioctls(ebpf: &mut Ebpf, options: &Options, probes: &mut Vec<Probe>) -> Vec<Link> {
    let privileges = Privileges::own();
    let has_kprobes = Path::new("/sys/bus/event_source/devices/kprobe").exists();
    let group = Group::Module;
    let mut links = Vec::new();
    for (function, lost, module) in ioctls_of(options.xpmem_ioctl) {
        let name = format!("{KPROBE}{function}");
        let error = match attach_ioctl(ebpf, function) {
            Ok(held) => {
                probes.push(Probe::attached(name));
                links.push(Link { group, _held: held });
                continue;
            }
            Err(error) => error,
        };
        let errno = errno_of(&error);
        let advice = match errno {
            _ if !has_kprobes => "a kernel with CONFIG_KPROBES".to_owned(),
            // Kernels differ in how they call a function that is not there.
            libc::ENOENT | libc::EINVAL | libc::EADDRNOTAVAIL => {
                format!("load the module {module}, if it is to be used")
            }
            _ => remedy(errno, &privileges),
        };
        probes.push(Probe::refused(name, errno, lost, advice).of_module(module));
    }
    links
}

/// The exit first, so that a call under way is not taken for one that has begun.
fn attach_ioctl(ebpf: &mut Ebpf, function: &str) -> Result<Attachment, ProgramError> {
    let mut attach = |program| {
        let program: &mut KProbe = program_of(ebpf, program)?.try_into()?;
        load_once(|| program.load())?;
        let id = program.attach(function, 0)?;
        program.take_link(id)
    };
    Ok(Attachment::Ioctl(
        attach("ioctl_exit")?,
        attach("ioctl_enter")?,
    ))
}

/// Watches a probe point of the runtime. The program gets the number of the site.
pub(super) fn runtime(
    ebpf: &mut Ebpf,
    path: &Path,
    site: &Site,
    number: u32,
) -> Result<Link, ProgramError> {
    use std::os::fd::AsFd;
    let program: &mut UProbe = program_of(ebpf, "runtime_probe")?.try_into()?;
    load_once(|| program.load())?;
    let event = sys::watch(path, site.offset, site.semaphore)?;
    let link = sys::link(program.fd()?.as_fd(), &event, u64::from(number))?;
    Ok(Link {
        group: Group::Runtime,
        _held: Attachment::Watch(link, event),
    })
}
