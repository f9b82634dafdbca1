// SPDX-License-Identifier: MIT OR Apache-2.0
//! Watches memory of the program for changes of its mapping: unmapped, moved, discarded.
//!
//! The kernel reports them by `userfaultfd`. A thread that changes a watched mapping, by any call and from any library,
//! waits until the event was read. Ranges are watched for write protection, and nothing is ever protected. So no page
//! fault waits. Only private anonymous memory is watched. The pages of a file can be discarded through the file, and
//! the kernel does not report that.
//!
//! The thread that reads events must not cause one: it would wait for itself, with all locks that it holds. So the
//! thread that watches neither allocates nor frees while anything is watched. Nothing is watched before it is in its
//! loop. At its end it closes what it reads from, and only then leaves the loop: a thread that ends frees memory.
//!
//! The kernel sends an event after it has changed the mapping. Another thread may map other memory there before the
//! event is read. So a caller that relies on past events asks first whether some are unread ([`Watcher::is_quiet`]).
//! The kernel answers that to a call that protects watched memory: here a page of our own, used for nothing else.
//!
//! The child of a fork has a copy of the descriptor. While that is open the kernel goes on to ask for events, and the
//! parent would wait for ever once it watches no more. So a child closes it.
//!
//! # Safety
//!
//! System calls with numbers and structures of the caller's own, which outlive the call. None of them changes memory.
#![allow(unsafe_code, reason = "system calls")]

use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Barrier, Once};
use std::thread::JoinHandle;

use onecopy_shm::sync::{AtomicU32, Ordering};

/// What is called with changes of watched memory.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Changes have happened, or are about to: `take` gives the ranges, one after the other. The thread that caused a
    /// change goes on when it was taken. Must neither allocate nor free: the allocator may change mappings, and would
    /// wait for this call.
    fn observe(&self, take: &mut dyn FnMut() -> Option<Range<usize>>);
}

// From the kernel's linux/userfaultfd.h, as what is below but the page.
const API: u64 = 0xaa;
const IOCTL_API: u64 = 0xc018_aa3f;
const IOCTL_REGISTER: u64 = 0xc020_aa00;
const IOCTL_PROTECT: u64 = 0xc018_aa06;
const PAGE: usize = 4096;
const USER_MODE_ONLY: i32 = 1;
const MODE_WRITE_PROTECT: u64 = 1 << 1;
const WRITE_PROTECT: u64 = 1;
const TELLS_MOVES: u64 = 1 << 2;
const TELLS_DISCARDS: u64 = 1 << 3;
const TELLS_UNMAPS: u64 = 1 << 6;
const MOVED: u8 = 0x14;
const DISCARDED: u8 = 0x15;
const UNMAPPED: u8 = 0x16;

#[repr(C)]
struct Asked {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Watch {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Protect {
    start: u64,
    length: u64,
    mode: u64,
}

/// A page that nobody uses.
#[derive(Debug)]
struct Page(NonNull<libc::c_void>);

// SAFETY: an address of memory that nobody reads or writes.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn new() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0) };
        match NonNull::new(page) {
            Some(page) if page.as_ptr() != libc::MAP_FAILED => Ok(Self(page)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn start(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: a mapping of our own, which nobody uses.
        unsafe { libc::munmap(self.0.as_ptr(), PAGE) };
    }
}

/// An event of the kernel's: its kind, and three numbers.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    _reserved: [u8; 7],
    words: [u64; 3],
}

/// Descriptors that the child of a fork closes. Each is noted before it watches anything, and as long as it may.
static OPEN: [AtomicU32; 64] = [const { AtomicU32::new(NONE) }; 64];
const NONE: u32 = u32::MAX;

/// What events are read from, noted in [`OPEN`].
struct Source(OwnedFd);

impl Source {
    /// None: this process has too many.
    fn note(descriptor: OwnedFd) -> Option<Self> {
        static DONE: Once = Once::new();
        DONE.call_once(|| {
            // SAFETY: a function that may be called in any child: it only closes. Refused for want of memory: no child
            // closes anything.
            unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        });
        let number = descriptor.as_raw_fd().cast_unsigned();
        let mut entries = OPEN.iter();
        let noted = entries.any(|entry| exchange(entry, NONE, number));
        noted.then_some(Self(descriptor))
    }
}

impl Source {
    /// The program has closed the descriptor: its number may be that of another file by now.
    fn forget(self) {
        self.clear();
        std::mem::forget(self);
    }

    fn clear(&self) {
        let number = self.0.as_raw_fd().cast_unsigned();
        let mut entries = OPEN.iter();
        entries.any(|entry| exchange(entry, number, NONE));
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.clear();
    }
}

fn exchange(entry: &AtomicU32, from: u32, to: u32) -> bool {
    entry
        .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

extern "C" fn close_in_child() {
    for entry in &OPEN {
        let number = entry.swap(NONE, Ordering::Relaxed);
        if number != NONE {
            // SAFETY: a number; what has it in this process is of no use to anybody.
            unsafe { libc::close(number.cast_signed()) };
        }
    }
}

/// Watches ranges. It ends when it is dropped.
#[derive(Debug)]
pub struct Watcher {
    /// The thread has it, and closes it when it is asked to stop.
    descriptor: RawFd,
    stop: PipeWriter,
    thread: Option<JoinHandle<()>>,
    /// Watched for nothing but to ask. It goes last, when nobody waits for events any more.
    asked: Page,
}

impl Watcher {
    /// Begins to watch.
    ///
    /// # Errors
    ///
    /// Why the kernel does not report changes.
    pub fn start(observer: Arc<dyn Observer>) -> Result<Self, String> {
        let failed = |what: &str| format!("{what}: {}", io::Error::last_os_error());
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: a call without pointers.
        let number = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let number = i32::try_from(number).unwrap_or(-1);
        if number < 0 {
            return Err(failed("userfaultfd"));
        }
        // SAFETY: the descriptor is new, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let features = WRITE_PROTECT | TELLS_MOVES | TELLS_DISCARDS | TELLS_UNMAPS;
        let mut asked = Asked {
            api: API,
            features,
            ioctls: 0,
        };
        // SAFETY: the structure is that of the call.
        if unsafe { libc::ioctl(number, IOCTL_API as _, &raw mut asked) } != 0 {
            return Err(failed("userfaultfd: events of unmapping"));
        }
        let source =
            Source::note(descriptor).ok_or("userfaultfd: this process has too many of them")?;
        let page = Page::new().map_err(|error| format!("mmap: {error}"))?;
        let (stopped, stop) = io::pipe().map_err(|error| format!("pipe: {error}"))?;
        let begun = Arc::new(Barrier::new(2));
        let begins = Arc::clone(&begun);
        let run = move || {
            begins.wait();
            take_all(source, &stopped, &*observer);
        };
        let thread = without_signals(|| {
            std::thread::Builder::new()
                .name("onecopy-unmaps".to_owned())
                .spawn(run)
        });
        let thread = thread.map_err(|error| format!("a thread: {error}"))?;
        begun.wait();
        let watcher = Self {
            descriptor: number,
            stop,
            thread: Some(thread),
            asked: page,
        };
        let asked = watcher.asked.start();
        if !watcher.register(&(asked..asked + PAGE)) || !watcher.is_quiet() {
            return Err(failed("userfaultfd: whether a change is under way"));
        }
        Ok(watcher)
    }

    /// Whether all changes of what is watched that have begun were taken, in [`Observer::observe`]. Asked before what
    /// is known of them is used. False, too, where the kernel does not say.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let mut protect = Protect {
            start: self.asked.start() as u64,
            length: PAGE as u64,
            mode: 0,
        };
        // SAFETY: the structure is that of the call. No page is protected, and none lies there.
        let code = unsafe { libc::ioctl(self.descriptor, IOCTL_PROTECT as _, &raw mut protect) };
        code == 0
    }

    /// Watches whole pages from now on, if the kernel would tell of every change of them. What is watched twice is told
    /// once.
    #[must_use]
    pub fn watch(&self, pages: &Range<usize>) -> bool {
        is_private(pages) && self.register(pages)
    }

    fn register(&self, pages: &Range<usize>) -> bool {
        let mut watch = Watch {
            start: pages.start as u64,
            length: pages.len() as u64,
            mode: MODE_WRITE_PROTECT,
            ioctls: 0,
        };
        // SAFETY: the structure is that of the call.
        let code = unsafe { libc::ioctl(self.descriptor, IOCTL_REGISTER as _, &raw mut watch) };
        code == 0
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The thread ends when the pipe does, in any case. Until then the descriptor is open.
        let _ = self.stop.write_all(&[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads events until the pipe says that the watch is over. Then nothing is watched any more.
fn take_all(source: Source, stopped: &PipeReader, observer: &dyn Observer) {
    let descriptor = source.0.as_fd();
    let mut sets = [descriptor.as_raw_fd(), stopped.as_raw_fd()].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    loop {
        // SAFETY: two entries of an array that outlives the call.
        let ready = unsafe { libc::poll(sets.as_mut_ptr(), 2, -1) };
        if ready < 0 {
            // A signal, or the kernel is short of memory. A thread that changes a mapping waits: there is no giving up.
            continue;
        }
        if sets[1].revents != 0 {
            break;
        }
        if sets[0].revents != 0 {
            if is_lost(descriptor) {
                break;
            }
            observer.observe(&mut || take(descriptor));
        }
    }
    if is_lost(descriptor) {
        // The kernel tells nothing from now on, and says that it is not quiet.
        source.forget();
        return;
    }
    // A thread that waits for its message to be read goes on. The number names a descriptor until it is forgotten: a
    // child that is forked now closes it.
    // SAFETY: two descriptors of ours.
    unsafe { libc::dup3(stopped.as_raw_fd(), descriptor.as_raw_fd(), libc::O_CLOEXEC) };
    drop(source);
}

/// Whether the program has closed the descriptor, as one that closes all does. The number may name another file by now.
fn is_lost(descriptor: BorrowedFd<'_>) -> bool {
    let number = descriptor.as_raw_fd();
    // SAFETY: a call without pointers.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return true;
    }
    // "/proc/self/fd/" and a number, without an allocation.
    let mut path = [0u8; 32];
    if write!(&mut path[..31], "/proc/self/fd/{number}").is_err() {
        return false;
    }
    let mut name = [0u8; 64];
    // SAFETY: the path ends with a zero, and the name has so many bytes.
    let count =
        unsafe { libc::readlink(path.as_ptr().cast(), name.as_mut_ptr().cast(), name.len()) };
    // Without /proc it cannot be said.
    usize::try_from(count).is_ok_and(|count| !name[..count].ends_with(b"[userfaultfd]"))
}

/// The next change that was reported, if any.
fn take(descriptor: BorrowedFd<'_>) -> Option<Range<usize>> {
    loop {
        let mut message = Message::default();
        // SAFETY: as many bytes as the structure has, all of them numbers.
        let count = unsafe {
            libc::read(
                descriptor.as_raw_fd(),
                (&raw mut message).cast(),
                size_of::<Message>(),
            )
        };
        if count < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue;
        }
        if usize::try_from(count) != Ok(size_of::<Message>()) {
            return None;
        }
        let [first, second, length] = message.words;
        let (start, end) = match message.event {
            UNMAPPED | DISCARDED => (first, second),
            // From where it was: nothing of ours is where it went.
            MOVED => (first, first.saturating_add(length)),
            _ => continue,
        };
        return Some(
            usize::try_from(start).unwrap_or(0)..usize::try_from(end).unwrap_or(usize::MAX),
        );
    }
}

/// Whether all of it is private memory of no file.
fn is_private(pages: &Range<usize>) -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/self/maps") else {
        return false;
    };
    covered(&text, pages)
}

fn covered(maps: &str, pages: &Range<usize>) -> bool {
    let mut next = pages.start;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(mode), Some(inode)) = (words.next(), words.next(), words.nth(2))
        else {
            return false;
        };
        let Some((start, end)) = range.split_once('-') else {
            return false;
        };
        let (Ok(start), Ok(end)) = (
            usize::from_str_radix(start, 16),
            usize::from_str_radix(end, 16),
        ) else {
            return false;
        };
        if end <= next {
            continue;
        }
        if start > next || !mode.ends_with('p') || inode != "0" {
            return false;
        }
        next = end;
        if next >= pages.end {
            return true;
        }
    }
    false
}

/// Starts a thread that takes no signal of the program's.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set can be written.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the first set was filled, the second can be written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let result = start();
    // SAFETY: the set was written by the call before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes what is told once it may.
    #[derive(Debug, Default)]
    struct Slow {
        may: AtomicU32,
        taken: AtomicU32,
    }

    impl Observer for Slow {
        fn observe(&self, take: &mut dyn FnMut() -> Option<Range<usize>>) {
            while self.may.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            while take().is_some() {
                self.taken.fetch_add(1, Ordering::Release);
            }
        }
    }

    #[test]
    fn while_a_change_is_to_be_reported_it_is_not_quiet() {
        let slow = Arc::new(Slow::default());
        // Not every machine permits it.
        let Ok(watcher) = Watcher::start(Arc::clone(&slow) as Arc<dyn Observer>) else {
            return;
        };
        assert!(watcher.is_quiet());
        let page = Page::new().expect("a page");
        let start = page.start();
        assert!(watcher.watch(&(start..start + PAGE)));
        assert!(watcher.is_quiet());
        std::thread::scope(|threads| {
            // It waits in the call until its change was taken. The place may be mapped anew before.
            let changes = threads.spawn(|| drop(page));
            while watcher.is_quiet() {
                assert!(!changes.is_finished(), "nobody was told");
                std::thread::yield_now();
            }
            assert_eq!(slow.taken.load(Ordering::Acquire), 0);
            slow.may.store(1, Ordering::Release);
            changes.join().expect("it goes on");
        });
        assert!(watcher.is_quiet());
        // It went on when its change was read, which is before that was counted. The watcher's thread ends behind that.
        drop(watcher);
        assert_eq!(slow.taken.load(Ordering::Acquire), 1);
    }

    /// A program that closes all descriptors, also those that are not its own, and opens others.
    #[test]
    fn a_number_that_names_another_file_is_left_alone() {
        let Ok(watcher) = Watcher::start(Arc::new(Slow::default())) else {
            return;
        };
        let (other, _writer) = io::pipe().expect("a pipe");
        // In one step, so that no other test has the number meanwhile.
        // SAFETY: the watch is ended, for which it is made.
        unsafe { libc::dup3(other.as_raw_fd(), watcher.descriptor, libc::O_CLOEXEC) };
        let number = watcher.descriptor;
        assert!(!watcher.is_quiet());
        drop(watcher);
        let target = std::fs::read_link(format!("/proc/self/fd/{number}")).expect("it is open");
        assert!(target.to_string_lossy().starts_with("pipe:"), "{target:?}");
        let own = std::fs::read_link(format!("/proc/self/fd/{}", other.as_raw_fd()));
        assert_eq!(target, own.expect("it is open"));
        // SAFETY: made above.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }

    #[test]
    fn only_private_memory_of_no_file_is_watched() {
        let maps = "1000-3000 rw-p 00000000 00:00 0 \n3000-4000 rw-p 00000000 00:00 0 [heap]\n\
            4000-5000 rw-p 00000000 08:01 77 /lib/x\n6000-7000 rw-s 00000000 00:00 0 \n";
        assert!(covered(maps, &(0x1000..0x4000)));
        assert!(covered(maps, &(0x2000..0x3000)));
        for (start, end) in [
            (0x3000, 0x5000),
            (0x4000, 0x5000),
            (0x6000, 0x7000),
            (0x5000, 0x6000),
            (0, 0x1000),
            (0x8000, 0x9000),
        ] {
            assert!(!covered(maps, &(start..end)), "{start:x}");
        }
    }
}
