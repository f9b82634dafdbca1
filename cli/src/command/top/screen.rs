// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal of `top`: keys in, the drawing out, and everything as it was at the end. A terminal may go away at any
//! time; then the command ends as by SIGHUP.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Once;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, raise};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};

use super::draw::draw;
use super::keys::{Input, Keys};
use super::state::State;
use crate::command::CliError;
use crate::observe::Source;
use crate::signals::{Signals, code_of};

/// Standard output. When the terminal has refused something, it is asked for nothing more: each step of tidying up
/// would report each failure to the same terminal.
#[derive(Debug)]
struct TerminalFile {
    file: File,
    is_lost: bool,
}

impl Write for TerminalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_lost {
            return Ok(bytes.len());
        }
        let written = self.file.write(bytes);
        if let Err(error) = &written {
            self.is_lost = error.kind() != io::ErrorKind::Interrupted;
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The largest part of a terminal that is drawn: its size is set by others to any value, and each cell takes memory.
/// Both are chosen by magnitude: wider than any screen with a font that can be read.
const COLUMNS_MAX: u16 = 1024;
const ROWS_MAX: u16 = 512;

/// What is drawn of a terminal.
fn area(backend: &impl Backend<Error = io::Error>) -> io::Result<Rect> {
    let size = backend.size()?;
    Ok(Rect::new(
        0,
        0,
        size.width.min(COLUMNS_MAX),
        size.height.min(ROWS_MAX),
    ))
}

/// The terminal as `top` has it, until it is dropped.
struct Screen(Terminal<CrosstermBackend<BufWriter<TerminalFile>>>);

impl Screen {
    fn open() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let hook = std::panic::take_hook();
            // What it says is for the usual screen.
            std::panic::set_hook(Box::new(move |info| {
                restore();
                hook(info);
            }));
        });
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        enable_raw_mode()?;
        let mut out = BufWriter::new(TerminalFile {
            file,
            is_lost: false,
        });
        let opened = execute!(out, EnterAlternateScreen).and_then(|()| {
            let backend = CrosstermBackend::new(out);
            let viewport = Viewport::Fixed(area(&backend)?);
            Terminal::with_options(backend, TerminalOptions { viewport })
        });
        opened.map(Self).inspect_err(|_| restore())
    }

    fn draw(&mut self, state: &State) -> io::Result<()> {
        let area = area(self.0.backend())?;
        if area != self.0.get_frame().area() {
            self.0.resize(area)?;
        }
        self.0.draw(|frame| draw(frame, state)).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone has nothing to restore. The library's own end would show the cursor, and tell the
        // terminal if it cannot.
        let _ = self.0.show_cursor();
        restore();
    }
}

/// Does each step whatever becomes of the others.
fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}

/// Where keys come from: the terminal that raw mode is set for.
fn keyboard() -> io::Result<File> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        stdin.as_fd().try_clone_to_owned().map(File::from)
    } else {
        File::open("/dev/tty")
    }
}

/// Whether an error says that there is no terminal any more.
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::EIO, Errno::ENXIO, Errno::EPIPE].map(|errno| errno as i32);
    error.raw_os_error().is_some_and(|raw| gone.contains(&raw))
}

/// Shows the source until the user has enough. The code says by which signal it was ended.
pub(super) fn run(source: &mut Source, interval: Duration) -> Result<ExitCode, CliError> {
    // A signal would leave the terminal as it is now.
    let signals = Signals::catch_also(&[Signal::SIGWINCH])?;
    let shown = keyboard().and_then(|keyboard| show(&keyboard, source, interval, &signals));
    match shown {
        // As the kernel says it to those whom the terminal controls.
        Err(error) if is_gone(&error) => Ok(code_of(Signal::SIGHUP)),
        shown => shown.map_err(CliError::io("the terminal")),
    }
}

/// What came while the screen was shown.
enum ScreenEvent {
    Inputs(Vec<Input>),
    /// It is time for the next look, or the terminal has another size.
    Redraw,
    /// A signal asks for the end.
    End(ExitCode),
}

/// Waits for something to come, until then. The end of the terminal is an error.
fn wait(
    until: Instant,
    keyboard: &File,
    keys: &mut Keys,
    signals: &Signals,
) -> io::Result<ScreenEvent> {
    // Waits are in whole milliseconds, and one that is too short would be made many times.
    let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    let mut fds = [
        PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        PollFd::new(keyboard.as_fd(), PollFlags::POLLIN),
    ];
    match poll(
        &mut fds,
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
    ) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let is_typed = fds[1].any().unwrap_or(false);
    while let Some(signal) = signals.next() {
        if signal.asks_for_the_end() {
            return Ok(ScreenEvent::End(signal.code()));
        }
    }
    if !is_typed {
        return Ok(ScreenEvent::Redraw);
    }
    read(keyboard, keys).map(ScreenEvent::Inputs)
}

/// Reads once, from what has something to read or has ended.
fn read(mut keyboard: impl Read, keys: &mut Keys) -> io::Result<Vec<Input>> {
    let mut block = [0; 1024];
    match keyboard.read(&mut block) {
        Ok(0) => Err(Errno::EIO.into()),
        Ok(count) => Ok(keys.decode(&block[..count])),
        Err(error) => match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(Vec::new()),
            _ => Err(error),
        },
    }
}

fn show(
    keyboard: &File,
    source: &mut Source,
    interval: Duration,
    signals: &Signals,
) -> io::Result<ExitCode> {
    // Also restores the terminal when this panics.
    let mut screen = Screen::open()?;
    let mut state = State::default();
    let mut keys = Keys::default();
    let mut next = Instant::now();
    while !state.over {
        let now = Instant::now();
        if now >= next {
            if state.paused {
                source.look();
            } else {
                let observed = source.observe();
                state.show(source.report(&observed, &[]));
            }
            next = now + interval;
        }
        screen.draw(&state)?;
        let inputs = match wait(next, keyboard, &mut keys, signals)? {
            ScreenEvent::Inputs(inputs) => inputs,
            ScreenEvent::Redraw => continue,
            ScreenEvent::End(code) => return Ok(code),
        };
        for input in inputs {
            match input {
                Input::Key(key) => state.press(key),
                Input::Quit => return Ok(ExitCode::SUCCESS),
                Input::Suspend => {
                    drop(screen);
                    // A user who continues it finds the screen again.
                    raise(Signal::SIGTSTP)?;
                    screen = Screen::open()?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::top::state::Key;

    #[test]
    fn a_terminal_that_is_gone_is_an_error() {
        let pty = nix::pty::openpty(None, None).expect("a terminal");
        let keyboard = File::from(pty.slave);
        let mut keys = Keys::default();
        File::from(pty.master).write_all(b"q\n").expect("typed");
        let end = loop {
            match read(&keyboard, &mut keys) {
                Ok(inputs) => assert!(inputs.starts_with(&[Input::Key(Key::Char('q'))])),
                Err(error) => break error,
            }
        };
        assert!(is_gone(&end), "{end}");
        let end = read(io::empty(), &mut keys).expect_err("the end");
        assert!(is_gone(&end), "{end}");
        assert!(!is_gone(&Errno::EINVAL.into()));
    }

    /// What tidies up must not fail, or it would tell a terminal that is not there.
    #[test]
    fn nothing_more_is_asked_of_a_terminal_that_is_gone() {
        let file = File::options().write(true).open("/dev/full").expect("open");
        let mut out = TerminalFile {
            file,
            is_lost: false,
        };
        assert!(out.write(b"x").is_err());
        assert_eq!(out.write(b"xy").expect("dropped"), 2);
    }
}
