// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model as a provider.
//!
//! # Safety
//!
//! See [`super`].
#![allow(unsafe_code, reason = "implements a device")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::ptr::NonNull;
use std::sync::Arc;

use super::objects::{
    AddressHandleOf, Channel, Completions, Context, DomainOf, Memory, Open, PairOf, QueueCore,
    ReceivesCore, ReceivesOf, Shared,
};
use super::state::{self, Datagram, Receive, Registration, Send, Stage, State, Target};
use super::{EventPipe, Fabric};
use crate::provider::{
    Access, Address, Change, Event, Finished, Keys, Kind, Limits, PairSpec, Path, Piece, Port,
    Provider, Request, Verb,
};
use crate::timing::Timing;

/// Bytes that a request can carry: as much as a queue is ever asked for.
const INLINE: u32 = 512;

fn refused(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

// SAFETY: an operation touches only what `State::may` and `State::remote` find registered under its keys. It does so
// when it is carried out: from its posting on, until it has completed. A pair's drop forgets all that it waits for;
// receives that are shared are taken for pairs that exist.
unsafe impl Provider for Fabric {
    type Context = Context;
    type Domain = DomainOf;
    type Memory = Memory;
    type Channel = Channel;
    type Completions = Completions;
    type Receives = ReceivesOf;
    type QueuePair = PairOf;
    type AddressHandle = AddressHandleOf;
    type Shared = Shared;

    fn devices(&self) -> io::Result<Vec<String>> {
        let state = self.lock();
        let firsts = state.ports.iter().filter(|port| port.number == 1);
        Ok(firsts.map(|port| port.name.clone()).collect())
    }

    fn open(&self, name: &str) -> io::Result<Context> {
        let state = &mut *self.lock();
        let found = state.ports.iter().position(|port| port.name == name);
        let device = found.ok_or_else(|| refused(libc::ENODEV))?;
        state.opens += 1;
        let number = state.fresh();
        let pipe = EventPipe::new()?;
        let events = Arc::clone(&pipe.out);
        let listener = state::Listener {
            name: name.to_owned(),
            events: VecDeque::new(),
            pipe,
        };
        state.listeners.insert(number, listener);
        let fabric = self.clone();
        Ok(Context {
            fabric: self.clone(),
            device,
            events,
            open: Arc::new(Open { fabric, number }),
        })
    }

    fn limits(context: &Context) -> io::Result<Limits> {
        Ok(context.fabric.lock().ports[context.device].limits.clone())
    }

    fn port(context: &Context, port: u8) -> io::Result<Port> {
        let state = &mut *context.fabric.lock();
        state.looks += 1;
        let found = state.port_of(context.device, port);
        let port = &state.ports[found.ok_or_else(|| refused(libc::EINVAL))?];
        Ok(Port {
            active: port.active,
            packet: port.packet,
            message: port.message,
            lid: 0,
            ethernet: true,
            speed: port.speed,
        })
    }

    fn addresses(context: &Context, port: u8) -> io::Result<Vec<Address>> {
        let state = context.fabric.lock();
        let found = state.port_of(context.device, port);
        let bytes = state.ports[found.ok_or_else(|| refused(libc::EINVAL))?].address;
        Ok(vec![Address {
            index: 1,
            bytes,
            routable: true,
        }])
    }

    fn events(context: &Context) -> BorrowedFd<'_> {
        context.events.as_fd()
    }

    fn next_event(context: &Context) -> io::Result<Option<Event>> {
        let mut state = context.fabric.lock();
        let Some(listener) = state.listeners.get_mut(&context.open.number) else {
            return Ok(None);
        };
        let event = listener.events.pop_front();
        if listener.events.is_empty() {
            listener.pipe.take()?;
        }
        Ok(event)
    }

    fn domain(context: &Context) -> io::Result<DomainOf> {
        let mut state = context.fabric.lock();
        state.domains += 1;
        Ok(DomainOf {
            context: context.clone(),
            number: state.domains,
        })
    }

    unsafe fn register(
        domain: &DomainOf,
        at: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> io::Result<Memory> {
        let fabric = &domain.context.fabric;
        let already = fabric.registered();
        let mut state = fabric.lock();
        if state
            .memory_limit
            .is_some_and(|limit| already + length > limit)
        {
            return Err(refused(libc::ENOMEM));
        }
        let key = state.fresh() << 8 | 0x5a;
        let start = at.as_ptr().expose_provenance() as u64;
        state.memories.insert(
            key,
            Registration {
                domain: domain.number,
                start,
                length,
                access,
            },
        );
        Ok(Memory {
            fabric: fabric.clone(),
            key,
        })
    }

    fn keys(memory: &Memory) -> Keys {
        Keys {
            own: memory.key,
            peers: memory.key,
        }
    }

    fn channel(context: &Context) -> io::Result<Channel> {
        let pipe = EventPipe::new()?;
        let out = Arc::clone(&pipe.out);
        let mut state = context.fabric.lock();
        let number = state.fresh();
        state.channels.insert(number, pipe);
        Ok(Channel {
            fabric: context.fabric.clone(),
            number,
            out,
        })
    }

    fn descriptor(channel: &Channel) -> BorrowedFd<'_> {
        channel.out.as_fd()
    }

    fn take_wakes(channel: &Channel) -> io::Result<u32> {
        let mut state = channel.fabric.lock();
        state
            .channels
            .get_mut(&channel.number)
            .map_or(Ok(0), EventPipe::take)
    }

    fn completions(
        context: &Context,
        length: u32,
        channel: Option<&Channel>,
    ) -> io::Result<Completions> {
        let mut state = context.fabric.lock();
        let number = state.fresh();
        let queue = state::Completions {
            device: context.device,
            length,
            done: VecDeque::new(),
            channel: channel.map(|channel| channel.number),
            armed: false,
            fails: false,
        };
        state.queues.insert(number, queue);
        Ok(Completions(Arc::new(QueueCore {
            fabric: context.fabric.clone(),
            number,
        })))
    }

    fn lengthen(queue: &Completions, length: u32) -> io::Result<()> {
        if let Some(queue) = queue.0.fabric.lock().queues.get_mut(&queue.0.number) {
            queue.length = length;
        }
        Ok(())
    }

    fn arm(queue: &Completions) -> io::Result<()> {
        if let Some(queue) = queue.0.fabric.lock().queues.get_mut(&queue.0.number) {
            queue.armed = true;
        }
        Ok(())
    }

    fn poll(queue: &Completions, into: &mut [Finished]) -> io::Result<usize> {
        let mut state = queue.0.fabric.lock();
        let mut count = 0;
        if let Some(queue) = state.queues.get_mut(&queue.0.number) {
            if std::mem::take(&mut queue.fails) {
                // As with drivers: what the call had taken by then is told to nobody.
                let lost = into.len().min(queue.done.len());
                drop(queue.done.drain(..lost));
                return Err(refused(libc::EIO));
            }
            let done = std::iter::from_fn(|| queue.done.pop_front());
            for (place, finished) in into.iter_mut().zip(done) {
                *place = finished;
                count += 1;
            }
        }
        Ok(count)
    }

    fn receives(
        domain: &DomainOf,
        length: u32,
        shared: Option<(&Shared, &Completions)>,
    ) -> io::Result<ReceivesOf> {
        let context = &domain.context;
        let mut state = context.fabric.lock();
        if shared.is_some() && !state.ports[context.device].limits.shared_connections {
            return Err(refused(libc::EOPNOTSUPP));
        }
        let number = state.fresh();
        let receives = state::Receives {
            device: context.device,
            domain: domain.number,
            length,
            posted: VecDeque::new(),
            limit: 0,
            shared: shared.map(|(shared, queue)| (shared.number, queue.0.number)),
        };
        state.receives.insert(number, receives);
        let completions = shared.map(|(_, queue)| queue.clone());
        Ok(ReceivesOf(Arc::new(ReceivesCore {
            fabric: context.fabric.clone(),
            number,
            _completions: completions,
        })))
    }

    fn report_below(receives: &ReceivesOf, limit: u32) -> io::Result<()> {
        let mut state = receives.0.fabric.lock();
        let Some(queue) = state.receives.get_mut(&receives.0.number) else {
            return Ok(());
        };
        queue.limit = limit;
        if queue.posted.len() < limit as usize {
            queue.limit = 0;
            let device = queue.device;
            state.report(device, Event::ReceivesLow);
        }
        Ok(())
    }

    fn number_of_receives(receives: &ReceivesOf) -> io::Result<u32> {
        let state = receives.0.fabric.lock();
        let queue = state.receives.get(&receives.0.number);
        if queue.is_some_and(|queue| queue.shared.is_some()) {
            Ok(receives.0.number)
        } else {
            Err(refused(libc::EOPNOTSUPP))
        }
    }

    fn shared(context: &Context, file: Option<BorrowedFd<'_>>) -> io::Result<Shared> {
        let mut state = context.fabric.lock();
        if !state.ports[context.device].limits.shared_connections {
            return Err(refused(libc::EOPNOTSUPP));
        }
        let number = match file {
            // One file is one domain, whichever process opens it.
            Some(file) => std::fs::File::from(file.try_clone_to_owned()?)
                .metadata()?
                .ino(),
            None => {
                state.domains += 1;
                u64::MAX - state.domains
            }
        };
        Ok(Shared { number })
    }

    fn pair(domain: &DomainOf, spec: &PairSpec<'_, Self>) -> io::Result<(PairOf, u32)> {
        let context = &domain.context;
        let mut state = context.fabric.lock();
        let limits = &state.ports[context.device].limits;
        let shared = matches!(spec.kind, Kind::SharedSend | Kind::SharedReceive);
        if shared && !limits.shared_connections {
            return Err(refused(libc::EOPNOTSUPP));
        }
        if state.pairs.len() >= limits.pairs as usize {
            return Err(refused(libc::ENOMEM));
        }
        let number = state.fresh();
        let pair = state::QueuePair {
            kind: spec.kind,
            port: context.device,
            domain: domain.number,
            queue: spec.completions.0.number,
            receives: spec.receives.map(|receives| receives.0.number),
            shared: spec.shared.map(|shared| shared.number),
            own: VecDeque::new(),
            holders: 1,
            stage: Stage::Fresh,
            peer: None,
            qkey: 0,
            timing: Timing::default(),
            waiting: VecDeque::new(),
            fault: None,
            answers_lost: false,
        };
        state.pairs.insert(number, pair);
        let pair = PairOf {
            fabric: context.fabric.clone(),
            number,
            _completions: spec.completions.clone(),
            _receives: spec.receives.cloned(),
        };
        Ok((pair, spec.depths.inline.min(INLINE)))
    }

    fn open_pair(
        domain: &DomainOf,
        shared: &Shared,
        completions: &Completions,
        number: u32,
    ) -> io::Result<PairOf> {
        let fabric = &domain.context.fabric;
        let mut state = fabric.lock();
        let pair = state
            .pairs
            .get_mut(&number)
            .filter(|pair| pair.kind == Kind::SharedReceive && pair.shared == Some(shared.number));
        pair.ok_or_else(|| refused(libc::EINVAL))?.holders += 1;
        Ok(PairOf {
            fabric: fabric.clone(),
            number,
            _completions: completions.clone(),
            _receives: None,
        })
    }

    fn number(pair: &PairOf) -> u32 {
        pair.number
    }

    fn change(pair: &PairOf, kind: Kind, change: &Change) -> io::Result<()> {
        let mut state = pair.fabric.lock();
        let port = state.pairs.get(&pair.number).map_or(0, |pair| pair.port);
        if let Change::Receive {
            peer: Some(peer), ..
        } = change
            && !state.answers(port, &peer.path)
        {
            return Err(refused(libc::ETIMEDOUT));
        }
        let prepared = match change {
            Change::Prepare { port: number, .. } => state.port_of(port, *number),
            _ => Some(port),
        };
        let (Some(entry), Some(port)) = (state.pairs.get_mut(&pair.number), prepared) else {
            return Err(refused(libc::EINVAL));
        };
        let stage = entry.stage;
        match (change, stage) {
            (Change::Fail, _) => state.fail(pair.number, None),
            (Change::Prepare { qkey, .. }, Stage::Fresh) => {
                entry.port = port;
                entry.qkey = *qkey;
                entry.stage = Stage::Prepared;
            }
            (Change::Receive { peer, .. }, Stage::Prepared)
                if peer.is_some() != (kind == Kind::Datagrams) =>
            {
                entry.peer = *peer;
                entry.stage = Stage::Receiving;
            }
            (Change::Send { timing, .. }, Stage::Receiving) => {
                entry.timing = *timing;
                entry.stage = Stage::Ready;
            }
            _ => return Err(refused(libc::EINVAL)),
        }
        state.run();
        Ok(())
    }

    fn address_handle(domain: &DomainOf, path: &Path) -> io::Result<AddressHandleOf> {
        let Context { fabric, device, .. } = &domain.context;
        if fabric.lock().answers(*device, path) {
            Ok(AddressHandleOf { to: path.to })
        } else {
            Err(refused(libc::ETIMEDOUT))
        }
    }

    unsafe fn send(pair: &PairOf, request: &Request<'_, Self>) -> io::Result<()> {
        let mut state = pair.fabric.lock();
        let inline = request
            .inline
            .then(|| request.pieces.iter().flat_map(given).collect::<Vec<u8>>());
        let target = match request.verb {
            Verb::Send | Verb::SendTo { .. } => Target::Peer,
            Verb::SendShared { receives } => Target::Shared(receives),
            Verb::Write(to) => Target::Write(to),
            Verb::Read(from) => Target::Read(from),
            Verb::ReadShared { from, receives } => Target::ReadShared(from, receives),
        };
        let send = Send {
            id: request.id,
            target,
            pieces: request.pieces.to_vec(),
            inline,
            immediate: request.immediate,
            signaled: request.signaled,
            since: None,
            delivered: false,
        };
        let Some(entry) = state.pairs.get_mut(&pair.number) else {
            return Err(refused(libc::EINVAL));
        };
        // The sending end of an extended connection names receives, and no other pair does.
        let names = matches!(target, Target::Shared(_) | Target::ReadShared(..));
        if names != (entry.kind == Kind::SharedSend) || entry.kind == Kind::SharedReceive {
            return Err(refused(libc::EINVAL));
        }
        match entry.stage {
            Stage::Ready => {}
            Stage::Failed => {
                entry.waiting.push_back(send);
                state.fail(pair.number, None);
                return Ok(());
            }
            _ => return Err(refused(libc::EINVAL)),
        }
        if let Verb::SendTo { ah, number, qkey } = request.verb {
            let domain = entry.domain;
            let Some(bytes) = state.gather(domain, &send) else {
                state.fail(pair.number, Some((send, crate::Status::OWN_MEMORY)));
                return Ok(());
            };
            let datagram = Datagram {
                to: ah.to,
                pair: number,
                qkey,
                source: pair.number,
                bytes,
                immediate: request.immediate,
            };
            state.send_datagram(pair.number, &send, datagram);
        } else {
            entry.waiting.push_back(send);
        }
        state.run();
        Ok(())
    }

    unsafe fn receive(pair: &PairOf, id: u64, pieces: &[Piece]) -> io::Result<()> {
        let mut state = pair.fabric.lock();
        let Some(entry) = state
            .pairs
            .get_mut(&pair.number)
            .filter(|pair| pair.stage != Stage::Fresh)
        else {
            return Err(refused(libc::EINVAL));
        };
        entry.own.push_back(Receive {
            id,
            pieces: pieces.to_vec(),
        });
        if entry.stage == Stage::Failed {
            state.fail(pair.number, None);
        }
        state.run();
        Ok(())
    }

    unsafe fn receive_shared(receives: &ReceivesOf, id: u64, pieces: &[Piece]) -> io::Result<()> {
        let mut state = receives.0.fabric.lock();
        let state: &mut State = &mut state;
        let Some(queue) = state.receives.get_mut(&receives.0.number) else {
            return Err(refused(libc::EINVAL));
        };
        if queue.posted.len() >= queue.length as usize {
            return Err(refused(libc::ENOMEM));
        }
        let registered = |piece: &Piece| {
            state
                .memories
                .get(&piece.key)
                .is_some_and(|memory| memory.domain == queue.domain)
        };
        if !pieces.iter().all(registered) {
            return Err(refused(libc::EINVAL));
        }
        queue.posted.push_back(Receive {
            id,
            pieces: pieces.to_vec(),
        });
        state.run();
        Ok(())
    }
}

/// The bytes of an inline request, which are the caller's for the length of the call.
fn given(piece: &Piece) -> Vec<u8> {
    super::run::load(piece)
}
