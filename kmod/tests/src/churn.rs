// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that may happen to memory that is shared, all at once. Owners punch holes, truncate, move and revoke, and
//! importers use what they can get. Beside them processes fork, exec, run out of memory, wait for faults, get
//! notifiers, are debugged and killed. Meanwhile somebody tries to unload the module.
//!
//! Each process fails where its own memory is not what it must be. At the end every one must go, and
//! the module and the kernel must hold what they held before.

mod board;
mod importer;
mod others;
mod owner;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use libc::{EAGAIN, EBUSY, ENOMEM};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::resource::{Resource, setrlimit};

use crate::census::Census;
use crate::crew::Crew;
use crate::dice::Dice;
use crate::inject::{self, Injection};
use crate::mem::{Area, READ, page_size};
use crate::outcome::{At, Fault, Outcome, refused};
use crate::runner::say;
use crate::system::{self, OpenToAll};
use crate::{device, peer, probe, runner};

use board::{Board, DEEDS, Deed};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Seconds for which it goes on.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// What the dice begin with.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The module's file: at the end it is unloaded, loaded again and used.
    #[arg(long)]
    module: PathBuf,
    /// A process that is killed may take so many times longer to go: for slow kernels.
    #[arg(long, default_value_t = 1)]
    patience: u32,
    /// With the kernel's fault injection: calls of the processes may fail for want of memory, and that is no failure.
    #[arg(long)]
    inject: bool,
}

/// The module's name, and the device of the one for tests.
const NAME: &str = "onecopy";
const NOTIFY: &str = "/dev/onecopy-notify";
/// Where processes have little memory, and how much.
const GROUP: &str = "/sys/fs/cgroup/onecopy-churn";
const LITTLE: &str = "16777216";
/// A file that owners and others map.
fn file_size() -> usize {
    32 * page_size()
}
/// What ordinary users may lock.
const LOCKED: u64 = 1 << 20;
/// The ordinary user.
const USER: u32 = 1001;
/// One more is killed so often.
const KILL: Duration = Duration::from_millis(150);
/// Where something has not been done by the end: so many times more, times the patience, for so long at most. Fewer are
/// killed then, since on a slow machine hardly anybody lives long enough for everything.
const MORE: u32 = 5;
const A_WHILE: Duration = Duration::from_secs(20);
const KILL_SELDOM: Duration = Duration::from_secs(2);

/// Who does what; and as an ordinary user?
type Role = (fn(Life<'_>) -> Outcome, bool);
const ROLES: &[Role] = &[
    (owner::live, false),
    (owner::live, true),
    (importer::live, false),
    (importer::live, false),
    (importer::live, true),
    (others::forker, false),
    (others::changeling, false),
    (others::hog, false),
    (others::waiter, false),
    (others::hypervisor, false),
    (others::debugger, false),
    (others::mover, false),
];

/// What a process has to live with.
struct Life<'a> {
    board: Board,
    place: usize,
    dice: Dice,
    boxes: &'a [(UnixDatagram, UnixDatagram)],
    file: BorrowedFd<'a>,
    rounds: u32,
}

impl Life<'_> {
    /// Whether it goes on, for another round.
    fn goes_on(&mut self) -> bool {
        self.board.step(self.place);
        self.rounds += 1;
        self.rounds < 5000 && !self.board.notes.stopped()
    }

    fn did(&self, deed: Deed) {
        self.board.did(self.place, deed);
    }
}

struct Churn<'a> {
    arguments: &'a Arguments,
    board: Board,
    boxes: Vec<(UnixDatagram, UnixDatagram)>,
    file: std::os::fd::OwnedFd,
    crew: Crew,
    dice: Dice,
    /// Refused attempts to unload the module.
    unloads: u64,
    /// What had been done when the time began.
    before: Vec<u64>,
}

/// Runs until the time is over. Whether all is well.
pub(crate) fn run(arguments: &Arguments) -> Outcome<bool> {
    device::onecopy().at("is the module loaded?")?;
    fs::metadata(NOTIFY).at(format_args!("{NOTIFY}: is onecopy_notify.ko loaded?"))?;
    fs::metadata(&arguments.module).at(arguments.module.display())?;
    set_child_subreaper(true).at("becoming a subreaper")?;
    probe::install();
    system::quiet_allocator();
    let open: Vec<OpenToAll> = ["/dev/xpmem", "/dev/knem", "/dev/onecopy"]
        .into_iter()
        .map(OpenToAll::device)
        .collect::<Outcome<_>>()?;
    group()?;
    let file = memfd_create(c"churn", MFdFlags::MFD_CLOEXEC).at("memfd_create")?;
    nix::unistd::ftruncate(&file, file_size() as i64).at("ftruncate")?;
    let mut churn = Churn {
        arguments,
        board: Board::new(ROLES.len())?,
        boxes: Vec::new(),
        file,
        crew: Crew::new(ROLES.len(), arguments.patience, arguments.inject),
        dice: Dice::new(arguments.seed),
        unloads: 0,
        before: Vec::new(),
    };
    let injection = arguments
        .inject
        .then(|| inject::demand(inject::SELDOM))
        .transpose()?;
    say(&format!(
        "churn: seed {}, {} s, {} processes at a time, fault injection: {}",
        arguments.seed,
        arguments.seconds,
        ROLES.len(),
        injection
            .as_ref()
            .map_or("none".to_owned(), Injection::names)
    ));
    let mut problems = Vec::new();
    // What a kernel allocates once and keeps, it has allocated by then.
    let warm = Duration::from_secs((arguments.seconds / 10).clamp(3, 30));
    if let Err(fault) = churn.storm(warm, KILL) {
        problems.push(fault.to_string());
    }
    problems.extend(runner::held(Duration::from_secs(20))?);
    let before = Census::take();
    churn.before = churn.all();
    if problems.is_empty()
        && let Err(fault) = churn.whole(Duration::from_secs(arguments.seconds))
    {
        problems.push(fault.to_string());
    }
    problems.extend(churn.report());
    if let Some(injection) = injection {
        problems.extend(injection.end(true, say));
    }
    let patience = Duration::from_secs(20) * arguments.patience.max(1);
    problems.extend(runner::held(patience)?);
    problems.extend(before.compare(&Census::take()));
    problems.extend(locked().err().map(|fault| fault.to_string()));
    drop(open);
    let _ = fs::remove_dir(GROUP);
    if problems.is_empty() {
        let again = reload(arguments);
        problems.extend(again.err().map(|fault| fault.to_string()));
    }
    Ok(runner::verdict("churn", &problems))
}

/// A box for each process, in which others put descriptors.
fn boxes() -> Outcome<Vec<(UnixDatagram, UnixDatagram)>> {
    ROLES
        .iter()
        .map(|_| {
            let (left, right) = UnixDatagram::pair().at("socketpair")?;
            left.set_nonblocking(true).at("a socket")?;
            right.set_nonblocking(true).at("a socket")?;
            Ok((left, right))
        })
        .collect()
}

/// The group with little memory.
fn group() -> Outcome {
    const ROOT: &str = "/sys/fs/cgroup";
    // The console need not tell each time which process is killed there.
    let _ = fs::write("/proc/sys/vm/oom_dump_tasks", "0");
    let control = format!("{ROOT}/cgroup.subtree_control");
    fs::write(control, "+memory").at("enabling the memory controller")?;
    if fs::metadata(GROUP).is_err() {
        fs::create_dir(GROUP).at("mkdir of a cgroup")?;
    }
    fs::write(format!("{GROUP}/memory.max"), LITTLE).at("memory.max")
}

/// How many processes the kernel killed in the group with little memory.
fn starved() -> u64 {
    system::number(&format!("{GROUP}/memory.events"), "oom_kill").unwrap_or(0)
}

/// An ordinary user may lock what it might before, and no more: all was given back, and not twice.
fn locked() -> Outcome {
    let _open = OpenToAll::device("/dev/knem")?;
    peer::peer(|_| {
        setrlimit(Resource::RLIMIT_MEMLOCK, LOCKED, LOCKED).at("setrlimit")?;
        system::become_user(USER)?;
        let (device, area) = (device::knem()?, Area::new(LOCKED as usize)?);
        device::region(&device, &area, READ, 0)
            .map_err(|fault| Fault::Fail(format!("memory still counts as locked: {fault}")))?;
        let more = Area::new(page_size())?;
        refused(
            device::try_region(&device, &[device::vector(&more)], READ, 0),
            &[ENOMEM],
            "a page beyond what may be locked",
        )
    })?
    .join()
}

/// The module goes when nobody uses it, and comes again. This process was an owner and an importer, and lives on.
fn reload(arguments: &Arguments) -> Outcome {
    let area = Area::new(4 * page_size())?;
    area.fill(7);
    let used = || {
        let segment = device::export(&area, true)?;
        let view = device::map(&segment, 4 * page_size(), true)?;
        view.verify(7)?;
        view.unmap()
    };
    used()?;
    let mut last = None;
    let gone = system::until(Duration::from_secs(20), || match system::unload(NAME) {
        Ok(()) => true,
        Err(error) => {
            last = Some(error);
            false
        }
    });
    if !gone {
        return Err(Fault::Fail(format!(
            "nobody uses the module, and it cannot be unloaded: {last:?}"
        )));
    }
    system::load(&arguments.module).at("loading the module again")?;
    used()
}

impl Churn<'_> {
    /// A storm, and on a slow machine more of it while something has not been done.
    fn whole(&mut self, time: Duration) -> Outcome {
        self.storm(time, KILL)?;
        for _ in 0..MORE * self.arguments.patience.max(1) {
            if self.counts().iter().all(|(_, count)| *count > 0) {
                break;
            }
            self.storm(time.min(A_WHILE), KILL_SELDOM)?;
        }
        Ok(())
    }

    /// Lets all live together for a while, and kills one of them every so often; then ends them all.
    fn storm(&mut self, time: Duration, kill: Duration) -> Outcome {
        // As long as this is open the module is in use.
        let held = device::onecopy()?;
        self.board.notes.let_go();
        self.boxes = boxes()?;
        let begin = Instant::now();
        let mut killed = begin;
        let mut result = Ok(());
        while result.is_ok() && begin.elapsed() < time {
            std::thread::sleep(Duration::from_millis(10));
            self.crew.reap();
            for place in 0..self.crew.places() {
                if self.crew.is_vacant(place) {
                    self.hire(place)?;
                }
            }
            let board = self.board;
            result = self.crew.watch(|place| board.progress(place));
            if killed.elapsed() > kill {
                killed = Instant::now();
                let victim = self.dice.below(self.crew.places() as u64) as usize;
                self.crew.kill(victim);
                let unload = refused(system::unload(NAME), &[EAGAIN, EBUSY], "unloading");
                self.unloads += u64::from(unload.is_ok());
                result = result.and(unload);
            }
        }
        self.board.notes.stop();
        self.crew.end_all()?;
        // With what is in them.
        self.boxes.clear();
        drop(held);
        result
    }

    fn hire(&mut self, place: usize) -> Outcome {
        let (seed, board, inject) = (self.arguments.seed, self.board, self.arguments.inject);
        let (boxes, file) = (&self.boxes, &self.file);
        self.crew.hire(place, |incarnation| {
            let (role, ordinary) = ROLES[place];
            if inject {
                inject::include_self();
            }
            if ordinary {
                setrlimit(Resource::RLIMIT_MEMLOCK, LOCKED, LOCKED).at("setrlimit")?;
                system::become_user(USER)?;
            }
            role(Life {
                board,
                place,
                dice: Dice::new(seed ^ (place as u64) << 48 ^ incarnation << 8),
                boxes,
                file: file.as_fd(),
                rounds: 0,
            })
        })
    }

    /// How often everything was done, in the order of its names.
    fn all(&self) -> Vec<u64> {
        let mut counts = self.board.all();
        counts.extend([self.unloads, starved()]);
        counts
    }

    /// How often everything was done since the time began: what the warm-up did does not count.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        let names = DEEDS.iter().map(|(_, name)| *name).chain([
            "attempts to unload the module",
            "processes killed for memory",
        ]);
        // Where the time never began, nothing was done.
        let before = self
            .before
            .iter()
            .copied()
            .chain(std::iter::repeat(u64::MAX));
        let all = self.all();
        names
            .zip(all.into_iter().zip(before))
            .map(|(name, (now, before))| (name, now.saturating_sub(before)))
            .collect()
    }

    /// Prints what was done. What is wrong with it.
    fn report(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, count) in self.counts() {
            say(&format!("  {count:9} {name}"));
            if count == 0 {
                problems.push(format!("none of this was done: {name}"));
            }
        }
        let (line, crashed) = self.crew.summary();
        say(&line);
        problems.extend(crashed);
        problems
    }
}
