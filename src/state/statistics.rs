// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank counts, by its own counters and by the peer that bytes came from.

use onecopy_btl::LayerId;
use onecopy_obs::stats::DEVICE;
use onecopy_shm::stats::StatsPage;

/// By what the last bytes of a message come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum CameBy {
    /// What carries records.
    #[default]
    Carrier,
    Layer(LayerId),
    /// One copy of a device, from another rank's device.
    Device,
}

impl From<Option<LayerId>> for CameBy {
    fn from(layer: Option<LayerId>) -> Self {
        layer.map_or(Self::Carrier, Self::Layer)
    }
}

/// What a rank counts, where tools can read it.
#[derive(Debug)]
pub(crate) struct Statistics(StatsPage);

impl Statistics {
    pub(crate) fn new(page: StatsPage) -> Self {
        Self(page)
    }

    /// Counts a message that found its receive when it came.
    #[inline(always)]
    pub(crate) fn count_expected(&mut self) {
        self.0.recv_expected += 1;
    }

    /// Counts a message from `rank` whose bytes came by `layer`.
    #[inline(always)]
    pub(crate) fn count_from(&mut self, rank: u32, layer: LayerId, bytes: u64) {
        self.count_message(rank, layer as usize, bytes);
    }

    /// Counts a message from `rank` whose bytes a device has copied from another one.
    #[cold]
    pub(crate) fn count_device(&mut self, rank: u32, bytes: u64) {
        self.count_message(rank, DEVICE, bytes);
    }

    #[inline(always)]
    fn count_message(&mut self, rank: u32, mechanism: usize, bytes: u64) {
        self.0.bytes_received += bytes;
        if let Some(row) = self.0.row(rank) {
            row.add(mechanism, bytes);
        }
    }

    /// Counts bytes of a message from `rank` that come by another way than its last ones.
    pub(crate) fn count_part(&mut self, rank: u32, layer: LayerId, bytes: u64) {
        self.0.bytes_received += bytes;
        if let Some(row) = self.0.row(rank) {
            row.add_bytes(layer as usize, bytes);
        }
    }

    /// Counts what `rank` contributed to a short collective, and how it came.
    #[inline(always)]
    pub(crate) fn count_contribution(&mut self, rank: u32, layer: LayerId, bytes: usize) {
        if let Some(row) = self.0.row(rank) {
            row.add(layer as usize, bytes as u64);
        }
    }
}

impl std::ops::Deref for Statistics {
    type Target = StatsPage;
    #[inline(always)]
    fn deref(&self) -> &StatsPage {
        &self.0
    }
}

impl std::ops::DerefMut for Statistics {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut StatsPage {
        &mut self.0
    }
}
