// SPDX-License-Identifier: MIT OR Apache-2.0
//! One side of a test: a device with all that is made of it.
#![allow(dead_code, reason = "each test uses a part")]

use std::fmt::Debug;

use onecopy_verbs::pair::InitAttributes;
use onecopy_verbs::port::choose;
use onecopy_verbs::provider::{Access, Depths, Kind, Path};
use onecopy_verbs::{
    AddressHandle, Chosen, Completion, Device, Domain, Local, Operation, Prepared, Provider, Queue,
    QueuePair, QueuePairAddress, Ready, Receives, Refused, Region, Slot, Timing,
};

/// Sends under way in a pair.
pub(crate) const SENDS: u32 = 16;

pub(crate) struct Side<P: Provider> {
    pub(crate) chosen: Chosen<P>,
    pub(crate) device: Device<P>,
    pub(crate) domain: Domain<P>,
    pub(crate) queue: Queue<P>,
    pub(crate) receives: Receives<P>,
    pub(crate) region: Region<P>,
    pub(crate) timing: Timing,
}

impl<P: Provider + Debug> Side<P> {
    pub(crate) fn new(provider: &P, name: &str) -> Self {
        Self::with(provider, name, 256, 1024)
    }

    pub(crate) fn with(provider: &P, name: &str, slots: usize, bytes: usize) -> Self {
        let chosen = choose(provider, Some(name)).expect("a device");
        let device = chosen.device.clone();
        let domain = device.domain().expect("domain");
        let mut queue = Queue::new(&device, 64, true).expect("queue");
        let receives = queue.receives(&domain, 256, None).expect("receives");
        let region = domain
            .region(slots, bytes, Access::default())
            .expect("memory");
        Self {
            chosen,
            device,
            domain,
            queue,
            receives,
            region,
            timing: Timing::default(),
        }
    }

    pub(crate) fn slot(&self) -> Slot<P> {
        self.region.take().expect("a slot")
    }

    /// Posts receives.
    pub(crate) fn fill(&mut self, count: u64) {
        for cookie in 0..count {
            let slot = self.slot();
            self.queue
                .receive_shared(&self.receives, slot, cookie)
                .expect("room");
        }
    }

    pub(crate) fn send(
        &mut self,
        pair: &QueuePair<P>,
        bytes: &[u8],
        cookie: u64,
    ) -> Result<(), Refused<P>> {
        let mut slot = self.slot();
        slot.write(0, bytes);
        let local = Local::first(slot, bytes.len());
        pair.post(
            &mut self.queue,
            Operation::Send { immediate: None },
            local,
            cookie,
        )
    }

    pub(crate) fn poll(&mut self) -> Vec<Completion<P>> {
        let mut all = Vec::new();
        self.queue
            .poll(|completion| all.push(completion))
            .expect("the queue works");
        all
    }

    pub(crate) fn poll_all(&mut self) -> Vec<Completion<P>> {
        let mut all = Vec::new();
        loop {
            let some = self.poll();
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    /// The one completion that is there.
    pub(crate) fn one(&mut self) -> Completion<P> {
        let mut all = self.poll();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    pub(crate) fn prepared(
        &mut self,
        kind: Kind,
        qkey: u32,
        shared: Option<&P::Shared>,
    ) -> QueuePair<P, Prepared> {
        let plain = matches!(kind, Kind::Connection | Kind::Datagrams);
        let attributes = InitAttributes {
            kind,
            receives: Some(&self.receives).filter(|_| plain),
            shared,
            depths: Depths {
                sends: SENDS,
                receives: 0,
                inline: 64,
            },
        };
        let pair = QueuePair::new(&self.domain, &mut self.queue, &attributes).expect("a pair");
        pair.prepare(&self.chosen, qkey).expect("prepared")
    }

    pub(crate) fn path_from(&self, other: &Self) -> Path {
        let address = QueuePairAddress {
            routed: true,
            gid: self.chosen.address.expect("address").bytes,
            ..QueuePairAddress::default()
        };
        address.path(&other.chosen)
    }

    /// The way to another side.
    pub(crate) fn address_handle(&self, to: &Self) -> AddressHandle<P> {
        self.domain
            .address_handle(&to.path_from(self))
            .expect("an address handle")
    }
}

fn joined<P: Provider + Debug>(
    a: &Side<P>,
    from: QueuePair<P, Prepared>,
    b: &Side<P>,
    to: QueuePair<P, Prepared>,
) -> (QueuePair<P, Ready>, QueuePair<P, Ready>) {
    let (own, peer) = (from.address(&a.chosen, 17), to.address(&b.chosen, 99));
    let peer = QueuePairAddress::from_bytes(&peer.to_bytes()).expect("as it was sent");
    let from = from
        .connect(&a.chosen, &own, &peer, a.timing)
        .expect("connected");
    let to = to
        .connect(&b.chosen, &peer, &own, b.timing)
        .expect("connected");
    (from, to)
}

/// Two pairs that are connected.
pub(crate) fn connected<P: Provider + Debug>(
    a: &mut Side<P>,
    b: &mut Side<P>,
) -> (QueuePair<P, Ready>, QueuePair<P, Ready>) {
    let (from, to) = (
        a.prepared(Kind::Connection, 0, None),
        b.prepared(Kind::Connection, 0, None),
    );
    joined(a, from, b, to)
}

/// The two ends of an extended connection.
pub(crate) fn extended<P: Provider + Debug>(
    a: &mut Side<P>,
    b: &mut Side<P>,
    shared: Option<&P::Shared>,
) -> (QueuePair<P, Ready>, QueuePair<P, Ready>) {
    let (from, to) = (
        a.prepared(Kind::SharedSend, 0, None),
        b.prepared(Kind::SharedReceive, 0, shared),
    );
    joined(a, from, b, to)
}

/// A pair for datagrams on each side.
pub(crate) fn datagrams<P: Provider + Debug>(
    a: &mut Side<P>,
    b: &mut Side<P>,
    qkey: u32,
) -> (QueuePair<P, Ready>, QueuePair<P, Ready>) {
    let open = |side: &mut Side<P>| {
        side.prepared(Kind::Datagrams, qkey, None)
            .open()
            .expect("open")
    };
    (open(a), open(b))
}

/// Nothing is under way that a test did not expect.
pub(crate) fn both<P: Provider + Debug>(a: &mut Side<P>, b: &mut Side<P>) {
    assert!(a.poll().is_empty() && b.poll().is_empty());
}
