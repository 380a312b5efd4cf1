//! See `metaroce_fuzz::acks`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| metaroce_fuzz::acks::run(input));
