// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that may still come by lanes that are over. Receives stay promised to them.

use std::time::Instant;

/// What may come by one lane, and until when. By then the peer's device has delivered what was posted, or given it up.
#[derive(Debug)]
struct Late {
    lane: u32,
    messages: usize,
    until: Instant,
}

/// What may come late, of all lanes.
#[derive(Debug, Default)]
pub(super) struct LateMessages(Vec<Late>);

impl LateMessages {
    /// A lane of this number is over.
    pub(super) fn add(&mut self, lane: u32, messages: usize, until: Instant) {
        self.0.push(Late {
            lane,
            messages,
            until,
        });
    }

    /// A message has come; whether it had been promised a receive.
    pub(super) fn take(&mut self, lane: u32) -> bool {
        let late = self.0.iter_mut().find(|late| late.lane == lane);
        late.is_some_and(|late| {
            let some = late.messages > 0;
            late.messages -= usize::from(some);
            some
        })
    }

    /// How many will not come any more.
    pub(super) fn end(&mut self, now: Instant) -> usize {
        let mut ended = 0;
        self.0.retain(|late| {
            let stays = now < late.until && late.messages > 0;
            ended += if stays { 0 } else { late.messages };
            stays
        });
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_message_counts_once_and_none_for_ever() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut late = LateMessages::default();
        late.add(7, 2, now + second);
        late.add(8, 4, now + 3 * second);
        assert_eq!(
            [7, 9, 7, 7].map(|lane| late.take(lane)),
            [true, false, true, false]
        );
        assert!(late.take(8));
        assert_eq!((late.end(now), late.end(now + 2 * second)), (0, 0));
        assert_eq!(
            (late.end(now + 3 * second), late.end(now + 4 * second)),
            (3, 0)
        );
    }
}
