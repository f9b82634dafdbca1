// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the knobs say of connections between nodes, by purpose: the library asks for a purpose, and names no layer.

use super::Knobs;
use std::time::Duration;

/// The settings of a connection between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// How long what was sent may stay unanswered.
    pub timeout: Duration,
    /// The knob that says so.
    pub timeout_knob: &'static str,
    /// How long a rank tries to connect.
    pub connect: Duration,
    /// The knob that says so.
    pub connect_knob: &'static str,
    /// Bytes of the kernel's buffers for a connection; none: the kernel sizes them.
    pub buffer: Option<usize>,
    /// Bytes of a piece of a message.
    pub piece: usize,
}

impl Knobs {
    /// The settings of connections by stream sockets.
    #[must_use]
    pub fn stream(&self) -> StreamSettings {
        StreamSettings {
            timeout: self.tcp_timeout,
            timeout_knob: "ONECOPY_TCP_TIMEOUT",
            connect: self.tcp_connect_timeout,
            connect_knob: "ONECOPY_TCP_CONNECT_TIMEOUT",
            buffer: (self.tcp_buffer > 0).then_some(self.tcp_buffer),
            piece: self.tcp_piece,
        }
    }
}
