//! Two or more endpoints joined by a small network in memory: set-up, transfers, failures, forged packets.

mod chaos;
mod failure;
mod forged;
mod network;
mod planes;
mod pmtu;
mod scale;
mod setup;
mod telemetry;
mod transfer;
mod visibility;
