// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that have arrived from members in a collective under way. They are added to the statistics page once for each
//! member and layer, when all have arrived. So a long collective adds there no more often than a short one.

use onecopy_btl::LayerId;
use onecopy_shm::stats::StatsPage;

/// Bytes by member and layer.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    arrived: Vec<(u32, LayerId, u64)>,
    /// Where the last bytes were added.
    last: usize,
}

impl Tally {
    /// Adds bytes that arrived from `rank`.
    pub(crate) fn add(&mut self, rank: u32, layer: LayerId, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let is = |&(other, by, _): &(u32, LayerId, u64)| (other, by) == (rank, layer);
        // Members come one after the other, or in turn.
        let index = [self.last, self.last + 1, 0]
            .into_iter()
            .find(|&index| self.arrived.get(index).is_some_and(is))
            .or_else(|| self.arrived.iter().position(is));
        self.last = index.unwrap_or_else(|| {
            self.arrived.push((rank, layer, 0));
            self.arrived.len() - 1
        });
        self.arrived[self.last].2 += bytes as u64;
    }

    /// All has arrived.
    pub(crate) fn count(&mut self, page: &mut StatsPage) {
        for (rank, layer, bytes) in self.arrived.drain(..) {
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
