// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver refuses.
//!
//! # Safety
//! The driver names an error by a constant text of its own.
#![allow(unsafe_code, reason = "the driver's names of errors")]

use cuda_sys::*;
use std::ffi::{CStr, c_char};
use std::fmt;

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The call.
    pub call: &'static str,
    /// What it was about.
    pub about: String,
    /// The driver's number for the reason; zero: ours.
    pub code: CUresult,
    /// The reason's name.
    pub name: String,
    /// What helps against an error of ours.
    pub(crate) remedy: Option<&'static str>,
}

impl Error {
    /// An error of ours.
    pub(crate) fn ours(
        call: &'static str,
        about: String,
        name: &str,
        remedy: &'static str,
    ) -> Self {
        Self {
            call,
            about,
            code: CUDA_SUCCESS,
            name: name.to_owned(),
            remedy: Some(remedy),
        }
    }

    /// What would help.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        if let Some(remedy) = self.remedy {
            return remedy;
        }
        match self.code {
            CUDA_ERROR_OUT_OF_MEMORY => {
                "free memory of the device, or of the host for pinned memory"
            }
            CUDA_ERROR_ILLEGAL_ADDRESS | CUDA_ERROR_LAUNCH_FAILED => {
                "a kernel or a copy of this context touched memory that is not its own: find it with compute-sanitizer"
            }
            CUDA_ERROR_CONTEXT_IS_DESTROYED | CUDA_ERROR_INVALID_CONTEXT => {
                "keep the context, and the device, until messages of its memory are complete"
            }
            CUDA_ERROR_INVALID_VALUE => {
                "pass a buffer that lies in one allocation, and is not freed"
            }
            CUDA_ERROR_ECC_UNCORRECTABLE => "the device is faulty: see nvidia-smi",
            _ => "the driver's own log (dmesg, nvidia-smi) says more",
        }
    }

    /// Whether it is of the context: that has failed or is gone, and no device works in it any more. Else the call
    /// alone was refused, and work that has begun goes on.
    pub(crate) fn ends_context(&self) -> bool {
        let is_of_the_call = matches!(
            self.code,
            CUDA_SUCCESS
                | CUDA_ERROR_INVALID_VALUE
                | CUDA_ERROR_OUT_OF_MEMORY
                | CUDA_ERROR_NOT_READY
                | CUDA_ERROR_NOT_PERMITTED
                | CUDA_ERROR_NOT_SUPPORTED
                | CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                ..=CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        );
        !is_of_the_call
    }

    /// Whether the context may be another one than it was, with the same handle.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(
            self.code,
            CUDA_ERROR_INVALID_HANDLE | CUDA_ERROR_CONTEXT_IS_DESTROYED
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remedy = self.remedy();
        write!(
            f,
            "{} of {}: {}; {remedy}",
            self.call, self.about, self.name
        )
    }
}

impl std::error::Error for Error {}

/// The driver's name of an error.
fn name_of(driver: &Library, code: CUresult) -> String {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the place for the answer is ours.
    unsafe { (driver.cuGetErrorName)(code, &raw mut text) };
    if text.is_null() {
        return format!("error {code}");
    }
    // SAFETY: a name of the driver's is a constant of it that ends with a zero.
    let name = unsafe { CStr::from_ptr(text) };
    name.to_string_lossy().into_owned()
}

/// What helps where a message takes the usual way instead.
pub(crate) const STAGED: &str = "nothing is lost: the message goes through host memory";
/// The same, where the driver lacks something.
pub(crate) const LATER_DRIVER: &str =
    "install a later driver; until then the message goes through host memory";

/// The result of a call about something.
pub(crate) fn check(
    driver: &Library,
    code: CUresult,
    call: &'static str,
    about: impl FnOnce() -> String,
) -> Result<(), Error> {
    if code == CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error {
        call,
        about: about(),
        code,
        name: name_of(driver, code),
        remedy: None,
    })
}

/// A function that an older driver lacks.
pub(crate) fn needed<T>(function: Option<T>, name: &'static str) -> Result<T, Error> {
    function.ok_or_else(|| {
        Error::ours(
            name,
            "the driver".to_owned(),
            "it is older than CUDA 11.3, and has no such function",
            LATER_DRIVER,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What no list names is of the context: the driver tells of its failure by the next call, whichever that is.
    #[test]
    fn what_refuses_a_call_leaves_its_context_at_work() {
        let ends = |code| {
            let ours = Error::ours("a call", "a copy".into(), "a test", "none");
            Error { code, ..ours }.ends_context()
        };
        for code in [
            CUDA_ERROR_OUT_OF_MEMORY,
            CUDA_ERROR_NOT_READY,
            900,
            905,
            908,
        ] {
            assert!(!ends(code), "{code}");
        }
        for code in [
            CUDA_ERROR_ILLEGAL_ADDRESS,
            CUDA_ERROR_CONTEXT_IS_DESTROYED,
            911,
            999,
        ] {
            assert!(ends(code), "{code}");
        }
    }
}
