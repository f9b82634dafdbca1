// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank is killed at each labelled point of a wire; the other rank ends, and says of whom it lost.

use onecopy::Runtime;

use crate::processes::say;

/// What each does with the other until one is lost: small messages, long ones, and its leave.
pub(crate) fn as_rank(runtime: Runtime) {
    let world = runtime.world();
    let (rank, other) = (runtime.rank(), 1 - runtime.rank());
    for len in [8, 5000, 100_000, 3 << 20] {
        let (sent, mut got) = (vec![rank as u8; len], vec![9; len]);
        if let Err(error) = world.sendrecv(&sent, other, 1, &mut got, other, 1) {
            say(&format!("lost: {error}"));
            std::process::exit(5);
        }
        assert!(got.iter().all(|&byte| byte == other as u8), "{len} bytes");
    }
    if let Err(error) = runtime.finalize() {
        say(&format!("lost: {error}"));
        std::process::exit(5);
    }
    say("left");
}

#[cfg(feature = "fault-points")]
#[test]
fn a_death_at_each_point_of_a_wire_ends_the_other_rank() {
    use crate::nodes::Start;
    use nix::sys::signal::Signal;
    use std::os::unix::process::ExitStatusExt;

    let labels = [
        "connect.begun",
        "proof.sent",
        "inbound.proven",
        "frame.partial",
        "farewell.sent",
    ];
    for label in labels {
        let mut killed = 0;
        for victim in ["a", "b"] {
            let fault = format!("ONECOPY_JOB_FAULT={label}:1");
            let wrapper = |node: &str| match node == victim {
                true => vec!["env".to_owned(), fault.clone()],
                false => Vec::new(),
            };
            let job = Start {
                body: "points",
                names: &["a", "b"],
                env: &[("ONECOPY_NODE_TIMEOUT", "60")],
                wrapper: &wrapper,
            };
            for (rank, node) in job.go().into_iter().zip(["a", "b"]) {
                let (story, status) = rank.story_and_status();
                if node == victim && status.signal() == Some(Signal::SIGKILL as i32) {
                    killed += 1;
                    continue;
                }
                let lost = story.contains("lost: ") && status.code() == Some(5);
                let left = story.contains("left") && status.success();
                assert!(lost || left, "{label}, {victim}: {node}: {status}: {story}");
            }
        }
        assert!(killed > 0, "{label}: passed by nobody");
    }
}
