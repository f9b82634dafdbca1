// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's root: busybox, scripts, what is to run, and the libraries that it links with, in one compressed archive.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::program::{self, find};
use crate::userland::Userland;
use crate::{Error, Result, guest};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// Users of the guest: more than one, for what one may not do to another.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
    alice:x:1000:1000:alice:/home/alice:/bin/sh\n\
    bob:x:1001:1001:bob:/home/bob:/bin/sh\n\
    nobody:x:65534:65534:nobody:/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nalice:x:1000:\nbob:x:1001:\nnogroup:x:65534:\n";

/// Programs larger than this go without what debuggers want: the guest has a slow processor to unpack them with.
const STRIP_FROM: u64 = 1 << 20;

/// The folders of root in an empty guest.
const FOLDERS: [&str; 11] = [
    "proc", "sys", "dev", "tmp", "run", "root", "results", "var", "usr/bin", "usr/sbin", "sbin",
];

/// Our scripts: name, place in the guest, mode.
const SCRIPTS: [(&str, &str, u32); 6] = [
    ("init", "init", 0o755),
    ("at", "payload/bin/at", 0o755),
    ("profile", "etc/profile", 0o644),
    ("lib.sh", "payload/lib.sh", 0o644),
    ("shell.sh", "payload/shell.sh", 0o644),
    ("rdma.sh", "payload/rdma.sh", 0o644),
];

/// What of a distribution stays behind: documents, and parts of the compiler that compile no kernel module.
const NOT_CARRIED: [&str; 8] = [
    "/usr/share/doc",
    "/usr/share/man",
    "/usr/share/locale",
    "/usr/share/info",
    "/usr/share/zoneinfo",
    "/lto1",
    "/cc1plus",
    "/hwdb.d",
];

#[derive(Debug)]
enum Content {
    Directory,
    Link(String),
    Bytes(Vec<u8>),
    Copy(PathBuf),
    Device(u32, u32),
}

#[derive(Debug)]
struct Node {
    mode: u32,
    owner: u32,
    content: Content,
}

/// What will be in the guest's root.
#[derive(Debug)]
pub struct Initramfs {
    nodes: BTreeMap<String, Node>,
    stripped: tempfile::TempDir,
    /// Whether programs are of another architecture: their libraries are those of its userland.
    foreign: bool,
}

impl Initramfs {
    /// A root with busybox, users and our scripts, and nothing to run yet.
    ///
    /// # Errors
    ///
    /// When the host has no busybox that stands alone.
    pub fn new() -> Result<Self> {
        let busybox = find("busybox", "busybox-static")?;
        if !libraries(&busybox)?.is_empty() {
            return Err(Error::Missing {
                what: format!(
                    "a busybox that stands alone ({} does not)",
                    busybox.display()
                ),
                packages: "busybox-static".to_owned(),
            });
        }
        Self::with_busybox(busybox, false)
    }

    /// As [`Self::new`], with another architecture's busybox and C library.
    ///
    /// # Errors
    ///
    /// When these are not where their packages have them.
    pub fn of(userland: &Userland) -> Result<Self> {
        let mut root = Self::with_busybox(userland.busybox(), true)?;
        for (from, place) in userland.libraries()? {
            root.copy(&from, &place)?;
        }
        Ok(root)
    }

    fn with_busybox(busybox: PathBuf, foreign: bool) -> Result<Self> {
        let stripped = tempfile::tempdir().map_err(Error::io("a temporary folder"))?;
        let mut root = Self {
            nodes: BTreeMap::new(),
            stripped,
            foreign,
        };
        for folder in FOLDERS {
            root.directory(folder, 0o755, 0);
        }
        root.node("dev/console", CHARACTER | 0o600, 0, Content::Device(5, 1));
        root.node("bin/busybox", REGULAR | 0o755, 0, Content::Copy(busybox));
        root.link("bin/sh", "busybox");
        root.users();
        for (name, place, mode) in SCRIPTS {
            root.bytes(place, mode, guest::script(name)?);
        }
        Ok(root)
    }

    fn users(&mut self) {
        self.bytes("etc/passwd", 0o644, PASSWD);
        self.bytes("etc/group", 0o644, GROUP);
        self.directory("home/alice", 0o755, 1000);
        self.directory("home/bob", 0o755, 1001);
    }

    fn node(&mut self, place: &str, mode: u32, owner: u32, content: Content) {
        let place = place.trim_matches('/');
        let parents: Vec<&str> = place
            .match_indices('/')
            .map(|(slash, _)| &place[..slash])
            .collect();
        for parent in parents {
            self.nodes.entry(parent.to_owned()).or_insert(Node {
                mode: DIRECTORY | 0o755,
                owner: 0,
                content: Content::Directory,
            });
        }
        self.nodes.insert(
            place.to_owned(),
            Node {
                mode,
                owner,
                content,
            },
        );
    }

    fn directory(&mut self, place: &str, mode: u32, owner: u32) {
        self.node(place, DIRECTORY | mode, owner, Content::Directory);
    }

    /// A link.
    pub fn link(&mut self, place: &str, target: &str) {
        self.node(place, LINK | 0o777, 0, Content::Link(target.to_owned()));
    }

    /// A file with this content.
    pub fn bytes(&mut self, place: &str, mode: u32, content: impl AsRef<[u8]>) {
        let content = Content::Bytes(content.as_ref().to_vec());
        self.node(place, REGULAR | mode, 0, content);
    }

    /// A file of the host, or a whole folder.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn copy(&mut self, from: &Path, place: &str) -> Result<()> {
        if from.is_dir() {
            for path in crate::cache::entries(from)? {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                self.copy(&path, &format!("{place}/{name}"))?;
            }
            return Ok(());
        }
        let meta = fs::metadata(from).map_err(Error::io(from.display().to_string()))?;
        let mode = std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777;
        let content = Content::Copy(from.to_path_buf());
        self.node(place, REGULAR | mode, 0, content);
        Ok(())
    }

    /// A whole tree with its links as they are, without what is only for people to read.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn tree(&mut self, from: &Path, place: &str) -> Result<()> {
        for path in crate::cache::entries(from)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let place = format!("{place}/{name}");
            let meta =
                fs::symlink_metadata(&path).map_err(Error::io(path.display().to_string()))?;
            if NOT_CARRIED.iter().any(|end| place.ends_with(end)) {
                continue;
            }
            if meta.is_symlink() {
                let target = fs::read_link(&path).map_err(Error::io(path.display().to_string()))?;
                self.link(&place, &target.to_string_lossy());
            } else if meta.is_dir() {
                self.directory(&place, 0o755, 0);
                self.tree(&path, &place)?;
            } else if meta.is_file() {
                self.copy(&path, &place)?;
            }
        }
        Ok(())
    }

    /// A program with the libraries it needs: of the host with the host's, of another architecture with those that lie
    /// here already.
    ///
    /// # Errors
    ///
    /// When it does not exist or its libraries are not known.
    pub fn program(&mut self, from: &Path, place: &str) -> Result<()> {
        let meta = fs::metadata(from).map_err(Error::io(from.display().to_string()))?;
        if self.foreign {
            let content = Content::Copy(from.to_path_buf());
            self.node(place, REGULAR | 0o755, 0, content);
            return Ok(());
        }
        for library in libraries(from)? {
            let name = library.display().to_string();
            if !self.nodes.contains_key(name.trim_start_matches('/')) {
                let content = Content::Copy(library);
                self.node(&name, REGULAR | 0o755, 0, content);
            }
        }
        let content = if meta.len() > STRIP_FROM {
            Content::Copy(self.strip(from)?)
        } else {
            Content::Copy(from.to_path_buf())
        };
        self.node(place, REGULAR | 0o755, 0, content);
        Ok(())
    }

    fn strip(&self, from: &Path) -> Result<PathBuf> {
        let Ok(strip) = find("strip", "binutils") else {
            return Ok(from.to_path_buf());
        };
        let into = self.stripped.path().join(self.nodes.len().to_string());
        program::output(Command::new(strip).arg("-o").arg(&into).arg(from))?;
        Ok(into)
    }

    /// Whether something lies there.
    #[must_use]
    pub fn contains(&self, place: &str) -> bool {
        self.nodes.contains_key(place.trim_matches('/'))
    }

    /// Writes the archive.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or the archive not be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = || Error::io(path.display().to_string());
        let file = File::create(path).map_err(failed())?;
        let mut archive = Archive {
            out: GzEncoder::new(BufWriter::new(file), Compression::fast()),
            entries: 0,
        };
        // Without it the root belongs to whom the kernel likes, and other users may not enter.
        let root = Node {
            mode: DIRECTORY | 0o755,
            owner: 0,
            content: Content::Directory,
        };
        archive.append(".", &root, &[]).map_err(failed())?;
        for (name, node) in &self.nodes {
            let bytes = node.content.bytes()?;
            archive.append(name, node, &bytes).map_err(failed())?;
        }
        let mut file = archive.finish().map_err(failed())?;
        file.flush().map_err(failed())
    }
}

impl Content {
    /// What stands in the archive: the content of a file, the target of a link.
    fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        Ok(match self {
            Self::Directory | Self::Device(..) => Cow::Borrowed(&[]),
            Self::Link(target) => Cow::Borrowed(target.as_bytes()),
            Self::Bytes(bytes) => Cow::Borrowed(bytes),
            Self::Copy(from) => {
                Cow::Owned(fs::read(from).map_err(Error::io(from.display().to_string()))?)
            }
        })
    }
}

/// A compressed archive that is being written.
struct Archive<W: Write> {
    out: GzEncoder<W>,
    entries: u32,
}

impl<W: Write> Archive<W> {
    fn append(&mut self, name: &str, node: &Node, bytes: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let links = match node.content {
            Content::Directory => 2,
            _ => 1,
        };
        let mut entry = cpio::newc::Builder::new(name)
            .ino(self.entries)
            .mode(node.mode)
            .uid(node.owner)
            .gid(node.owner)
            .nlink(links);
        if let Content::Device(major, minor) = node.content {
            entry = entry.rdev_major(major).rdev_minor(minor);
        }
        let length = u32::try_from(bytes.len())
            .map_err(|_| io::Error::other(format!("{name} is too large for the archive")))?;
        let mut writer = entry.write(&mut self.out, length);
        writer.write_all(bytes)?;
        writer.finish()?;
        Ok(())
    }

    fn finish(mut self) -> io::Result<W> {
        cpio::newc::trailer(&mut self.out)?;
        self.out.finish()
    }
}

/// The libraries that a program needs, where the host has them. Scripts and programs that stand alone need none.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let ldd = find("ldd", "libc-bin")?;
    let output = program::run(Command::new(ldd).arg(program))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.contains("not found") {
            return Err(Error::Refused(format!(
                "{}: {}",
                program.display(),
                line.trim()
            )));
        }
        if let Some(path) = library(line) {
            found.insert(path);
        }
    }
    Ok(found)
}

/// The file of one line of `ldd`: `name => /path (0x...)` or `/path (0x...)`.
pub(crate) fn library(line: &str) -> Option<PathBuf> {
    let line = line.trim();
    let path = line.split_once("=> ").map_or(line, |(_, path)| path);
    let path = path.split(" (").next()?.trim();
    path.starts_with('/').then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn lines_of_ldd_are_read() {
        let path = |line| library(line).map(|p| p.display().to_string());
        assert_eq!(
            path("\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)").as_deref(),
            Some("/lib/x86_64-linux-gnu/libc.so.6")
        );
        assert_eq!(
            path("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)").as_deref(),
            Some("/lib64/ld-linux-x86-64.so.2")
        );
        assert_eq!(path("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(path("\tstatically linked"), None);
    }

    fn empty() -> Initramfs {
        Initramfs {
            nodes: BTreeMap::new(),
            stripped: tempfile::tempdir().expect("temporary folder"),
            foreign: false,
        }
    }

    /// Name, mode, owner, content of every entry.
    fn entries(path: &Path) -> Vec<(String, u32, u32, Vec<u8>)> {
        let mut bytes = Vec::new();
        let file = File::open(path).expect("archive");
        flate2::read::GzDecoder::new(file)
            .read_to_end(&mut bytes)
            .expect("gzip");
        let mut rest: &[u8] = &bytes;
        let mut found = Vec::new();
        loop {
            let mut reader = cpio::newc::Reader::new(rest).expect("entry");
            if reader.entry().is_trailer() {
                return found;
            }
            let mut content = Vec::new();
            reader.read_to_end(&mut content).expect("content");
            let entry = reader.entry();
            found.push((entry.name().to_owned(), entry.mode(), entry.uid(), content));
            rest = reader.finish().expect("rest");
        }
    }

    #[test]
    fn what_is_put_in_lies_in_it() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut root = empty();
        root.bytes("payload/deep/x", 0o644, "content");
        root.link("bin/sh", "busybox");
        root.directory("home/bob", 0o755, 1001);
        let path = folder.path().join("a.gz");
        root.write(&path).expect("write");
        let found = entries(&path);
        let names: Vec<&str> = found.iter().map(|e| e.0.as_str()).collect();
        assert_eq!(
            names,
            [
                ".",
                "bin",
                "bin/sh",
                "home",
                "home/bob",
                "payload",
                "payload/deep",
                "payload/deep/x"
            ]
        );
        // Other users must be able to enter.
        assert_eq!(found[0].1, 0o040_755);
        assert_eq!(
            (found[2].1, found[2].3.as_slice()),
            (0o120_777, &b"busybox"[..])
        );
        assert_eq!(found[4].2, 1001);
        assert_eq!(found[7].3, b"content");
    }

    #[test]
    fn a_program_brings_its_libraries() {
        let mut root = empty();
        let sh = find("sh", "dash").expect("sh");
        root.program(&sh, "payload/sh").expect("program");
        assert!(root.contains("/payload/sh"));
        assert!(root.nodes.keys().any(|name| name.contains("libc.so")));
    }

    #[test]
    fn what_is_missing_is_an_error() {
        let mut root = empty();
        let gone = Path::new("/no/such/program");
        assert!(root.program(gone, "payload/x").is_err());
        assert!(root.copy(gone, "payload/x").is_err());
    }
}
