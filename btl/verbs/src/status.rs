// SPDX-License-Identifier: MIT OR Apache-2.0
//! How an operation ended, in words.

use std::fmt;
use verbs_sys::status as code;

/// Why an operation failed: the numbers of libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

/// Success is no failure.
pub const SUCCESS: u32 = code::IBV_WC_SUCCESS;

macro_rules! statuses {
    ($($name:ident $value:ident: $words:literal, $remedy:literal;)*) => {
        impl Status {
            $(#[doc = concat!($words, ".")] pub const $name: Self = Self(code::$value);)*

            /// What happened.
            #[must_use]
            pub fn words(self) -> &'static str {
                match self.0 {
                    $(code::$value => $words,)*
                    _ => "the device failed the operation",
                }
            }

            /// What would help.
            #[must_use]
            pub fn remedy(self) -> &'static str {
                match self.0 {
                    $(code::$value => $remedy,)*
                    _ => "see the kernel's log",
                }
            }

            /// All that are known by name.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

statuses! {
    TOO_LONG IBV_WC_LOC_LEN_ERR: "the message is longer than the receive or the device allows", "report this: messages are cut before they are sent";
    OWN_PAIR IBV_WC_LOC_QP_OP_ERR: "the own side cannot send: its port is down or the request is malformed", "look at the link (`rdma link`)";
    OWN_MEMORY IBV_WC_LOC_PROT_ERR: "memory of the own side is not registered for this", "report this: memory is registered before it is sent";
    FLUSHED IBV_WC_WR_FLUSH_ERR: "the connection had failed before", "look at its first error, and at the link (`rdma link`)";
    BAD_RESPONSE IBV_WC_BAD_RESP_ERR: "the peer's answer made no sense", "compare the versions on both hosts";
    OWN_ACCESS IBV_WC_LOC_ACCESS_ERR: "the peer reached for memory of the own side that it may not touch", "report this: keys are given for what may be touched";
    INVALID_REQUEST IBV_WC_REM_INV_REQ_ERR: "the peer refuses the request as malformed", "is its receive too short? on a loaded machine raise the timeout";
    PEER_ACCESS IBV_WC_REM_ACCESS_ERR: "the peer's memory may not be touched so", "report this: the key is old or the range is too long";
    PEER_FAILED IBV_WC_REM_OP_ERR: "the peer could not carry it out", "look at the peer's messages";
    PEER_SILENT IBV_WC_RETRY_EXC_ERR: "the peer does not answer: it has died, or its link is down", "look at the other host; `rdma statistic` counts retries";
    PEER_FULL IBV_WC_RNR_RETRY_EXC_ERR: "the peer has no room for a message", "let it receive more, or raise the number of its buffers";
    ABORTED IBV_WC_REM_ABORT_ERR: "the peer aborted the operation", "look at the peer's messages";
    FATAL IBV_WC_FATAL_ERR: "the device has failed", "see the kernel's log";
    GENERAL IBV_WC_GENERAL_ERR: "the device failed in another way", "see the kernel's log";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {}); {}", self.words(), self.0, self.remedy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_words_and_a_remedy() {
        for status in Status::ALL {
            assert!(
                status.words().len() > 10 && status.remedy().len() > 5,
                "{status:?}"
            );
        }
        assert!(Status::PEER_SILENT.to_string().contains("status 12"));
        assert!(Status(99).to_string().contains("status 99"));
    }
}
