//! Deterministic simulator over the very same transport code
