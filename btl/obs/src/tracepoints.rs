// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tracepoints, defined once: a function per event.
//!
//! An event goes to the `tracing` crate under the target [`TARGET`]. While nobody listens at its level a call is one load and one
//! branch; the arguments are passed by value and nothing is formatted.

/// The target of every event.
pub const TARGET: &str = "onecopy";

/// One line of the table of tracepoints.
#[derive(Debug)]
pub struct TracepointInfo {
    /// The name of the function and of the event.
    pub name: &'static str,
    /// The level at which it is emitted.
    pub level: tracing::Level,
    /// Each argument's name and type.
    pub args: &'static [(&'static str, &'static str)],
    /// What happened.
    pub doc: &'static str,
}

macro_rules! tracepoints {
    ($($(#[doc = $doc:literal])+ $level:ident $name:ident($($arg:ident: $ty:ty),* $(,)?);)+) => {
        /// Every tracepoint, in the order of the documentation.
        pub static TRACEPOINTS: &[TracepointInfo] = &[$(
            TracepointInfo {
                name: stringify!($name),
                level: tracing::Level::$level,
                args: &[$((stringify!($arg), stringify!($ty))),*],
                doc: concat!($($doc),+).trim_ascii(),
            },
        )+];

        $(
            $(#[doc = $doc])+
            #[inline(always)]
            pub fn $name($($arg: $ty),*) {
                tracing::event!(
                    target: TARGET,
                    tracing::Level::$level,
                    $($arg = $arg,)*
                    concat!(stringify!($name))
                );
            }
        )+
    };
}

tracepoints! {
    /// A peer's segment was mapped and its layers were proven.
    DEBUG peer_connected(peer: usize, layers: &str);
    /// A layer cannot be used with a peer, for the reason given.
    DEBUG layer_refused(peer: usize, layer: &str, reason: &str);
    /// A layer failed in use and was given up for a peer.
    DEBUG layer_demoted(peer: usize, layer: &str, errno: i32);
    /// A peer died.
    DEBUG peer_died(peer: usize, how: &str);
    /// What a peer wrote was not valid; the peer is failed.
    DEBUG protocol_error(peer: usize, reason: &str);
    /// A message was given to the transport.
    TRACE send(peer: usize, context: u32, tag: i32, bytes: usize, protocol: &str);
    /// A receive was posted; -1 stands for any peer.
    TRACE recv_posted(peer: i64, context: u32, tag: i32, bytes: usize);
    /// A message met its receive.
    TRACE matched(peer: usize, context: u32, tag: i32, bytes: usize);
    /// A message came before its receive and is held.
    TRACE unexpected(peer: usize, context: u32, tag: i32, bytes: usize);
    /// The receiver chose a mechanism for a rendezvous.
    TRACE rendezvous_start(peer: usize, bytes: u64, mechanism: &str);
    /// A rendezvous ended.
    TRACE rendezvous_done(peer: usize, bytes: u64, mechanism: &str);
    /// A send found no room and waits behind others for its peer.
    TRACE pending(peer: usize, bytes: usize, reason: &str);
    /// A wait goes to sleep.
    TRACE sleep(timeout_us: u64);
    /// A wait woke up.
    TRACE wake(rung: bool);
    /// A sleeping peer was woken.
    TRACE doorbell(peer: usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_arguments_and_types() {
        let demoted = TRACEPOINTS
            .iter()
            .find(|info| info.name == "layer_demoted")
            .expect("in the table");
        assert_eq!(demoted.level, tracing::Level::DEBUG);
        assert_eq!(demoted.args[0], ("peer", "usize"));
        assert_eq!(demoted.args[2], ("errno", "i32"));
    }

    #[test]
    fn names_are_unique_and_documented() {
        for (index, info) in TRACEPOINTS.iter().enumerate() {
            assert!(info.doc.ends_with('.'), "{}", info.name);
            assert!(
                TRACEPOINTS[..index]
                    .iter()
                    .all(|other| other.name != info.name)
            );
        }
    }
}
