// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that a guest sends out: an archive over its second serial port.

use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::{Error, Result, cache};

/// Unpacks what a guest sent into a folder, and lists the files. Nothing sent is no failure.
///
/// # Errors
///
/// When the archive is cut short or a file cannot be written.
pub fn unpack(archive: &Path, into: &Path) -> Result<Vec<PathBuf>> {
    let bytes = std::fs::read(archive).map_err(Error::io(archive.display().to_string()))?;
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let what = archive.display().to_string();
    let mut found = Vec::new();
    let mut rest: &[u8] = &bytes;
    loop {
        let mut entry = cpio::newc::Reader::new(rest).map_err(Error::io(what.clone()))?;
        if entry.entry().is_trailer() {
            return Ok(found);
        }
        let mut content = Vec::new();
        entry
            .read_to_end(&mut content)
            .map_err(Error::io(what.clone()))?;
        let regular = entry.entry().mode() & 0o170_000 == 0o100_000;
        let name = entry.entry().name().to_owned();
        if regular {
            let place = into.join(inside(&name)?);
            if let Some(parent) = place.parent() {
                cache::make(parent)?;
            }
            cache::write(&place, &content)?;
            found.push(place);
        }
        rest = entry.finish().map_err(Error::io(what.clone()))?;
    }
}

/// A guest names no place outside the folder.
fn inside(name: &str) -> Result<PathBuf> {
    let mut path = PathBuf::new();
    for component in Path::new(name).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => {
                return Err(Error::io(format!("'{name}' in the guest's archive"))(
                    io::Error::other("leads out of the folder"),
                ));
            }
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(name: &str, content: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let builder = cpio::newc::Builder::new(name).mode(0o100_644);
        let length = u32::try_from(content.len()).expect("length");
        let mut writer = builder.write(Vec::new(), length);
        writer.write_all(content).expect("content");
        cpio::newc::trailer(writer.finish().expect("entry")).expect("trailer")
    }

    #[test]
    fn what_was_sent_arrives() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a.cpio");
        std::fs::write(&path, archive("./bench/x.json", b"{}\n")).expect("archive");
        let into = folder.path().join("out");
        let found = unpack(&path, &into).expect("unpack");
        assert_eq!(found, [into.join("bench/x.json")]);
        assert_eq!(std::fs::read(&found[0]).expect("file"), b"{}\n");
    }

    #[test]
    fn a_cut_archive_is_an_error() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a.cpio");
        let whole = archive("x", &[7; 1000]);
        std::fs::write(&path, &whole[..500]).expect("archive");
        assert!(unpack(&path, &folder.path().join("out")).is_err());
        std::fs::write(&path, b"").expect("archive");
        assert!(unpack(&path, folder.path()).expect("nothing").is_empty());
    }

    #[test]
    fn no_name_leads_out() {
        assert!(inside("../x").is_err());
        assert!(inside("/etc/passwd").is_err());
        assert_eq!(inside("./a/b").expect("inside"), Path::new("a/b"));
    }
}
