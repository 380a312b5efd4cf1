//! Chapter 7: when the bytes of a WRITE can be seen.

use anyhow::{Context, Result, ensure};
use metaroce_proto::wire::{Attempt, BaseFlags, DataHeader, NakCode};

use crate::bench::Bench;
use crate::peer::{ConnectOptions, cut};
use crate::script::Script;
use crate::target::Region;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "visibility::relaxed",
        cites: &["7.2", "6.5"],
        run: relaxed,
    },
    Script {
        name: "visibility::strict, within a message",
        cites: &["7.3", "7.5"],
        run: within,
    },
    Script {
        name: "visibility::strict, across messages",
        cites: &["7.4", "6.8"],
        run: across,
    },
    Script {
        name: "visibility::buffers of SENDs",
        cites: &["7.8"],
        run: buffers,
    },
    Script {
        name: "visibility::more than can be held",
        cites: &["7.5", "7.6", "2.31", "9.4"],
        run: too_much,
    },
];

fn connected(bench: &mut Bench, relaxed: bool, bytes: u64) -> Result<(usize, Region)> {
    let at = bench.connect(&ConnectOptions::default())?;
    let more = if relaxed { "relaxed=1" } else { "relaxed=0" };
    let region = bench.target.region(bytes, 0, more)?;
    Ok((at, region))
}

/// Sends a segment on `path`, and returns when it was acknowledged.
fn segment(bench: &mut Bench, path: u8, header: &DataHeader, value: u8) -> Result<()> {
    let payload = vec![value; usize::from(header.payload_bytes)];
    let packet = bench.peer.data(path, BaseFlags::NONE, header, &payload);
    bench.peer.send(&packet)?;
    let next = bench.peer.path(path).next.0;
    bench.acknowledged(path, next)?;
    Ok(())
}

fn relaxed(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, true, 4_096)?;
    let first = bench.stream(at).write(&region, 0, 2_000);
    let second = bench.stream(at).write(&region, 2_000, 8);
    segment(bench, 0, &second, 2)?;
    segment(bench, 0, &cut(&first, 1_000, 1_000), 1)?;
    ensure!(
        bench.target.other_than(&region, 0)? == 1_008,
        "a relaxed region takes what arrives, at once"
    );
    segment(bench, 0, &cut(&first, 0, 1_000), 1)?;
    bench.executed(at, 2)
}

fn within(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, false, 4_096)?;
    let whole = bench.stream(at).write(&region, 0, 3_000);
    segment(bench, 0, &cut(&whole, 2_000, 1_000), 3)?;
    ensure!(
        bench.target.other_than(&region, 0)? == 0,
        "the final packet is seen before the rest is there"
    );
    segment(bench, 0, &cut(&whole, 0, 1_000), 1)?;
    ensure!(
        bench.target.read(&region, 0, 3_000)?[1_000..] == [0; 2_000],
        "the final packet is seen before the rest is there"
    );
    segment(bench, 0, &cut(&whole, 1_000, 1_000), 2)?;
    bench.executed(at, 1)?;
    let bytes = bench.target.read(&region, 0, 3_000)?;
    ensure!(
        bytes == [[1; 1_000], [2; 1_000], [3; 1_000]].concat(),
        "the bytes of the message"
    );
    Ok(())
}

fn across(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, false, 4_096)?;
    let data = bench.stream(at).write(&region, 0, 2_000);
    let flag = bench.stream(at).write(&region, 3_000, 4);
    let other = bench.stream(at).write(&region, 3_500, 4);
    segment(bench, 0, &flag, 7)?;
    segment(bench, 1, &other, 8)?;
    ensure!(
        bench.target.other_than(&region, 0)? == 0,
        "a flag is seen before what it tells of"
    );
    segment(bench, 2, &cut(&data, 1_000, 1_000), 1)?;
    ensure!(
        bench.target.read(&region, 3_000, 4)? == [0; 4],
        "a flag is seen before what it tells of"
    );
    segment(bench, 2, &cut(&data, 0, 1_000), 1)?;
    bench.executed(at, 3)?;
    ensure!(
        bench.target.read(&region, 3_000, 4)? == [7; 4]
            && bench.target.read(&region, 3_500, 4)? == [8; 4],
        "what was held is not there"
    );
    Ok(())
}

fn buffers(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, false, 4_096)?;
    let (qp, number) = (bench.stream(at).qp, region.number);
    let line = format!("receive qp={qp} id=1 region={number} bytes=3000");
    bench.target.tell(&line)?;
    let whole = bench.stream(at).send(3_000);
    segment(bench, 0, &cut(&whole, 2_000, 1_000), 3)?;
    ensure!(
        bench.target.other_than(&region, 0)? == 1_000,
        "nobody looks at a receive before it completes: its bytes need not be held"
    );
    segment(bench, 0, &cut(&whole, 0, 1_000), 1)?;
    segment(bench, 0, &cut(&whole, 1_000, 1_000), 2)?;
    bench.completes(1, 0)?;
    Ok(())
}

/// Sends all segments of a message, over many paths, and waits now and then for the ACKs. The least window that was told.
fn send_long(bench: &mut Bench, whole: &DataHeader, value: u8) -> Result<u32> {
    const SEGMENT: u32 = 4_000;
    const PATHS: u32 = 32;
    let mut window = u32::MAX;
    for number in 0..whole.message_bytes / SEGMENT {
        let path = (number % PATHS) as u8;
        let header = cut(whole, number * SEGMENT, SEGMENT as u16);
        let packet = bench
            .peer
            .data(path, BaseFlags::NONE, &header, &[value; SEGMENT as usize]);
        bench.peer.send(&packet)?;
        if number % PATHS == PATHS - 1 {
            let next = bench.peer.path(path).next.0;
            let ack = bench.acknowledged(path, next)?;
            window = window.min(ack.allowance().context("no ACK")?.window_bytes);
        }
    }
    Ok(window)
}

fn too_much(bench: &mut Bench) -> Result<()> {
    /// More than our endpoints hold before they have seen that they need more (4 MiB); others may hold that much.
    const LENGTH: u32 = 4_800 * 4_000;
    let (at, region) = connected(bench, false, 20 << 20)?;
    let other = bench.connect(&ConnectOptions::default())?;
    let first = bench.stream(at).write(&region, 0, 4);
    bench.works(other, 40)?;
    let nop = bench.peer.nop(40, BaseFlags::PROBE);
    bench.peer.send(&nop)?;
    let before = bench
        .peer
        .expect("window", |_, got| Some(got.allowance()?.window_bytes))?;
    let mut long = bench.stream(at).write(&region, 64, 0);
    long.message_bytes = LENGTH;
    let during = send_long(bench, &long, 9)?;
    ensure!(
        bench.target.other_than(&region, 0)? == 0,
        "bytes behind a message that is not there are seen"
    );
    ensure!(
        during < before,
        "held bytes come off the window: it was {before}, and is {during}"
    );
    // Other streams do not suffer.
    bench.works(other, 40)?;
    segment(bench, 41, &first, 1)?;
    let told = bench.told(at, "execution, or HOLD", |block| {
        block.code == NakCode::Hold || block.msn_executed.0 == 2
    })?;
    if told.code == NakCode::Hold {
        ensure!(
            (told.msn_executed.0, told.attempt.0) == (1, 0),
            "it is told when all earlier ones are executed: {told:?}"
        );
        long.attempt = Attempt(1);
        send_long(bench, &long, 8)?;
        bench.executed(at, 2)?;
        let bytes = bench.target.read(&region, 64, 64)?;
        ensure!(bytes == [8; 64], "bytes of the refused attempt: {bytes:?}");
    }
    ensure!(
        bench.target.other_than(&region, 0)? == u64::from(LENGTH) + 4,
        "not all was placed"
    );
    let qp = bench.stream(at).qp;
    ensure!(
        bench.target.state(qp)? == "rts",
        "a queue pair fails for want of hold memory"
    );
    Ok(())
}
