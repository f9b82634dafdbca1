// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collectives by messages that members give up.

use crate::coll::Collective;
use crate::runtime::local_with;
use crate::wireup::Death;
use onecopy_obs::Knobs;
use onecopy_shm::sync::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};

const LEN: usize = 1 << 20;

/// Rank 1 announces its bytes to rank 0, loses rank 2, and writes other bytes to its buffer. Then rank 0 comes.
#[test]
fn nobody_takes_what_a_root_has_written_after_it_gave_up() {
    let settings = [("ONECOPY_LAYERS", "cma"), ("ONECOPY_COOP", "off")];
    let knobs = Knobs::from_iter(settings).expect("knobs").0;
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let is_over = AtomicBool::new(false);
    local_with(3, &knobs, |rt| {
        let world = rt.world();
        let own = world.with_context(5);
        world.barrier().expect("all are there");
        match rt.rank() {
            0 => {
                // The memory of rank 1 stays what it is until this rank is done.
                let kept: Vec<u8> = receiver.lock().expect("lock").recv().expect("the word");
                let mut got = vec![0u8; LEN];
                let result = own.bcast(&mut got, 1);
                is_over.store(true, Ordering::SeqCst);
                assert!(
                    result.is_err() || got.iter().all(|&byte| byte == 7),
                    "rank 0 has got what rank 1 wrote after it gave up"
                );
                drop(kept);
            }
            1 => {
                let bcast = Collective::Bcast { root: 1 };
                let buffer = Some(vec![7u8; LEN]);
                let mut request = own.start(&bcast, None::<Vec<u8>>, buffer).expect("start");
                let announced = || {
                    let worker = rt.handle().gate.enter();
                    let peer = worker.engine.peers[0].as_ref();
                    peer.is_some_and(|peer| peer.outbound.unanswered() > 0)
                };
                while !announced() {
                    assert!(!request.test(), "nobody has taken it");
                }
                let gate = &rt.handle().gate;
                gate.enter().engine.believe_dead(2, Death::Signal(9));
                let (ended, _, buffer) = request.wait_both();
                assert!(ended.is_err(), "a member is dead");
                let mut buffer = buffer.expect("the buffer");
                buffer.fill(9);
                sender.send(buffer).expect("rank 0 listens");
            }
            // It lives, and calls nothing.
            _ => {
                while !is_over.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            }
        }
    });
}
