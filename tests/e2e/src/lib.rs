//! Real programs against metaroce in network namespaces, and the test bed that they run in.
//!
//! The library is what `cargo xtask` (fabric, demo, test) and the cases under `tests/cases/` share:
//! the virtual fabric, starting programs in it with a time limit, pairs of server and client, and
//! the Debian packages that all of this needs. Nothing here links libibverbs: the programs under
//! test do, as they came from the distribution.
//!
//! Almost everything needs root (network namespaces, XDP). [`needs::Need`] says so case by case.
//! Read first: [`fabric`], then [`program`], then `tests/cases/mod.rs`.

pub mod artefacts;
pub mod c_program;
#[cfg(test)]
mod complaints;
pub mod debian;
pub mod fabric;
pub mod interrupt;
pub mod libibverbs;
pub mod nccl;
pub mod needs;
pub mod packages;
pub mod pair;
pub mod process;
pub mod program;
pub mod statistics;
pub mod throughput;
pub mod tool;

pub use artefacts::Artefacts;
pub use fabric::{Fabric, Host, Topology};
pub use pair::{Pair, PairOutcome};
pub use process::{Outcome, Proc};
pub use program::Program;
pub use statistics::Statistics;
