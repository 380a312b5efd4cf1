//! The metaroce transport: sans-IO, deterministic, no unsafe code.
//!
//! Four kinds of methods: `handle_*` take what came from outside (a datagram, a timeout, an ICMP error) with the clock
//! reading as an argument; `poll_*` hand out what is to be done (a train to send, an event, the next timeout); `on_*`
//! pass knowledge between layers; the rest are queries. Read `endpoint.rs` first, then `conn/`, `path/`, `stream/`.
//! The normative text is `WIRE.md` in the folder above; code cites its sentences.
#![forbid(unsafe_code)]

pub mod cc;
pub mod conn;
pub mod endpoint;
pub mod event;
pub mod host;
pub mod path;
pub mod stream;
pub mod telemetry;
pub mod train;
pub mod types;
pub mod wire;
