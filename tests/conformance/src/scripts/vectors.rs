//! Edges of what a path counts: the bitvector, and numbers that wrap.

use anyhow::{Context, Result, ensure};
use metaroce_proto::wire::{BaseFlags, DataHeader, Epoch, Psn};

use crate::bench::Bench;
use crate::peer::ConnectOptions;
use crate::script::Script;
use crate::target::Region;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "vectors::edges",
        cites: &["4.3", "5.5", "2.28", "9.7"],
        run: edges,
    },
    Script {
        name: "vectors::full",
        cites: &["4.1", "4.3", "5.5"],
        run: full,
    },
    Script {
        name: "vectors::every single gap",
        cites: &["5.5", "5.3", "4.3"],
        run: every_gap,
    },
    Script {
        name: "vectors::stamps wrap",
        cites: &["1.20", "2.9", "5.12"],
        run: stamps_wrap,
    },
    Script {
        name: "vectors::epochs wrap",
        cites: &["1.20", "1.7", "5.12", "1.8"],
        run: epochs_wrap,
    },
];

fn connected(bench: &mut Bench) -> Result<(usize, Region)> {
    let at = bench.connect(&ConnectOptions::default())?;
    let region = bench.target.region(1 << 16, 0, "")?;
    Ok((at, region))
}

/// WRITEs of a byte each, whose MSNs are those of a stream that sends them in order.
fn writes(bench: &mut Bench, at: usize, region: &Region, count: u32) -> Vec<DataHeader> {
    let stream = bench.stream(at);
    let one = |number: u32| stream.write(region, u64::from(number), 1);
    (0..count).map(one).collect()
}

/// Sends write `number` with the PSN `number` on `path`.
fn send_as(bench: &mut Bench, path: u8, headers: &[DataHeader], number: u32) -> Result<()> {
    let header = &headers[number as usize];
    let packet = bench
        .peer
        .data_as(path, Psn(number), BaseFlags::NONE, header, &[9]);
    bench.peer.send(&packet)
}

/// Cumulative PSN, bits and words of the newest block that has `received` packets.
fn told(bench: &mut Bench, path: u8, received: u16) -> Result<(u32, Vec<u32>, u8)> {
    let what = format!("ACK of {received} packets");
    bench.peer.expect(&what, |_, got| {
        let block = got.block(path)?;
        let words = got.bytes[32 + 2];
        (block.received == received).then(|| {
            (
                block.cumulative.0,
                block.vector.ones().collect::<Vec<_>>(),
                words,
            )
        })
    })
}

fn edges(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let headers = writes(bench, at, &region, 258);
    // Bit 1, and the last bit; the words after the last bit are left out.
    send_as(bench, 0, &headers, 1)?;
    ensure!(told(bench, 0, 1)? == (0, vec![1], 1), "bit 1");
    send_as(bench, 0, &headers, 255)?;
    ensure!(told(bench, 0, 2)? == (0, vec![1, 255], 8), "bit 255");
    // Beyond: dropped, counted, and nothing is told.
    let before = bench.target.counter("dropped_out_of_window")?;
    for psn in [256, 257, 1 << 30, 0x7fff_ffff] {
        let packet = bench
            .peer
            .data_as(0, Psn(psn), BaseFlags::PROBE, &headers[256], &[1]);
        bench.peer.send(&packet)?;
    }
    bench
        .peer
        .never("a PSN beyond the window is acknowledged", |got| {
            got.block(0).is_some()
        })?;
    bench.counted("dropped_out_of_window", before, 4)?;
    ensure!(
        bench.target.other_than(&region, 0)? == 2,
        "a packet beyond the window was placed"
    );
    // Before the first: a duplicate.
    let packet = bench
        .peer
        .data_as(0, Psn(u32::MAX), BaseFlags::NONE, &headers[3], &[1]);
    bench.peer.send(&packet)?;
    ensure!(told(bench, 0, 3)? == (0, vec![1, 255], 8), "PSN -1");
    send_as(bench, 0, &headers, 0)?;
    ensure!(
        told(bench, 0, 4)? == (2, vec![253], 8),
        "bits shift with the cumulative PSN"
    );
    bench.counted("dropped_out_of_window", before, 4)
}

fn full(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let headers = writes(bench, at, &region, 256);
    for psn in (1..256).rev() {
        send_as(bench, 3, &headers, psn)?;
    }
    let (cumulative, ones, _) = told(bench, 3, 255)?;
    ensure!(
        cumulative == 0 && ones == (1..256).collect::<Vec<_>>(),
        "255 bits: {cumulative}, {ones:?}"
    );
    send_as(bench, 3, &headers, 0)?;
    ensure!(
        told(bench, 3, 256)? == (256, vec![], 0),
        "the vector falls in when its first packet comes"
    );
    bench.executed(at, 256)?;
    ensure!(
        bench.target.other_than(&region, 0)? == 256,
        "not all were placed"
    );
    Ok(())
}

fn every_gap(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    const WINDOW: u32 = 24;
    for missing in 0..WINDOW - 1 {
        let path = missing as u8;
        let headers = writes(bench, at, &region, WINDOW);
        for psn in (0..WINDOW).filter(|psn| *psn != missing) {
            send_as(bench, path, &headers, psn)?;
        }
        let (cumulative, ones, _) = told(bench, path, WINDOW as u16 - 1)?;
        ensure!(
            cumulative == missing && ones == (1..WINDOW - missing).collect::<Vec<_>>(),
            "PSN {missing} is missing: {cumulative}, {ones:?}"
        );
        send_as(bench, path, &headers, missing)?;
        ensure!(
            told(bench, path, WINDOW as u16)? == (WINDOW, vec![], 0),
            "PSN {missing} came late"
        );
    }
    Ok(())
}

fn stamps_wrap(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let headers = writes(bench, at, &region, 6);
    // Half a millisecond before the wrap.
    bench.peer.set_stamp(0, 0u32.wrapping_sub(8_000));
    let mut stamps = Vec::new();
    for header in &headers {
        let packet = bench.send(0, header, &[1])?;
        let stamp = u32::from_be_bytes(packet[12..16].try_into()?);
        bench.peer.expect("echo of the newest stamp", |_, got| {
            (got.block(0)?.echoed_stamp.0 == stamp).then_some(())
        })?;
        stamps.push(stamp);
        bench
            .peer
            .collect_for(std::time::Duration::from_micros(200))?;
    }
    ensure!(
        stamps.first() > stamps.last(),
        "the stamps {stamps:?} did not wrap: the script is too fast or too slow"
    );
    Ok(())
}

fn epochs_wrap(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let headers = writes(bench, at, &region, 16);
    for (number, header) in (0u32..).zip(&headers) {
        // 0, 63, 126, 189, 252, 59 …: never more than 64 ahead.
        let epoch = (number * 63 % 256) as u8;
        bench.peer.path(0).epoch = Epoch(epoch);
        bench.send(0, header, &[1])?;
        let ack = bench.acknowledged(0, number + 1)?;
        let block = ack.block(0).context("no block")?;
        ensure!(
            block.epoch.0 == epoch,
            "epoch {} is echoed, {epoch} was sent",
            block.epoch.0
        );
    }
    bench.executed(at, 16)
}
