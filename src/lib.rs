//! onecopy.
#![forbid(unsafe_code)]
