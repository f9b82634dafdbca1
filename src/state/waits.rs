// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rank's threads wait for, as [`onecopy_shm::watch`] counts it: completed requests, unexpected
//! messages, and peers that are gone.

use super::WaitPolicy;
use crate::endpoint::Doorbell;
use onecopy_shm::watch::{Rest, Watch};

/// The threads of a rank that wait; part of the engine.
#[derive(Debug)]
pub(crate) struct Waits {
    watch: Watch,
    /// Whether a wait may sleep, and how long it polls first.
    pub(crate) policy: WaitPolicy,
    /// How often was asked in vain whether something is complete, one after the other.
    asked_in_vain: usize,
    /// Whether a thread that waits has work that rings no doorbell, as a device's copies: it must look again soon.
    awake: bool,
    /// How many buffers were staged when that was last looked at; it wraps.
    staged: u32,
    /// Peers found gone so far; it wraps.
    pub(crate) gone: u32,
    doorbell: Doorbell,
}

impl Waits {
    pub(crate) fn new(doorbell: Doorbell, policy: WaitPolicy) -> Self {
        Self {
            watch: Watch::default(),
            policy,
            asked_in_vain: 0,
            awake: false,
            staged: 0,
            gone: 0,
            doorbell,
        }
    }

    /// The calling thread is going to rest.
    pub(crate) fn rest(&mut self) -> Rest {
        let doorbell = &self.doorbell;
        self.watch.rest(|| _ = doorbell.ring())
    }
}

impl std::ops::Deref for Waits {
    type Target = Watch;
    fn deref(&self) -> &Watch {
        &self.watch
    }
}

impl std::ops::DerefMut for Waits {
    fn deref_mut(&mut self) -> &mut Watch {
        &mut self.watch
    }
}

impl Waits {
    /// Notifies the threads that wait, if something arrived that one of them may wait for: a completed request, a
    /// message that no receive expected. If more was `staged`, only the thread that polls for all has to know.
    #[inline]
    pub(crate) fn notify(&mut self, completed: u32, kept: u32, staged: impl FnOnce() -> u32) {
        if self.watch.has_listeners() {
            let sources = [completed, kept, self.gone];
            let arrived = sources.into_iter().fold(0, u32::wrapping_add);
            let doorbell = &self.doorbell;
            self.watch.notify(arrived, || _ = doorbell.ring());
            let staged = staged();
            if std::mem::replace(&mut self.staged, staged) != staged {
                self.watch.wake_watcher(|| _ = doorbell.ring());
            }
        }
    }

    /// Counts a test for completion in which something `moved` or not. Gives whether the thread should yield.
    #[inline]
    pub(crate) fn asked(&mut self, moved: bool) -> bool {
        self.asked_in_vain += 1;
        let makes_room = !moved && self.asked_in_vain > self.policy.among(self.threads() + 1).spin;
        if moved || makes_room {
            self.asked_in_vain = 0;
        }
        makes_room
    }

    /// The thread that waits does not sleep before its next look.
    #[inline]
    pub(crate) fn stay_awake(&mut self) {
        self.awake = true;
    }

    /// Whether that was asked for since the last call.
    #[inline]
    pub(crate) fn take_awake(&mut self) -> bool {
        std::mem::take(&mut self.awake)
    }

    /// How long each of the threads polls that wait now.
    #[inline]
    pub(crate) fn shared_policy(&self) -> WaitPolicy {
        self.policy.among(self.threads())
    }
}
