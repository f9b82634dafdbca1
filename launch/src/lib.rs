// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the ranks of a job on this node, wires them up, and sees to it that nothing is left of them afterwards.
//!
//! [`Job`] describes a job and runs it; `onecopy run` is a thin shell around it. One thread does everything in one
//! event loop. It introduces ranks to one another ([`onecopy::wireup`]), forwards their output, watches their
//! processes, and ends the job when one fails.
//!
//! # No orphans
//!
//! Each rank leads a process group and is killed by the kernel when the launching thread ends. A rank's leftovers
//! (background processes of its group) are killed when the job has ended. A job that is [`exclusive`](Job::exclusive)
//! goes further. The launching process is made a subreaper. So even a daemon that forked twice and left its session
//! becomes its child and is found. What if the launcher itself is killed by `SIGKILL`? Then [`guard`] helps.
//! `onecopy run` is two processes: the one that the user sees, and the launcher below it, in another process group.
//! Each is a subreaper that cleans up when the other is gone.
//!
//! # Programs of other libraries
//!
//! Each rank also has a connection to a PMI-1 server (`PMI_FD`, `PMI_RANK`, `PMI_SIZE`). By it programs that were built
//! with MPICH or Intel MPI find one another. A program of ours does not use it.
//!
//! # What ends a job
//!
//! The job fails with the first rank that exits with a code other than 0, is killed by a signal, or calls abort. It
//! also fails if a rank joins the job and ends without leaving it in order (`MPI_Finalize`, or the end of its
//! `Runtime`). Then all ranks get `SIGTERM`, and after a grace period `SIGKILL`. The outcome's code is the first
//! failure's. With [`keep_going`](Job::keep_going) the others go on.

#![forbid(unsafe_code)]

mod bind;
mod conduct;
mod forward;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod guard;
mod obstacle;
mod output;
mod pmi;
mod signals;
mod start;
mod sweep;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

pub use bind::{Bind, BindError};
pub use signals::ignored as ignored_signals;

use onecopy::wireup::{Death, exit_code};

/// Where rank 0 reads; the others read nothing.
#[derive(Debug, Default)]
pub enum Input {
    /// Nothing.
    #[default]
    Null,
    /// What the launching process would read.
    Inherit,
    /// From this descriptor.
    From(OwnedFd),
}

/// Which of a rank's output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Takes a rank's output: rank, stream, and a line with its end (or what was left at the end of the stream).
pub type OnLine = Box<dyn FnMut(usize, Stream, &[u8]) + Send>;

/// Where the ranks' output goes.
#[derive(Default)]
pub enum Output {
    /// Straight to the launching process' own streams.
    #[default]
    Inherit,
    /// To the launching process' own streams line by line; each line with `[rank] ` in front if `tag`.
    Forward {
        /// Whether lines name their rank.
        tag: bool,
    },
    /// To a function.
    Lines(OnLine),
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inherit => f.write_str("Inherit"),
            Self::Forward { tag } => write!(f, "Forward {{ tag: {tag} }}"),
            Self::Lines(_) => f.write_str("Lines(..)"),
        }
    }
}

/// Called with each rank's number and process id once it has started.
pub type OnStart = Box<dyn FnMut(usize, i32) + Send>;

/// A job to be run on this node.
///
/// ```
/// use onecopy_launch::{Job, Output};
///
/// let outcome = Job::new("sh", 2)
///     .args(["-c", "exit $ONECOPY_JOB_RANK"])
///     .run()?;
/// assert_eq!(outcome.code, 1);
/// # Ok::<(), onecopy_launch::LaunchError>(())
/// ```
pub struct Job {
    program: OsString,
    args: Vec<OsString>,
    ranks: usize,
    bind: Bind,
    env: Vec<(OsString, OsString)>,
    input: Input,
    output: Output,
    timeout: Option<Duration>,
    join_timeout: Duration,
    grace: Duration,
    keep_going: bool,
    exclusive: bool,
    forward_signals: bool,
    quiet: bool,
    guard: Option<guard::Link>,
    on_start: Option<OnStart>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("ranks", &self.ranks)
            .field("bind", &self.bind)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// A job of `ranks` processes of `program`, which is looked up in `PATH`.
    pub fn new(program: impl Into<OsString>, ranks: usize) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            ranks,
            bind: Bind::Auto,
            env: Vec::new(),
            input: Input::Null,
            output: Output::Inherit,
            timeout: None,
            join_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(1),
            keep_going: false,
            exclusive: false,
            forward_signals: false,
            quiet: false,
            guard: None,
            on_start: None,
        }
    }

    /// Adds an argument of the program.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments of the program.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable for all ranks.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let pair = (name.as_ref().to_owned(), value.as_ref().to_owned());
        self.env.push(pair);
        self
    }

    /// Which processors ranks run on. Default: [`Bind::Auto`].
    #[must_use]
    pub fn bind(mut self, bind: Bind) -> Self {
        self.bind = bind;
        self
    }

    /// What rank 0 reads. Default: nothing.
    #[must_use]
    pub fn input(mut self, input: Input) -> Self {
        self.input = input;
        self
    }

    /// Where output goes. Default: [`Output::Inherit`].
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Ends the job with code 124 when it has run for so long.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// How long ranks that have joined wait for the others. Default: 30 s.
    #[must_use]
    pub fn join_timeout(mut self, limit: Duration) -> Self {
        self.join_timeout = limit;
        self
    }

    /// Time between `SIGTERM` and `SIGKILL` when a job is ended. Default: 1 s.
    #[must_use]
    pub fn grace(mut self, time: Duration) -> Self {
        self.grace = time;
        self
    }

    /// Lets the others go on when a rank fails.
    #[must_use]
    pub fn keep_going(mut self, yes: bool) -> Self {
        self.keep_going = yes;
        self
    }

    /// Everything that this process starts from now on belongs to this job. The process becomes a subreaper, and at the
    /// end of the job **all** its children and what is below them are killed. For programs that do nothing else
    /// meanwhile.
    #[must_use]
    pub fn exclusive(mut self, yes: bool) -> Self {
        self.exclusive = yes;
        self
    }

    /// Passes signals that this process gets on to the ranks: INT, TERM, HUP, QUIT, USR1, USR2, TSTP and CONT. The
    /// second of the first four kills them. The calling thread must be the only one, or the others must block these
    /// signals.
    #[must_use]
    pub fn forward_signals(mut self, yes: bool) -> Self {
        self.forward_signals = yes;
        self
    }

    /// Writes no messages; they are in [`JobOutcome::messages`] only.
    #[must_use]
    pub fn quiet(mut self, yes: bool) -> Self {
        self.quiet = yes;
        self
    }

    /// Ends everything when the guardian at the other end is gone.
    #[must_use]
    pub fn guard(mut self, link: guard::Link) -> Self {
        self.guard = Some(link);
        self
    }

    /// Calls `f` for each rank when it has started.
    #[must_use]
    pub fn on_start(mut self, f: impl FnMut(usize, i32) + Send + 'static) -> Self {
        self.on_start = Some(Box::new(f));
        self
    }

    /// Runs the job to its end. On return no process of it is left.
    ///
    /// The calling thread must not end before: the kernel kills the ranks with it.
    pub fn run(self) -> Result<JobOutcome, LaunchError> {
        conduct::run(self)
    }
}

/// What made a job end as it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// All ranks ended with code 0.
    Success,
    /// This rank failed first.
    Rank {
        /// Which.
        rank: usize,
        /// How it ended.
        death: Death,
    },
    /// This rank aborted the job.
    Abort {
        /// Which.
        rank: usize,
        /// With this code.
        code: i32,
    },
    /// The time was over.
    Timeout,
    /// Not all ranks joined.
    NotJoined,
    /// This rank joined and ended without leaving in order, with code 0.
    Deserted {
        /// Which.
        rank: usize,
    },
    /// A signal that was repeated, so that ranks were killed.
    Interrupted {
        /// The signal.
        signal: i32,
    },
    /// What ranks wrote could not be written to the launcher's own output: a full disk, say.
    OutputLost {
        /// The error of `write`.
        errno: i32,
    },
    /// The guardian was killed.
    GuardianLost,
}

impl Cause {
    /// The exit code that tells this to a shell: 0 for success only.
    pub fn code(self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Rank { death, .. } => match death {
                Death::Code(code) => exit_code(code),
                Death::Signal(signal) => 128 + signal,
                Death::Unknown | Death::NodeLost | Death::Unheard => 1,
            },
            Self::Abort { code, .. } => exit_code(code),
            Self::Timeout => 124,
            Self::NotJoined | Self::Deserted { .. } | Self::OutputLost { .. } => 1,
            Self::Interrupted { signal } => 128 + signal,
            Self::GuardianLost => 137,
        }
    }
}

/// How a job ended.
#[derive(Clone, Debug)]
pub struct JobOutcome {
    /// Exit code for the job as a whole: that of the first failing rank, 128 + signal for one that was killed, 124 for
    /// a timeout. What a rank aborted with has eight bits here, and is 1 if these are 0.
    pub code: i32,
    /// Why.
    pub cause: Cause,
    /// How each rank ended.
    pub ranks: Vec<Death>,
    /// What the launcher had to say, one line each.
    pub messages: Vec<String>,
}

/// Why a job could not be started. No process is left of it.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no such program.
    #[error(
        "cannot start {program:?}: not found (as a path, in PATH, or the interpreter that it names)"
    )]
    NotFound {
        /// The program.
        program: OsString,
    },
    /// It cannot be executed.
    #[error("cannot start {program:?}: {source}; is it an executable file?")]
    NotExecutable {
        /// The program.
        program: OsString,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A rank could not be started for another reason.
    #[error("cannot start rank {rank} of {ranks}: {source}")]
    Start {
        /// Which rank.
        rank: usize,
        /// Of how many.
        ranks: usize,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A job needs ranks.
    #[error("a job needs 1 to {max} ranks, not {ranks}", max = onecopy::wireup::message::MAX_RANKS)]
    Ranks {
        /// The number asked for.
        ranks: usize,
    },
    /// The descriptor limit is too low.
    #[error(
        "{ranks} ranks need {needed} descriptors, but the hard limit is {hard}: raise it (`ulimit -Hn`, limits.conf, LimitNOFILE=)"
    )]
    Descriptors {
        /// Ranks asked for.
        ranks: usize,
        /// Descriptors needed by the launcher or by a rank.
        needed: u64,
        /// The hard limit.
        hard: u64,
    },
    /// Ranks cannot be bound as asked.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A call of the launcher itself failed.
    #[error("{what}: {source}")]
    System {
        /// The call and its object.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

impl LaunchError {
    /// The exit code that tells this to a shell: 127 not found, 126 not executable. It is 2 for a job that cannot be
    /// had as described, and 1 otherwise.
    pub fn code(&self) -> i32 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::Ranks { .. } | Self::Bind(_) => 2,
            _ => 1,
        }
    }
}

pub(crate) fn system<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> LaunchError {
    move |error| LaunchError::System {
        what,
        source: error.into(),
    }
}
