// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the benchmark and its ranks say to each other: one line of JSON each way.

use super::{BenchError, Missing, Mode, Pattern};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

/// An order to all ranks of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Nothing but a raw probe, of this many rounds.
    Probe(u32),
    /// One batch, probed before and after.
    Batch(Work),
    /// The same messages, each checked, not timed.
    Check(Work),
    /// Give the buffers back.
    Release,
    /// End.
    Leave,
}

/// One batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The limit to run instead of a mechanism.
    pub limit: Option<String>,
    /// Whether the limit's private buffers are on huge pages.
    pub huge: bool,
    /// How messages follow one another.
    pub pattern: Pattern,
    /// Which memory they use.
    pub mode: Mode,
    /// Bytes of one message.
    pub size: usize,
    /// Messages on their way at once.
    pub window: usize,
    /// Rank 0 is the root of every collective, so that ranks may run ahead; not: roots take turns.
    pub one_root: bool,
    /// Iterations of the pattern.
    pub iterations: u64,
}

/// Length of a batch in microseconds. Chosen by magnitude: a state of the machine lasts longer, and its probes are a
/// small part of it.
const BATCH_US: f64 = 4000.0;

impl Work {
    /// Sets the iterations that fill a batch, as far as one that took `us` microseconds per message tells. Whether that
    /// is known well by now.
    pub fn fill(&mut self, us: f64) -> bool {
        let each = if self.pattern == Pattern::PingPong {
            2
        } else {
            1
        };
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to a small range"
        )]
        let fit =
            (BATCH_US / (us.max(1e-3) * (self.window * each) as f64)).clamp(1.0, 400_000.0) as u64;
        let before = self.iterations;
        // The first iterations are slow: grow step by step.
        self.iterations = fit.min(before * 32);
        fit <= before.saturating_mul(2)
    }
}

/// A rank's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The rank has started; these mechanisms it did not find.
    Ready(Vec<Missing>),
    /// The order is done.
    Done(Outcome),
    /// The order failed.
    Failed(String),
}

/// What came of an order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Microseconds per message.
    pub us: f64,
    /// Raw hand-off before, nanoseconds.
    pub before_ns: f64,
    /// Raw hand-off after, nanoseconds.
    pub after_ns: f64,
    /// Bytes that this rank checked.
    pub checked_bytes: u64,
    /// Bytes of temporary buffers that this rank's pool had at most.
    pub pool_bytes: u64,
}

/// One end of the line between the benchmark and a rank.
#[derive(Debug)]
pub struct Line {
    reader: BufReader<UnixStream>,
}

impl Line {
    /// Speaks through this socket.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        Self {
            reader: BufReader::new(socket),
        }
    }

    /// Sends one message.
    ///
    /// # Errors
    ///
    /// If the other end is gone.
    pub fn say<T: Serialize>(&mut self, message: &T) -> Result<(), BenchError> {
        let mut text = serde_json::to_vec(message)
            .map_err(|error| BenchError::Wrong(format!("order as JSON: {error}")))?;
        text.push(b'\n');
        self.reader
            .get_mut()
            .write_all(&text)
            .map_err(BenchError::io("line to a rank"))
    }

    /// Receives one message; none when the other end has closed.
    ///
    /// # Errors
    ///
    /// If what arrives is not a message.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BenchError> {
        let mut text = String::new();
        match self.reader.read_line(&mut text) {
            Ok(0) => Ok(None),
            Ok(_) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|error| BenchError::Wrong(format!("line of a rank: {error}"))),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(BenchError::io("line of a rank")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_survive_the_line() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (Line::new(a), Line::new(b));
        let order = Order::Batch(Work {
            limit: Some("direct".into()),
            huge: false,
            pattern: Pattern::BiBw,
            mode: Mode::OffCache,
            size: 8,
            window: 64,
            one_root: false,
            iterations: 3,
        });
        a.say(&order).unwrap();
        assert_eq!(b.hear::<Order>().unwrap(), Some(order));
        let answer = Answer::Done(Outcome {
            us: 0.25,
            ..Outcome::default()
        });
        b.say(&answer).unwrap();
        assert_eq!(a.hear::<Answer>().unwrap(), Some(answer));
        drop(b);
        assert_eq!(a.hear::<Answer>().unwrap(), None);
    }
}
