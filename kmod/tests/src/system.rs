// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tests want of the system: users, limits, files of /proc and /sys.
//!
//! # Safety
//!
//! The few calls here take numbers or strings that outlive them.
#![allow(unsafe_code, reason = "system calls that no crate wraps")]

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, unshare};
use nix::sys::prctl::set_dumpable;
use nix::unistd::{Gid, Pid, Uid, setgroups, setresgid, setresuid};

use crate::mem::{Area, page_size};
use crate::outcome::{At, Fault, Outcome};

/// The module's name, and the folder of its parameters.
pub(crate) const PARAMETERS: &str = "/sys/module/onecopy/parameters";

/// Ends this process without running what its parent wants to run at its own end.
pub(crate) fn leave(code: i32) -> ! {
    // SAFETY: takes a number.
    unsafe { libc::_exit(code) }
}

/// Does nothing for a while: what a test starts with exec.
pub(crate) fn idle(seconds: u64) -> Outcome<bool> {
    std::thread::sleep(Duration::from_secs(seconds));
    Ok(true)
}

/// Lets this process run before all ordinary ones, threads of the kernel among them.
pub(crate) fn urgent() -> Outcome {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel only reads the parameter.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    if result < 0 {
        return Err(io::Error::last_os_error()).at("sched_setscheduler");
    }
    Ok(())
}

/// Lets this process run on one processor only.
pub(crate) fn on_processor(number: usize) -> Outcome {
    let mut here = CpuSet::new();
    here.set(number).at("a set of processors")?;
    sched_setaffinity(Pid::from_raw(0), &here).at("sched_setaffinity")
}

/// Gives a kernel setting its old value when it is dropped.
pub(crate) struct Setting {
    path: &'static str,
    old: String,
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.path, &self.old);
    }
}

/// Lets tasks with real-time priority have a processor for as long as they want.
pub(crate) fn no_realtime_limit() -> Outcome<Setting> {
    let path = "/proc/sys/kernel/sched_rt_runtime_us";
    let old = fs::read_to_string(path).at(path)?;
    fs::write(path, "-1").at(path)?;
    Ok(Setting { path, old })
}

/// Lets the allocator take all it needs from one place, and no mapping of its own.
pub(crate) fn quiet_allocator() {
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_MMAP_THRESHOLD, 1 << 30),
        (libc::M_TOP_PAD, 16 << 20),
    ] {
        // SAFETY: takes numbers.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Ends this process when its parent ends.
pub(crate) fn die_with_parent() {
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
}

/// Gives an attachment to a system call that reads, writes, locks or describes it.
pub(crate) fn touch_by_syscall(area: &Area, what: u64) -> io::Result<()> {
    let length = area.length().min(4 * page_size());
    let address = area.pointer().as_ptr().cast::<libc::c_void>();
    let local = libc::iovec {
        iov_base: address,
        iov_len: length,
    };
    let result = match what {
        0 => {
            let file = fs::File::create("/tmp/fuzz-sink")?;
            // SAFETY: the kernel reads the area, or says that it cannot.
            unsafe { libc::pwrite(file.as_raw_fd(), address, length, 0) }
        }
        1 => {
            let file = fs::File::open("/proc/self/exe")?;
            // SAFETY: the kernel writes to the area, which only tests use, or says that it cannot.
            unsafe { libc::pread(file.as_raw_fd(), address, length, 0) }
        }
        2 => {
            let pid = std::process::id() as libc::pid_t;
            // SAFETY: as for pread; both sides are the area.
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const local, 1, 0) }
        }
        3 => {
            // SAFETY: locks pages of the area.
            unsafe { libc::mlock(address, length) as isize }
        }
        4 => {
            let mut present = [0u8; 4];
            // SAFETY: at most four pages are described.
            unsafe { libc::mincore(address, length, present.as_mut_ptr()) as isize }
        }
        _ => {
            // SAFETY: the area is used by tests only.
            unsafe { libc::madvise(address, length, libc::MADV_DONTNEED) as isize }
        }
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `read` into an area.
pub(crate) fn read_into(file: BorrowedFd<'_>, area: &Area) -> io::Result<usize> {
    let to = area.pointer().as_ptr().cast::<libc::c_void>();
    // SAFETY: the kernel writes to the area, which only tests use, or says that it cannot.
    let got = unsafe { libc::read(file.as_raw_fd(), to, area.length()) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Where in the kernel the threads of a process are, as far as /proc says. One that was killed counts as a zombie while
/// another thread of it is left.
pub(crate) fn where_is(pid: Pid) -> String {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let threads: Vec<String> = threads
        .flatten()
        .flatten()
        .map(|entry| where_is_thread(&entry.path()))
        .collect();
    if threads.is_empty() {
        return "gone".to_owned();
    }
    threads.join(", ")
}

/// Whether a thread of a process waits in the module, and at one place for a second.
pub(crate) fn waits_in_the_module(pid: Pid) -> bool {
    let waiting = || -> Vec<(OsString, String)> {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
        threads
            .flatten()
            .flatten()
            .map(|entry| (entry.file_name(), where_is_thread(&entry.path())))
            .filter(|(_, place)| !place.starts_with("state R") && place.contains("[onecopy]"))
            .collect()
    };
    let mut left = waiting();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(50));
        let now = waiting();
        left.retain(|thread| now.contains(thread));
    }
    !left.is_empty()
}

fn where_is_thread(folder: &Path) -> String {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let stack = read("stack");
    let stack: Vec<&str> = stack
        .lines()
        .map(|line| line.split_once("] ").map_or(line, |(_, place)| place))
        .collect();
    let stat = read("stat");
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    format!(
        "state {}, in {} {}",
        state.unwrap_or('?'),
        read("wchan"),
        stack.join(" < ")
    )
}

/// The state letter of a process: R, S, D, T, Z.
pub(crate) fn state(pid: Pid) -> Option<char> {
    stat(pid).and_then(|stat| stat.split_whitespace().next()?.chars().next())
}

/// What follows the name in /proc/PID/stat.
fn stat(pid: Pid) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.to_owned())
}

/// The living and unreaped children of this process.
pub(crate) fn children() -> Vec<Pid> {
    let own = std::process::id().to_string();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
        .filter(|pid| {
            stat(*pid).is_some_and(|stat| stat.split_whitespace().nth(1) == Some(own.as_str()))
        })
        .collect()
}

/// Waits until a process sleeps in the kernel, so that what follows finds it waiting.
pub(crate) fn until_asleep(pid: Pid) -> Outcome {
    let begin = Instant::now();
    let mut seen = 0;
    // Twice in a row: between two system calls it would be seen asleep by accident only.
    while seen < 3 {
        std::thread::sleep(Duration::from_millis(20));
        match state(pid) {
            Some('S' | 'D') => seen += 1,
            Some('Z') | None => {
                return Err(Fault::Fail(format!(
                    "process {pid} ended instead of waiting"
                )));
            }
            _ => seen = 0,
        }
        if begin.elapsed() > Duration::from_secs(20) {
            return Err(Fault::Fail(format!(
                "process {pid} does not wait: {}",
                where_is(pid)
            )));
        }
    }
    Ok(())
}

/// Becomes an ordinary user, for good.
pub(crate) fn become_user(id: u32) -> Outcome {
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    setgroups(&[]).at("setgroups")?;
    setresgid(gid, gid, gid).at("setresgid")?;
    setresuid(uid, uid, uid).at("setresuid")?;
    // As if the user had started it: its files in /proc are its own.
    set_dumpable(true).at("prctl")
}

/// Becomes another user, and keeps the way back.
pub(crate) fn switch_user(id: u32) -> Outcome {
    let (root, uid) = (Uid::from_raw(0), Uid::from_raw(id));
    nix::unistd::seteuid(root).at("seteuid")?;
    setresuid(uid, uid, root).at("setresuid")
}

/// Enters a new user namespace, in which this user is root, and a new pid namespace for later children.
pub(crate) fn become_namespace_root() -> Outcome {
    let (uid, gid) = (Uid::current(), Gid::current());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID)
        .map_err(|error| Fault::Skip(format!("no user namespaces: unshare: {error}")))?;
    let _ = fs::write("/proc/self/setgroups", "deny");
    fs::write("/proc/self/uid_map", format!("0 {uid} 1")).at("uid_map")?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1")).at("gid_map")
}

/// One of the module's parameters.
pub(crate) fn parameter(name: &str) -> Outcome<String> {
    let text = fs::read_to_string(Path::new(PARAMETERS).join(name))
        .at(format_args!("parameter {name} of the module"))?;
    Ok(text.trim().to_owned())
}

/// Sets one of the module's parameters.
pub(crate) fn set_parameter(name: &str, value: &str) -> Outcome {
    fs::write(Path::new(PARAMETERS).join(name), value)
        .at(format_args!("parameter {name} = {value} of the module"))
}

/// Gives a parameter its old value when it is dropped.
pub(crate) struct Parameter {
    name: &'static str,
    old: String,
}

impl Parameter {
    pub(crate) fn set(name: &'static str, value: &str) -> Outcome<Self> {
        let old = parameter(name)?;
        set_parameter(name, value)?;
        Ok(Self { name, old })
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = set_parameter(self.name, &self.old);
    }
}

/// Lets other users open a device until it is dropped.
pub(crate) struct OpenToAll(&'static str);

impl OpenToAll {
    pub(crate) fn device(path: &'static str) -> Outcome<Self> {
        set_mode(path, 0o666)?;
        Ok(Self(path))
    }
}

impl Drop for OpenToAll {
    fn drop(&mut self) {
        let _ = set_mode(self.0, 0o600);
    }
}

fn set_mode(path: &str, mode: u32) -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).at(format_args!("chmod {path}"))
}

/// `delete_module`, without waiting.
pub(crate) fn unload(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the string outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `finit_module`, without parameters.
pub(crate) fn load(path: &Path) -> io::Result<()> {
    let file = fs::File::open(path)?;
    let none = c"";
    // SAFETY: the string outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), none.as_ptr(), 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// What a debugger does: stops a process, reads a word of its memory, lets it go on.
pub(crate) fn peek(pid: Pid, address: usize) -> io::Result<()> {
    const NONE: libc::c_long = 0;
    // PEEKDATA's value does not matter; by errno it differs from an error.
    let request = |what, place: usize| {
        let place = std::ptr::with_exposed_provenance_mut::<libc::c_void>(place);
        nix::errno::Errno::clear();
        // SAFETY: takes numbers.
        unsafe { libc::ptrace(what, pid.as_raw(), place, NONE) };
        nix::errno::Errno::last_raw()
    };
    match request(libc::PTRACE_SEIZE, 0) {
        0 => {}
        raw => return Err(io::Error::from_raw_os_error(raw)),
    }
    let mut stopped = false;
    if request(libc::PTRACE_INTERRUPT, 0) == 0 {
        let begin = Instant::now();
        let mut status = 0;
        // It may wait in the kernel, and be killed meanwhile.
        while !stopped && begin.elapsed() < Duration::from_millis(200) {
            // SAFETY: the word outlives the call.
            let waited = unsafe {
                libc::waitpid(pid.as_raw(), &raw mut status, libc::__WALL | libc::WNOHANG)
            };
            stopped = waited == pid.as_raw() && libc::WIFSTOPPED(status);
            if waited != 0 && !stopped {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    let seen = if stopped {
        request(libc::PTRACE_PEEKDATA, address)
    } else {
        libc::EAGAIN
    };
    request(libc::PTRACE_DETACH, 0);
    match seen {
        0 => Ok(()),
        raw => Err(io::Error::from_raw_os_error(raw)),
    }
}

/// `process_vm_readv` of one word.
pub(crate) fn read_of(pid: Pid, address: usize) -> io::Result<u64> {
    let mut word = 0u64;
    let local = libc::iovec {
        iov_base: (&raw mut word).cast(),
        iov_len: 8,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(address),
        iov_len: 8,
    };
    // SAFETY: the kernel writes to the word only.
    let result = unsafe {
        libc::process_vm_readv(pid.as_raw(), &raw const local, 1, &raw const remote, 1, 0)
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(word)
    }
}

/// Memory that no other process may see, as a descriptor to map.
pub(crate) fn secret_memory(length: u64) -> Outcome<OwnedFd> {
    const MEMFD_SECRET: libc::c_long = 447;
    // SAFETY: takes a number.
    let fd = unsafe { libc::syscall(MEMFD_SECRET, libc::O_CLOEXEC) };
    let Ok(fd @ 0..) = i32::try_from(fd) else {
        let error = io::Error::last_os_error();
        return Err(Fault::Skip(format!("no memfd_secret: {error}")));
    };
    // SAFETY: the kernel has just made it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    nix::unistd::ftruncate(&fd, length as i64).at("ftruncate")?;
    Ok(fd)
}

/// Kills a child, and holds it where its end begins, with its memory. It goes on when this task ends
/// or lets it go.
pub(crate) fn kill_and_hold(pid: Pid) -> Outcome {
    let request = |what, data: libc::c_long| -> Outcome {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: takes numbers.
        let result = unsafe { libc::ptrace(what, pid.as_raw(), none, data) };
        if result < 0 {
            return Err(io::Error::last_os_error()).at(format_args!("ptrace({what})"));
        }
        Ok(())
    };
    request(
        libc::PTRACE_SEIZE,
        libc::c_long::from(libc::PTRACE_O_TRACEEXIT),
    )?;
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).at("kill")?;
    let mut status = 0;
    // SAFETY: the word outlives the call.
    let waited = unsafe { libc::waitpid(pid.as_raw(), &raw mut status, libc::__WALL) };
    if waited != pid.as_raw() || !libc::WIFSTOPPED(status) {
        return Err(Fault::Fail(format!(
            "a killed process does not stop at its end: {waited}, {status:#x}"
        )));
    }
    Ok(())
}

/// Lets go of a process that is held.
pub(crate) fn let_go(pid: Pid) {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: takes numbers.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, pid.as_raw(), none, none) };
}

/// Takes the memory of a killed process, as the OOM reaper does, without waiting for anything.
pub(crate) fn reap(pid: Pid) -> io::Result<()> {
    const PROCESS_MRELEASE: libc::c_long = 448;
    // SAFETY: takes numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    let Ok(fd @ 0..) = i32::try_from(fd) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: the kernel has just made it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: takes numbers.
    let result = unsafe { libc::syscall(PROCESS_MRELEASE, fd.as_raw_fd(), 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The kernel's threads of a name, which belong to nobody else just now.
pub(crate) fn kernel_threads(name: &str) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.map(Pid::from_raw)
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
        })
        .collect()
}

/// A number of /proc/meminfo, /proc/vmstat or alike, by its name.
pub(crate) fn number(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| {
        line.split(|c: char| c.is_whitespace() || c == ':')
            .next()
            .is_some_and(|first| first == name)
    })?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// How often a module is in use.
pub(crate) fn uses(name: &str) -> Outcome<u64> {
    let path = format!("/sys/module/{name}/refcnt");
    let text = fs::read_to_string(&path).at(&path)?;
    text.trim().parse().at(&path)
}

/// Whether this process has the page at an offset in its tables.
pub(crate) fn page_is_present(area: &Area, offset: usize) -> Outcome<bool> {
    let path = "/proc/self/pagemap";
    let index = ((area.base() + offset) / page_size()) as u64;
    let mut bytes = [0; 8];
    let file = fs::File::open(path).at(path)?;
    file.read_exact_at(&mut bytes, index * 8).at(path)?;
    Ok(u64::from_ne_bytes(bytes) & (1 << 63) != 0)
}

/// Whether the kernel holds the page at an offset for one that is used: referenced, or active.
pub(crate) fn page_is_accessed(area: &Area, offset: usize) -> Outcome<bool> {
    const FRAME: u64 = (1 << 55) - 1;
    const REFERENCED_OR_ACTIVE: u64 = 1 << 2 | 1 << 6;
    let word = |path: &str, index: u64| -> Outcome<u64> {
        let mut bytes = [0; 8];
        let file = fs::File::open(path).at(path)?;
        file.read_exact_at(&mut bytes, index * 8).at(path)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    let entry = word(
        "/proc/self/pagemap",
        ((area.base() + offset) / page_size()) as u64,
    )?;
    if entry & (1 << 63) == 0 || entry & FRAME == 0 {
        return Err(Fault::Fail(format!("no page at {offset:#x}: {entry:#x}")));
    }
    Ok(word("/proc/kpageflags", entry & FRAME)? & REFERENCED_OR_ACTIVE != 0)
}

/// Waits for something to become true.
pub(crate) fn until(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if begin.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `swapon`.
pub(crate) fn swap_on(path: &str) -> io::Result<()> {
    let path = CString::new(path)?;
    // SAFETY: the string outlives the call.
    let result = unsafe { libc::swapon(path.as_ptr(), 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `swapoff`.
pub(crate) fn swap_off(path: &str) -> io::Result<()> {
    let path = CString::new(path)?;
    // SAFETY: the string outlives the call.
    let result = unsafe { libc::swapoff(path.as_ptr()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
