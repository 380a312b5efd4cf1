//! Fuzz targets: what the transport and the C entry points do with bytes that nobody chose with care.
//!
//! Each target is a plain function of a byte string ([`TARGETS`]) that panics when something is wrong. Three things call
//! them: libFuzzer (`libfuzzer/`, a workspace of its own because it needs a C++ compiler; `cargo xtask fuzz` runs it), the
//! binary `fuzz-replay` (one input, no fuzzer), and the tests below, which run the seeds and every input that once failed.
//!
//! `packets` is the codec alone, `acks` one path against a model, `connections` whole endpoints in the simulator with the
//! fate of every packet in the input, `verbs` the functions that libibverbs calls.

pub mod acks;
pub mod connections;
pub mod packets;
pub mod seeds;
pub mod verbs;

#[cfg(test)]
mod tests;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, also that of its libFuzzer binary.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// Runs one input; panics if something is wrong.
    pub run: fn(&[u8]),
    /// Inputs longer than this find nothing new and cost time.
    pub max_bytes: usize,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "packets",
        about: "the codec: any bytes in, and what parses comes out again the same",
        run: packets::run,
        max_bytes: 1024,
    },
    Target {
        name: "acks",
        about: "one path: any acknowledgements, against a model of what was sent",
        run: acks::run,
        max_bytes: 2048,
    },
    Target {
        name: "connections",
        about: "endpoints in the simulator: any order of verbs, any fate of every packet",
        run: connections::run,
        max_bytes: 512,
    },
    Target {
        name: "verbs",
        about: "the functions that libibverbs calls: any sequence, odd arguments",
        run: verbs::run,
        max_bytes: 512,
    },
];

/// The target of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
