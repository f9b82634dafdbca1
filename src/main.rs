//! The onecopy command.
#![forbid(unsafe_code)]
fn main() {}
