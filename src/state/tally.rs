// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has come from members in a collective under way. It counts once for each member and way, when all has come. So
//! a long collective costs its rows no more than a short one.

use onecopy_btl::LayerId;
use onecopy_shm::stats::StatsPage;

/// Bytes by member and way.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    came: Vec<(u32, LayerId, u64)>,
    /// Where the last bytes were added.
    last: usize,
}

impl Tally {
    /// Adds bytes that came from `rank`.
    pub(crate) fn add(&mut self, rank: u32, layer: LayerId, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let is = |&(other, by, _): &(u32, LayerId, u64)| (other, by) == (rank, layer);
        let here = |at: usize| self.came.get(at).is_some_and(is);
        // Members come one after the other, or in turn.
        let at = [self.last, self.last + 1, 0]
            .into_iter()
            .find(|&at| here(at))
            .or_else(|| self.came.iter().position(is));
        self.last = at.unwrap_or_else(|| {
            self.came.push((rank, layer, 0));
            self.came.len() - 1
        });
        self.came[self.last].2 += bytes as u64;
    }

    /// All has come.
    pub(crate) fn count(&mut self, page: &mut StatsPage) {
        for (rank, layer, bytes) in self.came.drain(..) {
            if let Some(row) = page.row(rank) {
                row.add(layer as usize, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_in_any_order_count_once_for_each_way() {
        let (map, chunks) = (LayerId::MAP, LayerId::CHUNKS);
        let mut tally = Tally::default();
        for round in 1..4 {
            for rank in [2, 0, 1] {
                tally.add(rank, map, 10 * round);
            }
        }
        tally.add(1, chunks, 7);
        tally.add(0, chunks, 0);
        let mut page = StatsPage::private(3);
        tally.count(&mut page);
        tally.count(&mut page);
        for rank in 0..3 {
            let row = *page.row(rank).expect("a rank");
            let by = |layer: LayerId| {
                (
                    row.by[layer as usize].messages,
                    row.by[layer as usize].bytes,
                )
            };
            assert_eq!(by(map), (1, 60), "{rank}");
            let short = if rank == 1 { (1, 7) } else { (0, 0) };
            assert_eq!(by(chunks), short, "{rank}");
        }
    }
}
