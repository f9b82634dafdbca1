// SPDX-License-Identifier: MIT OR Apache-2.0
//! `top` on a terminal, which stays as it was or goes away, and without one.

#[path = "../../tests/harness/command.rs"]
mod command;

use command::{limit, onecopy, text};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;

/// Rows and columns of a terminal.
const USUAL: (u16, u16) = (24, 100);

/// A terminal, and `top` on it, once the matrix is drawn. `before` starts it.
fn top_on_a_terminal((ws_row, ws_col): (u16, u16), before: &[&str]) -> (File, limit::Limited) {
    let size = Winsize {
        ws_row,
        ws_col,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(Some(&size), None).expect("a terminal");
    // It would stay open as long as something that inherits it.
    fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("closed");
    let words = [before, &[env!("CARGO_BIN_EXE_onecopy"), "top", "--own"]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let side = || pty.slave.try_clone().expect("a descriptor");
    command.stdin(side()).stdout(side()).stderr(side());
    let top = limit::start(&mut command);
    let mut terminal = File::from(pty.master);
    let drawn = read_until(&mut terminal, "onecopy top:");
    assert!(drawn.contains("\u{1b}[?1049h"), "{drawn:?}");
    (terminal, top)
}

/// What a terminal shows, up to these words or to its end.
fn read_until(terminal: &mut File, words: &str) -> String {
    let (mut shown, mut block) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&shown).into_owned();
        if text.contains(words) {
            return text;
        }
        match terminal.read(&mut block) {
            // EIO: nobody has the other side open.
            Ok(0) | Err(_) => return text,
            Ok(count) => shown.extend(&block[..count]),
        }
    }
}

/// The terminal is closed: `top` reads the end of it. With `setsid` the terminal controls it, and the kernel sends
/// SIGHUP besides.
#[test]
fn top_ends_with_its_terminal() {
    for before in [&[][..], &["setsid", "--ctty"]] {
        let (terminal, top) = top_on_a_terminal(USUAL, before);
        drop(terminal);
        let code = top.finish().status.code();
        assert_eq!(code, Some(128 + Signal::SIGHUP as i32), "{before:?}");
    }
}

#[test]
fn top_leaves_its_terminal_as_it_was() {
    for (keys, code) in [("\u{1b}[A\u{1b}[1;5Bq", 0), ("\u{3}", 0), ("", 143)] {
        let (mut terminal, top) = top_on_a_terminal(USUAL, &[]);
        let is_raw = |terminal: &File| {
            let now = tcgetattr(terminal).expect("a terminal");
            !now.local_flags.contains(LocalFlags::ICANON)
        };
        assert!(is_raw(&terminal));
        if keys.is_empty() {
            let pid = Pid::from_raw(top.id().cast_signed());
            kill(pid, Signal::SIGTERM).expect("kill");
        }
        terminal.write_all(keys.as_bytes()).expect("typed");
        let shown = read_until(&mut terminal, "\u{1b}[?1049l");
        assert!(shown.contains("\u{1b}[?1049l"), "{shown:?}");
        assert_eq!(top.finish().status.code(), Some(code), "{keys:?}");
        assert!(!is_raw(&terminal), "{keys:?}");
    }
}

/// The owner of the terminal may give it any size, at any time.
#[test]
fn top_takes_a_terminal_of_any_size() {
    let (mut terminal, top) = top_on_a_terminal((u16::MAX, u16::MAX), &[]);
    // Nothing at all; what is drawn where there is room again.
    for (rows, columns, words) in [
        ("1", "1", ""),
        ("40", "120", "onecopy top:"),
        ("65535", "65535", "onecopy top:"),
    ] {
        let size = ["rows", rows, "columns", columns];
        let side = terminal.try_clone().expect("a descriptor");
        let set = limit::start(Command::new("stty").args(size).stdin(side)).finish();
        assert!(set.status.success(), "{set:?}");
        let shown = read_until(&mut terminal, words);
        assert!(shown.contains(words), "{size:?}: {shown:?}");
    }
    terminal.write_all(b"q").expect("typed");
    assert_eq!(top.finish().status.code(), Some(0));
}

#[test]
fn top_without_a_terminal_prints_one_table_or_lines() {
    let table = onecopy(&["top", "--own", "--interval", "0.1"], &[]);
    assert_eq!(table.status.code(), Some(0), "{}", text(&table.stderr));
    assert!(text(&table.stdout).starts_with("the whole node:"));
    let json = onecopy(
        &["top", "--own", "--once", "--json", "--interval", "0.1"],
        &[],
    );
    let report: Value = serde_json::from_slice(&json.stdout).expect("one object");
    assert!(report["pairs"].is_array());
}
