// SPDX-License-Identifier: MIT OR Apache-2.0
//! Message sizes: the list that is run, and how they are written.

use onecopy_bench::BenchError;

/// The sizes that are run unless others are asked for: 0 bytes to 64 MiB.
pub const DEFAULT: [usize; 18] = [
    0,
    8,
    64,
    256,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

/// The sizes of collectives that are run unless others are asked for.
pub const COLLECTIVE: [usize; 11] = [
    8,
    64,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    4 << 20,
];

/// Reads a size, as the knobs do.
fn parse(text: &str) -> Result<usize, BenchError> {
    onecopy_obs::values::parse_size(text)
        .map_err(|why| BenchError::Usage(format!("'{text}': {why}")))
}

/// Reads a list of sizes separated by commas, and sorts it.
///
/// # Errors
///
/// If one of them is no size, or there is none.
pub fn parse_list(text: &str) -> Result<Vec<usize>, BenchError> {
    let mut sizes = text
        .split(',')
        .filter(|part| !part.trim().is_empty())
        .map(parse)
        .collect::<Result<Vec<_>, _>>()?;
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.is_empty() {
        return Err(BenchError::Usage(format!("'{text}' lists no size")));
    }
    Ok(sizes)
}

/// Writes a size with the largest suffix that leaves a whole number.
#[must_use]
pub fn format(size: usize) -> String {
    for (shift, suffix) in [(30, 'G'), (20, 'M'), (10, 'K')] {
        if size >> shift > 0 && size.is_multiple_of(1 << shift) {
            return format!("{}{suffix}", size >> shift);
        }
    }
    size.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, size) in [
            ("0", 0),
            ("8", 8),
            ("1K", 1024),
            ("4k", 4096),
            ("64 MiB", 64 << 20),
            ("1GiB", 1 << 30),
            ("12b", 12),
        ] {
            assert_eq!(parse(text).unwrap(), size, "{text}");
        }
        for size in DEFAULT {
            assert_eq!(parse(&format(size)).unwrap(), size);
        }
        assert_eq!(format(1536), "1536");
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in ["", "x", "1P", "-1", "99999999999G", "1.5K"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("'{text}'")), "{error}");
        }
        assert!(parse_list(" , ").is_err());
    }

    #[test]
    fn lists_are_sorted() {
        assert_eq!(parse_list("1M,8,,4K,8").unwrap(), [8, 4096, 1 << 20]);
    }
}
