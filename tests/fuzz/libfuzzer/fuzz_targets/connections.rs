//! See `metaroce_fuzz::connections`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| metaroce_fuzz::connections::run(input));
