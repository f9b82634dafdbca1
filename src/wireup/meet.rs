// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where ranks meet that a foreign launcher started: at a listening socket of rank 0, which must leave no name behind.
//!
//! There are three ways to it, from the best to the last:
//!
//! * an **abstract** address: the kernel forgets it with the socket. It is seen in one network namespace only.
//! * **through /proc**: rank 0 binds the socket to a name, opens that name with `O_PATH`, and removes it at once. A
//!   process that may look at rank 0's descriptors (of the same user, by `/proc/PID/fd/N`) can still connect. That
//!   crosses network namespaces, and pid namespaces too as long as the ranks see the same `/proc`.
//! * a **file** in a folder that only its user may enter, until all ranks have come. It needs a file system that the
//!   ranks share.
//!
//! Other users cannot keep the ranks from meeting. A name that another user holds is passed over at once, whether that
//! user accepts connections or lets them wait: no attempt to connect waits. If another user has made the folder first,
//! the ranks use one with a name that cannot be foreseen. They know it by its owner.
//!
//! A name in a file system can survive its process only if that is killed by `SIGKILL` while the name exists. That is
//! for microseconds in the second way, and until the ranks have met in the third. Such a leftover is removed by the
//! next job that uses the folder.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use nix::sys::stat::Mode;
use onecopy_shm::fdpass;

use super::nodes::Nodes;
use crate::proof::fresh;

/// File systems in which ranks of one node may see the same files, in the order in which they are tried.
pub(super) const BASES: [&str; 2] = ["/dev/shm", "/tmp"];

/// Holding a folder takes microseconds; a process that was stopped meanwhile is not waited for. Ten seconds are chosen
/// by magnitude.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// Between attempts to reach a host whose queue is full. Chosen by magnitude: a host takes its queue in less.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);

/// How to reach a [`Listener`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// An abstract name.
    Abstract(String),
    /// A descriptor of this process, as `/proc` numbers it.
    Process { pid: u32, fd: u32 },
    /// A file.
    Path(PathBuf),
}

impl Address {
    /// As one word.
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Abstract(name) => format!("a:{name}"),
            Self::Process { pid, fd } => format!("p:{pid}:{fd}"),
            Self::Path(path) => format!("f:{}", path.display()),
        }
    }

    /// The address in this word.
    pub(super) fn decode(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("a", name) => Some(Self::Abstract(name.to_owned())),
            ("p", rest) => {
                let (pid, fd) = rest.split_once(':')?;
                let (pid, fd) = (pid.parse().ok()?, fd.parse().ok()?);
                Some(Self::Process { pid, fd })
            }
            ("f", path) => Some(Self::Path(path.into())),
            _ => None,
        }
    }

    fn socket_address(&self) -> nix::Result<UnixAddr> {
        match self {
            Self::Abstract(name) => UnixAddr::new_abstract(name.as_bytes()),
            Self::Process { pid, fd } => UnixAddr::new(format!("/proc/{pid}/fd/{fd}").as_str()),
            Self::Path(path) => UnixAddr::new(path),
        }
    }

    /// Connects, or fails at once: [`io::ErrorKind::WouldBlock`] where the queue of the listener is full. The caller
    /// checks which process listens.
    pub(super) fn connect(&self) -> io::Result<OwnedFd> {
        let socket = packets(SockFlag::SOCK_NONBLOCK)?;
        connect(socket.as_raw_fd(), &self.socket_address()?)?;
        let flags = OFlag::from_bits_retain(fcntl(&socket, FcntlArg::F_GETFL)?);
        fcntl(&socket, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
        Ok(socket)
    }

    /// As [`connect`](Self::connect), but for as long as `limit` while the queue is full.
    pub(super) fn connect_within(&self, limit: Duration) -> io::Result<OwnedFd> {
        let start = Instant::now();
        loop {
            match self.connect() {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && start.elapsed() < limit =>
                {
                    std::thread::sleep(CONNECT_PAUSE);
                }
                connected => return connected,
            }
        }
    }
}

fn packets(flags: SockFlag) -> io::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    let made = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None);
    Ok(made?)
}

/// A listening socket. Its name, if it has one, goes with it.
#[derive(Debug)]
pub(super) struct Listener {
    listener: UnixListener,
    /// Keeps the inode that the socket is bound to.
    _handle: Option<OwnedFd>,
    named: Option<(Folder, PathBuf)>,
}

/// A listener, and how it is found.
pub(super) struct OpenListener {
    pub(super) listener: Listener,
    pub(super) address: Address,
}

impl Listener {
    /// A listener with an abstract name.
    pub(super) fn at_abstract(name: &str) -> io::Result<Self> {
        let address = Address::Abstract(name.to_owned()).socket_address()?;
        Ok(Self {
            listener: listening(&address)?,
            _handle: None,
            named: None,
        })
    }

    /// A listener that is found through `/proc`. `name` is its name for the moment in which it has one.
    pub(super) fn at_process(name: &str) -> io::Result<OpenListener> {
        let pid = std::fs::read_link("/proc/self")?;
        let pid = pid.to_str().and_then(|text| text.parse().ok());
        let pid = pid.ok_or_else(|| io::Error::other("/proc/self names no process"))?;
        let named = Self::at_path(name)?;
        let (folder, path) = named
            .named
            .as_ref()
            .expect("a listener at a path has a name");
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let handle = nix::fcntl::open(path, flags, Mode::empty());
        folder.remove(path);
        let handle = handle?;
        let fd = handle.as_raw_fd().cast_unsigned();
        let listener = Self {
            listener: named.listener.try_clone()?,
            _handle: Some(handle),
            named: None,
        };
        let address = Address::Process { pid, fd };
        Ok(OpenListener { listener, address })
    }

    /// A listener with a file's name, in the first folder in which that is possible.
    pub(super) fn at_path(name: &str) -> io::Result<Self> {
        let mut last = None;
        for base in BASES {
            match Self::below(Path::new(base), name) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Errno::ENOENT.into()))
    }

    fn below(base: &Path, name: &str) -> io::Result<Self> {
        // Where another user had taken the first name, jobs made folders of other names. Those of killed jobs are still
        // there. They are removed here, unless a process holds them.
        for folder in Folder::others(base) {
            if let Ok(Some(_lock)) = folder.hold() {
                folder.sweep();
                // Fails if something is in it.
                let _ = std::fs::remove_dir(&folder.path);
            }
        }
        let first = Folder::below(base);
        let (folder, lock) = match first.enter() {
            Ok(lock) => (first, lock),
            Err(error) if first.is_ours() => return Err(error),
            Err(_) => {
                let other = Folder::unforeseen(base)?;
                let lock = other.enter()?;
                (other, lock)
            }
        };
        folder.sweep();
        let path = folder.path.join(name);
        let listener = UnixAddr::new(&path)
            .map_err(io::Error::from)
            .and_then(|address| listening(&address));
        drop(lock);
        if listener.is_err() {
            folder.leave();
        }
        Ok(Self {
            listener: listener?,
            _handle: None,
            named: Some((folder, path)),
        })
    }

    /// The file that leads here.
    pub(super) fn address(&self) -> Option<Address> {
        let (_, path) = self.named.as_ref()?;
        Some(Address::Path(path.clone()))
    }

    /// The next connection; none if there is none.
    pub(super) fn accept(&self) -> Option<OwnedFd> {
        self.listener.accept().ok().map(|(guest, _)| guest.into())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((folder, path)) = &self.named {
            folder.remove(path);
        }
    }
}

fn listening(address: &UnixAddr) -> io::Result<UnixListener> {
    let socket = packets(SockFlag::empty())?;
    bind(socket.as_raw_fd(), address)?;
    // What comes before it is accepted is to carry its sender's credentials as well.
    fdpass::ask_for_credentials(socket.as_fd()).map_err(io::Error::other)?;
    listen(&socket, Backlog::new(1024).unwrap_or(Backlog::MAXCONN))?;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A folder that only its user may enter, for as long as something is in it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// This user's folder below `base`.
    pub(super) fn below(base: &Path) -> Self {
        let uid = nix::unistd::getuid();
        Self {
            path: base.join(format!("onecopy-{uid}")),
        }
    }

    /// A folder of a name that no process can know before it is there.
    fn unforeseen(base: &Path) -> io::Result<Self> {
        let number = fresh()?;
        let mut folder = Self::below(base);
        let name = folder.path.as_mut_os_string();
        name.push(format!("-{:016x}", u64::from_ne_bytes(number)));
        Ok(folder)
    }

    /// The folders of such names that are this user's.
    pub(super) fn others(base: &Path) -> Vec<Self> {
        let first = Self::below(base).path;
        let Some(first) = first.file_name().and_then(OsStr::to_str) else {
            return Vec::new();
        };
        let prefix = format!("{first}-");
        let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
        let named = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with(&prefix))
        });
        let folders = named.map(|entry| Self { path: entry.path() });
        folders.filter(Self::is_ours).collect()
    }

    /// Whether it is there, and only this user may enter it. In a directory that all users write to, another user can
    /// replace folders of his own, but not ours.
    pub(super) fn is_ours(&self) -> bool {
        let found = std::fs::symlink_metadata(&self.path);
        found.is_ok_and(|found| found.is_dir() && belongs_to_us(&found))
    }

    /// Whether something else stands in its place.
    pub(super) fn is_taken(&self) -> bool {
        !self.is_ours() && std::fs::symlink_metadata(&self.path).is_ok()
    }

    /// Where a file of this name would be.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes the folder if need be, checks whose it is, and holds it.
    fn enter(&self) -> io::Result<File> {
        let start = Instant::now();
        loop {
            match DirBuilder::new().mode(0o700).create(&self.path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            if let Some(lock) = self.hold()? {
                return Ok(lock);
            }
            if start.elapsed() > LOCK_LIMIT {
                return Err(Errno::ETIMEDOUT.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Holds the folder; none if another process does, or it was removed.
    fn hold(&self) -> io::Result<Option<File>> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits())
            .open(&self.path);
        let dir = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let found = dir.metadata()?;
        if !belongs_to_us(&found) {
            return Err(Errno::EPERM.into());
        }
        match dir.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
        }
        // Its last user may have removed it before we held it.
        let still = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|now| (now.dev(), now.ino()) == (found.dev(), found.ino()));
        Ok(still.then_some(dir))
    }

    /// Removes sockets on which no process listens any more. To be called while the folder is held: otherwise one that
    /// is bound but does not listen yet would look so.
    fn sweep(&self) {
        for entry in std::fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten()
        {
            let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
            let refused = || {
                let tried = Address::Path(entry.path()).connect();
                tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            };
            if is_socket && refused() {
                // Fails only if it is gone already.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn remove(&self, path: &Path) {
        // Fails only if it is gone already.
        let _ = std::fs::remove_file(path);
        self.leave();
    }

    /// Removes the folder if nothing is in it. Only while it is held: another process may be about to bind in it.
    fn leave(&self) {
        for _ in 0..100 {
            match self.hold() {
                Ok(Some(_lock)) => {
                    // Fails if something is in it.
                    let _ = std::fs::remove_dir(&self.path);
                    return;
                }
                Ok(None) if self.path.exists() => std::thread::sleep(Duration::from_millis(1)),
                _ => return,
            }
        }
    }
}

fn belongs_to_us(found: &Metadata) -> bool {
    found.uid() == nix::unistd::getuid().as_raw() && found.mode() & 0o077 == 0
}

/// What decides which ways lead from one process to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Namespaces {
    /// The machine, by the number of its boot, and the name of the node if it was given one.
    machine: String,
    net: u64,
    user: u64,
    /// The instance of `/proc`; 0 if there is none.
    proc: u64,
    bases: [(u64, u64); BASES.len()],
}

/// A way that all ranks can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerKind {
    Abstract,
    Process,
    Path,
}

impl ListenerKind {
    /// As one letter.
    pub(super) fn letter(self) -> char {
        match self {
            Self::Abstract => 'a',
            Self::Process => 'p',
            Self::Path => 'f',
        }
    }

    /// The way that this letter means.
    pub(super) fn of_letter(letter: char) -> Option<Self> {
        let all = [Self::Abstract, Self::Process, Self::Path];
        all.into_iter().find(|kind| kind.letter() == letter)
    }
}

impl Namespaces {
    /// Where this process is.
    pub(super) fn of_this_process(node: Option<&str>) -> Self {
        let number = |path: &str| std::fs::metadata(path).map_or(0, |found| found.ino());
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let proc = std::fs::symlink_metadata("/proc/self").map_or(0, |found| found.dev());
        let name = node.map(|name| format!("+{name}")).unwrap_or_default();
        Self {
            machine: format!("{}{name}", boot.trim()),
            net: number("/proc/self/ns/net"),
            user: number("/proc/self/ns/user"),
            proc,
            bases: BASES.map(|base| {
                std::fs::metadata(base).map_or((0, 0), |base| (base.dev(), base.ino()))
            }),
        }
    }

    /// Has it differ from what it was: another network namespace, `/proc`, folder for sockets.
    #[cfg(test)]
    pub(super) fn differ(&mut self, net: bool, proc: bool, base: bool) {
        self.net += u64::from(net);
        self.proc += u64::from(proc);
        self.bases[0].1 += u64::from(base);
    }

    /// As one word.
    pub(super) fn encode(&self) -> String {
        let mut text = format!("{}:{}:{}:{}", self.machine, self.net, self.user, self.proc);
        for (dev, ino) in self.bases {
            text += &format!(":{dev}:{ino}");
        }
        text
    }

    /// The place in this word.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let mut words = text.split(':');
        let machine = words.next()?.to_owned();
        let mut number = || words.next()?.parse::<u64>().ok();
        let (net, user, proc) = (number()?, number()?, number()?);
        let mut bases = [(0, 0); BASES.len()];
        for base in &mut bases {
            *base = (number()?, number()?);
        }
        Some(Self {
            machine,
            net,
            user,
            proc,
            bases,
        })
    }

    /// Whether it is the same network namespace as that of all `others`. One that is not known (0) is not
    /// believed to be the same.
    pub(super) fn shares_network(&self, others: &[Self]) -> bool {
        let boot = |place: &Self| place.machine.split('+').next().map(str::to_owned);
        let same = |other: &Self| other.net == self.net && boot(other) == boot(self);
        self.net != 0 && others.iter().all(same)
    }

    /// Which of these ranks are on one node: those of one machine and name that can reach each other. If the first of
    /// them reaches some of the others only, ranks are together that do not differ in anything.
    pub(super) fn nodes(places: &[Self]) -> Nodes {
        let machines = Nodes::by_keys(places.iter().map(|place| &place.machine));
        let together = |node: u32| {
            let others: Vec<Self> = machines
                .ranks(node)
                .map(|rank| places[rank].clone())
                .collect();
            others[0].listener_kind(&others).is_ok()
        };
        let machine_count = u32::try_from(machines.count()).unwrap_or(u32::MAX);
        let together: Vec<bool> = (0..machine_count).map(together).collect();
        Nodes::by_keys(places.iter().enumerate().map(|(rank, place)| {
            let machine = machines.node(rank).unwrap_or(0);
            let whole = together[machine as usize];
            let rest = (!whole).then_some((place.net, place.user, place.proc, place.bases));
            (machine, rest)
        }))
    }

    /// The best way that leads here from all `others`, which are on this machine; in words why there is none.
    pub(super) fn listener_kind(&self, others: &[Self]) -> Result<ListenerKind, &'static str> {
        let all = |same: &dyn Fn(&Self) -> bool| others.iter().all(same);
        if self.shares_network(others) {
            return Ok(ListenerKind::Abstract);
        }
        if self.proc != 0 && all(&|other| (other.proc, other.user) == (self.proc, self.user)) {
            return Ok(ListenerKind::Process);
        }
        let first = self.bases[0];
        if first != (0, 0) && all(&|other| other.bases[0] == first) {
            return Ok(ListenerKind::Path);
        }
        Err(
            "the ranks have no network namespace, no /proc and no /dev/shm in common, so they cannot find one another. Give their containers one of these",
        )
    }
}

#[cfg(test)]
mod tests;
