// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rank of a job that a PMIx launcher started.
//!
//! The library has threads of its own. Each of its calls may wait for ever, for a launcher that is stopped or for a
//! rank that does not come. So each call runs on a thread that is made for it and owns all that the call touches. The
//! caller waits for its answer, but not longer than a limit. A call that is late keeps its thread; nothing of the
//! caller is lent to it, so it may end whenever it likes.
//!
//! The library counts its users in a process. A program that uses PMIx itself shares it with this client: the job is
//! joined by the first of them and left by the last.

use std::ffi::{CString, c_char};
use std::fmt;
use std::time::Duration;

use crate::abi::*;
use crate::bound::bounded;
use crate::failure::{Failure, bad};
use crate::library::Library;
use crate::value::{KeyValue, LONGEST_VALUE, take};

/// How much longer than the server a rank waits for the end of a fence: the server's own word comes first.
const GRACE: Duration = Duration::from_secs(2);
/// How long the launcher may take to hear of an abort.
const ABORT_LIMIT: Duration = Duration::from_secs(1);

/// A rank of the job.
pub struct Client {
    library: &'static Library,
    own: pmix_proc_t,
    size: u32,
    limit: Duration,
    /// The process that joined.
    pid: u32,
    usable: bool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("library", &self.library.version())
            .field("rank", &self.own.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Joins the job that the environment names. No call takes longer than `limit`, or little longer.
    ///
    /// # Errors
    ///
    /// [`Failure::Missing`] and [`Failure::Unreached`] where the launcher cannot be talked to, and nothing was done.
    /// Another one where it can, but does not say what a rank must know.
    pub fn join(limit: Duration) -> Result<Self, Failure> {
        const FUNCTION: &str = "PMIx_Init";
        let library = Library::load().map_err(Failure::Missing)?;
        let own = bounded(FUNCTION, limit, move || init(library))??;
        let mut client = Self {
            library,
            own,
            size: 0,
            limit,
            pid: std::process::id(),
            usable: true,
        };
        let size = client.ask(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE)?;
        let KeyValue::Number(size) = size else {
            return Err(bad("PMIx_Get", format!("{PMIX_JOB_SIZE} is no number")));
        };
        if own.rank >= size {
            let reason = format!("rank {} is not below {PMIX_JOB_SIZE}, {size}", own.rank);
            return Err(bad(FUNCTION, reason));
        }
        client.size = size;
        Ok(client)
    }

    /// This rank's number.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.own.rank
    }

    /// Ranks in the job.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The library behind it.
    #[must_use]
    pub fn library(&self) -> &'static Library {
        self.library
    }

    /// How long a value may be, in bytes.
    #[must_use]
    pub fn longest_value(&self) -> usize {
        LONGEST_VALUE
    }

    /// Keeps a value for the others, which see it after the next fence.
    ///
    /// # Errors
    ///
    /// What the library says; [`Failure::Bad`] for a key or value that cannot be one.
    pub fn put(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        const FUNCTION: &str = "PMIx_Put";
        let library = self.library;
        let key = padded(key).ok_or_else(|| bad(FUNCTION, format!("{key:?} is no key")))?;
        if value.len() > LONGEST_VALUE {
            let reason = format!(
                "a value of {} bytes; {LONGEST_VALUE} are possible",
                value.len()
            );
            return Err(bad(FUNCTION, reason));
        }
        let text = CString::new(value).map_err(|error| bad(FUNCTION, error.to_string()))?;
        self.call(FUNCTION, self.limit, move || {
            let mut value = pmix_value_t {
                type_: PMIX_STRING,
                data: pmix_value_data {
                    string: text.as_ptr().cast_mut(),
                },
            };
            // SAFETY: key and value live until it returns; it copies the string, and does not change it.
            unsafe { (library.put)(PMIX_GLOBAL, key.as_ptr(), &raw mut value) }
        })
    }

    /// Waits until all ranks have come here, and brings to each what the others have put.
    ///
    /// # Errors
    ///
    /// [`Failure::Late`] when one of them does not come; what the library says.
    pub fn fence(&mut self) -> Result<(), Failure> {
        const FUNCTION: &str = "PMIx_Fence";
        let (library, limit) = (self.library, self.limit);
        // SAFETY: takes nothing.
        self.call("PMIx_Commit", limit, move || unsafe { (library.commit)() })?;
        let all = pmix_proc_t {
            rank: PMIX_RANK_WILDCARD,
            ..self.own
        };
        let late = Failure::Late {
            function: FUNCTION,
            waited: limit,
        };
        let fenced = self.within(FUNCTION, limit.saturating_add(GRACE), move || {
            let options = [flag(PMIX_COLLECT_DATA), seconds(PMIX_TIMEOUT, limit)];
            // SAFETY: both arrays have the lengths that are passed, and live until it returns.
            unsafe { (library.fence)(&raw const all, 1, options.as_ptr(), options.len()) }
        });
        match fenced {
            Ok(PMIX_ERR_TIMEOUT) | Err(Failure::Late { .. }) => Err(late),
            Ok(status) => judge(library, FUNCTION, status),
            Err(other) => Err(other),
        }
    }

    /// What `rank` put before the last fence.
    ///
    /// # Errors
    ///
    /// What the library says; [`Failure::Bad`] for a value that is no text, or too long.
    pub fn get(&mut self, rank: u32, key: &str) -> Result<String, Failure> {
        match self.ask(rank, key)? {
            KeyValue::Text(text) => Ok(text),
            KeyValue::Number(number) => {
                let reason = format!("{key} of rank {rank} is the number {number}, and no text");
                Err(bad("PMIx_Get", reason))
            }
        }
    }

    /// Tells the launcher that the end of this process is no failure.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn finalize(&mut self) -> Result<(), Failure> {
        let library = self.library;
        // SAFETY: no options: null, and none of them.
        self.call("PMIx_Finalize", self.limit, move || unsafe {
            (library.finalize)(std::ptr::null(), 0)
        })
    }

    /// Has the launcher end all ranks of the job with `code`. It may end this one first.
    ///
    /// # Errors
    ///
    /// What the library says; [`Failure::Late`] if it says nothing.
    pub fn abort(&self, code: i32) -> Result<(), Failure> {
        const FUNCTION: &str = "PMIx_Abort";
        let library = self.library;
        if self.pid != std::process::id() {
            return Err(Failure::Over);
        }
        // Another call may be late: it does not keep this one from its way.
        let status = bounded(FUNCTION, ABORT_LIMIT, move || {
            let words = c"a rank aborted the job";
            // SAFETY: the words live for ever, and no processes are named: null, and none of them.
            unsafe { (library.abort)(code, words.as_ptr(), std::ptr::null_mut(), 0) }
        })?;
        judge(library, FUNCTION, status)
    }

    /// The value of a key, waiting for it only as long as the server needs to look.
    fn ask(&mut self, rank: pmix_rank_t, key: &str) -> Result<KeyValue, Failure> {
        const FUNCTION: &str = "PMIx_Get";
        let library = self.library;
        let process = pmix_proc_t { rank, ..self.own };
        let name = padded(key).ok_or_else(|| bad(FUNCTION, format!("{key:?} is no key")))?;
        let limit = self.limit;
        let answer = self.within(FUNCTION, limit.saturating_add(GRACE), move || {
            let options = [seconds(PMIX_TIMEOUT, limit)];
            let mut value = std::ptr::null_mut();
            let (key, infos, count) = (name.as_ptr(), options.as_ptr(), options.len());
            // SAFETY: all that is named lives until it returns. The key is as long as some versions read.
            let status =
                unsafe { (library.get)(&raw const process, key, infos, count, &raw mut value) };
            if status != PMIX_SUCCESS {
                return Err(status);
            }
            // SAFETY: with success it gives a value that is the caller's now.
            Ok(unsafe { take(value) })
        })?;
        match answer {
            Ok(taken) => taken.map_err(|reason| bad(FUNCTION, format!("{key}: {reason}"))),
            Err(status) => {
                let words = library.words(status);
                let whose = match rank {
                    PMIX_RANK_WILDCARD => "the job".to_owned(),
                    rank => format!("rank {rank}"),
                };
                Err(Failure::Refused {
                    function: FUNCTION,
                    words: format!("{key} of {whose}: {words}"),
                })
            }
        }
    }

    /// Makes a call that gives a status only.
    fn call(
        &mut self,
        function: &'static str,
        limit: Duration,
        work: impl FnOnce() -> pmix_status_t + Send + 'static,
    ) -> Result<(), Failure> {
        let status = self.within(function, limit, work)?;
        judge(self.library, function, status)
    }

    fn within<T: Send + 'static>(
        &mut self,
        function: &'static str,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        if !self.usable || self.pid != std::process::id() {
            return Err(Failure::Over);
        }
        let answer = bounded(function, limit, work);
        self.usable = answer.is_ok();
        answer
    }
}

fn judge(library: &Library, function: &'static str, status: pmix_status_t) -> Result<(), Failure> {
    match status {
        PMIX_SUCCESS => Ok(()),
        status => Err(Failure::Refused {
            function,
            words: library.words(status),
        }),
    }
}

fn init(library: &'static Library) -> Result<pmix_proc_t, Failure> {
    const FUNCTION: &str = "PMIx_Init";
    let mut own = pmix_proc_t::default();
    // SAFETY: there is room for one process' name, and no options: null, and none of them.
    let status = unsafe { (library.init)(&raw mut own, std::ptr::null_mut(), 0) };
    if status == PMIX_SUCCESS {
        let ended = own.nspace.contains(&0);
        return match ended {
            true => Ok(own),
            false => Err(bad(FUNCTION, "the job's name has no end".to_owned())),
        };
    }
    let words = library.words(status);
    if status == PMIX_ERR_UNREACH {
        // The library is left as it is: a rank without a server. Some versions do not survive to be finalized so.
        return Err(Failure::Unreached { words });
    }
    Err(Failure::Refused {
        function: FUNCTION,
        words,
    })
}

/// A key in the form that all versions take; none if it is none.
fn padded(key: &str) -> Option<pmix_key_t> {
    let mut name = [0; PMIX_MAX_KEYLEN + 1];
    let is_valid = !key.is_empty() && key.len() <= PMIX_MAX_KEYLEN && !key.as_bytes().contains(&0);
    for (to, &from) in name.iter_mut().zip(key.as_bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    is_valid.then_some(name)
}

/// An option of a call: that something is wanted.
fn flag(key: &str) -> pmix_info_t {
    option(key, PMIX_BOOL, pmix_value_data { flag: true })
}

/// An option of a call: a time, rounded up.
fn seconds(key: &str, time: Duration) -> pmix_info_t {
    let whole = i32::try_from(time.as_secs()).unwrap_or(i32::MAX);
    let integer = whole.saturating_add(i32::from(time.subsec_nanos() > 0));
    option(key, PMIX_INT, pmix_value_data { integer })
}

fn option(key: &str, type_: pmix_data_type_t, data: pmix_value_data) -> pmix_info_t {
    pmix_info_t {
        key: padded(key).unwrap_or([0; PMIX_MAX_KEYLEN + 1]),
        flags: 0,
        value: pmix_value_t { type_, data },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_key_is_found_before_the_library_sees_it() {
        assert!(padded("").is_none() && padded("a\0b").is_none());
        assert!(padded(&"k".repeat(PMIX_MAX_KEYLEN + 1)).is_none());
        let name = padded(&"k".repeat(PMIX_MAX_KEYLEN)).expect("a key");
        assert_eq!(
            (name[0], name[PMIX_MAX_KEYLEN]),
            (c_char::from_ne_bytes([b'k']), 0)
        );
    }

    #[test]
    fn a_time_is_rounded_up() {
        for (time, whole) in [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)] {
            let info = seconds(PMIX_TIMEOUT, Duration::from_millis(time));
            // SAFETY: just made with this member.
            assert_eq!(unsafe { info.value.data.integer }, whole);
        }
    }
}
