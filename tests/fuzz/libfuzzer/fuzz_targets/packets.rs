//! See `metaroce_fuzz::packets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| metaroce_fuzz::packets::run(input));
