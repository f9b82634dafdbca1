// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keys, from the bytes that a terminal sends for them. Knows no terminal.
//!
//! The library that draws reads keys, too. It goes on reading for ever when the terminal is gone.

use super::state::Key;

/// What was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    Key(Key),
    /// Ctrl-C: the terminal's own keys do not raise signals here.
    Quit,
    /// Ctrl-Z.
    Suspend,
}

/// No key of any terminal is longer: what is, is none. Chosen by magnitude: sequences of xterm have some ten bytes.
const LONGEST: usize = 32;

/// Finds keys in what is read, of which one may come in parts.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<u8>);

impl Keys {
    /// The keys that are whole now.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Vec<Input> {
        self.0.extend_from_slice(bytes);
        let mut inputs = Vec::new();
        let mut taken = 0;
        while let Some((input, length)) = first(&self.0[taken..]) {
            inputs.extend(input);
            taken += length;
        }
        self.0.drain(..taken);
        if self.0.len() > LONGEST {
            self.0.clear();
        }
        inputs
    }
}

/// What bytes begin with, and how long it is; none if more has to come. A key without a meaning is no input.
fn first(bytes: &[u8]) -> Option<(Option<Input>, usize)> {
    let key = |key, length| Some((Some(Input::Key(key)), length));
    match bytes {
        [] | [0x1b, b'O'] => None,
        [0x1b, b'[', rest @ ..] => sequence(rest).map(|(key, length)| (key, 2 + length)),
        [0x1b, b'O', last, ..] => Some((moved(*last), 3)),
        [0x1b] | [0x1b, 0x1b, ..] => key(Key::Back, 1),
        // With Alt: as without.
        [0x1b, ..] => Some((None, 1)),
        [0x03, ..] => Some((Some(Input::Quit), 1)),
        [0x1a, ..] => Some((Some(Input::Suspend), 1)),
        [b'\r' | b'\n', ..] => key(Key::Enter, 1),
        [0x08 | 0x7f, ..] => key(Key::Erase, 1),
        [0..0x20, ..] => Some((None, 1)),
        [lead, ..] => {
            let length = match lead {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            };
            let Some(whole) = bytes.get(..length) else {
                // No character begins like this, however much comes.
                let is_begin = bytes[1..].iter().all(|byte| byte & 0xc0 == 0x80);
                return (!is_begin).then_some((None, 1));
            };
            let found = std::str::from_utf8(whole).ok();
            match found.and_then(|text| text.chars().next()) {
                Some(c) => key(Key::Char(c), length),
                None => Some((None, 1)),
            }
        }
    }
}

/// A control sequence behind its introducer: numbers, then a letter or a tilde.
fn sequence(bytes: &[u8]) -> Option<(Option<Input>, usize)> {
    // Function keys of the kernel's own terminal have a second bracket.
    if let [b'[', rest @ ..] = bytes {
        return (!rest.is_empty()).then_some((None, 2));
    }
    let end = bytes.iter().position(|byte| !(0x20..0x40).contains(byte))?;
    let numbers = bytes[..end].split(|&byte| byte == b';').next();
    Some(match (bytes[end], numbers) {
        (b'~', Some(b"1" | b"7")) => (Some(Input::Key(Key::First)), end + 1),
        (b'~', Some(b"4" | b"8")) => (Some(Input::Key(Key::Last)), end + 1),
        (last @ 0x40..0x7f, _) => (moved(last), end + 1),
        // Broken off by something else.
        _ => (None, end),
    })
}

/// What the last byte of a sequence says.
fn moved(last: u8) -> Option<Input> {
    let key = match last {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'H' => Key::First,
        b'F' => Key::Last,
        b'M' => Key::Enter,
        _ => return None,
    };
    Some(Input::Key(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<Input> {
        Keys::default().decode(bytes)
    }

    #[test]
    fn keys_are_what_terminals_send() {
        for (bytes, key) in [
            (&b"\x1b[A"[..], Key::Up),
            (b"\x1bOB", Key::Down),
            (b"\x1b[1;5A", Key::Up),
            (b"\x1b[H", Key::First),
            (b"\x1b[1~", Key::First),
            (b"\x1bOF", Key::Last),
            (b"\x1b[8~", Key::Last),
            (b"\r", Key::Enter),
            (b"\x1b", Key::Back),
            (b"\x7f", Key::Erase),
            (b"\x1bq", Key::Char('q')),
            ("ä".as_bytes(), Key::Char('ä')),
            ("█".as_bytes(), Key::Char('█')),
            (b"\x1b[3~\x1b[15;2~\x1b[[Ax", Key::Char('x')),
            (b"\t\xff\x80x", Key::Char('x')),
            (b"\xc3x", Key::Char('x')),
        ] {
            assert_eq!(all(bytes), [Input::Key(key)], "{bytes:?}");
        }
        assert_eq!(all(b"\x03\x1a"), [Input::Quit, Input::Suspend]);
    }

    #[test]
    fn a_key_may_come_in_parts() {
        for (parts, key) in [
            ([&b"\x1b["[..], b"1;5", b"B"], Key::Down),
            ([b"\x1bO", b"", b"A"], Key::Up),
            ([b"\xe2", b"\x96", b"\x88"], Key::Char('█')),
        ] {
            let mut keys = Keys::default();
            let found: Vec<Input> = parts.iter().flat_map(|part| keys.decode(part)).collect();
            assert_eq!(found, [Input::Key(key)], "{parts:?}");
        }
    }

    /// What is not of a terminal ends, and nothing of it stays.
    #[test]
    fn no_bytes_are_kept_for_ever() {
        let mut keys = Keys::default();
        assert_eq!(keys.decode(b"\x1b["), []);
        assert_eq!(keys.decode(&[b'1'; 100]), []);
        assert_eq!(keys.decode(b"q"), [Input::Key(Key::Char('q'))]);
        for byte in 0..=u8::MAX {
            for next in 0..=u8::MAX {
                let mut keys = Keys::default();
                keys.decode(&[0x1b, byte, next, byte]);
                keys.decode(&[byte, next, 0x1b, next]);
                assert!(keys.0.len() <= 8, "{byte} {next}");
            }
        }
    }
}
