// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the last whole run of a task has found: a record, and the page that is made from it.

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;

/// A record.
pub(crate) trait Recorded: Serialize + DeserializeOwned {
    /// Where it is kept.
    const RECORD: &'static str;
    /// The page that is made from it.
    const PAGE: &'static str;

    /// What the page says.
    fn page(&self) -> String;

    fn json(&self) -> Result<String, Failure> {
        serde_json::to_string_pretty(self).map_err(|error| format!("{}: {error}", Self::RECORD))
    }

    /// Keeps it, and writes its page.
    fn write(&self, root: &Path) -> Result<(), Failure> {
        let path = root.join(Self::RECORD);
        let text = self.json()? + "\n";
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("{}: {error}", Self::RECORD))?;
        fs::write(root.join(Self::PAGE), self.page())
            .map_err(|error| format!("{}: {error}", Self::PAGE))
    }
}

/// The page of a record, and where it stands; nothing where there is no record.
pub(crate) fn page_of<R: Recorded>(root: &Path) -> Option<(&'static str, String)> {
    let text = fs::read_to_string(root.join(R::RECORD)).ok()?;
    let record: R = serde_json::from_str(&text).ok()?;
    Some((R::PAGE, record.page()))
}
