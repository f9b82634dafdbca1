// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a broker has to do with ranks of other nodes: it serves none of them, and learns of them from other brokers.
//!
//! The broker of rank 0's node *decides* whether all ranks have joined. The others report to it which of their ranks
//! have, and pass its answer on to them. A broker that loses its connection to that one decides alone, and learns no
//! more of ranks on other nodes.

use std::sync::Arc;
use std::time::Instant;

use super::{Broker, ClientState, Notice, Phase};
use crate::wireup::nodes::Nodes;
use crate::wireup::oob::ToHost;
use crate::wireup::{Card, Death, Event, Missing};

/// What a broker knows besides, in a job that spans nodes.
#[derive(Debug)]
pub(super) struct OtherNodes {
    nodes: Arc<Nodes>,
    /// The node whose ranks this broker serves.
    own: u32,
    decides: bool,
    /// For other brokers.
    out: Vec<MessageBeyond>,
    /// How many cards have come.
    cards: usize,
    /// The missing ranks, as the broker that decides reports them.
    absent: Option<Vec<Missing>>,
    aborted: bool,
}

impl OtherNodes {
    pub(super) fn absent(&self) -> Option<&[Missing]> {
        self.absent.as_deref()
    }

    /// So many more cards come, from rank `first` on. Says whether they are the last.
    fn count_cards(&mut self, first: u32, total: u32, more: usize) -> Result<bool, String> {
        let (known, size) = (self.cards, self.nodes.size());
        self.cards += more;
        let is_next = first as usize == known && more > 0;
        if !is_next || total as usize != size || self.cards > size {
            return Err("cards that do not belong to those before them".to_owned());
        }
        Ok(self.cards == size)
    }
}

/// A message for other brokers.
#[derive(Debug)]
pub(crate) struct MessageBeyond {
    /// The rank that it is about, if any.
    pub(crate) about: Option<usize>,
    pub(crate) message: ToHost,
}

impl Broker {
    /// From now on only the ranks of node `own` are this broker's to serve.
    pub(crate) fn serve_node(&mut self, nodes: Arc<Nodes>, own: u32) {
        self.beyond = Some(OtherNodes {
            nodes,
            own,
            decides: own == 0,
            out: Vec::new(),
            cards: 0,
            absent: None,
            aborted: false,
        });
    }

    /// Whether this rank is one that the broker serves.
    pub(crate) fn is_here(&self, rank: usize) -> bool {
        let beyond = self.beyond.as_ref();
        beyond.is_none_or(|beyond| beyond.nodes.node(rank) == Some(beyond.own))
    }

    pub(super) fn decides(&self) -> bool {
        self.beyond.as_ref().is_none_or(|beyond| beyond.decides)
    }

    pub(super) fn send_beyond(&mut self, about: Option<usize>, message: impl FnOnce() -> ToHost) {
        if let Some(beyond) = &mut self.beyond {
            beyond.out.push(MessageBeyond {
                about,
                message: message(),
            });
        }
    }

    /// Messages for other brokers.
    pub(crate) fn messages(&mut self) -> Vec<MessageBeyond> {
        let beyond = self.beyond.as_mut();
        beyond
            .map(|beyond| std::mem::take(&mut beyond.out))
            .unwrap_or_default()
    }

    /// Takes a message of the broker of this node. An error, in words, if that broker may not send it.
    pub(crate) fn hear(&mut self, node: u32, message: ToHost, now: Instant) -> Result<(), String> {
        let Some(beyond) = &mut self.beyond else {
            return Err("this job has one node".to_owned());
        };
        let (own, decides) = (beyond.own, beyond.decides);
        let awaits_answer = !decides && self.phase == Phase::Gathering;
        let nodes = Arc::clone(&beyond.nodes);
        // The rank that a message reports on, if that broker may do so.
        let reported = |rank: usize| match nodes.node(rank) {
            // The first broker forwards events of the ranks of all other nodes.
            Some(home) if home == node || node == 0 && home != own => Ok(rank),
            _ => Err(format!(
                "an event about rank {rank} from a host that may not report it"
            )),
        };
        match message {
            ToHost::Joined { rank, card } if decides => {
                self.far_join(reported(rank)?, card, now)?
            }
            ToHost::Event(Event::Died { rank, death }) => self.far_end(reported(rank)?, death),
            ToHost::Event(Event::Left { rank }) => self.far_leave(reported(rank)?),
            ToHost::Event(Event::Abort { code }) => self.far_abort(&nodes, node, code),
            ToHost::Cards {
                first,
                total,
                ref cards,
            } if awaits_answer => {
                let is_last = beyond.count_cards(first, total, cards.len())?;
                self.pass_on(message);
                if is_last {
                    self.all_have_joined();
                }
            }
            ToHost::Absent {
                waited_ms,
                ref missing,
            } if awaits_answer => {
                beyond.absent = Some(missing.clone());
                self.phase = Phase::GaveUp { waited_ms };
                self.pass_on(message);
            }
            ToHost::Beat => {}
            _ => return Err("a message that it has no cause to send".to_owned()),
        }
        Ok(())
    }

    fn far_join(&mut self, rank: usize, card: Card, now: Instant) -> Result<(), String> {
        let client = &mut self.clients[rank];
        if client.state != ClientState::Outside {
            return Err(format!("rank {rank} joins a second time"));
        }
        client.state = ClientState::Joined;
        client.card = Some(card);
        self.joined(rank, now);
        Ok(())
    }

    fn far_leave(&mut self, rank: usize) {
        if self.clients[rank].state == ClientState::Joined {
            self.clients[rank].state = ClientState::Left;
            self.announce(rank, Event::Left { rank });
        }
    }

    /// A rank of this node aborts the job. Only the first abort counts: no node can make others repeat it.
    fn far_abort(&mut self, nodes: &Nodes, node: u32, code: i32) {
        let beyond = self.beyond.as_mut();
        if beyond.is_some_and(|beyond| !std::mem::replace(&mut beyond.aborted, true)) {
            let rank = nodes.host(node).unwrap_or(0);
            self.announce(rank, Event::Abort { code });
            self.notices.push(Notice::Abort { rank, code });
        }
    }

    /// The out-of-band connection to this node is over, and it did not report that its ranks have left. They are dead
    /// for this job. The events of the other nodes end with rank 0's node.
    pub(crate) fn lose_node(&mut self, node: u32) {
        let Some(beyond) = &mut self.beyond else {
            return;
        };
        let nodes = Arc::clone(&beyond.nodes);
        let all = !beyond.decides;
        beyond.decides = true;
        let own = beyond.own;
        let lost: Vec<usize> = nodes.ranks(node).collect();
        let unheard = nodes
            .beyond(own)
            .filter(|&rank| all && nodes.node(rank) != Some(node));
        let unheard: Vec<usize> = unheard.collect();
        // All at once, so that none of them is named as one that may still come.
        for (ranks, death) in [(&lost, Death::NodeLost), (&unheard, Death::Unheard)] {
            for &rank in ranks {
                self.mark_far_end(rank, death);
            }
        }
        self.give_up_if_anyone_waits();
    }

    fn far_end(&mut self, rank: usize, death: Death) {
        self.mark_far_end(rank, death);
        if self.decides() {
            self.give_up_if_anyone_waits();
        }
    }

    fn mark_far_end(&mut self, rank: usize, death: Death) {
        let client = &mut self.clients[rank];
        match client.state {
            ClientState::Left | ClientState::Gone => return,
            ClientState::Outside | ClientState::Joined => client.state = ClientState::Gone,
        }
        client.child_death = Some(death);
        self.announce(rank, Event::Died { rank, death });
    }

    fn give_up_if_anyone_waits(&mut self) {
        let mut clients = self.clients.iter();
        let waiting = clients.any(|client| client.state == ClientState::Joined);
        let anyone_gone = self
            .clients
            .iter()
            .any(|client| client.state == ClientState::Gone);
        if self.phase == Phase::Gathering && waiting && anyone_gone {
            self.give_up(None);
        }
    }

    /// Gives a broker's answer to the ranks here that wait for it.
    fn pass_on(&mut self, message: ToHost) {
        let Some(message) = message.for_ranks() else {
            return;
        };
        let message = message.encode();
        for rank in 0..self.clients.len() {
            let is_waiting = self.clients[rank].state == ClientState::Joined && self.is_here(rank);
            if is_waiting {
                self.spread(rank, message.clone());
            }
        }
    }

    fn all_have_joined(&mut self) {
        self.phase = Phase::Complete;
        for rank in 0..self.clients.len() {
            let client = &mut self.clients[rank];
            if client.state == ClientState::Outside {
                client.state = ClientState::Joined;
            }
        }
    }
}

#[cfg(test)]
mod tests;
