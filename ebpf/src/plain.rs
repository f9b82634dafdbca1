// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text of others as it is shown: programs call themselves and their devices what they like, and a terminal obeys what
//! it is given.

/// Whether a terminal obeys a character: controls, and marks that turn the direction of text.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// A text without what a terminal would obey.
#[must_use]
pub fn text(text: &str) -> String {
    text.chars()
        .map(|c| if is_obeyed(c) { '?' } else { c })
        .collect()
}

/// JSON that reads the same, in which the rest of that is written by its number. (JSON itself has that for a part of
/// it.) Outside of strings there are only characters of ASCII, and line ends are the form's own.
#[must_use]
pub fn json(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    for c in json.chars() {
        if is_obeyed(c) && c != '\n' {
            plain.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Escape, the one of eight bits, a line end, and a turn of direction.
    const OBEYED: &str = "a\u{1b}[31m\u{9b}\n\u{7f}\u{202e}\u{61c}ä";

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(text(OBEYED), "a?[31m?????ä");
    }

    #[test]
    fn json_reads_the_same() {
        let value = serde_json::json!({OBEYED: [OBEYED, 1.5, null]});
        for written in [value.to_string(), format!("{value:#}")] {
            let plain = json(&written);
            assert_eq!(text(&plain.replace('\n', " ")), plain.replace('\n', " "));
            let read: serde_json::Value = serde_json::from_str(&plain).expect("JSON");
            assert_eq!(read, value);
        }
    }
}
