//! Congestion control: how much may be in flight.
//!
//! One policy a file, so that a researcher changes one file. The sender's window of one path: `window.rs` has what is
//! common, and the algorithms are a file each, `dctcp.rs` first. [`ConnectionWindow`]: what a sender may have in flight
//! over all paths of a connection, and how fast. The receiver: [`Inbound`] is what one sender wants, [`Drain`] what the host can take in,
//! [`FairShare`] what each sender is granted of that. They see counts and times only, no packets; `path/tx`, `conn/` and
//! `endpoint` feed and ask them. WIRE.md "Congestion control" is the normative text; its 8.1 to 8.5 describe `dctcp.rs` and do
//! not bind other algorithms of senders.

mod connection;
mod dctcp;
mod delay;
mod drain;
mod fair_share;
mod inbound;
mod window;

pub use connection::ConnectionWindow;
pub use drain::Drain;
pub use fair_share::{Correction, Demand, FairShare, Others};
pub use inbound::{Inbound, Surroundings};
pub use window::{ALGORITHMS, Algorithm, Feedback, PathAlgorithm, PathWindow, Size};
