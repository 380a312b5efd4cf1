//! First inputs of the corpus, so that a fuzzer need not find out what a packet looks like: the golden packets of
//! `tests/golden` for the codec, and for the other targets some bytes of a fixed generator.

use std::path::PathBuf;

/// Seeds of targets that read choices instead of packets.
const CHOICE_SEEDS: u64 = 48;

/// The first inputs of target `name`, with a name each.
#[must_use]
pub fn of(name: &str) -> Vec<(String, Vec<u8>)> {
    if name == "packets" {
        return golden();
    }
    (0..CHOICE_SEEDS)
        .map(|seed| (format!("seed-{seed}"), choices(seed, 16 << (seed % 6))))
        .collect()
}

/// Golden packets, each as it is (mode 0) and to be sealed after it was altered (mode 1).
fn golden() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden");
    let mut seeds = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(text) = std::fs::read_to_string(entry.path()) else {
            continue;
        };
        let name = entry.file_name().to_string_lossy().replace(".hex", "");
        let bytes: Vec<u8> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .flat_map(str::split_whitespace)
            .filter_map(|byte| u8::from_str_radix(byte, 16).ok())
            .collect();
        for mode in [0, 1] {
            let mut seed = vec![mode];
            seed.extend_from_slice(&bytes);
            seeds.push((format!("{name}-{mode}"), seed));
        }
    }
    seeds.sort();
    seeds
}

/// `count` bytes that depend on `seed` alone (splitmix64).
fn choices(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as u8
    };
    (0..count).map(|_| next()).collect()
}
