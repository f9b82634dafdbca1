// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry that rank 0 puts into the table for all others. Rank 0 alone reads where each rank is, and publishes what
//! follows from that.

use std::net::SocketAddr;
use std::time::Duration;

use super::WireupError;
use super::meet::{Address, ListenerKind};
use super::nodes::Nodes;
use super::table::Table;
use crate::proof::Secret;

/// No value is longer, whatever a table permits. Slightly less than a value of PMI-1 has at most, 1024 bytes in common
/// servers (`launch/src/pmi.rs`).
const LONGEST: usize = 1000;
/// More pieces are not read. Chosen by magnitude: with the longest values they are a megabyte, far more than a digest
/// has.
const MOST_PIECES: usize = 1024;

/// How the ranks of a job are to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) nodes: Nodes,
    /// What a rank sends to be let in by its host.
    pub(super) secret: [u8; 16],
    pub(super) join_at: JoinAt,
}

/// Where each rank joins the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JoinAt {
    /// All are on one node: to this listener.
    Listener(Address),
    /// Each to the listener of its node, which is still to be opened.
    Nodes(NodesDigest),
}

/// What there is to know between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodesDigest {
    /// By node.
    pub(super) listeners: Vec<ListenerKind>,
    /// What ranks prove to each other that they know.
    pub(super) secret: Secret,
    /// For how long a node may be silent.
    pub(super) timeout: Duration,
    /// Where the hosts of other nodes reach that of rank 0.
    pub(super) places: Vec<SocketAddr>,
}

impl Digest {
    /// As one word.
    pub(super) fn encode(&self) -> String {
        let head = format!("{}|{}", hex(&self.secret), self.nodes.encode());
        match &self.join_at {
            JoinAt::Listener(address) => format!("1|{head}|{}", address.encode()),
            JoinAt::Nodes(between) => {
                let listeners: String =
                    between.listeners.iter().map(|kind| kind.letter()).collect();
                let places: Vec<String> = between.places.iter().map(ToString::to_string).collect();
                let (secret, timeout) = (hex(&between.secret), between.timeout.as_millis());
                format!(
                    "n|{head}|{listeners}|{secret}|{timeout}|{}",
                    places.join(",")
                )
            }
        }
    }

    /// The digest of a job of `size` ranks in this word.
    pub(super) fn decode(word: &str, size: usize) -> Option<Self> {
        let mut fields = word.split('|');
        let kind = fields.next()?;
        let secret = unhex(fields.next()?)?;
        let nodes = Nodes::decode(fields.next()?, size)?;
        let join_at = match kind {
            // A path may have such a mark.
            "1" => JoinAt::Listener(Address::decode(&fields.collect::<Vec<_>>().join("|"))?),
            "n" => {
                let listeners = fields.next()?.chars().map(ListenerKind::of_letter);
                let listeners: Vec<ListenerKind> = listeners.collect::<Option<_>>()?;
                let secret = unhex(fields.next()?)?;
                let timeout = Duration::from_millis(fields.next()?.parse::<u32>().ok()?.into());
                let places = fields.next()?.split(',').map(|place| place.parse().ok());
                let places: Vec<SocketAddr> = places.collect::<Option<_>>()?;
                if listeners.len() != nodes.count() || timeout.is_zero() || fields.next().is_some()
                {
                    return None;
                }
                JoinAt::Nodes(NodesDigest {
                    listeners,
                    secret,
                    timeout,
                    places,
                })
            }
            _ => return None,
        };
        Some(Self {
            nodes,
            secret,
            join_at,
        })
    }
}

/// Values have no blanks.
const BLANK: char = '~';

/// A word that holds the reason why there is no value.
pub(super) fn refusal(reason: &str) -> String {
    let short: String = reason.chars().take(600).collect();
    let graphic = |c: char| match c {
        ' ' => BLANK,
        c if c.is_ascii_graphic() => c,
        _ => '?',
    };
    format!("no|{}", short.chars().map(graphic).collect::<String>())
}

/// The reason in such a word.
pub(super) fn reason(word: &str) -> Option<String> {
    Some(word.strip_prefix("no|")?.replace(BLANK, " "))
}

/// Puts a word of any length, in as many pieces as the table needs.
pub(super) fn put(
    table: &mut dyn Table,
    call: &'static str,
    key: &str,
    word: &str,
) -> Result<(), WireupError> {
    let room = table.longest_value().min(LONGEST).saturating_sub(1).max(1);
    let pieces: Vec<&[u8]> = word.as_bytes().chunks(room).collect();
    for (number, piece) in pieces.iter().enumerate() {
        // The first byte marks whether one more follows.
        let mark = if number + 1 < pieces.len() { '+' } else { '.' };
        let value = format!("{mark}{}", String::from_utf8_lossy(piece));
        table.put(call, &format!("{key}-{number}"), &value)?;
    }
    Ok(())
}

/// The word that `rank` put in this way; empty if its pieces do not end.
pub(super) fn get(
    table: &mut dyn Table,
    call: &'static str,
    rank: usize,
    key: &str,
) -> Result<String, WireupError> {
    let mut word = String::new();
    for number in 0..MOST_PIECES {
        let value = table.get(call, rank, &format!("{key}-{number}"))?;
        if let Some(last) = value.strip_prefix('.') {
            word.push_str(last);
            return Ok(word);
        }
        let Some(piece) = value.strip_prefix('+') else {
            break;
        };
        word.push_str(piece);
    }
    Ok(String::new())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut out = [0; N];
    for (byte, position) in out.iter_mut().zip((0..text.len()).step_by(2)) {
        *byte = u8::from_str_radix(&text[position..position + 2], 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[derive(Debug, Default)]
    struct MapTable(HashMap<String, String>);

    impl Table for MapTable {
        fn launcher(&self) -> &'static str {
            "a test"
        }
        fn rank(&self) -> usize {
            0
        }
        fn size(&self) -> usize {
            1
        }
        fn longest_value(&self) -> usize {
            255
        }
        fn put(&mut self, _: &'static str, key: &str, value: &str) -> Result<(), WireupError> {
            assert!(value.len() <= 255 && value.bytes().all(|byte| byte.is_ascii_graphic()));
            self.0.insert(key.to_owned(), value.to_owned());
            Ok(())
        }
        fn get(&mut self, _: &'static str, _: usize, key: &str) -> Result<String, WireupError> {
            Ok(self.0[key].clone())
        }
        fn barrier(&mut self, _: &'static str) -> Result<(), WireupError> {
            Ok(())
        }
        fn finalize(&mut self) -> Result<(), WireupError> {
            Ok(())
        }
        fn abort(&mut self, _: i32) -> Result<(), WireupError> {
            Ok(())
        }
    }

    fn both() -> [Digest; 2] {
        let one = Digest {
            nodes: Nodes::by_keys([0, 0, 0]),
            secret: [0xab; 16],
            join_at: JoinAt::Listener(Address::Path("/dev/shm/onecopy-0/a|b".into())),
        };
        let several = Digest {
            nodes: Nodes::by_keys((0..700).map(|rank| rank * rank % 7)),
            secret: [1; 16],
            join_at: JoinAt::Nodes(NodesDigest {
                listeners: vec![
                    ListenerKind::Abstract,
                    ListenerKind::Path,
                    ListenerKind::Process,
                    ListenerKind::Path,
                ],
                secret: [0xcd; 32],
                timeout: Duration::from_secs(1),
                places: vec![
                    "10.0.0.1:7".parse().expect("v4"),
                    "[fd00::1]:65535".parse().expect("v6"),
                ],
            }),
        };
        [one, several]
    }

    #[test]
    fn the_digest_of_rank_0_is_read_whatever_the_table_takes() {
        for digest in both() {
            let size = digest.nodes.size();
            let word = digest.encode();
            let mut table = MapTable::default();
            put(&mut table, "test", "key", &word).expect("put");
            assert_eq!(get(&mut table, "test", 0, "key").expect("get"), word);
            assert_eq!(Digest::decode(&word, size), Some(digest));
            for cut in 0..word.len() {
                // A shorter path is a path.
                if !word.starts_with('1') || cut < 40 {
                    assert_eq!(Digest::decode(&word[..cut], size + 1), None);
                }
            }
        }
    }

    #[test]
    fn a_reason_comes_as_it_was_put() {
        let word = refusal("no way: none of A_B, b; why ä");
        assert!(word.bytes().all(|byte| byte.is_ascii_graphic()), "{word}");
        assert_eq!(
            reason(&word).as_deref(),
            Some("no way: none of A_B, b; why ?")
        );
        assert_eq!(Digest::decode(&word, 2), None);
        assert_eq!(reason("1|x"), None);
    }
}
