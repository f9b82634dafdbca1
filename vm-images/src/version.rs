// SPDX-License-Identifier: MIT OR Apache-2.0
//! Versions of Debian packages, compared as dpkg compares them.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use deb_version::compare_versions;

use crate::Error;

/// The version of a package: `[EPOCH:]UPSTREAM[-REVISION]`.
///
/// Two spellings of one version, such as 1.0 and 1.00, are equal.
#[derive(Clone, Debug)]
pub struct Version(String);

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // What deb-version(7) permits. Anything else would also end the comparison in a panic.
        let permitted = |c: char| c.is_ascii_alphanumeric() || ".+-~:".contains(c);
        if text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(permitted) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::Refused(format!(
                "'{text}' is no version of a package"
            )))
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        compare_versions(&self.0, &other.0)
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().expect("version")
    }

    #[test]
    fn versions_compare_as_dpkg_does() {
        let ascending = [
            "0.9-1",
            "6.1.27-1",
            "6.1.192-2",
            "6.12~rc1-1",
            "6.12-1",
            "7.3.4-1~bpo13+1",
            "7.3.4-1",
            "7.3.4-1+b1",
            "7.3.4-10",
            "1:1.0-1",
            "2:0-1",
            "10:0-1",
        ];
        for pair in ascending.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
            assert!(version(pair[1]) > version(pair[0]), "{pair:?}");
        }
        assert_eq!(version("1.0-1"), version("1.00-01"));
        assert_eq!(version("0:1.0-1"), version("1.0-1"));
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for text in ["", "a1", "1 0", "1.0-é", "1.0\n"] {
            assert!(text.parse::<Version>().is_err(), "{text:?}");
        }
        assert_eq!(version("4:12.2-1").to_string(), "4:12.2-1");
    }
}
