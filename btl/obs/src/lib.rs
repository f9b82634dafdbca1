//! Knobs, counters and tracepoints.
