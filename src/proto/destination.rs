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
use crate::state::stored::StoredBytes;
use onecopy_shm::coop::MessageRange;
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

    /// Calls `read` for each piece of a range of the message, with the piece's offset in the range. Bytes that do not
    /// fit are dropped. An error: the buffer was withdrawn.
    #[inline(always)]
    pub(crate) fn fill(
        self,
        loans: &mut LoanTable,
        range: MessageRange,
        mut read: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), LoanError> {
        match self {
            Self::Call(out) => read(0, &mut out[range.offset as usize..][..range.len as usize]),
            Self::Request(request) => return fill_request(request, loans, range, read),
            Self::StoredBytes(held) => return fill_held(held, range, read),
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
    range: MessageRange,
    mut read: impl FnMut(usize, &mut [u8]),
) -> Result<(), LoanError> {
    let fitting_len = range.len.min(request.len.saturating_sub(range.offset));
    if fitting_len > 0 || range.len == 0 {
        return request
            .buf
            .write(loans, range.offset, fitting_len as usize, read);
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
    range: MessageRange,
    mut read: impl FnMut(usize, &mut [u8]),
) -> Result<(), LoanError> {
    match held.extend(range.len as usize) {
        Some(room) => read(0, room),
        None => {
            return Err(LoanError::Outside {
                offset: range.offset as usize,
                len: range.len as usize,
                size: held.len(),
            });
        }
    }
    Ok(())
}

/// Reads a chunk to where its bytes go, or as much of it as has come. `from` copies from an offset of the chunk on. The
/// inner error: the buffer was withdrawn. The outer one says what no correct peer would have sent.
#[inline(always)]
pub(crate) fn read_chunk(
    loans: &mut LoanTable,
    mut from: impl FnMut(usize, &mut [u8]) -> Result<(), OutOfBounds>,
    body: &ChunkBody,
    to: Destination<'_>,
) -> Result<Result<(), LoanError>, String> {
    let mut failed = None;
    let begin = body.begin as usize;
    let written = to.fill(loans, body.range(), |offset, out| {
        if let Err(error) = from(begin + offset, out) {
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
