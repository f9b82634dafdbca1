//! The unsafe core.
