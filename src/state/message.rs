// SPDX-License-Identifier: MIT OR Apache-2.0
//! A message that came before its receive.

use super::stored::StoredBytes;
use crate::peer::charge;
use crate::records::LIST_ENTRY;
use crate::request::{RequestId, Requests};
use onecopy_btl::RemoteRange;
use onecopy_shm::coop::MessageRange;

/// A message that came before its receive.
#[derive(Debug)]
pub(crate) enum UnexpectedMessage {
    Whole(WholeMessage),
    Partial(PartialMessage),
    /// Its announcement.
    Announced(Announcement),
    /// Sent by this rank to itself, and too long to be buffered.
    Own(RequestId),
}

/// All bytes of a message.
#[derive(Debug)]
pub(crate) struct WholeMessage {
    pub(crate) bytes: StoredBytes,
    /// The sender's request that wants to know of the match.
    pub(crate) sync: Option<u64>,
}

/// The first bytes of a message, the rest of which is under way.
#[derive(Debug)]
pub(crate) struct PartialMessage {
    pub(crate) bytes: StoredBytes,
    /// How many there will be.
    pub(crate) total: u64,
}

impl UnexpectedMessage {
    /// Whether nothing more is needed of the sender.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_) | Self::Own(_))
    }

    pub(crate) fn len(&self, requests: &Requests) -> u64 {
        match self {
            Self::Whole(whole) => whole.bytes.len() as u64,
            Self::Partial(partial) => partial.total,
            Self::Announced(announcement) => announcement.len,
            Self::Own(id) => requests.get(*id).map_or(0, |request| request.len),
        }
    }
}

/// Where an announced message's bytes are.
#[derive(Debug, Clone)]
pub(crate) enum Remote {
    One(RemoteRange),
    Many(Vec<RemoteRange>),
    /// Too scattered to say: only the sender can collect them.
    Unknown,
    /// In a device. A buffer of this rank that is one's, too, may know what to do with this.
    Offered(Box<[u8]>),
}

impl Remote {
    /// Takes the offer out, if it is one: it is accepted once, or never.
    pub(crate) fn take_offer(&mut self) -> Option<Box<[u8]>> {
        if !matches!(self, Self::Offered(_)) {
            return None;
        }
        match std::mem::replace(self, Self::Unknown) {
            Self::Offered(offer) => Some(offer),
            _ => None,
        }
    }

    /// Where a range of the message is.
    pub(crate) fn ranges(&self, range: MessageRange) -> Vec<RemoteRange> {
        let (mut skip, mut left) = (range.offset, range.len);
        let all = match self {
            Self::One(range) => std::slice::from_ref(range),
            Self::Many(ranges) => ranges,
            Self::Unknown | Self::Offered(_) => &[],
        };
        let mut part = Vec::new();
        for range in all {
            if skip >= range.len {
                skip -= range.len;
                continue;
            }
            let n = left.min(range.len - skip);
            if n == 0 {
                break;
            }
            part.push(range.part(skip, n));
            (skip, left) = (0, left - n);
        }
        part
    }
}

/// An announcement, checked.
#[derive(Debug)]
pub(crate) struct Announcement {
    pub(crate) len: u64,
    pub(crate) request: u64,
    pub(crate) remote: Remote,
    pub(crate) coop_id: u32,
    /// The sender has rewritten its buffer since it sent it last.
    pub(crate) rewritten: bool,
}

impl Announcement {
    /// Bytes of its list or its offer, if it came with one.
    pub(crate) fn list_bytes(&self) -> Option<u64> {
        match &self.remote {
            Remote::Many(ranges) => Some((ranges.len() * LIST_ENTRY) as u64),
            Remote::Offered(offer) => Some(offer.len() as u64),
            Remote::One(_) | Remote::Unknown => None,
        }
    }

    /// What is charged against the sender's credit for it until it is matched.
    pub(crate) fn list_charge(&self) -> u64 {
        self.list_bytes().map_or(0, charge)
    }
}
