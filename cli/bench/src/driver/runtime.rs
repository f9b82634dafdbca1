// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages through the runtime.

use super::{Call, Driver, Window, WindowMut};
use crate::pattern::RankPart;
use crate::{BenchError, Mechanism, Missing, Pattern};
use onecopy::coll::PredefinedOp;
use onecopy::{Comm, HeapBuf, LayerId, Runtime, Status};
use onecopy_shm::limits::{PageBuf, Pages};
use std::ops::{Deref, DerefMut};

const TAG: i32 = 1;

/// One rank of a job of the runtime.
pub struct RuntimeDriver {
    runtime: Runtime,
    world: Comm,
    mechanism: Mechanism,
    missing: Vec<Missing>,
}

/// Memory of the kind that the mechanism is for.
#[derive(Debug)]
pub enum RuntimeBuffer {
    /// Private memory.
    Private(PageBuf),
    /// From the runtime's `alloc`.
    Heap(HeapBuf),
}

impl Deref for RuntimeBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Private(pages) => pages,
            Self::Heap(heap) => heap,
        }
    }
}

impl DerefMut for RuntimeBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Private(pages) => pages,
            Self::Heap(heap) => heap,
        }
    }
}

impl RuntimeDriver {
    /// Joins the job that started this process. Its environment sets which layers the runtime may use.
    ///
    /// # Errors
    ///
    /// If the job cannot be joined.
    pub fn join(mechanism: Mechanism, part: RankPart) -> Result<Self, BenchError> {
        let runtime = Runtime::init()?;
        let world = runtime.world();
        let layer = match mechanism {
            Mechanism::Heap => Some(LayerId::Heap),
            Mechanism::Cma | Mechanism::CmaHuge => Some(LayerId::Cma),
            Mechanism::Xpmem => Some(LayerId::Xpmem),
            Mechanism::Knem => Some(LayerId::Knem),
            _ => None,
        };
        let mut missing = Vec::new();
        let peer = match part.side() {
            Some(0) => Some(part.ranks - 1),
            Some(_) => Some(0),
            None => None,
        };
        if let (Some(layer), Some(peer)) = (layer, peer) {
            let refusal = runtime
                .layers(peer)?
                .into_iter()
                .find(|state| state.layer == layer)
                .and_then(|state| state.refusal);
            if let Some(refusal) = refusal {
                missing.push(Missing {
                    mechanism: mechanism.name().to_owned(),
                    reason: refusal.reason,
                    remedy: refusal.remedy,
                });
            }
        }
        Ok(Self {
            runtime,
            world,
            mechanism,
            missing,
        })
    }
}

fn whole(status: Status, bytes: usize) -> Result<(), BenchError> {
    if status.bytes == bytes {
        Ok(())
    } else {
        Err(BenchError::Wrong(format!(
            "a message of {} bytes arrived where {bytes} were expected",
            status.bytes
        )))
    }
}

fn all_whole(statuses: &[Status], bytes: usize) -> Result<(), BenchError> {
    statuses.iter().try_for_each(|status| whole(*status, bytes))
}

impl Driver for RuntimeDriver {
    type Buffer = RuntimeBuffer;

    fn missing(&self) -> Vec<Missing> {
        self.missing.clone()
    }

    fn alloc(&mut self, bytes: usize) -> Result<RuntimeBuffer, BenchError> {
        let pages = match self.mechanism {
            Mechanism::Heap => return Ok(RuntimeBuffer::Heap(self.runtime.alloc(bytes)?)),
            Mechanism::CmaHuge => Pages::Huge,
            _ => Pages::Small,
        };
        PageBuf::new(bytes, pages)
            .map(RuntimeBuffer::Private)
            .map_err(BenchError::io("message buffer"))
    }

    #[inline]
    fn send(&mut self, message: &[u8], dest: usize) -> Result<(), BenchError> {
        Ok(self.world.send(message, dest, TAG)?)
    }

    #[inline]
    fn recv(&mut self, place: &mut [u8], source: usize) -> Result<(), BenchError> {
        let bytes = place.len();
        whole(self.world.recv(place, source, TAG)?, bytes)
    }

    fn sendrecv(
        &mut self,
        message: &[u8],
        place: &mut [u8],
        peer: usize,
    ) -> Result<(), BenchError> {
        let bytes = place.len();
        let status = self.world.sendrecv(message, peer, TAG, place, peer, TAG)?;
        whole(status, bytes)
    }

    fn send_window(&mut self, messages: Window<'_>, dest: usize) -> Result<(), BenchError> {
        self.world.scope(|scope| {
            for message in messages.messages() {
                scope.isend(message, dest, TAG)?;
            }
            scope.wait_all()
        })?;
        Ok(())
    }

    fn recv_window(&mut self, places: WindowMut<'_>, source: usize) -> Result<(), BenchError> {
        let bytes = places.size;
        let statuses = self.world.scope(|scope| {
            for place in places.places() {
                scope.irecv(place, source, TAG)?;
            }
            scope.wait_all()
        })?;
        all_whole(&statuses, bytes)
    }

    fn exchange_windows(
        &mut self,
        messages: Window<'_>,
        places: WindowMut<'_>,
        peer: usize,
    ) -> Result<(), BenchError> {
        let (size, count) = (places.size, places.count);
        let statuses = self.world.scope(|scope| {
            for place in places.places() {
                scope.irecv(place, peer, TAG)?;
            }
            for message in messages.messages() {
                scope.isend(message, peer, TAG)?;
            }
            scope.wait_all()
        })?;
        all_whole(&statuses[..count], size)
    }

    fn collective(&mut self, call: Call<'_>) -> Result<(), BenchError> {
        let Call {
            pattern,
            source,
            destination,
            root,
        } = call;
        let world = &self.world;
        let sum = PredefinedOp::Sum;
        // Buffers begin on pages and advance by lines, so doubles are aligned.
        let doubles = |source| bytemuck::cast_slice::<u8, f64>(source);
        let done = match pattern {
            Pattern::Barrier => world.barrier(),
            Pattern::Bcast if world.rank() == root => world.bcast(source, root),
            Pattern::Bcast => world.bcast(destination, root),
            Pattern::Gather => world.gather(source, destination, root),
            Pattern::Scatter => world.scatter(source, destination, root),
            Pattern::Allgather => world.allgather(source, destination),
            Pattern::Alltoall => world.alltoall(source, destination),
            reduction => {
                let (send, recv) = (doubles(source), bytemuck::cast_slice_mut(destination));
                match reduction {
                    Pattern::Reduce => world.reduce::<f64>(send, recv, sum, root),
                    Pattern::Allreduce => world.allreduce::<f64>(send, recv, sum),
                    Pattern::ReduceScatter => world.reduce_scatter_block::<f64>(send, recv, sum),
                    Pattern::Scan => world.scan::<f64>(send, recv, sum),
                    Pattern::Exscan => world.exscan::<f64>(send, recv, sum),
                    other => {
                        let name = other.name();
                        return Err(BenchError::Usage(format!("{name} is no collective")));
                    }
                }
            }
        };
        Ok(done?)
    }

    fn pool_peak(&mut self, restart: bool) -> u64 {
        if restart {
            self.runtime.buffers().restart_peak();
        }
        self.runtime.buffers().stats().peak_bytes
    }

    fn leave(self) -> Result<(), BenchError> {
        drop(self.world);
        Ok(self.runtime.finalize()?)
    }
}
