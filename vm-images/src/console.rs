// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a guest says on its console, and the verdict that follows.
//!
//! The guest's own lines begin with `VM-`: `VM-BOOT`, `VM-BEGIN NAME`, `VM-END NAME rc=0 seconds=3`, `VM-VERDICT rc=0
//! taint=0 bad_taint=0`. Everything with the kernel's time stamp is the kernel's, and some of that is never good.

use std::fmt;

/// What the kernel says only when something is wrong.
const SPLATS: &[&str] = &[
    "BUG:",
    "BUG ",
    "WARNING:",
    "KASAN:",
    "KFENCE:",
    "UBSAN:",
    "Kernel panic",
    "Oops:",
    "kernel BUG at",
    "general protection fault",
    "invalid opcode:",
    "double fault:",
    "Bad page state",
    "Bad page map",
    "bad pmd",
    "bad pte",
    "Bad rss-counter",
    "list_add corruption",
    "list_del corruption",
    "refcount_t:",
    "possible recursive locking",
    "possible circular locking",
    "possible irq lock inversion",
    "inconsistent lock state",
    "bad unlock balance",
    "held lock freed",
    "lock held when returning to user space",
    "suspicious RCU usage",
    "sleeping function called",
    "scheduling while atomic",
    "soft lockup",
    "hard LOCKUP",
    "detected stalls",
    "self-detected stall",
    "blocked for more than",
    "unreferenced object",
    "new suspected memory leaks",
    "page_table_check",
    "Objects remaining in",
    "cache is still in use",
];

/// Lines that contain one of those words and are in order.
const HARMLESS: &[&str] = &[];

/// How KCSAN begins to tell of a race: two stacks follow, and a line of `=`.
const RACE: &str = "BUG: KCSAN:";
/// What ends it.
const RACE_END: &str = "==========";
/// What stands behind a function of the module, or of its modules for tests, in a stack.
const OURS: &str = "[onecopy";
/// What stands before the stack of an access.
const RACE_ACCESS: &str = " bytes by ";
/// How near to an access a function of the module has to be, counted from the one that made it. What the module calls
/// may use a word of the module's. But a page that is pushed out under an allocation of the module is the kernel's
/// alone.
const NEAR: usize = 4;
/// Races of the kernel with itself, also where the module calls it. Fault injection counts the calls of all tasks
/// without a lock.
const ITS_OWN: &[&str] = &["should_fail_ex / should_fail_ex"];

/// How many of the kernel's complaints are kept.
const KEPT_SPLATS: usize = 20;
/// How much of a test's output is kept.
const KEPT_OUTPUT: usize = 1 << 20;

/// A test that ran in a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// Its exit code; none while it runs, and if it never ended.
    pub code: Option<i32>,
    /// How long it took, in the guest's time.
    pub seconds: u32,
    /// What it wrote.
    pub output: String,
}

/// The guest's last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How many tests failed.
    pub code: i32,
    /// The kernel's taint flags, without those of a module that is not signed and not of the kernel's tree.
    pub bad_taint: u64,
}

/// How the virtual machine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this code of QEMU.
    Exited(i32),
    /// It was stopped because it took too long.
    TimedOut,
    /// It was stopped once it had booted, because its kernel had complained by then.
    Ill,
}

/// What all that means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything passed.
    Passed,
    /// Something failed, or the kernel complained, or the guest died or hung after it had booted.
    Failed(String),
    /// It died before it had booted. Or all passed, but its kernel had complained by then and watches less since.
    /// Neither is a statement about what is tested.
    NeverBooted(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(why) => write!(f, "FAILED: {why}"),
            Self::NeverBooted(why) => write!(f, "never booted: {why}"),
        }
    }
}

/// What was read so far.
#[derive(Clone, Debug, Default)]
pub struct Console {
    boot: Option<String>,
    /// The kernel's complaints before it had booted.
    ill: usize,
    tests: Vec<Test>,
    verdict: Option<Verdict>,
    splats: Vec<String>,
    splat_count: usize,
    /// The race that KCSAN is reporting: the functions that take part are known at its end only.
    race: Option<Race>,
    /// Races in which no function of the module takes part.
    foreign_races: usize,
    last: String,
}

/// A race, as far as it was told.
#[derive(Clone, Debug)]
struct Race {
    /// Its first line.
    title: String,
    /// Whether a function of the module made one of the accesses, or called who did.
    ours: bool,
    /// Functions of the stack that were told.
    depth: usize,
}

impl Console {
    /// Takes the next line.
    pub fn line(&mut self, line: &str) {
        let line = line.trim_end_matches(['\r', '\n']);
        if let Some(kernel) = from_kernel(line)
            && !self.of_race(kernel)
            && SPLATS.iter().any(|word| kernel.contains(word))
            && !HARMLESS.iter().any(|known| kernel.contains(known))
        {
            self.complain(kernel);
        }
        if !line.trim().is_empty() {
            line.clone_into(&mut self.last);
        }
        if let Some(rest) = own(line, "VM-BOOT ") {
            self.boot = Some(rest.to_owned());
            self.ill = self.splat_count;
        } else if let Some(name) = own(line, "VM-BEGIN ") {
            self.tests.push(Test {
                name: name.trim().to_owned(),
                ..Test::default()
            });
        } else if let Some(rest) = own(line, "VM-END ") {
            self.end(rest);
        } else if let Some(rest) = own(line, "VM-VERDICT ") {
            let number = |key| value(rest, key).and_then(|text| text.parse::<i64>().ok());
            if let (Some(code), Some(taint)) = (number("rc"), number("bad_taint")) {
                self.verdict = Some(Verdict {
                    code: i32::try_from(code).unwrap_or(i32::MAX),
                    bad_taint: u64::try_from(taint).unwrap_or(u64::MAX),
                });
            }
        } else if let Some(test) = self.running_mut()
            && test.output.len() < KEPT_OUTPUT
        {
            test.output.push_str(line);
            test.output.push('\n');
        }
    }

    fn complain(&mut self, what: &str) {
        self.splat_count += 1;
        if self.splats.len() < KEPT_SPLATS {
            let place = self.running().map_or("", |test| test.name.as_str());
            let within = if place.is_empty() {
                String::new()
            } else {
                format!(" (during {place})")
            };
            self.splats.push(format!("{what}{within}"));
        }
    }

    /// Whether a line of the kernel is one of KCSAN's: the first or last of a race. Other kinds of complaint may come
    /// between the two.
    ///
    /// The kernel has races of its own; one in which the module takes part, be it by a call, is a complaint.
    fn of_race(&mut self, kernel: &str) -> bool {
        if kernel.contains(RACE) {
            self.end_race();
            self.race = Some(Race {
                title: kernel.to_owned(),
                ours: kernel.contains(OURS),
                depth: 0,
            });
            return true;
        }
        let Some(race) = &mut self.race else {
            return false;
        };
        if kernel.contains(RACE_ACCESS) {
            race.depth = 0;
        } else if kernel.contains("+0x") {
            race.depth += 1;
            race.ours |= race.depth <= NEAR && kernel.contains(OURS);
        }
        let is_end = kernel.contains(RACE_END);
        if is_end {
            self.end_race();
        }
        is_end
    }

    fn end_race(&mut self) {
        match self.race.take() {
            Some(race) if race.ours && !ITS_OWN.iter().any(|own| race.title.contains(own)) => {
                self.complain(&race.title);
            }
            Some(_) => self.foreign_races += 1,
            None => {}
        }
    }

    fn end(&mut self, rest: &str) {
        let name = rest.split(' ').next().unwrap_or_default();
        let number = |key| value(rest, key).and_then(|text| text.parse::<i64>().ok());
        let code = number("rc").and_then(|code| i32::try_from(code).ok());
        let seconds = number("seconds").and_then(|s| u32::try_from(s).ok());
        if let Some(test) = self.tests.iter_mut().rfind(|test| test.name == name) {
            test.code = code;
            test.seconds = seconds.unwrap_or_default();
        }
    }

    fn running_mut(&mut self) -> Option<&mut Test> {
        self.tests.last_mut().filter(|test| test.code.is_none())
    }

    /// The test that runs now.
    #[must_use]
    pub fn running(&self) -> Option<&Test> {
        self.tests.last().filter(|test| test.code.is_none())
    }

    /// The tests that began, in order.
    #[must_use]
    pub fn tests(&self) -> &[Test] {
        &self.tests
    }

    /// What the guest said when it had booted.
    #[must_use]
    pub fn boot(&self) -> Option<&str> {
        self.boot.as_deref()
    }

    /// The kernel's complaints; of very many only the first.
    #[must_use]
    pub fn splats(&self) -> &[String] {
        &self.splats
    }

    /// Whether the guest has booted, and its kernel had complained by then: it watches less since.
    #[must_use]
    pub fn is_ill(&self) -> bool {
        self.boot.is_some() && self.ill > 0
    }

    /// How often KCSAN told of a race in which no function of the module takes part.
    #[must_use]
    pub fn foreign_races(&self) -> usize {
        self.foreign_races
    }

    /// The verdict, now that the machine has ended so.
    #[must_use]
    pub fn outcome(&self, end: End) -> Outcome {
        let ended = match end {
            End::Exited(code) => format!("QEMU ended with {code}"),
            End::TimedOut => "it took too long and was stopped".to_owned(),
            End::Ill => "it was stopped".to_owned(),
        };
        if let (End::Ill, Some(first)) = (end, self.splats.first()) {
            return Outcome::NeverBooted(format!("the kernel complained on its way: {first}"));
        }
        if self.boot.is_none() {
            return Outcome::NeverBooted(format!("{ended}; its last line: {}", self.last));
        }
        let mut why = Vec::new();
        let failed: Vec<String> = self
            .tests
            .iter()
            .filter_map(|test| match test.code {
                Some(0) => None,
                Some(code) => Some(format!("{} ({code})", test.name)),
                None => Some(format!("{} (did not end)", test.name)),
            })
            .collect();
        let guest_is_content = self.verdict.is_some_and(|verdict| verdict.code == 0);
        if let Some(first) = self.splats.first()
            && self.ill == self.splat_count
            && failed.is_empty()
            && guest_is_content
        {
            return Outcome::NeverBooted(format!("the kernel complained on its way: {first}"));
        }
        if !failed.is_empty() {
            why.push(format!("tests: {}", failed.join(", ")));
        }
        if let Some(first) = self.splats.first() {
            why.push(format!(
                "{} complaints of the kernel: {first}",
                self.splat_count
            ));
        }
        match self.verdict {
            None => why.push(format!("no verdict: {ended}; its last line: {}", self.last)),
            Some(verdict) => {
                if verdict.bad_taint != 0 {
                    why.push(format!("the kernel is tainted: {}", verdict.bad_taint));
                }
                if verdict.code != 0 && failed.is_empty() {
                    why.push(format!("the guest says {}", verdict.code));
                }
            }
        }
        if why.is_empty() {
            Outcome::Passed
        } else {
            Outcome::Failed(why.join("; "))
        }
    }
}

/// The rest of a line of the guest's own; such a line may follow what had no end of line.
fn own<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.find(mark).map(|start| &line[start + mark.len()..])
}

/// The value of `key=value`.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split(' ').find_map(|word| {
        let (name, value) = word.split_once('=')?;
        (name == key).then_some(value)
    })
}

/// What the kernel wrote of a line: the part behind a time stamp. A program's half line may stand before it.
fn from_kernel(line: &str) -> Option<&str> {
    line.match_indices('[').find_map(|(start, _)| {
        let (stamp, rest) = line[start + 1..].split_once(']')?;
        let (seconds, fraction) = stamp.trim_start().split_once('.')?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        (digits(seconds) && digits(fraction) && fraction.len() == 6).then(|| rest.trim_start())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Console {
        let mut console = Console::default();
        for line in text.lines() {
            console.line(line);
        }
        console
    }

    const GOOD: &str = "[    0.000000] Linux version\nVM-BOOT kernel=6.1.0 cpus=2 uptime=3.1\n\
        VM-BEGIN acceptance\nok 1 a read-only grant\nVM-END acceptance rc=0 seconds=12\n\
        VM-VERDICT rc=0 taint=12288 bad_taint=0 uptime=20.5\r\n";

    #[test]
    fn a_good_run_passes() {
        let console = read(GOOD);
        assert_eq!(console.outcome(End::Exited(0)), Outcome::Passed);
        assert_eq!(console.boot(), Some("kernel=6.1.0 cpus=2 uptime=3.1"));
        let test = &console.tests()[0];
        assert_eq!((test.code, test.seconds), (Some(0), 12));
        assert_eq!(test.output, "ok 1 a read-only grant\n");
    }

    #[test]
    fn a_death_before_boot_is_no_verdict() {
        let text = "[    0.5] x\n[    1.200000] Kernel panic - not syncing: IO-APIC + timer doesn't work!\n";
        let Outcome::NeverBooted(why) = read(text).outcome(End::Exited(0)) else {
            panic!("it never booted");
        };
        assert!(why.contains("IO-APIC"), "{why}");
        assert!(matches!(
            read("").outcome(End::TimedOut),
            Outcome::NeverBooted(_)
        ));
    }

    #[test]
    fn a_death_after_boot_is_one() {
        let cut = GOOD.lines().take(4).collect::<Vec<_>>().join("\n");
        let outcome = read(&cut).outcome(End::TimedOut).to_string();
        assert!(outcome.contains("acceptance (did not end)"), "{outcome}");
        assert!(outcome.contains("took too long"), "{outcome}");
    }

    #[test]
    fn each_complaint_of_the_kernel_fails_the_run() {
        for splat in [
            "BUG: KASAN: slab-use-after-free in oc_fault+0x12",
            "WARNING: CPU: 1 PID: 77 at mm/memory.c:1 x+0x1/0x2",
            "WARNING: possible circular locking dependency detected",
            "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "watchdog: BUG: soft lockup - CPU#0 stuck for 122s!",
            "INFO: task acceptance:88 blocked for more than 120 seconds.",
            "kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
            "BUG kmalloc-64 (Tainted: G    B   OE): Poison overwritten",
        ] {
            let text = GOOD.replace(
                "ok 1 a",
                &format!("half a line[   12.123456] {splat}\nok 1 a"),
            );
            let outcome = read(&text).outcome(End::Exited(0)).to_string();
            assert!(outcome.contains(splat), "{splat}: {outcome}");
            assert!(outcome.contains("during acceptance"), "{outcome}");
        }
    }

    #[test]
    fn of_races_only_those_with_the_module_count() {
        let race = |title: &str, callers: &str| {
            format!(
                "[   12.000001] {line}\n[   12.000002] BUG: KCSAN: data-race in {title}\n\
                 [   12.000003] \n[   12.000004] write to 0xffff888100 of 8 bytes by task 9 on cpu 1:\n\
                 [   12.000005]  task_tick+0x1/0x20\n\
                 [   12.000006] read to 0xffff888100 of 8 bytes by task 8 on cpu 0:\n\
                 [   12.000007]  need_resched+0x1/0x20\n{callers}\
                 [   12.000009] value changed: 0x0 -> 0x1\n[   12.000010] {line}\n",
                line = "=".repeat(66)
            )
        };
        let of_kernel = race(
            "need_resched / task_tick",
            "[   12.000008]  do_exit+0x2/0x9\n",
        );
        let text = GOOD.replace("ok 1 a", &format!("{of_kernel}{of_kernel}ok 1 a"));
        let console = read(&text);
        assert_eq!(console.outcome(End::Exited(0)), Outcome::Passed);
        assert_eq!(console.foreign_races(), 2);

        let title = "need_resched / oc_zap [onecopy]";
        let by_call = "[   12.000008]  oc_fault+0x2/0x9 [onecopy]\n";
        for ours in [race(title, ""), race("need_resched / task_tick", by_call)] {
            let text = GOOD.replace("ok 1 a", &format!("{of_kernel}{ours}ok 1 a"));
            let console = read(&text);
            let outcome = console.outcome(End::Exited(0)).to_string();
            assert!(outcome.contains("1 complaints of the kernel"), "{outcome}");
            assert!(outcome.contains("during acceptance"), "{outcome}");
            assert_eq!(console.foreign_races(), 1);
        }
        // Far above an access the module does not take part.
        let deep = "[   12.000008]  a+0x2/0x9\n".repeat(NEAR) + by_call;
        let reclaim = race("need_resched / task_tick", &deep);
        let text = GOOD.replace("ok 1 a", &format!("{reclaim}ok 1 a"));
        assert_eq!(read(&text).foreign_races(), 1);
        // What is known to be the kernel's stays so under a call of ours.
        let injection = race("should_fail_ex / should_fail_ex", by_call);
        let text = GOOD.replace("ok 1 a", &format!("{injection}ok 1 a"));
        assert_eq!(read(&text).foreign_races(), 1);
        // What else the kernel says meanwhile counts by itself.
        let other = "[   12.000008] BUG: soft lockup - CPU#0 stuck for 122s!\n";
        let text = GOOD.replace("ok 1 a", &race("need_resched / task_tick", other));
        let outcome = read(&text).outcome(End::Exited(0)).to_string();
        assert!(outcome.contains("soft lockup"), "{outcome}");
    }

    #[test]
    fn a_complaint_before_the_boot_is_no_verdict() {
        let splat = "BUG: KASAN: wild-memory-access in rcu_is_watching+0x23/0x3c";
        let text = format!("[    3.582060] {splat}\n{GOOD}");
        let outcome = read(&text).outcome(End::Exited(0));
        assert!(
            matches!(&outcome, Outcome::NeverBooted(why) if why.contains(splat)),
            "{outcome}"
        );
        assert!(read(&text).is_ill() && !read(GOOD).is_ill());
        // It need not be waited for.
        let booted = text.split_inclusive('\n').take(2).collect::<String>();
        assert!(matches!(
            read(&booted).outcome(End::Ill),
            Outcome::NeverBooted(_)
        ));
        // What fails or complains afterwards counts all the same.
        let end = End::Exited(0);
        let failed = read(&text.replace("VM-END acceptance rc=0", "VM-END acceptance rc=1"));
        assert!(matches!(failed.outcome(end), Outcome::Failed(_)));
        let again = text.replace("ok 1 a", &format!("[   12.123456] {splat}\nok 1 a"));
        assert!(matches!(read(&again).outcome(end), Outcome::Failed(_)));
    }

    #[test]
    fn a_programs_own_words_are_not_the_kernels() {
        let text = GOOD.replace(
            "ok 1 a",
            "WARNING: BUG: KASAN: only a program's line [1] [2.5] BUG:\nok 1 a",
        );
        assert_eq!(read(&text).outcome(End::Exited(0)), Outcome::Passed);
    }

    #[test]
    fn a_stamp_with_a_task_is_a_stamp() {
        assert_eq!(from_kernel("[   1.123456] x"), Some("x"));
        assert_eq!(from_kernel("[   1.123456][  T12] x"), Some("[  T12] x"));
        assert_eq!(from_kernel("[1.5] x"), None);
    }

    #[test]
    fn codes_and_taints_fail() {
        let failed = GOOD.replace("acceptance rc=0", "acceptance rc=101");
        let outcome = read(&failed.replace("VERDICT rc=0", "VERDICT rc=1"));
        assert_eq!(
            outcome.outcome(End::Exited(0)),
            Outcome::Failed("tests: acceptance (101)".to_owned())
        );
        let tainted = read(&GOOD.replace("bad_taint=0", "bad_taint=512"));
        assert_eq!(
            tainted.outcome(End::Exited(0)),
            Outcome::Failed("the kernel is tainted: 512".to_owned())
        );
        let silent = read(&GOOD.replace("VERDICT rc=0", "VERDICT rc=3"));
        assert_eq!(
            silent.outcome(End::Exited(0)),
            Outcome::Failed("the guest says 3".to_owned())
        );
    }
}
