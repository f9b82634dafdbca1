// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs tests one after another, each in a process of its own, and looks afterwards whether anything was left behind.

use std::io::Write;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::inject::{self, include_self};
use crate::outcome::{At, Fault, Outcome};
use crate::settings::Settings;
use crate::{device, peer, probe, system};

/// A test: its name, what it does, and after how many seconds it hangs.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) seconds: u64,
    pub(crate) body: fn() -> Outcome,
}

/// A table of tests out of functions; the function's name is the test's.
macro_rules! tests {
    ($($module:ident: $($name:ident $(= $seconds:literal)?),* $(,)?;)*) => {
        &[$($($crate::runner::Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            #[allow(unused_variables, unused_assignments, reason = "not every test names its time")]
            seconds: { let seconds = 60; $(let seconds = $seconds;)? seconds },
            body: $module::$name,
        },)*)*]
    };
}
pub(crate) use tests;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only print the tests' names.
    #[arg(long)]
    list: bool,
    /// Give every test so many times its time: for slow kernels.
    #[arg(long, default_value_t = 1)]
    patience: u32,
    /// A test that may be skipped, where this machine is known to lack what it needs. Any other skip is a failure.
    #[arg(long, value_name = "TEST")]
    allow_skip: Vec<String>,
    /// Print how long each test took.
    #[arg(long)]
    times: bool,
    /// With the kernel's fault injection in each test, which may fail for it. The module may hold nothing afterwards.
    #[arg(long)]
    inject: bool,
    /// With fault injection: how much more seldom the kernel's own points fail than for the fuzzer.
    #[arg(long, default_value_t = inject::SELDOM)]
    seldom: u32,
    /// Leave out the tests whose names contain this.
    #[arg(long, value_name = "TEST")]
    except: Vec<String>,
    /// Run the tests whose names contain one of these.
    tests: Vec<String>,
}

/// What must still work when faults are injected no more.
const SOUND: &[&str] = &["basic::bytes_travel", "regions::read_and_write"];

impl Arguments {
    fn time(&self, begin: Instant) -> String {
        if self.times {
            format!(" ({:.2} s)", begin.elapsed().as_secs_f64())
        } else {
            String::new()
        }
    }
}

/// Runs the tests that were asked for. Whether all is well.
pub(crate) fn run(tests: &[Test], arguments: &Arguments) -> Outcome<bool> {
    let named =
        |parts: &[String], name: &str| parts.iter().any(|part| name.contains(part.as_str()));
    let wanted = |name: &str| {
        (arguments.tests.is_empty() || named(&arguments.tests, name))
            && !named(&arguments.except, name)
    };
    let chosen: Vec<&Test> = tests.iter().filter(|test| wanted(test.name)).collect();
    if arguments.list {
        for test in &chosen {
            say(test.name);
        }
        return Ok(true);
    }
    if chosen.is_empty() {
        return Err(Fault::Fail("no test has such a name".to_owned()));
    }
    device::onecopy().at("is the module loaded?")?;
    set_child_subreaper(true).at("becoming a subreaper")?;
    probe::install();
    if arguments.inject {
        injected(tests, &chosen, arguments)
    } else {
        Ok(undisturbed(&chosen, arguments))
    }
}

/// Runs tests without fault injection. Whether all is well.
fn undisturbed(chosen: &[&Test], arguments: &Arguments) -> bool {
    let (mut passed, mut failed, mut skipped) = (0, Vec::new(), 0);
    let mut stubborn = Vec::new();
    for test in chosen {
        let begin = Instant::now();
        let outcome = alone(test, arguments.patience, false).and_then(|end| end);
        let left = left_behind(&mut stubborn);
        let outcome = outcome.and(left);
        let time = arguments.time(begin);
        match outcome {
            Ok(()) => {
                passed += 1;
                say(&format!("ok {}{time}", test.name));
            }
            Err(Fault::Skip(reason))
                if arguments.allow_skip.iter().any(|name| name == test.name) =>
            {
                skipped += 1;
                say(&format!("skip {}: {reason}", test.name));
            }
            Err(Fault::Skip(reason)) => {
                failed.push(test.name);
                say(&format!(
                    "FAIL {}: skipped, which is not allowed here: {reason}",
                    test.name
                ));
            }
            Err(fault) => {
                failed.push(test.name);
                say(&format!("FAIL {}: {fault}{time}", test.name));
            }
        }
    }
    say(&format!(
        "acceptance: {passed} ok, {} failed, {skipped} skipped",
        failed.len()
    ));
    failed.is_empty()
}

/// Runs tests with fault injection, and some without it at the end. Whether all is well.
///
/// A test may fail then: it expects that its calls succeed. What it may not do is hang, read wrong bytes, end by a
/// signal, or leave something in the module.
fn injected(tests: &[Test], chosen: &[&Test], arguments: &Arguments) -> Outcome<bool> {
    let injection = inject::demand(arguments.seldom)?;
    say(&format!("fault injection: {}", injection.names()));
    let settings = Settings::take()?;
    let (mut whole, mut early, mut skipped, mut failed) = (0, 0, 0, Vec::new());
    let mut stubborn = Vec::new();
    for test in chosen {
        let begin = Instant::now();
        let end = alone(test, arguments.patience, true);
        let left = left_behind(&mut stubborn);
        // A test that was ended by force did not do that itself.
        settings.restore()?;
        let time = arguments.time(begin);
        match end.and_then(|end| left.map(|()| end)) {
            Ok(Ok(())) => {
                whole += 1;
                say(&format!("ok {}{time}", test.name));
            }
            Ok(Err(Fault::Skip(reason))) => {
                skipped += 1;
                say(&format!("skip {}: {reason}", test.name));
            }
            Ok(Err(fault @ (Fault::Fail(_) | Fault::Short(_)))) => {
                early += 1;
                say(&format!("early {}: {fault}{time}", test.name));
            }
            Ok(Err(fault @ Fault::Wrong(_))) | Err(fault) => {
                failed.push(test.name);
                say(&format!("FAIL {}: {fault}{time}", test.name));
            }
        }
    }
    // Tests that somebody chose may not come to each point.
    let all = arguments.tests.is_empty() && arguments.except.is_empty();
    let mut problems = injection.end(all, say);
    for test in tests.iter().filter(|test| SOUND.contains(&test.name)) {
        let outcome = alone(test, arguments.patience, false).and_then(|end| end);
        match outcome.and(left_behind(&mut stubborn)) {
            Ok(()) => say(&format!("ok {} without fault injection", test.name)),
            Err(fault) => problems.push(format!("{} afterwards: {fault}", test.name)),
        }
    }
    for problem in &problems {
        say(&format!("FAIL {problem}"));
    }
    say(&format!(
        "acceptance with fault injection: {whole} ok, {early} ended early, {skipped} skipped, {} failed",
        failed.len()
    ));
    Ok(failed.is_empty() && problems.is_empty())
}

/// Runs a test in a process of its own, within its time. How it ended, or why it had to be ended.
fn alone(test: &Test, patience: u32, inject: bool) -> Outcome<Outcome> {
    let limit = Duration::from_secs(test.seconds) * patience;
    let child = peer::peer(|_| {
        if inject {
            include_self();
        }
        (test.body)()
    })?;
    let begin = Instant::now();
    while child.runs()? {
        if begin.elapsed() > limit {
            let place = system::where_is(child.pid());
            // Its descendants come to this process, which ends them.
            child.signal(Signal::SIGKILL)?;
            return Err(Fault::Fail(format!("hangs: after {limit:?} {place}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(child.join())
}

/// Ends what a test left running. Fails if anything cannot be ended, or if the module still holds something.
fn left_behind(stubborn: &mut Vec<Pid>) -> Outcome {
    let begin = Instant::now();
    loop {
        // What could not be ended after an earlier test has been reported with that one.
        let mut children = system::children();
        children.retain(|pid| !stubborn.contains(pid));
        if children.is_empty() {
            break;
        }
        for pid in &children {
            let _ = kill(*pid, Signal::SIGKILL);
        }
        while matches!(
            waitpid(None, Some(WaitPidFlag::WNOHANG)),
            Ok(status) if status != WaitStatus::StillAlive
        ) {}
        if begin.elapsed() > Duration::from_secs(30) {
            let places: Vec<String> = children
                .iter()
                .map(|pid| format!("{pid} {}", system::where_is(*pid)))
                .collect();
            stubborn.extend(children);
            return Err(Fault::Fail(format!(
                "cannot be killed: {}",
                places.join("; ")
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    match held(Duration::from_secs(10))? {
        None => Ok(()),
        Some(left) => Err(Fault::Fail(left)),
    }
}

/// What the module still holds when nobody is left, after so much time for what ends late.
pub(crate) fn held(patience: Duration) -> Outcome<Option<String>> {
    let device = device::onecopy()?;
    let mut gauges = [("", 0); 7];
    let empty = system::until(patience, || {
        let stats = device.stats().unwrap_or_default();
        gauges = [
            ("segments", stats.segments),
            ("permits", stats.permits),
            ("regions", stats.regions),
            ("pinned pages", stats.pinned_pages),
            ("attachments", stats.attachments),
            ("address spaces", stats.spaces),
            ("workers", stats.workers),
        ];
        gauges.iter().all(|(_, count)| *count == 0)
    });
    if empty {
        return Ok(None);
    }
    let left: Vec<String> = gauges
        .iter()
        .filter(|(_, count)| *count != 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    Ok(Some(format!("left in the module: {}", left.join(", "))))
}

/// Prints what went wrong in a program of many calls, or that all is well. Whether it is.
pub(crate) fn verdict(name: &str, problems: &[String]) -> bool {
    for problem in problems {
        say(&format!("FAIL {name}: {problem}"));
    }
    if problems.is_empty() {
        say(&format!("ok {name}"));
    }
    problems.is_empty()
}

/// A line of output.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
