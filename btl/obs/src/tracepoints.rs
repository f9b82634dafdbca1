// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tracepoints, defined once: a function per event.
//!
//! An event goes to the `tracing` crate under the target [`TARGET`]. While no subscriber listens at its level, a call
//! is one load and one branch. Arguments are passed by value, and nothing is formatted. Each event is also a probe
//! point (USDT) of the provider `onecopy`, for tracers outside of the process. Without a tracer, it is an instruction
//! that does nothing.

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

/// An argument as a probe point gives it: a number as it is, a text by its address.
trait Word {
    fn word(self) -> i64;
}

impl Word for usize {
    #[inline(always)]
    fn word(self) -> i64 {
        self.cast_signed() as i64
    }
}

impl Word for u64 {
    #[inline(always)]
    fn word(self) -> i64 {
        self.cast_signed()
    }
}

impl Word for i32 {
    #[inline(always)]
    fn word(self) -> i64 {
        i64::from(self)
    }
}

impl Word for bool {
    #[inline(always)]
    fn word(self) -> i64 {
        i64::from(self)
    }
}

impl Word for &str {
    #[inline(always)]
    fn word(self) -> i64 {
        self.as_ptr().addr().word()
    }
}

impl TracepointInfo {
    /// The arguments that are numbers: their places and names. The others are texts.
    pub fn numbers(&self) -> impl Iterator<Item = (usize, &'static str)> {
        let args = self.args.iter().enumerate();
        args.filter(|(_, (_, kind))| *kind != "&str")
            .map(|(place, (name, _))| (place, *name))
    }
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
                // Without a counter of watchers. Linkers may put one into a page of the file that two segments map, and
                // the kernel then counts in the wrong one. Arguments are numbers that are at hand.
                probe::probe!(onecopy, $name, $(Word::word($arg)),*);
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
    /// A connection with a peer on another node is there.
    DEBUG wire_connected(peer: usize, wire: &str);
    /// An inbound connection was refused: it is no rank of the job, or a rank that needs none.
    DEBUG inbound_refused(from: &str, reason: &str);
    /// A peer died.
    DEBUG peer_died(peer: usize, death: &str);
    /// What a peer wrote was not valid; the peer is failed.
    DEBUG protocol_error(peer: usize, reason: &str);
    /// A sender has announced a message. In a job a message is named by its sender and its number, which both sides
    /// know.
    TRACE rendezvous_announced(peer: usize, sender: usize, message: u64, bytes: u64);
    /// A receive has matched an announced message.
    TRACE rendezvous_matched(peer: usize, sender: usize, message: u64, bytes: u64);
    /// A receiver chose how the rest of an announced message comes, or a part of it, and begins to copy.
    TRACE rendezvous_start(peer: usize, sender: usize, message: u64, bytes: u64, protocol: &str);
    /// All of an announced message has come.
    TRACE rendezvous_done(peer: usize, sender: usize, message: u64, bytes: u64);
    /// The sender has heard of that: its buffer is the program's again.
    TRACE rendezvous_finished(peer: usize, sender: usize, message: u64);
    /// A wait goes to sleep.
    TRACE sleep(timeout_us: u64);
    /// A wait woke up.
    TRACE wake(rung: bool);
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

    /// Writes down each event as `LEVEL name=value ...`.
    struct Recorder(
        std::sync::Arc<std::sync::Mutex<Vec<String>>>,
        tracing::Level,
    );

    impl tracing::Subscriber for Recorder {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target() == TARGET && *metadata.level() <= self.1
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            struct Fields(String);
            impl tracing::field::Visit for Fields {
                fn record_debug(
                    &mut self,
                    field: &tracing::field::Field,
                    value: &dyn std::fmt::Debug,
                ) {
                    self.0.push_str(&format!(" {}={value:?}", field.name()));
                }
            }
            let mut fields = Fields(event.metadata().level().to_string());
            event.record(&mut fields);
            if let Ok(mut events) = self.0.lock() {
                events.push(fields.0);
            }
        }
    }

    #[test]
    fn an_event_tells_its_name_and_arguments_at_its_level() {
        let seen = |level| {
            let events = std::sync::Arc::default();
            let recorder = Recorder(std::sync::Arc::clone(&events), level);
            tracing::subscriber::with_default(recorder, || {
                layer_demoted(3, "cma", 1);
                wake(true);
            });
            let events = events.lock().expect("not poisoned");
            events.clone()
        };
        let demoted = "DEBUG message=layer_demoted peer=3 layer=\"cma\" errno=1".to_owned();
        let woken = "TRACE message=wake rung=true".to_owned();
        assert_eq!(seen(tracing::Level::TRACE), [demoted.clone(), woken]);
        assert_eq!(seen(tracing::Level::DEBUG), [demoted]);
        assert_eq!(seen(tracing::Level::INFO), [""; 0]);
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
