// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel would copy slowly, by the addresses of its two ends, does not go through the kernel.

#[path = "harness/say.rs"]
mod say;

use onecopy::local_with;
use onecopy_obs::Knobs;
use onecopy_shm::copy::{assume_slow_strings, has_slow_strings};

const PAGE: usize = 4096;
const LEN: usize = 384 << 10;
/// Enough that the way that is believed to be slower is tried.
const MESSAGES: usize = 600;

/// Bytes that came through the kernel, of messages whose buffer begins so many bytes behind that of the sender, modulo
/// a page. None: the kernel is not used between them at all.
fn through_the_kernel(behind: usize) -> Option<u64> {
    let settings = [("ONECOPY_LAYERS", "cico,cma"), ("ONECOPY_COOP", "off")];
    let knobs = Knobs::from_iter(settings).expect("knobs").0;
    let bytes = std::sync::Mutex::new(None);
    local_with(2, &knobs, |rt| {
        let world = rt.world();
        let me = rt.rank();
        let mut memory = vec![me as u8; LEN + 2 * PAGE];
        let begin = memory.as_ptr().align_offset(PAGE) + me * behind;
        let buffer = &mut memory[begin..begin + LEN];
        for _ in 0..MESSAGES {
            if me == 0 {
                world.send(buffer, 1, 1).expect("send");
            } else {
                world.recv(buffer, 0, 1).expect("receive");
            }
        }
        assert!(buffer.iter().all(|&byte| byte == 0));
        if me == 1 {
            let layers = rt.layers(0).expect("a peer");
            let mut kernel = layers.iter().filter(|state| state.layer.name() == "cma");
            if kernel.any(|state| state.refusal.is_none()) {
                *bytes.lock().expect("a lock") = rt.counters().get("get_bytes");
            }
        }
        rt.finalize().expect("finalize");
    });
    bytes.into_inner().expect("a lock")
}

#[test]
fn addresses_at_which_strings_are_slow_keep_from_the_kernel() {
    assume_slow_strings(true);
    if !has_slow_strings() {
        say::say("skipped: this processor has no vectors to copy by instead");
        return;
    }
    let Some(congruent) = through_the_kernel(0) else {
        say::say("skipped: the kernel does not copy between processes here");
        return;
    };
    assert!(congruent > 0, "nothing to avoid");
    assert!(through_the_kernel(64) > Some(0), "a line apart");
    for behind in [1, 16, 63] {
        assert_eq!(through_the_kernel(behind), Some(0), "{behind}");
    }
    assume_slow_strings(false);
    assert!(through_the_kernel(16) > Some(0), "strings are slow nowhere");
}
