// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text as all commands write it.

use super::CliError;
use onecopy_trace::plain;
use serde::Serialize;
use std::time::Duration;

/// Breaks lines between words. (The table's own wrapping leaves blanks at the start of lines.)
pub(super) fn wrap(text: &str, width: usize) -> String {
    let mut wrapped = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            wrapped.push('\n');
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += length;
    }
    wrapped
}

/// A number of bytes with a unit: exact where it divides, otherwise with a decimal.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >= 1 << (10 * (unit + 1)) {
        unit += 1;
    }
    let factor = 1u64 << (10 * unit);
    // An exact count says more than a rounded one, as long as it is short.
    if unit == 1 && !bytes.is_multiple_of(factor) && bytes < 1 << 18 {
        return format!("{bytes} B");
    }
    if bytes.is_multiple_of(factor) {
        format!("{} {}", bytes / factor, UNITS[unit])
    } else {
        format!("{:.1} {}", bytes as f64 / factor as f64, UNITS[unit])
    }
}

/// Microseconds with three significant digits.
pub(super) fn micros(us: f64) -> String {
    match us {
        us if us >= 100.0 => format!("{us:.0}"),
        us if us >= 10.0 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

/// Reads a size as knobs do.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    onecopy_obs::values::parse_size(text).map(|bytes| bytes as u64)
}

/// Reads a time in seconds, which may have a fraction.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(value) {
        Ok(time) if !time.is_zero() && value <= 1e9 => Ok(time),
        _ => Err("not between 0 and 1e9 seconds".to_owned()),
    }
}

/// A value as JSON over several lines.
pub(super) fn json(value: &impl Serialize) -> Result<String, CliError> {
    let json =
        serde_json::to_string_pretty(value).map_err(|error| CliError::Failed(error.into()))?;
    Ok(plain::json(&json))
}

/// A value as JSON in one line.
pub(super) fn json_line(value: &impl Serialize) -> Result<String, CliError> {
    let json = serde_json::to_string(value).map_err(|error| CliError::Failed(error.into()))?;
    Ok(plain::json(&json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_where_they_can_be() {
        for (bytes, text) in [
            (0, "0 B"),
            (48, "48 B"),
            (1024, "1 KiB"),
            (1025, "1025 B"),
            (65536, "64 KiB"),
            (1 << 20, "1 MiB"),
            (3 << 19, "1.5 MiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
