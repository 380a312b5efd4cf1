//! The metaroce transport: sans-IO, deterministic, no unsafe code
#![forbid(unsafe_code)]
