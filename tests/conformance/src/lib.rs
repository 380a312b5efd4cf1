//! The conformance suite of WIRE.md: packet scripts ("send this, expect that within t") over real UDP sockets against any
//! endpoint that speaks it, ours by default, and a report that says of each sentence what tests it.
//!
//! [`Target`] is the endpoint under test, told by lines what to do. [`Peer`] is the other end, written for this suite: it
//! keeps the state of a connection and leaves to the script what is sent, lost, forged and delayed. The scripts are in
//! `scripts/`, a file for each chapter. `tests/suite.rs` runs them as tests, `main.rs` against endpoints of others.
//! Read first: `README.md`, then `scripts/acks.rs` as an example.

pub mod bench;
pub mod citations;
pub mod peer;
pub mod report;
pub mod script;
pub mod scripts;
pub mod sentences;
mod sockets;
pub mod target;

pub use bench::Bench;
pub use peer::Peer;
pub use script::{Script, Verdict};
pub use target::Target;
