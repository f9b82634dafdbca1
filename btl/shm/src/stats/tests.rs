// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of a page, and of what may be shown in its place.

use super::shown::{CheckedPage, PageError};
use super::*;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

fn path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn look(page: &StatsPage) -> CheckedPage {
    let file = File::open(path(page.fd().expect("a page"))).expect("opens");
    CheckedPage::of(&file).expect("fit")
}

#[test]
fn what_is_counted_is_shown() {
    let mut page = StatsPage::new(77, 1, 3);
    page.sends_inline += 5;
    page.truncations += 2;
    page.row(2).expect("a rank").add_bytes(3, 1000);
    page.row(2).expect("a rank").add_message(3);
    assert!(page.row(3).is_none());
    let shown = look(&page);
    let head = shown.head();
    assert_eq!((head.job, head.rank, head.size), (77, 1, 3));
    assert_eq!(head.pid, std::process::id());
    let counter = |name| shown.counters().find(|(other, _)| *other == name);
    assert_eq!(counter("sends_inline"), Some(("sends_inline", 5)));
    assert_eq!(counter("truncations"), Some(("truncations", 2)));
    let rows: Vec<_> = shown.rows().collect();
    assert_eq!(rows.len(), 3);
    assert_eq!((rows[2].1.by[3].messages, rows[2].1.bytes()), (1, 1000));
    assert_eq!(rows[1].1, Row::default());
    // It goes on being shown.
    page.sends_inline += 1;
    assert_eq!(counter("sends_inline"), Some(("sends_inline", 6)));
}

#[test]
fn a_private_page_counts_too() {
    let mut page = StatsPage::private(2);
    page.sends_inline += 5;
    page.row(1).expect("a rank").add_bytes(0, 9);
    assert_eq!(page.row(1).expect("a rank").bytes(), 9);
    assert_eq!((page.sends_inline, page.fd().is_none()), (5, true));
    // More ranks than a page may have.
    assert!(StatsPage::new(1, 0, MAX_RANKS + 1).fd().is_none());
}

#[test]
fn nobody_else_can_write_a_page() {
    let page = StatsPage::new(1, 0, 2);
    let fd = page.fd().expect("a page");
    let again = open(path(fd).as_str(), OFlag::O_RDWR, Mode::empty()).expect("opens");
    let len = bytes_of(2);
    assert!(
        File::from(again.try_clone().expect("copies"))
            .write_at(&[1], 0)
            .is_err()
    );
    assert!(Mapping::of_file(again.as_fd(), len, true).is_err());
    assert!(nix::unistd::ftruncate(&again, 0).is_err());
    let more = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
    assert!(fcntl(&again, more).is_err());
}

/// A file with these bytes and seals.
fn file(bytes: &[u8], len: u64, seals: SealFlag) -> File {
    let fd = memfd_create(NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING);
    let file = File::from(fd.expect("memfd"));
    file.write_all_at(bytes, 0).expect("writes");
    file.set_len(len).expect("size");
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("seals");
    file
}

#[test]
fn what_is_no_page_is_refused_with_its_reason() {
    let all = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL;
    let len = bytes_of(4);
    let head = Head {
        magic: MAGIC,
        version: VERSION,
        mechanisms: MECHANISMS.len() as u32,
        bytes: len,
        names: names(),
        job: 1,
        pid: 1,
        rank: 3,
        size: 4,
        counters: (COUNTERS_LEN / 8) as u32,
        spare: 0,
    };
    let bytes = |head: &Head| {
        let pointer = std::ptr::from_ref(head).cast::<u8>();
        // SAFETY: a head has no padding, as the asserts of its offsets show.
        unsafe { std::slice::from_raw_parts(pointer, size_of::<Head>()) }.to_vec()
    };
    let refused = |head: Head| match CheckedPage::of(&file(&bytes(&head), len, all)) {
        Ok(_) => "nothing".to_owned(),
        Err(unfit) => unfit.to_string(),
    };
    assert_eq!(refused(head), "nothing");
    assert!(refused(Head { magic: 7, ..head }).contains("does not begin"));
    let version = refused(Head { version: 9, ..head });
    assert!(
        version.contains("version 9") && version.contains("reads version 1"),
        "{version}"
    );
    assert!(refused(Head { names: 0, ..head }).contains("counters"));
    assert!(
        refused(Head {
            counters: 1 << 29,
            ..head
        })
        .contains("counters")
    );
    assert!(
        refused(Head {
            mechanisms: head.mechanisms + 1,
            ..head
        })
        .contains("counters")
    );
    assert!(refused(Head { rank: 4, ..head }).contains("rank 4 of 4"));
    assert!(
        refused(Head {
            size: u32::MAX,
            ..head
        })
        .contains("invalid field")
    );
    assert!(refused(Head { size: 5, ..head }).contains("invalid field"));
    assert!(refused(Head { bytes: 1, ..head }).contains("invalid field"));

    let short = CheckedPage::of(&file(&[0; 8], 8, all));
    assert!(matches!(short, Err(PageError::NoPage)));
    let long = CheckedPage::of(&file(&bytes(&head), 1 << 40, all));
    assert!(matches!(long, Err(PageError::InvalidField(_))));
    let loose = CheckedPage::of(&file(&bytes(&head), len, SealFlag::empty()));
    assert!(matches!(loose, Err(PageError::Unsealed)));
    let null = File::open("/dev/null").expect("opens");
    assert!(matches!(CheckedPage::of(&null), Err(PageError::Unsealed)));
}
