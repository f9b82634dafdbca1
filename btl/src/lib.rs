//! The byte transport layers.
