//! The unsafe core.
pub mod limits;
