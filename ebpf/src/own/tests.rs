// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of this very process, found as those of any other.

use super::*;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use onecopy_shm::stats::{NAME, StatsPage};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: the collector that looks has the pages of others open for a moment, and they seem to live.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rank, what came from others, and whether it has ended.
type Seen = (u32, Vec<(u32, Row)>, bool);

/// What a look finds of one job.
fn of_job(collector: &mut Collector, number: u64) -> Vec<Seen> {
    collector.observe().expect("looks");
    let ranks = collector.ranks.values();
    let ranks = ranks.filter(|rank| rank.head.job == number);
    let shown = ranks.map(|rank| (rank.head.rank, rank.rows.clone(), rank.ended));
    shown.collect()
}

#[test]
fn ranks_are_found_and_keep_their_last_figures() {
    let _alone = alone();
    const JOB: u64 = 0x1234_5678_0000_0001;
    let mut collector = Collector::new();
    let mut page = StatsPage::new(JOB, 1, 3);
    page.sends_inline = 3;
    page.row(0).expect("a rank").add_bytes(3, 100);
    page.row(0).expect("a rank").add_message(3);
    let found = of_job(&mut collector, JOB);
    assert_eq!(found.len(), 1);
    let (rank, rows, ended) = &found[0];
    assert_eq!((*rank, rows.len(), *ended), (1, 1, false));
    page.row(0).expect("a rank").add_bytes(3, 11);
    drop(page);
    let found = of_job(&mut collector, JOB);
    let (_, rows, ended) = &found[0];
    assert_eq!((rows[0].1.bytes(), *ended), (111, true));
}

#[test]
fn a_receiver_is_the_caller_and_a_rank_becomes_its_process() {
    let _alone = alone();
    const JOB: u64 = 0x1234_5678_0000_0002;
    let mut collector = Collector::new();
    let mut page = StatsPage::new(JOB, 0, 3);
    page.sends_slots = 9;
    for (peer, mechanism) in [(0, 0), (1, 1), (2, 5)] {
        let row = page.row(peer).expect("a rank");
        row.add_bytes(mechanism, 1 << 40);
        row.add_message(mechanism);
    }
    let _second = StatsPage::new(JOB, 1, 3);
    let observed = collector.observe().expect("looks");
    let pid = std::process::id();
    let key = |peer, mechanism| PairKey {
        caller: pid,
        peer,
        mechanism,
        writes: false,
    };
    // Rank 1 is of this process, too; nobody knows the process of rank 2.
    let heap = &observed.pairs[&key(Peer::Process(pid), Mechanism::Heap)];
    assert!(heap.bytes >= 1 << 40 && heap.calls >= 1);
    let cico = &observed.pairs[&key(Peer::Rank(2), Mechanism::Cico)];
    assert!(cico.bytes >= 1 << 40);
    let task = &observed.tasks[&pid];
    assert_eq!((task.rank, task.ended), (None, false));
    let counters = &observed.counters[&pid];
    assert!(
        counters
            .iter()
            .any(|(name, value)| *name == "sends_slots" && *value >= 9)
    );
}

/// The head of a page of this process.
fn some_head() -> Head {
    let page = StatsPage::new(0x1234_5678_0000_0003, 0, 1);
    let fd = page.fd().expect("a page").try_clone_to_owned();
    let file = File::from(fd.expect("a descriptor"));
    *CheckedPage::of(&file).expect("fit").head()
}

#[test]
fn ranks_of_one_user_do_not_have_others_forgotten() {
    let head = some_head();
    let mut collector = Collector::new();
    let mut end = |pid: u32, user| {
        let key = Key {
            pid,
            device: 0,
            inode: u64::from(pid),
        };
        let found = FoundPage {
            pid,
            started: None,
            comm: String::new(),
            user,
        };
        let rank = Rank {
            found,
            head,
            page: None,
            rows: Vec::new(),
            left_out: 0,
            counters: Vec::new(),
            ended: true,
        };
        collector.ranks.insert(key, rank);
    };
    let most = u32::try_from(ENDED_MAX).expect("few");
    // The others have the least keys, and would go first by those.
    (0..10).for_each(|pid| end(pid, 1));
    (10..most + 15).for_each(|pid| end(pid, 2));
    collector.forget();
    let ranks_of = |user| {
        let ranks = collector.ranks.values();
        ranks.filter(|rank| rank.found.user == user).count()
    };
    assert_eq!(
        (ranks_of(1), ranks_of(2)),
        (10, usize::try_from(most).expect("few") - 10)
    );
    let refused = &collector.refused;
    assert_eq!(refused.len(), 1);
    assert!(refused[0].starts_with("15 ranks of user 2 "), "{refused:?}");
}

/// A page with something in some of its rows.
fn filled(job: u64, rank: u32, rows: impl Iterator<Item = u32>) -> StatsPage {
    let size = u32::try_from(2 * ROWS_OF_PAGE).expect("few");
    let mut page = StatsPage::new(job, rank, size);
    for peer in rows {
        page.row(peer).expect("a rank").add(5, 1);
    }
    page
}

#[test]
fn a_page_has_so_many_rows_and_says_what_is_left_out() {
    let _alone = alone();
    const JOB: u64 = 0x1234_5678_0000_0004;
    const MOST: u32 = ROWS_OF_PAGE as u32;
    let mut collector = Collector::new();
    let mut page = filled(JOB, 0, 10..MOST);
    let rows = |collector: &mut Collector| {
        let found = of_job(collector, JOB);
        let peers: Vec<u32> = found[0].1.iter().map(|(peer, _)| *peer).collect();
        peers
    };
    assert!(rows(&mut collector).into_iter().eq(10..MOST));
    let line = format!("of job {JOB:016x} of user");
    let mention = |collector: &Collector| {
        let mut lines = collector.refused.iter();
        lines.find(|refused| refused.contains(&line)).cloned()
    };
    assert_eq!(mention(&collector), None);
    // More than there is room for: what was there stays.
    for peer in (0..10).chain(MOST..MOST + 7) {
        page.row(peer).expect("a rank").add(5, 1);
    }
    assert!(rows(&mut collector).into_iter().eq(0..MOST));
    assert!(
        mention(&collector)
            .expect("a mention")
            .starts_with("7 rows ")
    );
    page.row(MOST + 7).expect("a rank").add(5, 1);
    drop(page);
    // The last figures, too.
    assert!(rows(&mut collector).into_iter().eq(0..MOST));
    assert!(
        mention(&collector)
            .expect("a mention")
            .starts_with("8 rows ")
    );
}

#[test]
fn a_job_has_so_many_rows() {
    let _alone = alone();
    const JOB: u64 = 0x1234_5678_0000_0005;
    let most = u32::try_from(ROWS_OF_PAGE).expect("few");
    let pages = u32::try_from(ROWS_OF_JOB).expect("few") / most + 1;
    let mut collector = Collector::new();
    let _pages: Vec<_> = (0..pages).map(|rank| filled(JOB, rank, 0..most)).collect();
    let other = JOB + 1;
    let _other = filled(other, 0, 0..9);
    let rows = |collector: &mut Collector, job| {
        let found = of_job(collector, job);
        let rows: usize = found.iter().map(|(_, rows, _)| rows.len()).sum();
        rows as u64
    };
    assert_eq!(rows(&mut collector, JOB), ROWS_OF_JOB);
    assert_eq!(rows(&mut collector, JOB), ROWS_OF_JOB);
    let line = format!("{most} rows of job {JOB:016x}");
    assert!(
        collector
            .refused
            .iter()
            .any(|refused| refused.starts_with(&line))
    );
    assert_eq!(rows(&mut collector, other), 9);
}

#[test]
fn rubbish_is_refused_with_a_sentence() {
    let _alone = alone();
    let file = |bytes: &[u8], seals| {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(NAME, flags).expect("memfd"));
        file.set_len(1 << 16).expect("size");
        file.write_all_at(bytes, 0).expect("writes");
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("seals");
        file
    };
    let all = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL;
    let mut version = onecopy_shm::stats::MAGIC.to_ne_bytes().to_vec();
    version.extend(9_u32.to_ne_bytes());
    let _files = [
        file(&[0xff; 4096], all),
        file(&[0; 64], SealFlag::empty()),
        file(&version, all),
    ];
    let mut collector = Collector::new();
    collector.observe().expect("looks");
    for why in [
        "does not begin",
        "not sealed",
        "version 9, and this tool reads version 1",
    ] {
        let is_reason = |line: &String| line.contains(why) && line.contains("process ");
        assert!(
            collector.refused.iter().any(is_reason),
            "{:?}",
            collector.refused
        );
    }
}

#[test]
fn each_layer_is_shown_by_its_name() {
    let _alone = alone();
    for (name, mechanism) in MECHANISMS.iter().zip(BY).skip(1) {
        assert_eq!(mechanism.map(Mechanism::name), Some(*name));
    }
}
