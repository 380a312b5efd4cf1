//! Chapter 4, sizes of packets: the way to the peer swallows large ones, and carries all others.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_proto::wire::{DATA_HEADER_BYTES, FillStatus, Opcode};

use super::requester::{post, sender_of};
use crate::bench::Bench;
use crate::peer::Got;
use crate::script::Script;

/// Payload that both ends take.
const PAYLOAD: u16 = 4096;

/// UDP payload bytes of the largest packet that gets through, as at an MTU of 1,500.
const LARGEST: usize = 1_472;

/// Bytes of a message.
const MESSAGE: u32 = 100_000;

/// A search needs some round trips, and data that goes meanwhile.
const SEARCH_MAX: Duration = Duration::from_secs(10);

/// All of this file.
pub const SCRIPTS: &[Script] = &[Script {
    name: "sizes::a hole for large packets, in mid-stream",
    cites: &["1.19", "4.25", "4.26", "6.27", "2.23", "4.2"],
    run: hole,
}];

fn hole(bench: &mut Bench) -> Result<()> {
    let at = sender_of(bench, PAYLOAD)?;
    write(bench, at, 1)?;
    // From now on.
    bench.peer.lose = Box::new(|got| got.bytes.len() > LARGEST);
    bench.peer.record.clear();
    write(bench, at, 2)?;
    let began_again = std::mem::take(&mut bench.peer.record);
    let parts = |got: &&Got| {
        got.message()
            .is_some_and(|(header, _)| header.attempt.0 > 0)
    };
    let again: Vec<&Got> = began_again.iter().filter(parts).collect();
    ensure!(!again.is_empty(), "no message was begun anew");
    ensure!(
        again.iter().all(|got| got.bytes.len() <= LARGEST),
        "begun anew with packets that are too large"
    );
    // Data goes on while the largest size that passes is looked for.
    let end = Instant::now() + SEARCH_MAX;
    let mut record = began_again;
    for id in 3.. {
        write(bench, at, id)?;
        record.append(&mut bench.peer.record);
        let failed = record.iter().filter(|got| searches(got, LARGEST)).count();
        if failed >= 5 {
            break;
        }
        ensure!(
            Instant::now() < end,
            "{failed} packets of a search were lost"
        );
    }
    let found = record
        .iter()
        .filter(|got| got.bytes.len() <= LARGEST && searches(got, 0))
        .map(|got| got.bytes.len());
    let found = found.max().context("nothing was tried that passes")?;
    // Under the number of one that was lost goes a FILL without padding.
    let lost = record
        .iter()
        .find(|got| searches(got, LARGEST))
        .context("none")?;
    let (path, psn) = lost.place();
    let again = record
        .iter()
        .find(|got| got.is_again() && got.place() == (path, psn));
    ensure!(
        again.is_some_and(|got| got.bytes.len() == DATA_HEADER_BYTES),
        "path {path} did not send {psn} again without padding"
    );
    // What was found is used, and nothing larger.
    bench.peer.record.clear();
    write(bench, at, 0)?;
    let largest = bench.peer.record.iter().filter_map(|got| {
        let (header, _) = got.message()?;
        (header.opcode == Opcode::Write).then_some(got.bytes.len())
    });
    let largest = largest.max().context("no packet")?;
    ensure!(
        largest == found,
        "{found} bytes were found to pass, and {largest} are sent"
    );
    Ok(())
}

/// A packet of the search, of more than `bytes`.
fn searches(got: &Got, bytes: usize) -> bool {
    got.bytes.len() > bytes.max(DATA_HEADER_BYTES)
        && got.message().is_some_and(|(header, _)| {
            header.opcode == Opcode::Fill && header.fill_status() == FillStatus::Nothing
        })
}

fn write(bench: &mut Bench, at: usize, id: u64) -> Result<()> {
    post(bench, at, &format!("op=write id={id} bytes={MESSAGE}"))?;
    bench.completes(id, 0)?;
    Ok(())
}
