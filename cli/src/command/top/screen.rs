// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal of `top`: keys in, the drawing out, and everything as it was at the end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::draw::draw;
use super::state::{Key, State};
use crate::command::CliError;
use crate::command::trace::Signals;
use crate::observe::Source;

/// What a key means; none: nothing.
fn meaning(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    Some(match key.code {
        // The terminal's own keys do not raise signals here.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return None,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Home => Key::First,
        KeyCode::End => Key::Last,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Back,
        KeyCode::Backspace => Key::Erase,
        KeyCode::Char(c) => Key::Char(c),
        _ => return None,
    })
}

fn is_control(key: &KeyEvent, letter: char) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char(letter)
}

/// How soon a signal is seen.
const SLICE: Duration = Duration::from_millis(100);

/// Shows the source until the user has enough. The code says by which signal it was ended.
pub(super) fn run(source: &mut Source, interval: Duration) -> Result<ExitCode, CliError> {
    // A signal would leave the terminal as it is now.
    let signals = Signals::catch()?;
    // Also restores the terminal when this panics.
    let mut terminal = ratatui::try_init().map_err(CliError::io("the terminal"))?;
    let shown = show(&mut terminal, source, interval, &signals);
    ratatui::restore();
    shown.map_err(CliError::io("the terminal"))
}

fn show(
    terminal: &mut DefaultTerminal,
    source: &mut Source,
    interval: Duration,
    signals: &Signals,
) -> std::io::Result<ExitCode> {
    let mut state = State::default();
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
        terminal.draw(|frame| draw(frame, &state))?;
        let pressed = loop {
            if let Some(signal) = signals.next() {
                return Ok(signal.code());
            }
            let left = next.saturating_duration_since(Instant::now());
            if event::poll(left.min(SLICE))? {
                break true;
            }
            if left <= SLICE {
                break false;
            }
        };
        if !pressed {
            continue;
        }
        let Event::Key(key) = event::read()? else {
            // A new size: drawn at once.
            continue;
        };
        if is_control(&key, 'c') {
            break;
        }
        if is_control(&key, 'z') {
            ratatui::restore();
            // Whoever continues it finds the screen again.
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGTSTP)?;
            *terminal = ratatui::try_init()?;
            continue;
        }
        if let Some(key) = meaning(key) {
            state.press(key);
        }
    }
    Ok(ExitCode::SUCCESS)
}
