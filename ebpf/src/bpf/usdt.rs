// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probe points of the runtime: where they are in a file, and where their arguments are when they are reached.

mod arguments;

use std::fs::File;
use std::path::Path;

use object::{Object, ObjectSection, ObjectSegment, ReadCache, ReadRef};
use onecopy_obs::tracepoints::{TRACEPOINTS, TracepointInfo};

use super::layout::SiteWords;
use super::mapped;
use arguments::Argument;

/// Who provides the runtime's probe points.
const PROVIDER: &[u8] = b"onecopy";
const NOTE_TYPE: u32 = 3;
/// Of the notes of a file, so many bytes are read, and so many probe points of the runtime are taken.
const NOTES_MAX: u64 = 1 << 20;
const SITES_MAX: usize = 256;

/// A place in a file at which a probe point stands. One that was inlined stands at several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The name of the probe point.
    pub name: String,
    /// Where it is in the file.
    pub(super) offset: u64,
    /// Where the counter is that says that somebody watches; 0 if it has none.
    pub(super) semaphore: u64,
    arguments: Vec<Argument>,
}

impl Site {
    /// How many arguments it has.
    #[must_use]
    pub fn arguments(&self) -> usize {
        self.arguments.len()
    }

    /// The tracepoint of the runtime that has this name.
    #[must_use]
    pub fn tracepoint(&self) -> Option<&'static TracepointInfo> {
        TRACEPOINTS.iter().find(|info| info.name == self.name)
    }

    /// What the kernel's program needs to know of the arguments.
    pub(super) fn words(&self) -> SiteWords {
        let mut words = SiteWords::default();
        let mut count = 0_u32;
        for (argument, place) in self.arguments.iter().zip(words[1..].chunks_exact_mut(2)) {
            place.copy_from_slice(&argument.words());
            count += 1;
        }
        let mut first = [0; 8];
        first[..4].copy_from_slice(&count.to_ne_bytes());
        words[0] = u64::from_ne_bytes(first);
        words
    }
}

/// The probe points of the runtime in a file. Says why, if the file cannot be read as a program or a library.
///
/// # Errors
/// The file cannot be read, or is no ELF file.
pub fn sites(path: &Path) -> Result<Vec<Site>, String> {
    opened(path).map(|(_, found)| found)
}

/// The same, with the file.
pub(super) fn opened(path: &Path) -> Result<(File, Vec<Site>), String> {
    let failed = |why: String| format!("{}: {why}", path.display());
    let file = mapped::open(path).map_err(|error| failed(error.to_string()))?;
    let found = sites_in(&file).map_err(failed)?;
    Ok((file, found))
}

/// The same of a file that may be of somebody who means harm: what is read of it is bounded.
pub(super) fn sites_in(file: &File) -> Result<Vec<Site>, String> {
    // Only what is asked for is read: a library may be large.
    let bytes = ReadCache::new(file);
    if !has_plain_tables(&bytes) {
        return Err("no program with tables of ordinary size".to_owned());
    }
    let file = object::File::parse(&bytes).map_err(|error| format!("no program: {error}"))?;
    let Some(notes) = file.section_by_name(".note.stapsdt") else {
        return Ok(Vec::new());
    };
    if notes.size() > NOTES_MAX {
        return Err(format!(".note.stapsdt: more than {NOTES_MAX} bytes"));
    }
    let notes = notes
        .data()
        .map_err(|error| format!(".note.stapsdt: {error}"))?;
    let base = file.section_by_name(".stapsdt.base");
    let base = base.map(|section| section.address());
    let place = |address: u64| -> Option<u64> {
        let segment = file.segments().find(|segment| {
            let begin = segment.address();
            (begin..begin.saturating_add(segment.size())).contains(&address)
        })?;
        let (begin, _) = segment.file_range();
        Some(address - segment.address() + begin)
    };
    let mut found = Vec::new();
    for note in Notes(notes) {
        let Some(mut note) = ProbeNote::of(note) else {
            continue;
        };
        // The file may have been moved to other addresses after its notes were written.
        let moved = base.map_or(0, |base| base.wrapping_sub(note.base));
        note.pc = note.pc.wrapping_add(moved);
        if note.semaphore != 0 {
            note.semaphore = note.semaphore.wrapping_add(moved);
        }
        let semaphore = match note.semaphore {
            0 => Some(0),
            address => place(address),
        };
        if let (Some(offset), Some(semaphore)) = (place(note.pc), semaphore) {
            let site = Site {
                name: String::from_utf8_lossy(note.name).into_owned(),
                offset,
                semaphore,
                arguments: arguments::parse(note.arguments),
            };
            if site.tracepoint().is_some() {
                found.push(site);
            }
        }
        if found.len() == SITES_MAX {
            break;
        }
    }
    Ok(found)
}

/// Whether the header says itself how many sections and segments there are: if not, there may be billions.
fn has_plain_tables(bytes: &ReadCache<&File>) -> bool {
    let number = |offset| {
        let bytes = bytes.read_bytes_at(offset, 2).ok()?;
        Some(u16::from_ne_bytes(bytes.try_into().ok()?))
    };
    // `e_phnum` and `e_shnum` of 64 bits, the only form that is observed.
    number(0x38).is_some_and(|segments| segments != u16::MAX)
        && number(0x3c).is_some_and(|sections| sections != 0)
}

/// Notes, one after the other: type, name, description. A cut one ends them.
struct Notes<'a>(&'a [u8]);

impl<'a> Iterator for Notes<'a> {
    type Item = (u32, &'a [u8], &'a [u8]);
    fn next(&mut self) -> Option<Self::Item> {
        let (header, rest) = self.0.split_first_chunk::<12>()?;
        let word = |offset: usize| {
            let bytes = header[offset..offset + 4].try_into().ok()?;
            Some(u32::from_ne_bytes(bytes))
        };
        let name_len = word(0)? as usize;
        let text_len = word(4)? as usize;
        let kind = word(8)?;
        let name = rest.get(..name_len)?;
        let rest = rest.get(name_len.next_multiple_of(4)..)?;
        let text = rest.get(..text_len)?;
        self.0 = rest.get(text_len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, name, text))
    }
}

/// What a note of one of our probe points says.
struct ProbeNote<'a> {
    pc: u64,
    base: u64,
    semaphore: u64,
    name: &'a [u8],
    arguments: &'a [u8],
}

impl<'a> ProbeNote<'a> {
    fn of((kind, owner, text): (u32, &[u8], &'a [u8])) -> Option<Self> {
        if kind != NOTE_TYPE || owner != b"stapsdt\0" {
            return None;
        }
        let (pc, rest) = text.split_first_chunk()?;
        let (base, rest) = rest.split_first_chunk()?;
        let (semaphore, rest) = rest.split_first_chunk()?;
        let mut strings = rest.split(|byte| *byte == 0);
        if strings.next()? != PROVIDER {
            return None;
        }
        Some(Self {
            pc: u64::from_ne_bytes(*pc),
            base: u64::from_ne_bytes(*base),
            semaphore: u64::from_ne_bytes(*semaphore),
            name: strings.next()?,
            arguments: strings.next().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(owner: &[u8], text: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [owner.len(), text.len()] {
            note.extend(u32::try_from(word).expect("short").to_ne_bytes());
        }
        note.extend(NOTE_TYPE.to_ne_bytes());
        for part in [owner, text] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn notes_are_read_one_after_the_other() {
        let mut text = Vec::new();
        for word in [0x100_u64, 0x10, 0] {
            text.extend(word.to_ne_bytes());
        }
        text.extend(b"onecopy\0sleep\0-8@%rdi 8@$5\0");
        let mut bytes = note(b"GNU\0", b"abc");
        bytes.extend(note(b"stapsdt\0", &text));
        let found: Vec<_> = Notes(&bytes).filter_map(ProbeNote::of).collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pc, found[0].base), (0x100, 0x10));
        assert_eq!(found[0].name, b"sleep");
        assert_eq!(found[0].arguments, b"-8@%rdi 8@$5");
        // Cut anywhere, it is no note.
        for len in 0..bytes.len() - 4 {
            assert!(Notes(&bytes[..len]).filter_map(ProbeNote::of).count() <= 1);
        }
    }

    #[test]
    fn a_file_that_hides_how_long_its_tables_are_is_no_program() {
        let shell = std::fs::read("/bin/sh").expect("a program");
        let file = tempfile::NamedTempFile::new().expect("a file");
        // The numbers of segments and of sections, where the true ones stand elsewhere.
        for (offset, number) in [(0x38, u16::MAX), (0x3c, 0)] {
            let mut bytes = shell.clone();
            bytes[offset..offset + 2].copy_from_slice(&number.to_ne_bytes());
            std::fs::write(file.path(), bytes).expect("written");
            let why = sites(file.path()).expect_err("refused");
            assert!(why.contains("ordinary size"), "{why}");
        }
    }

    #[test]
    fn a_file_without_notes_has_no_sites() {
        let shell = Path::new("/bin/sh");
        assert!(sites(shell).expect("a program").is_empty());
        assert!(sites(Path::new("/etc/passwd")).is_err());
    }
}
