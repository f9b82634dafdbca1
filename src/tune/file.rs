// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading a file that somebody else may have put there. Only a regular file of a plausible size is read. A file that
//! the user has not named must also be this user's own.

use nix::fcntl::OFlag;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Bytes that a file may have: a tune file has a few KiB. Chosen by magnitude: to read another file by mistake costs
/// little.
const MOST: u64 = 1 << 20;

/// Whose file it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Anybody's: the user has named it.
    Named,
    /// This user's or root's, and writable by nobody else: it was found.
    Found,
}

/// The text of a file. Never waits: a pipe that nobody writes to is refused.
pub(super) fn read(path: &Path, trust: Trust) -> Result<String, String> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)
        .map_err(|error| error.to_string())?;
    let about = file.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("it is no regular file".to_owned());
    }
    if trust == Trust::Found {
        let own = nix::unistd::geteuid().as_raw();
        let owner = about.uid();
        if owner != own && owner != 0 {
            return Err(format!("it belongs to user {owner}, not to {own} or root"));
        }
        if about.mode() & 0o022 != 0 {
            return Err("others than its owner may write to it".to_owned());
        }
    }
    let mut text = String::new();
    // It may grow meanwhile.
    let read = file.take(MOST + 1).read_to_string(&mut text);
    match read.map_err(|error| error.to_string())? as u64 {
        0..=MOST => Ok(text),
        _ => Err(format!("it has more than {MOST} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_no_ordinary_file_of_this_user_is_refused_at_once() {
        let dir = std::env::temp_dir().join(format!("onecopy-file-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("made");
        let refused = |name: &str, trust, word: &str| {
            let reason = read(&dir.join(name), trust).expect_err(name);
            assert!(reason.contains(word), "{name}: {reason}");
        };
        nix::unistd::mkfifo(&dir.join("fifo"), Mode::S_IRWXU).expect("made");
        std::os::unix::fs::symlink("/dev/zero", dir.join("zero")).expect("made");
        std::fs::File::create(dir.join("huge"))
            .and_then(|file| file.set_len(3 << 30))
            .expect("made");
        for trust in [Trust::Named, Trust::Found] {
            for name in ["fifo", "zero", "."] {
                refused(name, trust, "regular");
            }
            refused("huge", trust, "more than");
        }
        let open = dir.join("open");
        std::fs::write(&open, "text").expect("written");
        let mode = std::fs::Permissions::from_mode;
        std::fs::set_permissions(&open, mode(0o664)).expect("changed");
        refused("open", Trust::Found, "others");
        assert_eq!(read(&open, Trust::Named).as_deref(), Ok("text"));
        std::fs::set_permissions(&open, mode(0o644)).expect("changed");
        assert_eq!(read(&open, Trust::Found).as_deref(), Ok("text"));
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&open, Some(65534), None).expect("changed");
            refused("open", Trust::Found, "belongs");
        }
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
