// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends every process below this one.
//!
//! Only own children are killed, again and again: this process is a subreaper, so the children of a child that dies
//! become its own. A child that was not waited for keeps its number, so no other process can be hit. When no child is
//! left, no descendant is left.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpid};

use super::obstacle;

/// A process in an uninterruptible wait does not die at once; beyond this it is left behind, and reported. Chosen by
/// magnitude: devices and network file systems that work answer sooner.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// After this the user is told who is waited for. Chosen by magnitude: a process that was killed is gone in some
/// milliseconds, and a person takes half a second for no wait.
pub(super) const NOTICE: Duration = Duration::from_millis(500);

/// This process' children, ended ones too as long as they were not waited for.
pub(super) fn children() -> Vec<Pid> {
    listed().unwrap_or_else(scanned)
}

/// As the kernel lists them; none if it was built without these lists.
fn listed() -> Option<Vec<Pid>> {
    let mut all = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let path = task.ok()?.path().join("children");
        match std::fs::read_to_string(path) {
            Ok(text) => all.extend(
                text.split_ascii_whitespace()
                    .filter_map(|word| word.parse().ok())
                    .map(Pid::from_raw),
            ),
            // The thread has ended meanwhile; its children are listed with another.
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {}
            Err(_) => return None,
        }
    }
    Some(all)
}

/// As found by asking every process for its parent.
fn scanned() -> Vec<Pid> {
    let own = getpid().to_string();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // pid (name) state parent ...: the name may contain anything, so count from its end.
            let parent = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?;
            (parent == own).then(|| Pid::from_raw(pid))
        })
        .collect()
}

/// Waits for children that have ended, without waiting for others. Those in `except` are left alone.
pub(super) fn reap(except: &[Pid]) {
    for pid in children() {
        if !except.contains(&pid) {
            // It runs on, or someone else was faster: nothing to do in either case.
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// Kills and reaps all descendants but `except` and what is below them. Says which it waits for, and which it leaves.
pub(super) fn kill_descendants(except: &[Pid], mut say: impl FnMut(&str)) {
    let start = Instant::now();
    let mut said = false;
    let mut empty = 0;
    loop {
        let mut left = children();
        left.retain(|pid| !except.contains(pid));
        if left.is_empty() {
            // The kernel's list may miss a child while another ends: believe it when it says so twice.
            empty += 1;
            if empty == 2 {
                return;
            }
            continue;
        }
        empty = 0;
        let is_over = start.elapsed() > PATIENCE;
        if is_over || start.elapsed() > NOTICE && !said {
            said = true;
            let what = if is_over {
                "left behind"
            } else {
                "waiting for"
            };
            let named = |&pid: &Pid| (format!("process {pid}"), pid);
            let named: Vec<_> = left.iter().map(named).collect();
            obstacle::tell(what, "processes", &named, &mut say);
        }
        if is_over {
            return;
        }
        let mut ended = false;
        for &pid in &left {
            // ESRCH cannot happen before it was waited for; EPERM for a program with other privileges: the patience
            // ends that.
            let _ = kill(pid, Signal::SIGKILL);
            ended |= matches!(
                waitpid(pid, Some(WaitPidFlag::WNOHANG)),
                Ok(status) if status.pid().is_some()
            );
        }
        if !ended {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_a_child() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep");
        let pid = Pid::from_raw(child.id().cast_signed());
        assert!(scanned().contains(&pid));
        if let Some(listed) = listed() {
            assert!(listed.contains(&pid));
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(!children().contains(&pid));
    }
}
