// SPDX-License-Identifier: MIT OR Apache-2.0
//! Input and output of ranks.

use crate::limit;

use super::support::{command, finish, run, run_with_input, script};

#[test]
fn input_goes_to_rank_0_to_its_end() {
    let input = vec![b'x'; 5 << 20];
    let args = ["-n", "3", "--tag-output", "sh", "-c", "wc -c"];
    let ran = run_with_input(&args, input);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 5242880", "[1] 0", "[2] 0"]);
}

#[test]
fn who_does_not_read_its_input_hinders_nobody() {
    let ran = run_with_input(&["-n", "2", "echo", "done"], vec![b'x'; 5 << 20]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "done\ndone\n"));
}

#[test]
fn lines_of_many_writers_stay_whole() {
    let text = "i=0; r=$ONECOPY_JOB_RANK; while [ $i -lt 400 ]; do \
        printf \"$r $i \"; printf 'abcdefghijklmnopqrstuvwxyz%.0s' 1 2 3 4 5 6 7 8; \
        echo \" $r\"; i=$((i+1)); done";
    let ran = script("6", text);
    assert_eq!(ran.code, Some(0), "{:?}", ran.err);
    let mut next = [0; 6];
    for line in ran.out.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [rank, count, body, again] = words[..] else {
            panic!("{line}")
        };
        assert_eq!(rank, again);
        assert_eq!(body.len(), 26 * 8);
        let rank: usize = rank.parse().expect("rank");
        assert_eq!(count, next[rank].to_string());
        next[rank] += 1;
    }
    assert_eq!(next, [400; 6]);
}

#[test]
fn much_output_arrives_byte_for_byte() {
    let ran = script("1", "seq 1 300000; printf end");
    let mut expected: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    expected.push_str("end");
    assert!(ran.out == expected);
}

#[test]
fn tags_name_the_rank_on_both_streams() {
    let ran = run(&[
        "-n",
        "2",
        "--tag-output",
        "sh",
        "-c",
        "echo out; echo err >&2; printf partial",
    ]);
    for rank in 0..2 {
        assert!(ran.out.contains(&format!("[{rank}] out\n")), "{ran:?}");
        assert!(ran.out.contains(&format!("[{rank}] partial")), "{ran:?}");
        assert!(ran.err.contains(&format!("[{rank}] err\n")), "{ran:?}");
    }
    assert!(ran.out.lines().all(|line| line.starts_with('[')), "{ran:?}");
}

#[test]
fn output_in_the_background_of_a_rank_is_not_lost() {
    let ran = script("1", "(sleep 0.2; echo late) & exit 0");
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "late\n"));
}

#[test]
fn nobody_who_reads_ends_the_writers() {
    let mut child = limit::start(&mut command(&["-n", "2", "yes"]));
    drop(child.stdout.take());
    let ran = finish(child);
    // As in a pipeline: the writers get SIGPIPE, or an error if they ignore it.
    assert!(matches!(ran.code, Some(1 | 141)), "{ran:?}");
}

#[test]
fn the_malloc_front_is_preloaded_before_others_or_its_absence_is_an_error() {
    let own = std::env::current_exe().expect("own path");
    // Beside a copy of the command in a prefix of our own, so that it does not depend on what else was built.
    let prefix = own.with_file_name(format!("prefix-{}", std::process::id()));
    std::fs::create_dir_all(prefix.join("bin")).expect("folder");
    std::fs::create_dir_all(prefix.join("lib")).expect("folder");
    let command = prefix.join("bin/onecopy");
    std::fs::copy(env!("CARGO_BIN_EXE_onecopy"), &command).expect("copy");
    let start = || {
        let mut started = std::process::Command::new(&command);
        let line = [
            "run",
            "-n",
            "1",
            "--heap",
            "--env",
            "LD_PRELOAD=libother.so",
            "sh",
            "-c",
            "echo $LD_PRELOAD",
        ];
        limit::output(started.env("ONECOPY_TUNE_FILE", "none").args(line))
    };
    let without = start();
    let text = String::from_utf8_lossy(&without.stderr).into_owned();
    assert_eq!(without.status.code(), Some(1), "{text}");
    assert!(text.contains("libonecopy_heap.so"), "{text}");
    let front = prefix.join("lib/libonecopy_heap.so");
    std::fs::write(&front, "").expect("write");
    let with = start();
    let expected = format!("{}:libother.so\n", front.display());
    assert_eq!(String::from_utf8_lossy(&with.stdout), expected);
    std::fs::remove_dir_all(&prefix).expect("remove");
}
