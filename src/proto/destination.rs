// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the bytes of a message go: to a call, to a request, or to where they wait for their receive. The counterpart
//! of [`super::eager::Payload`].
//!
//! What comes from an endpoint passes here: whole messages in slots, and chunks of eager messages and of pipelines.
//! The exceptions have one place to go: what a lightweight receive takes at once, and short messages of the call that
//! runs.

use crate::endpoint::Part;
use crate::records::ChunkBody;
use crate::request::{Request, RequestId, Requests};
use crate::select::chunks::Chunks;
use crate::state::stored::StoredBytes;
use onecopy_shm::copy::Kernel;
use onecopy_shm::layout::OutOfBounds;
use onecopy_shm::loan::{LoanError, LoanTable};

/// Where the bytes of a message go.
#[derive(Debug)]
pub(crate) enum Destination<'d> {
    /// To the buffer of the call that receives, which has room for all of them.
    Call(&'d mut [u8]),
    /// To the buffer of a request.
    Request(&'d Request),
    /// To a place where they wait for their receive. They come in their order.
    StoredBytes(&'d mut StoredBytes),
    /// Nowhere: the receive is over, and the bytes are dropped.
    Nowhere,
}

impl<'d> Destination<'d> {
    /// The buffer of a request.
    #[inline(always)]
    pub(crate) fn of_request(requests: &'d Requests, id: RequestId) -> Self {
        requests.get(id).map_or(Self::Nowhere, Self::Request)
    }

    /// Calls `read` for each piece of the `len` bytes from `offset` on, with the piece's offset among them. Bytes that
    /// do not fit are dropped. An error: the buffer was withdrawn.
    #[inline(always)]
    pub(crate) fn fill(
        self,
        loans: &mut LoanTable,
        offset: u64,
        len: usize,
        mut read: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), LoanError> {
        match self {
            Self::Call(out) => read(0, &mut out[offset as usize..][..len]),
            Self::Request(request) => return fill_request(request, loans, (offset, len), read),
            Self::StoredBytes(held) => return fill_held(held, (offset, len), read),
            Self::Nowhere => {}
        }
        Ok(())
    }
}

/// Out of line, so that what is inlined where a message arrives stays short.
#[inline(never)]
fn fill_request(
    request: &Request,
    loans: &mut LoanTable,
    (offset, len): (u64, usize),
    mut read: impl FnMut(usize, &mut [u8]),
) -> Result<(), LoanError> {
    let fitting_len = fitting(request.len, offset, len);
    if fitting_len > 0 || len == 0 {
        return request.buf.write(loans, offset, fitting_len, read);
    }
    // Behind the end of a buffer that is too short there is nothing to write. What names the bytes is checked all the
    // same.
    read(0, &mut []);
    Ok(())
}

/// Out of line, as [`fill_request`].
#[inline(never)]
fn fill_held(
    held: &mut StoredBytes,
    (offset, len): (u64, usize),
    mut read: impl FnMut(usize, &mut [u8]),
) -> Result<(), LoanError> {
    match held.extend(len) {
        Some(room) => read(0, room),
        None => {
            return Err(LoanError::Outside {
                offset: offset as usize,
                len,
                size: held.len(),
            });
        }
    }
    Ok(())
}

/// How many of `len` bytes from `offset` on lie in a buffer of `room` bytes.
#[inline(always)]
fn fitting(room: u64, offset: u64, len: usize) -> usize {
    (len as u64).min(room.saturating_sub(offset)) as usize
}

/// Reads a chunk to where its bytes go, or as much of it as has come. `from` copies from an offset of the chunk on, by
/// a copy kernel. The inner error: the buffer was withdrawn. The outer one says what no correct peer would have sent.
#[inline(always)]
pub(crate) fn read_chunk(
    (loans, chunks): (&mut LoanTable, &Chunks),
    mut from: impl FnMut(usize, &mut [u8], Kernel) -> Result<(), OutOfBounds>,
    body: &ChunkBody,
    to: Destination<'_>,
) -> Result<Result<(), LoanError>, String> {
    let kernel = chunks.kernel_out(body.total as usize);
    let mut failed = None;
    let written = to.fill(loans, body.offset, body.piece as usize, |offset, out| {
        if let Err(error) = from(offset, out, kernel) {
            failed = Some(error);
        }
    });
    match failed {
        None => Ok(written),
        Some(error) => Err(error.to_string()),
    }
}

/// What a record says of as much of its chunk as has come.
#[inline]
pub(super) fn shown(part: Option<Part>, whole: ChunkBody) -> Result<ChunkBody, String> {
    let Some(part) = part else {
        return Ok(whole);
    };
    if part.whole != whole.piece {
        return Err(format!(
            "a chunk of {} bytes that has {}",
            whole.piece, part.whole
        ));
    }
    Ok(ChunkBody {
        offset: whole.offset + part.offset,
        piece: part.len,
        ..whole
    })
}
