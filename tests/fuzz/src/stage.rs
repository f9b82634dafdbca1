// SPDX-License-Identifier: MIT OR Apache-2.0
//! One real engine among peers that are nothing but the input: no thread, no chance.
//!
//! The victim is rank 0, run by a real [`Runtime`]. The other ranks have real segments, and what
//! stands in them, and what they write into the victim's, is a script. Between calls of the victim the target reads the
//! script. While the victim waits in a call, the engine looks for events of the job in every round. Each look is a step
//! of the script. At its end all peers leave, so that every wait must end: one that does not is a hang, which the
//! fuzzer reports.

use crate::input::Input;
use crate::seal::sealed;
use nix::sys::eventfd::{EfdFlags, EventFd};
use onecopy::wireup::{Card, Emergency, Event, Introduction, Wireup, WireupError};
use onecopy::{Knobs, Options, Runtime};
use onecopy_obs::{LayerList, WaitSleep};
use onecopy_shm::cells::MappedCells;
use onecopy_shm::coll::{Channel, CopyRequest, Info};
use onecopy_shm::layout::{Geometry, PAGE};
use onecopy_shm::ring::{Consumer, Producer};
use onecopy_shm::segment::{OwnSegment, PeerSegment};
use onecopy_shm::sync::HeavyFence;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Steps of one script at most.
const STEPS: usize = 2000;
const HEAP: usize = 1 << 20;

fn knobs() -> Knobs {
    Knobs {
        chunk_size: Some(8 << 10),
        pool_max: 1 << 20,
        heap_size: Some(HEAP),
        coop_min: Some(64 << 10),
        // Peers are no processes: what asks the kernel for their memory would find the victim's own.
        layers: LayerList::Only(vec!["cico", "heap"]),
        // Every round looks for events, and so moves the script.
        wait_spin: Some(0),
        wait_yield: Some(0),
        wait_sleep: WaitSleep::Off,
        liveness_period: Duration::ZERO,
        ..Knobs::default()
    }
}

fn geometry(ranks: usize) -> Geometry {
    let knobs = knobs();
    Geometry {
        ranks: ranks as u32,
        ring_slots: knobs.ring_slots_among(ranks) as u32,
        chunk_bytes: knobs.chunk_bytes() as u32,
        chunks: (knobs.pool_max / knobs.chunk_bytes()) as u32,
        heap_bytes: HEAP as u64,
        coll_channels: Geometry::channels_for(knobs.coll_pool, ranks),
    }
}

/// A peer's means, as far as it has looked at the victim.
struct Peer {
    own: OwnSegment,
    file: File,
    /// Its own end of the world's channel, and the victim's.
    end: Channel,
    victim: Option<Means>,
}

struct Means {
    segment: PeerSegment,
    file: File,
    out: Producer<MappedCells>,
    inbox: Consumer<MappedCells>,
    end: Channel,
}

/// What a script does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: it is over.
    Over,
    /// A peer did something.
    Peers,
    /// It is the victim's turn, with this choice.
    Victim(u8),
}

/// Peers and what is left of their script.
pub(crate) struct Script {
    pub(crate) input: Input,
    peers: Vec<Peer>,
    steps: usize,
    /// Peers that have left.
    left: usize,
    geometry: Geometry,
    victim: Option<OwnedFd>,
    /// Collectives that the victim has started.
    pub(crate) collectives: u32,
    /// How many of 256 steps are about collectives.
    lines: u8,
}

impl Script {
    fn means(&mut self, peer: usize) -> Option<&mut Means> {
        let Self {
            peers,
            victim,
            geometry,
            ..
        } = self;
        let peer = &mut peers[peer];
        if peer.victim.is_none() {
            let fd = victim.as_ref()?;
            let rank = peer.own.rank();
            let segment = PeerSegment::open(fd.try_clone().ok()?, 0, rank, geometry)
                .expect("the victim's segment");
            peer.victim = Some(Means {
                file: File::from(fd.try_clone().ok()?),
                out: segment.producer().expect("a ring"),
                inbox: peer.own.consumer(0),
                end: segment.channel(0).expect("a channel"),
                segment,
            });
        }
        peer.victim.as_mut()
    }

    /// Does the next step, unless it is the victim's.
    pub(crate) fn step(&mut self) -> Next {
        if self.input.is_over() || self.steps >= STEPS {
            return Next::Over;
        }
        self.steps += 1;
        let op = self.input.byte();
        let peer = usize::from(op >> 5) % self.peers.len();
        if op & 31 >= 20 {
            return Next::Victim(self.input.byte());
        }
        let about_lines = op & 31 < self.lines;
        let choice = self.input.byte();
        if self.means(peer).is_some() {
            if about_lines {
                self.line(peer, choice % 12);
            } else {
                self.record(peer, choice % 10);
            }
        }
        Next::Peers
    }

    fn record(&mut self, number: usize, choice: u8) {
        let (geometry, rank) = (self.geometry, number as u32 + 1);
        let Self { input, peers, .. } = self;
        let peer = &mut peers[number];
        let Some(means) = &mut peer.victim else {
            return;
        };
        let envelope = |byte: u8| u64::from(byte % 8) | u64::from(byte / 64) << 32;
        let mut publish = |kind: u8, meta: u64, body: &[u8]| {
            let slots = onecopy_shm::ring::slots_for(body.len());
            if let Some(mut claim) = means.out.claim(slots) {
                claim.write(0, body);
                claim.publish(kind, body.len(), meta);
            }
            means.segment.set_active();
        };
        match choice {
            // A record that checks.
            0..=2 => {
                let (kind, meta) = (1 + input.byte() % 10, envelope(input.byte()));
                publish(kind, meta, &sealed(kind, [(); 5].map(|()| input.word())));
            }
            // A record of any bytes.
            3 => {
                let (kind, meta) = (1 + input.byte() % 10, envelope(input.byte()));
                let body = input.piece(200);
                publish(kind, meta, &body);
            }
            // Raw bytes in its ring, or in its control lines.
            4 => {
                let offset = u64::from(input.short()) * 8 % geometry.ring_bytes();
                write(
                    &means.file,
                    geometry.ring_offset(rank).0 + offset,
                    input.word(),
                );
                means.segment.set_active();
            }
            5 => {
                let offset = input.below(32) * 8;
                write(
                    &means.file,
                    geometry.ctrl_offset(rank).0 + offset,
                    input.word(),
                );
            }
            // It lies as a receiver.
            6 => {
                let offset = input.below(32) * 8;
                write(&peer.file, geometry.ctrl_offset(0).0 + offset, input.word());
            }
            // Takes what the victim has sent, and remembers the request.
            7 => {
                if let Ok(Some(record)) = means.inbox.peek() {
                    let mut body = [0; 48];
                    let len = record.len.min(48);
                    means.inbox.read(&record, 0, &mut body[..len]);
                    let words = body
                        .chunks_exact(8)
                        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
                    for (known, word) in input.known.iter_mut().zip(words) {
                        *known = word;
                    }
                    means.inbox.advance(record);
                    means.inbox.publish_tail();
                }
            }
            // Anywhere in either segment, its header not.
            8 => {
                let offset = anywhere(input, &geometry);
                write(&means.file, offset, input.word());
            }
            _ => {
                let offset = anywhere(input, &geometry);
                write(&peer.file, offset, input.word());
            }
        }
    }

    fn line(&mut self, number: usize, choice: u8) {
        let (geometry, me) = (self.geometry, number + 1);
        let Self {
            input,
            peers,
            collectives,
            ..
        } = self;
        let peer = &mut peers[number];
        let Some(means) = &mut peer.victim else {
            return;
        };
        // About the collective that is under way, or near it.
        let seq = collectives
            .wrapping_add(u32::from(input.byte() % 16))
            .wrapping_sub(4);
        let phase = |byte: u8| 1 + u32::from(byte % 8);
        match choice {
            0..=3 => {
                let kinds = input.byte();
                let kind = [0, 1, 2, 3, 0x12, 0x21, 0x23, 0x40, 0x43, 0x83, 0xa3, kinds]
                    [usize::from(kinds) % 12];
                let info = Info {
                    done: seq.wrapping_sub(input.byte().into()),
                    kind,
                    len: input.byte(),
                };
                let phase = phase(input.byte());
                let words = [(); 6].map(|()| input.word());
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                peer.end.publish(seq, phase, info, &bytes);
            }
            4 => peer.end.advance(seq, phase(input.byte())),
            5 => {
                let offset = (usize::from(input.short()) % 4096) & !7;
                peer.end
                    .write_slot(seq, offset, &input.word().to_le_bytes());
            }
            6 => peer.end.set_done(seq),
            7 => peer.end.fail(input.word()),
            8 => peer.end.set_ack(seq, phase(input.byte())),
            // Asks the victim to copy, or answers what it asks.
            9 => {
                let request = CopyRequest {
                    seq,
                    ticket: 1 + u32::from(input.byte()),
                    owner: u32::from(input.byte() % 4),
                    buffer: u32::from(input.byte() % 4),
                    offset: input.word(),
                    len: input.word() as u32,
                };
                peer.end
                    .ask(&means.end, me, usize::from(input.byte() % 2), request);
            }
            10 => {
                let stage = usize::from(input.byte() % 2);
                if let Some(request) = means.end.copy_request(seq, stage) {
                    let bytes = vec![7; request.len as usize];
                    means.end.answer(stage, &request, &bytes);
                }
            }
            // Any word of either end.
            _ => {
                let offset =
                    geometry.channel_offset(0).0 + u64::from(input.short()) * 8 % PAGE as u64;
                let file = if input.byte() % 4 == 0 {
                    &means.file
                } else {
                    &peer.file
                };
                write(file, offset, input.word());
            }
        }
    }

    /// An event for the victim: when the script is over, the peers leave one by one.
    fn next_event(&mut self) -> Option<Event> {
        match self.step() {
            Next::Over if self.left < self.peers.len() => {
                self.left += 1;
                Some(Event::Left { rank: self.left })
            }
            _ => None,
        }
    }
}

fn write(file: &File, offset: u64, word: u64) {
    file.write_all_at(&word.to_le_bytes(), offset)
        .expect("a word of a segment");
}

/// A word in what every peer maps, behind the page of the header.
fn anywhere(input: &mut Input, geometry: &Geometry) -> u64 {
    let index = u64::from(input.short()) | u64::from(input.byte()) << 16;
    let end = geometry.pool_end().0;
    PAGE as u64 + index * 8 % (end - PAGE as u64)
}

/// The script, shared by the target and the engine's wire-up.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<Script>>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Stage {
    script: Shared,
    ranks: usize,
    /// Always readable: there may always be an event.
    event_fd: EventFd,
}

impl Wireup for Stage {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        self.ranks
    }
    fn join(&mut self, card: Card, segment: BorrowedFd<'_>) -> Result<Vec<Card>, WireupError> {
        self.script.lock().victim = segment.try_clone_to_owned().ok();
        Ok(vec![card; self.ranks])
    }
    fn introduce(&mut self, peer: usize) -> Result<Introduction, WireupError> {
        let script = self.script.lock();
        let fd = script.peers[peer - 1].own.fd().try_clone_to_owned();
        Ok(Introduction {
            memory: fd.map_err(|source| WireupError::System {
                call: "introduce",
                what: "dup",
                source,
            })?,
            grant: None,
            pidfd: None,
            pid: None,
            uid: 0,
        })
    }
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event_fd.as_fd())
    }
    fn poll(&mut self) -> Result<Option<Event>, WireupError> {
        Ok(self.script.lock().next_event())
    }
    fn leave(&mut self) -> Result<(), WireupError> {
        Ok(())
    }
    fn emergency(&self) -> Arc<dyn Emergency> {
        Arc::new(Nobody)
    }
}

/// An abort ends nobody: the peers are a script.
struct Nobody;

impl Emergency for Nobody {
    fn abort(&self, _code: i32) -> Result<(), WireupError> {
        Ok(())
    }
}

/// Plays an input: `victim` is called when it is the victim's turn. `lines` of 20 steps of peers are
/// about collectives.
pub(crate) fn play(data: &[u8], lines: u8, act: impl FnOnce(&Runtime, &Shared)) {
    let mut input = Input::new(data);
    let ranks = 2 + input.below(3) as usize;
    let geometry = geometry(ranks);
    let peers = (1..ranks).map(|rank| {
        let fence = HeavyFence::without_membarrier();
        let own = OwnSegment::create(rank as u32, geometry, fence, 77).expect("a segment");
        let end = own.channel(0).expect("a channel");
        // As a rank does before it joins.
        end.open(1, 0);
        Peer {
            file: File::from(own.fd().try_clone_to_owned().expect("a descriptor")),
            own,
            end,
            victim: None,
        }
    });
    let script = Shared(Arc::new(Mutex::new(Script {
        peers: peers.collect(),
        input,
        steps: 0,
        left: 0,
        geometry,
        victim: None,
        collectives: 0,
        lines,
    })));
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let stage = Stage {
        script: script.clone(),
        ranks,
        event_fd: EventFd::from_value_and_flags(1, flags).expect("an eventfd"),
    };
    let options = Options {
        knobs: knobs(),
        wireup: Some(Box::new(stage)),
        ..Options::default()
    };
    let runtime = Runtime::init_with(options).expect("a job of one real rank");
    act(&runtime, &script);
    // Errors are fine; panics and hangs are not.
    let _ = runtime.finalize();
}
