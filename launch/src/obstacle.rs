// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a process does not end: for the user, who may be able to help.

use std::fs;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, getuid};

/// Whether this process may not signal a child that was not waited for: it has become another user's.
pub(super) fn is_refused(pid: Pid) -> bool {
    // ESRCH cannot happen before it was waited for.
    kill(pid, None) == Err(Errno::EPERM)
}

/// Says of each process why it lives. Of a crowd the first ones are named; `kind`: what all of them are.
pub(super) fn tell(what: &str, kind: &str, named: &[(String, Pid)], mut say: impl FnMut(&str)) {
    const NAMED: usize = 8;
    for (name, pid) in named.iter().take(NAMED) {
        say(&format!("{what}: {name}: {}", of(*pid)));
    }
    if named.len() > NAMED {
        say(&format!("{what}: {} other {kind}", named.len() - NAMED));
    }
}

/// Why a child lives that was killed and not waited for.
fn of(pid: Pid) -> String {
    if is_refused(pid) {
        refusal(pid)
    } else {
        format!("killed, and still in {}", state(pid))
    }
}

/// Why it gets no signal, and who can help.
pub(super) fn refusal(pid: Pid) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let own = getuid();
    match user_in(&status) {
        Some(user) if user != own.as_raw() => format!(
            "kill: EPERM, it runs as user {user} and this launcher as user {own}; only user {user} or root can end it \
             (kill -KILL {pid})"
        ),
        _ => format!(
            "kill: EPERM, a namespace or a security module protects it; root may end it (kill -KILL {pid})"
        ),
    }
}

/// What it does, as the kernel shows it.
fn state(pid: Pid) -> String {
    let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let place = read("wchan");
    let place = match place.trim() {
        "" | "0" => String::new(),
        place => format!(" in {place}"),
    };
    match state_in(&read("stat")) {
        Some('D') => format!(
            "state D, an uninterruptible wait{place}: it ends when its device or file system answers"
        ),
        Some('Z') => "state Z: its first thread has ended, another one has not".to_owned(),
        Some(other) => format!("state {other}{place}"),
        None => "no state that the kernel shows".to_owned(),
    }
}

/// `pid (name) state parent …`: the name may contain anything, so it counts from the end of that.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// `Uid: real effective saved filesystem`
fn user_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_shows_is_read() {
        assert_eq!(state_in("17 (a) D (b)) D 1 17 17"), Some('D'));
        assert_eq!(state_in(""), None);
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep");
        let pid = Pid::from_raw(child.id().cast_signed());
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("proc");
        assert_eq!(user_in(&status), Some(getuid().as_raw()));
        assert!(!is_refused(pid));
        child.kill().expect("kill");
        // It has ended, and was not waited for.
        let ended = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !of(pid).contains("state Z") {
            assert!(std::time::Instant::now() < ended, "{}", of(pid));
        }
        child.wait().expect("wait");
    }
}
