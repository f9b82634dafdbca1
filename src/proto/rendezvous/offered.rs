// SPDX-License-Identifier: MIT OR Apache-2.0
//! An announced message that the buffer of its receive fetches by itself, as the buffer of the send has offered. What
//! it declines is staged: no offer fails a message.

use super::super::layers::{declined, offer, taken_directly};
use super::Stepped;
use crate::error::Error;
use crate::request::{Offer, OfferedBy, StagedBuf, Taken};
use crate::state::Core;
use crate::state::statistics::CameBy;
use crate::state::transfer::{Mode, Transfer};
use onecopy_obs::Counters;
use onecopy_shm::fault;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Lets a staged buffer take all of a message that is offered, if it can. It is asked once.
#[cold]
pub(super) fn accept(
    counters: &mut Counters,
    process: Option<BorrowedFd<'_>>,
    transfer: &mut Transfer,
    buffer: &Arc<StagedBuf>,
) -> Option<Mode> {
    let bytes = transfer.announcement.remote.take_offer()?;
    let offered = Offer {
        by: OfferedBy::Peer(transfer.peer, process),
        bytes: &bytes,
    };
    let accepted = offer(counters, buffer, &offered, transfer.len);
    fault::point("device.accepted");
    accepted.then(|| Mode::Direct(Arc::clone(buffer)))
}

/// How far a buffer is that takes all of a message itself. What it declines comes another way.
pub(super) fn taken(core: &mut Core, transfer: &mut Transfer, found: Taken) -> Stepped {
    match found {
        Taken::NotYet => return Stepped::Rests { moved: false },
        Taken::All => {
            taken_directly(&mut core.counters, transfer.len);
            transfer.by = CameBy::Device;
            transfer.remaining.clear();
        }
        Taken::Declined(why) => declined(&mut core.counters, &why),
        Taken::Failed(why) => {
            core.requests
                .complete(transfer.request, Err(Error::Device(why)));
            transfer.remaining.clear();
        }
    }
    transfer.mode = Mode::Choose;
    Stepped::On
}

#[cfg(test)]
mod tests {
    use crate::comm::Comm;
    use crate::raw::{
        Activity, MessageBuf, Mode, OFFER_MAX, Offer, OfferedBy, Operation, Staged, Taken,
    };
    use crate::runtime::{Runtime, local_of_nodes, local_with};
    use crate::{Error, Result, Source, Status, Tag};
    use onecopy_obs::stats::{DEVICE, Row, Totals};
    use onecopy_obs::{CounterSnapshot, Knobs};
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    /// What a receive does with an offer.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Does {
        /// It does not know any.
        Nothing,
        Takes,
        Declines,
        Fails,
        /// It never comes to an end.
        Stays,
    }

    /// What was offered: by which rank, if it was another one, which bytes, and how many are wanted.
    type Accepted = (Option<u32>, Vec<u8>, u64);

    /// A buffer of a device: bytes that are all here, and all in reach of a receive that has the offer.
    #[derive(Debug)]
    struct Model {
        len: usize,
        offers: bool,
        does: Does,
        bytes: Mutex<Vec<u8>>,
        accepted: Mutex<Option<Accepted>>,
    }

    fn offer() -> Vec<u8> {
        (0..OFFER_MAX as u8).collect()
    }

    impl Model {
        fn new(len: usize, byte: u8, offers: bool, does: Does) -> Arc<Self> {
            Arc::new(Self {
                len,
                offers,
                does,
                bytes: Mutex::new(vec![byte; len]),
                accepted: Mutex::default(),
            })
        }
    }

    impl Staged for Model {
        fn bytes(&self) -> u64 {
            self.len as u64
        }
        fn ready(&self, range: Range<u64>) -> std::result::Result<usize, Arc<str>> {
            Ok((range.end - range.start) as usize)
        }
        fn show(&self, offset: u64, len: usize, to: &mut dyn FnMut(usize, &[u8])) -> bool {
            to(
                0,
                &self.bytes.lock().expect("lock")[offset as usize..][..len],
            );
            true
        }
        fn room(&self, range: Range<u64>) -> std::result::Result<u64, Arc<str>> {
            Ok(range.end - range.start)
        }
        fn take(&self, offset: u64, len: usize, from: &mut dyn FnMut(usize, &mut [u8])) -> bool {
            from(
                0,
                &mut self.bytes.lock().expect("lock")[offset as usize..][..len],
            );
            true
        }
        fn advance(&self) -> Activity {
            match self.accepted.lock().expect("lock").is_some() {
                true => Activity::Waits,
                false => Activity::Rests,
            }
        }
        fn offer(&self, _: bool) -> Option<Box<[u8]>> {
            self.offers.then(|| offer().into())
        }
        fn accept(&self, offer: &Offer<'_>, len: u64) -> bool {
            let by = match offer.by {
                OfferedBy::Own => None,
                OfferedBy::Peer(rank, process) => {
                    assert!(process.is_none(), "ranks of these tests are threads");
                    Some(rank)
                }
            };
            let before =
                self.accepted
                    .lock()
                    .expect("lock")
                    .replace((by, offer.bytes.to_vec(), len));
            assert_eq!(before, None, "it is asked once");
            self.does != Does::Nothing
        }
        fn taken(&self) -> Taken {
            match self.does {
                Does::Takes => Taken::All,
                Does::Stays => Taken::NotYet,
                Does::Fails => Taken::Failed("it broke".into()),
                Does::Nothing | Does::Declines => Taken::Declined("out of reach".into()),
            }
        }
    }

    fn wait(world: &Comm, operation: &Operation) -> Result<Status> {
        world.wait_until(|poll| poll.take(operation))
    }

    fn staged(model: &Arc<Model>) -> MessageBuf<'static> {
        MessageBuf::Staged(Arc::clone(model) as _)
    }

    const LEN: usize = 100_000;

    /// What has come from rank 0, by mechanism.
    fn came_from_0(rt: &Runtime) -> Row {
        let mut worker = rt.handle().gate.enter();
        *worker.engine.core.counters.row(0).expect("a row")
    }

    /// Sends a buffer of a device from rank 0 to rank 1, and gives what rank 1 received and both have counted. `late`:
    /// the receive comes behind the announcement.
    fn one(
        rt: &Runtime,
        offers: bool,
        does: Does,
        room: usize,
        late: bool,
    ) -> (Result<Status>, Arc<Model>, CounterSnapshot) {
        let world = rt.world();
        let before = rt.counters();
        let model;
        let result;
        if rt.rank() == 0 {
            model = Model::new(LEN, 7, offers, Does::Nothing);
            let sent = world
                .begin_send(staged(&model), 1, 3, Mode::Standard)
                .expect("begun");
            world.send(&[1u8], 1, 4).expect("behind it");
            result = wait(&world, &sent);
        } else {
            model = Model::new(room, 1, false, does);
            if late {
                world.recv(&mut [0u8], 0, 4).expect("the word");
            }
            let received = world.begin_receive(staged(&model), Source::Rank(0), Tag::Is(3));
            result = wait(&world, &received.expect("begun"));
            if !late {
                world.recv(&mut [0u8], 0, 4).expect("the word");
            }
        }
        world.barrier().expect("barrier");
        assert!(rt.counters().sends_rendezvous >= before.sends_rendezvous);
        (result, model, rt.counters())
    }

    fn is_whole(model: &Model) -> bool {
        model
            .bytes
            .lock()
            .expect("lock")
            .iter()
            .all(|&byte| byte == 7)
    }

    #[test]
    fn a_receive_that_takes_an_offer_gets_no_other_bytes() {
        for late in [false, true] {
            local_with(2, &Knobs::default(), |rt| {
                let (result, model, counters) = one(&rt, true, Does::Takes, LEN, late);
                assert_eq!(result.expect("a message").bytes, LEN);
                if rt.rank() == 1 {
                    let accepted = model.accepted.lock().expect("lock").clone();
                    let wanted = (Some(0), offer(), LEN as u64);
                    assert_eq!(accepted, Some(wanted));
                    assert!(!is_whole(&model), "nobody else brings them");
                    assert_eq!((counters.device_direct, counters.device_declined), (1, 0));
                    assert_eq!(counters.device_bytes, LEN as u64);
                    let by_device = Totals {
                        messages: 1,
                        bytes: LEN as u64,
                    };
                    assert_eq!(came_from_0(&rt).by[DEVICE], by_device);
                    assert!(
                        came_from_0(&rt).by[..DEVICE]
                            .iter()
                            .all(|by| by.bytes < 100)
                    );
                } else {
                    assert_eq!((counters.pipeline_bytes, counters.device_unoffered), (0, 0));
                }
                rt.finalize().expect("finalize");
            });
        }
    }

    #[test]
    fn what_is_declined_or_not_understood_is_staged() {
        for (offers, does, declined) in [
            (true, Does::Declines, 1),
            (true, Does::Nothing, 1),
            (false, Does::Takes, 0),
        ] {
            for late in [false, true] {
                local_with(2, &Knobs::default(), |rt| {
                    let (result, model, counters) = one(&rt, offers, does, LEN, late);
                    assert_eq!(result.expect("a message").bytes, LEN);
                    if rt.rank() == 1 {
                        assert!(is_whole(&model), "{does:?}");
                        let accepted = model.accepted.lock().expect("lock").is_some();
                        assert_eq!(accepted, offers);
                        assert_eq!(counters.device_direct, 0);
                        assert_eq!(counters.device_declined, declined, "{does:?}");
                    } else {
                        assert_eq!(counters.pipeline_bytes, LEN as u64);
                        assert_eq!(counters.device_unoffered, u64::from(!offers));
                    }
                    rt.finalize().expect("finalize");
                });
            }
        }
    }

    #[test]
    fn a_shorter_receive_takes_as_much_as_it_has_room_for() {
        for does in [Does::Takes, Does::Declines] {
            local_with(2, &Knobs::default(), |rt| {
                let (result, model, _) = one(&rt, true, does, 1000, false);
                if rt.rank() == 0 {
                    assert_eq!(result.expect("sent").bytes, LEN);
                } else {
                    assert!(matches!(result, Err(Error::Truncated { .. })), "{result:?}");
                    let accepted = model.accepted.lock().expect("lock").clone();
                    assert_eq!(accepted.map(|(.., len)| len), Some(1000));
                }
                rt.finalize().expect("finalize");
            });
        }
    }

    #[test]
    fn a_copy_that_fails_fails_the_receive_alone() {
        local_with(2, &Knobs::default(), |rt| {
            let (result, ..) = one(&rt, true, Does::Fails, LEN, false);
            match rt.rank() {
                0 => assert_eq!(result.expect("sent").bytes, LEN),
                _ => assert!(matches!(result, Err(Error::Device(_))), "{result:?}"),
            }
            // The pair goes on.
            let (result, ..) = one(&rt, true, Does::Takes, LEN, true);
            result.expect("a message");
            rt.finalize().expect("finalize");
        });
    }

    #[test]
    fn a_receive_in_the_host_gets_the_bytes() {
        local_with(2, &Knobs::default(), |rt| {
            let world = rt.world();
            if rt.rank() == 0 {
                let model = Model::new(LEN, 7, true, Does::Nothing);
                let sent = world.begin_send(staged(&model), 1, 3, Mode::Standard);
                wait(&world, &sent.expect("begun")).expect("sent");
            } else {
                let mut got = vec![0u8; LEN];
                world.recv(&mut got, 0, 3).expect("received");
                assert!(got.iter().all(|&byte| byte == 7));
                let counters = rt.counters();
                assert_eq!((counters.device_direct, counters.device_declined), (0, 0));
            }
            world.barrier().expect("barrier");
            rt.finalize().expect("finalize");
        });
    }

    /// What offers nothing says where its bytes are, and a layer reads them from there.
    #[test]
    fn a_receive_in_a_device_reads_what_the_host_exposes() {
        local_with(2, &Knobs::default(), |rt| {
            let world = rt.world();
            if rt.rank() == 0 {
                let mut heap = rt.alloc(LEN).expect("memory");
                heap.fill(7);
                world.send(&heap[..], 1, 3).expect("sent");
            } else {
                let model = Model::new(LEN, 1, false, Does::Takes);
                let before = rt.counters().map_bytes;
                let received = world.begin_receive(staged(&model), Source::Rank(0), Tag::Is(3));
                wait(&world, &received.expect("begun")).expect("received");
                assert!(is_whole(&model));
                assert_eq!(rt.counters().map_bytes - before, LEN as u64);
            }
            world.barrier().expect("barrier");
            rt.finalize().expect("finalize");
        });
    }

    /// There nobody could open what is offered.
    #[test]
    fn nothing_is_offered_to_another_node() {
        local_of_nodes(2, 2, &Knobs::default(), |rt| {
            let (result, model, counters) = one(&rt, true, Does::Takes, LEN, true);
            result.expect("a message");
            assert!(model.accepted.lock().expect("lock").is_none());
            assert_eq!((counters.device_direct, counters.device_unoffered), (0, 0));
            rt.finalize().expect("finalize");
        });
    }

    /// A message of a rank to itself, whichever of both comes first.
    #[test]
    fn a_rank_takes_its_own_offer() {
        local_with(1, &Knobs::default(), |rt| {
            let world = rt.world();
            for (turn, does) in [Does::Takes, Does::Declines, Does::Nothing, Does::Fails]
                .into_iter()
                .flat_map(|does| [does, does])
                .enumerate()
            {
                let (from, to) = (
                    Model::new(LEN, 7, true, Does::Nothing),
                    Model::new(LEN, 1, false, does),
                );
                let before = rt.counters();
                let send = || {
                    world
                        .begin_send(staged(&from), 0, 3, Mode::Standard)
                        .expect("begun")
                };
                let receive = || {
                    let received = world.begin_receive(staged(&to), Source::Any, Tag::Is(3));
                    received.expect("begun")
                };
                let (sent, received) = match turn % 2 {
                    0 => (send(), receive()),
                    _ => {
                        let received = receive();
                        (send(), received)
                    }
                };
                let result = wait(&world, &received);
                wait(&world, &sent).expect("sent");
                let after = rt.counters();
                let direct = after.device_direct - before.device_direct;
                let declined = after.device_declined - before.device_declined;
                let accepted = to.accepted.lock().expect("lock").clone();
                assert_eq!(accepted, Some((None, offer(), LEN as u64)));
                match does {
                    Does::Fails => assert!(matches!(result, Err(Error::Device(_))), "{result:?}"),
                    _ => assert_eq!(result.expect("received").bytes, LEN),
                }
                let is_staged = matches!(does, Does::Declines | Does::Nothing);
                assert_eq!(is_whole(&to), is_staged, "{does:?}");
                assert_eq!(direct, u64::from(does == Does::Takes));
                assert_eq!(declined, u64::from(is_staged));
            }
            rt.finalize().expect("finalize");
        });
    }

    /// A sender gives up while the receive fetches: the receive has the last word, and ends when it is told to.
    #[test]
    fn an_abandoned_send_waits_for_nobody() {
        local_with(2, &Knobs::default(), |rt| {
            let world = rt.world();
            if rt.rank() == 0 {
                let model = Model::new(LEN, 7, true, Does::Nothing);
                let sent = world.begin_send(staged(&model), 1, 3, Mode::Standard);
                world.recv(&mut [0u8], 1, 5).expect("it fetches");
                world.peek(|poll| poll.withdraw(sent.expect("begun")));
                world.send(&[1u8], 1, 4).expect("the word");
            } else {
                let model = Model::new(LEN, 1, false, Does::Stays);
                let received = world.begin_receive(staged(&model), Source::Rank(0), Tag::Is(3));
                let received = received.expect("begun");
                world.wait_until(|_| model.accepted.lock().expect("lock").is_some().then_some(()));
                world.send(&[1u8], 0, 5).expect("the word");
                world.recv(&mut [0u8], 0, 4).expect("the word");
                assert!(
                    !world.peek(|poll| poll.is_done(&received)),
                    "it still fetches"
                );
            }
        });
    }
}
