// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boots a kernel under QEMU: by translation, or with KVM where a guest really comes up under it.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::arch::Arch;
use crate::cache::{self, Cache};
use crate::console::{Console, End, Outcome};
use crate::kernel::Kernel;
use crate::program::find;
use crate::progress::Progress;
use crate::{Error, Result, results};

/// A death before the guest has booted says nothing about what is tested: it is tried again, this often in all.
const TRIES: u32 = 3;
/// A guest that has not booted by then on an idle machine never will. (A debug kernel takes half a minute.)
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// How long a guest under KVM may take to come up.
const PROBE_LIMIT: Duration = Duration::from_secs(40);
/// How long it may say nothing at first. A kernel that runs speaks within a second.
const PROBE_SILENCE: Duration = Duration::from_secs(15);

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor itself.
    Kvm,
    /// QEMU's translation: slow, and everywhere.
    Tcg,
}

/// A machine that is to be booted.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The architecture.
    pub arch: &'static Arch,
    /// The kernel's image.
    pub image: PathBuf,
    /// The guest's root.
    pub initramfs: PathBuf,
    /// Processors.
    pub processors: u32,
    /// Memory in MiB.
    pub memory: u32,
    /// Further words for the kernel's command line.
    pub words: String,
    /// Further arguments of QEMU: cards.
    pub cards: Vec<String>,
}

/// The folder of the cable between two machines: each has a socket there.
pub type Cable = tempfile::TempDir;

/// A cable between two machines.
///
/// # Errors
///
/// When there is no place for it.
pub fn cable() -> Result<Cable> {
    tempfile::tempdir().map_err(Error::io("a temporary folder"))
}

impl Machine {
    /// Two processors and enough memory for every test.
    #[must_use]
    pub fn new(kernel: &Kernel, initramfs: PathBuf) -> Self {
        Self {
            arch: kernel.arch,
            image: kernel.image.clone(),
            initramfs,
            processors: 2,
            memory: if kernel.slower > 1 { 4096 } else { 3072 },
            words: kernel.words.clone(),
            cards: Vec::new(),
        }
    }

    /// Gives it a network card at an end of the cable, 1 or 2. Packets may be large, so that those of RDMA may be.
    pub fn plug(&mut self, cable: &Cable, end: u32) {
        let socket = |end: u32| cable.path().join(format!("{end}")).display().to_string();
        let (here, there) = (socket(end), socket(3 - end));
        self.cards.extend([
            "-netdev".to_owned(),
            format!(
                "dgram,id=n0,local.type=unix,local.path={here},remote.type=unix,remote.path={there}"
            ),
            "-device".to_owned(),
            format!("virtio-net-pci,netdev=n0,mac=52:54:00:00:00:{end:02},host_mtu=9000,romfile="),
        ]);
    }
}

/// A machine beside the one whose run counts. It is switched off when this is dropped.
#[derive(Debug)]
pub struct Beside {
    _guest: Guest,
}

/// Boots a machine beside another one. What it says goes to `log`.
///
/// # Errors
///
/// When QEMU cannot be started.
pub fn beside(cache: &Cache, machine: &Machine, log: &Path, progress: &Progress) -> Result<Beside> {
    let accelerator = accelerator(cache, machine, progress)?;
    let log_file = File::create(log).map_err(Error::io(log.display().to_string()))?;
    let noise = log.with_extension("qemu");
    let noise = File::create(&noise).map_err(Error::io(noise.display().to_string()))?;
    let mut command = command(machine, accelerator)?;
    command
        .args(["-display", "none", "-monitor", "none"])
        .args(["-chardev", "stdio,id=console,signal=off"])
        .args(["-serial", "chardev:console"])
        .stdin(Stdio::null())
        .stdout(log_file)
        .stderr(noise);
    let child = command.spawn().map_err(Error::io(machine.arch.qemu))?;
    Ok(Beside {
        _guest: Guest(child),
    })
}

/// How a run went.
#[derive(Debug)]
pub struct Report {
    /// What was read.
    pub console: Console,
    /// The verdict.
    pub outcome: Outcome,
    /// How long the last try took.
    pub wall: Duration,
    /// How often it was tried.
    pub tries: u32,
    /// The whole console.
    pub log: PathBuf,
    /// Files that the guest sent.
    pub files: Vec<PathBuf>,
    /// What executed it.
    pub accelerator: Accelerator,
}

/// Boots, waits for the end, judges. Logs and results lie in `run`.
///
/// # Errors
///
/// When QEMU cannot be started. What happens to the guest is in the report.
pub fn run(
    cache: &Cache,
    machine: &Machine,
    limit: Duration,
    run: &Path,
    label: &str,
    progress: &Progress,
) -> Result<Report> {
    let accelerator = accelerator(cache, machine, progress)?;
    let mut tries = 0;
    loop {
        tries += 1;
        progress.step(&format!("{label}: booting"));
        let attempt = Attempt {
            machine,
            accelerator,
            label,
            limit,
            silence: limit,
            log: run.join(format!("console-{tries}.log")),
            sent: run.join("results.cpio"),
            last: tries == TRIES,
        };
        let started = Instant::now();
        let (console, end) = attempt.boot(progress)?;
        let outcome = console.outcome(end);
        if matches!(outcome, Outcome::NeverBooted(_)) && !attempt.last {
            progress.note(&format!("{label}: {outcome}; trying again"));
            continue;
        }
        let mut outcome = outcome;
        let files = match results::unpack(&attempt.sent, &run.join("results")) {
            Ok(files) => files,
            Err(error) => {
                if outcome == Outcome::Passed {
                    outcome = Outcome::Failed(format!("what the guest sent: {error}"));
                }
                Vec::new()
            }
        };
        return Ok(Report {
            console,
            outcome,
            wall: started.elapsed(),
            tries,
            log: attempt.log,
            files,
            accelerator,
        });
    }
}

/// One boot of a guest.
#[derive(Debug)]
struct Attempt<'a> {
    machine: &'a Machine,
    accelerator: Accelerator,
    /// What it is called in what people see.
    label: &'a str,
    /// How long it may take in all.
    limit: Duration,
    /// How long it may say nothing at first.
    silence: Duration,
    /// The whole console.
    log: PathBuf,
    /// The archive that the guest sends.
    sent: PathBuf,
    /// There will be no other: a guest whose kernel complained before it had booted goes on all the same.
    last: bool,
}

impl Attempt<'_> {
    /// Boots the guest and reads its console to the end.
    fn boot(&self, progress: &Progress) -> Result<(Console, End)> {
        cache::write(&self.sent, "")?;
        // What QEMU itself complains of.
        let complaints = self.log.with_extension("qemu");
        let mut guest = self.start(&complaints)?;
        let Some(stdout) = guest.0.stdout.take() else {
            return Err(Error::Refused("QEMU has no output".to_owned()));
        };
        let (lines, reader) = lines_of(stdout);
        let mut console = Console::default();
        let end = self.watch(&mut guest, &lines, &mut console, progress);
        drop(guest);
        // Its pipe is closed now, so it ends.
        let _ = reader.join();
        if console.boot().is_none() {
            let complaints = fs::read_to_string(&complaints).unwrap_or_default();
            console.line(&format!("QEMU: {}", complaints.trim()));
        }
        Ok((console, end?))
    }

    fn start(&self, complaints: &Path) -> Result<Guest> {
        let complaints =
            File::create(complaints).map_err(Error::io(complaints.display().to_string()))?;
        let arch = self.machine.arch;
        let mut command = command(self.machine, self.accelerator)?;
        command
            .args(["-display", "none", "-monitor", "none"])
            .args(["-chardev", "stdio,id=console,signal=off"])
            .args(["-serial", "chardev:console"])
            .arg("-chardev")
            .arg(format!(
                "file,id=results,path={}",
                // A comma begins the next option.
                self.sent.display().to_string().replace(',', ",,")
            ))
            .args(second(arch, "results"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(complaints);
        Ok(Guest(command.spawn().map_err(Error::io(arch.qemu))?))
    }

    /// Reads the console until the guest is off, or is not worth to wait for.
    fn watch(
        &self,
        guest: &mut Guest,
        lines: &Receiver<Vec<u8>>,
        console: &mut Console,
        progress: &Progress,
    ) -> Result<End> {
        let failed = || Error::io(self.log.display().to_string());
        let mut log = File::create(&self.log).map_err(failed())?;
        let boot_limit = self.limit.min(BOOT_LIMIT * crowd());
        let started = Instant::now();
        let mut has_spoken = false;
        loop {
            let allowed = match console.boot() {
                Some(_) => self.limit,
                None if has_spoken => boot_limit,
                None => boot_limit.min(self.silence.saturating_mul(crowd())),
            };
            let Some(left) = allowed.checked_sub(started.elapsed()) else {
                return Ok(End::TimedOut);
            };
            match lines.recv_timeout(left.min(Duration::from_secs(1))) {
                Ok(mut line) => {
                    has_spoken = true;
                    line.push(b'\n');
                    log.write_all(&line).map_err(failed())?;
                    console.line(&String::from_utf8_lossy(&line));
                    // Whatever it would say in an hour, it is going to be booted again.
                    if console.is_ill() && !self.last {
                        return Ok(End::Ill);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = guest.0.wait();
                    let status = status.map_err(Error::io(self.machine.arch.qemu))?;
                    return Ok(End::Exited(status.code().unwrap_or(-1)));
                }
            }
            let test = console.running().map_or("", |test| test.name.as_str());
            progress.detail(&format!("{}: {test}", self.label));
        }
    }
}

/// The lines of a pipe, and the thread that reads them.
fn lines_of(pipe: ChildStdout) -> (Receiver<Vec<u8>>, JoinHandle<()>) {
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(pipe)
            .split(b'\n')
            .map_while(|line| line.ok())
        {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    (lines, reader)
}

/// A guest that does not outlive its reader.
#[derive(Debug)]
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// QEMU with the machine, but no console yet.
pub(crate) fn command(machine: &Machine, accelerator: Accelerator) -> Result<Command> {
    let arch = machine.arch;
    let mut command = crate::program::gentle(find(arch.qemu, arch.package)?);
    match accelerator {
        Accelerator::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
        Accelerator::Tcg => command.args(["-accel", "tcg,thread=multi", "-cpu", arch.processor]),
    };
    command
        .args(["-machine", arch.machine])
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .arg("-smp")
        .arg(machine.processors.to_string())
        .arg("-m")
        .arg(machine.memory.to_string())
        .arg("-kernel")
        .arg(&machine.image)
        .arg("-initrd")
        .arg(&machine.initramfs)
        .arg("-append")
        .arg(words(arch, accelerator, tsc_khz(), &machine.words))
        .args(&machine.cards);
    Ok(command)
}

/// QEMU's arguments for a second serial line, which ends at this character device.
fn second(arch: &Arch, device: &str) -> Vec<String> {
    let mut arguments: Vec<String> = arch.second.iter().map(|&text| text.to_owned()).collect();
    if let Some(last) = arguments.last_mut() {
        last.push_str(device);
    }
    arguments
}

/// The kernel's command line.
///
/// Under translation on a loaded machine a guest mismeasures its own clocks. So it takes the time stamp counter's rate
/// from us, and does not check its timer against a clock that stands still for moments. It also waits longer before it
/// calls a processor stuck.
fn words(arch: &Arch, accelerator: Accelerator, tsc_khz: Option<u64>, more: &str) -> String {
    let mut words = format!(
        "console={} onecopy.results={} quiet loglevel=5 panic=-1 oops=panic nokaslr mitigations=off random.trust_cpu=on audit=0 \
        watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=120",
        arch.console, arch.results
    );
    let mut add = |more: &str| {
        if !more.is_empty() {
            words.push(' ');
            words.push_str(more);
        }
    };
    if accelerator == Accelerator::Tcg {
        add(arch.words);
        if let Some(khz) = tsc_khz.filter(|_| arch.tells_rate) {
            add(&format!("tsc=reliable tsc_early_khz={khz}"));
        }
    }
    add(more);
    words
}

/// The rate of the host's time stamp counter, which a translated guest reads as it is.
fn tsc_khz() -> Option<u64> {
    let clock = quanta::Clock::new();
    let (started, first) = (Instant::now(), clock.raw());
    std::thread::sleep(Duration::from_millis(100));
    let ticks = clock.raw().checked_sub(first)?;
    let nanoseconds = u64::try_from(started.elapsed().as_nanos()).ok()?;
    let khz = u64::try_from(u128::from(ticks) * 1_000_000 / u128::from(nanoseconds.max(1))).ok()?;
    // Where the counter is of no use, the clock falls back to nanoseconds.
    if (999_000..=1_001_000).contains(&khz) {
        return from_cpuinfo(&fs::read_to_string("/proc/cpuinfo").ok()?);
    }
    Some(khz)
}

fn from_cpuinfo(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    let (whole, fraction) = line.split_once(':')?.1.trim().split_once('.')?;
    let thousandths: String = fraction.chars().chain("000".chars()).take(3).collect();
    Some(whole.parse::<u64>().ok()? * 1000 + thousandths.parse::<u64>().ok()?)
}

/// How many times longer than on an idle machine a guest may take: others want the processors too.
#[must_use]
pub fn crowd() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    crowd_of(
        &fs::read_to_string("/proc/loadavg").unwrap_or_default(),
        processors,
    )
}

fn crowd_of(loadavg: &str, processors: usize) -> u32 {
    let first = loadavg.split(' ').next().unwrap_or_default();
    let whole = first.split('.').next().unwrap_or_default();
    let load: usize = whole.parse().unwrap_or(0);
    u32::try_from(load.div_ceil(processors.max(1)).clamp(1, 10)).unwrap_or(1)
}

/// What to use: `ONECOPY_VM_ACCEL` says `tcg` or `kvm`, or else KVM where a guest really comes up under it. Another
/// architecture's is translated in any case.
///
/// # Errors
///
/// When the variable has another value, or the probe cannot be written.
pub fn accelerator(cache: &Cache, machine: &Machine, progress: &Progress) -> Result<Accelerator> {
    if !machine.arch.is_here() {
        return Ok(Accelerator::Tcg);
    }
    match std::env::var("ONECOPY_VM_ACCEL").as_deref() {
        Ok("tcg") => return Ok(Accelerator::Tcg),
        Ok("kvm") => return Ok(Accelerator::Kvm),
        Ok("auto" | "") | Err(_) => {}
        Ok(other) => {
            return Err(Error::Refused(format!(
                "ONECOPY_VM_ACCEL={other}: it may be auto, kvm or tcg"
            )));
        }
    }
    if OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_err()
    {
        return Ok(Accelerator::Tcg);
    }
    Ok(if kvm_works(cache, machine, progress)? {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    })
}

/// Whether a guest comes up under KVM. The device may be there and not work, in a virtual machine for instance. The
/// answer is remembered until the host boots again.
fn kvm_works(cache: &Cache, machine: &Machine, progress: &Progress) -> Result<bool> {
    let host = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let note = cache.root().join("kvm");
    let known = fs::read_to_string(&note).unwrap_or_default();
    match known.strip_prefix(&host).map(str::trim) {
        Some("works") => return Ok(true),
        Some("fails") => return Ok(false),
        _ => {}
    }
    let label = "whether KVM works here";
    progress.step(label);
    let mut probe = machine.clone();
    probe.words = "onecopy.probe".to_owned();
    let attempt = Attempt {
        machine: &probe,
        accelerator: Accelerator::Kvm,
        label,
        limit: PROBE_LIMIT,
        silence: PROBE_SILENCE,
        log: cache.root().join("kvm.log"),
        sent: cache.root().join("kvm.sent"),
        last: true,
    };
    let booted = attempt.boot(progress);
    let works = booted.is_ok_and(|(console, _)| console.boot().is_some());
    let word = if works { "works" } else { "fails" };
    cache::write(&note, format!("{host}{word}\n"))?;
    Ok(works)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch;

    #[test]
    fn a_translated_guest_is_told_its_clock() {
        let words = |accelerator, more| words(arch::here(), accelerator, Some(2_445_424), more);
        let line = words(Accelerator::Tcg, "onecopy.shell");
        assert!(line.contains(" tsc_early_khz=2445424 "), "{line}");
        assert!(line.contains(" no_timer_check "), "{line}");
        assert!(line.ends_with(" onecopy.shell"), "{line}");
        let line = words(Accelerator::Kvm, "");
        assert!(!line.contains("tsc"), "{line}");
    }

    #[test]
    fn each_architecture_has_its_two_lines() {
        let line = |name: &str| {
            let arch = arch::named(name).expect("architecture");
            let line = words(arch, Accelerator::Tcg, Some(2_445_424), "");
            (line, second(arch, "results").join(" "))
        };
        let (words, second) = line("amd64");
        assert!(words.starts_with("console=ttyS0 onecopy.results=/dev/ttyS1 "));
        assert_eq!(second, "-serial chardev:results");
        let (words, second) = line("arm64");
        assert!(words.starts_with("console=ttyAMA0 onecopy.results=/dev/ttyS0 "));
        assert!(!words.contains("tsc") && !words.contains("  "), "{words}");
        assert_eq!(second, "-device pci-serial,chardev=results");
    }

    #[test]
    fn on_a_crowded_machine_a_guest_has_more_time() {
        assert_eq!(crowd_of("0.99 0.50 0.20 1/99 1234", 2), 1);
        assert_eq!(crowd_of("7.10 9.00 9.00 1/99 1234", 2), 4);
        assert_eq!(crowd_of("99.0 9.00 9.00 1/99 1234", 2), 10);
        assert_eq!(crowd_of("", 2), 1);
    }

    #[test]
    fn the_rate_is_read_from_the_machines_own_words() {
        let text = "processor\t: 0\ncpu MHz\t\t: 2445.424\ncpu MHz\t\t: 1.0\n";
        assert_eq!(from_cpuinfo(text), Some(2_445_424));
        assert_eq!(from_cpuinfo("cpu MHz : 2445.4\n"), Some(2_445_400));
        assert_eq!(from_cpuinfo("nothing"), None);
    }
}
