//! What the scripts have in common in which the target is the sender: a connection with small packets, and messages of
//! which the peer says that they were executed when they are whole.

use anyhow::Result;

use crate::bench::Bench;
use crate::peer::ConnectOptions;

/// Payload of a packet, which the peer's HELLO asks for.
pub const PAYLOAD: u16 = 1024;

/// Bytes of memory that messages are sent from.
pub const MESSAGE: u64 = 2 << 20;

/// What WRITEs and READs of the target name at the peer.
pub const REMOTE: (u64, u32) = (0x7000_0000, 0x1234_5678);

/// A target that sends: connected, and no packet is lost until the script says so. Its region 0 is the source.
pub fn sender(bench: &mut Bench) -> Result<usize> {
    sender_with(bench, &ConnectOptions::default())
}

/// As [`sender`], with options.
pub fn sender_with(bench: &mut Bench, options: &ConnectOptions) -> Result<usize> {
    connect(bench, options, PAYLOAD)
}

/// As [`sender`], with packets of another payload.
pub fn sender_of(bench: &mut Bench, payload_bytes: u16) -> Result<usize> {
    connect(bench, &ConnectOptions::default(), payload_bytes)
}

fn connect(bench: &mut Bench, options: &ConnectOptions, payload_bytes: u16) -> Result<usize> {
    bench.peer.hello.payload_bytes = payload_bytes;
    let at = bench.connect(options)?;
    bench.target.region(MESSAGE, 0x5a, "")?;
    bench.peer.answers.data = true;
    bench.peer.answers.execute = true;
    Ok(at)
}

/// The target posts a WRITE of `packets` full packets as request `id`.
pub fn post_write(bench: &mut Bench, at: usize, id: u64, packets: u64) -> Result<()> {
    let bytes = packets * u64::from(PAYLOAD);
    post(bench, at, &format!("op=write id={id} bytes={bytes}"))
}

/// The target posts a request with these words.
pub fn post(bench: &mut Bench, at: usize, words: &str) -> Result<()> {
    let qp = bench.peer.streams[at].qp;
    let (address, key) = REMOTE;
    let line = format!("post qp={qp} remote={address} rkey={key} {words}");
    bench.target.tell(&line)?;
    Ok(())
}
