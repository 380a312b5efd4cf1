//! See `metaroce_fuzz::verbs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| metaroce_fuzz::verbs::run(input));
