//! Congestion control: how much may be in flight.
//!
//! One policy a file, so that a researcher changes one file: [`PathWindow`] is the sender's window of one path,
//! [`ConnectionWindow`] what a sender may have in flight over all paths of a connection, [`FairShare`] what a receiver
//! tells its senders. They see counts and times only, no packets; `path/tx` and `conn/` feed and ask them.
//! WIRE.md "Congestion control" is the normative text.

mod connection;
mod dctcp;
mod fair_share;

pub use connection::ConnectionWindow;
pub use dctcp::{Feedback, PathWindow};
pub use fair_share::FairShare;
