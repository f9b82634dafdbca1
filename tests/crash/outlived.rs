// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of a rank that outlive their job hold nobody up.

use onecopy_launch::{Job, Output};
use std::time::Duration;

/// It has left its rank's group, so it is not ended, and writes as fast as it can, until nobody reads.
#[test]
fn a_job_ends_though_somebody_still_writes() {
    let _one = crate::job::one();
    let text = "exec 3>&1; said=$(setsid sh -c 'for n in 1 2 3 4; do yes >&3 2>/dev/null & done; echo said'); echo $said >&2";
    let (sender, heard) = std::sync::mpsc::channel();
    let mut lines = 0;
    crate::limit::usual_signals();
    let outcome = Job::new("sh", 1)
        .args(["-c", text])
        .quiet(true)
        .timeout(crate::limit::limit())
        .output(Output::Lines(Box::new(move |_, _, line: &[u8]| {
            // Slower than those who write.
            lines += 1;
            if lines % 1000 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            if line.starts_with(b"said") {
                let _ = sender.send(());
            }
        })))
        .run()
        .expect("a job");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(heard.iter().count(), 1, "what the rank said is heard");
}
