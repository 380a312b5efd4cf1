//! Chapter 5, the target as receiver: when it acknowledges, and what its ACKs say.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metaroce_proto::wire::{AckDelay, BaseFlags, DataHeader, Epoch, GRANT_UNLIMITED, PathFlags};

use crate::bench::Bench;
use crate::peer::{ConnectOptions, QUIET};
use crate::script::Script;
use crate::target::Region;

/// Packets that ACKs are counted over.
const MANY: u32 = 96;
/// Packets of an ACK at most (5.1).
const PACKETS_PER_ACK: u32 = 16;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "acks::counted",
        cites: &["5.1", "2.28"],
        run: counted,
    },
    Script {
        name: "acks::at once on a gap",
        cites: &["5.3", "5.5", "4.3"],
        run: gap,
    },
    Script {
        name: "acks::at once on a duplicate",
        cites: &["5.3", "4.3", "2.28"],
        run: duplicate,
    },
    Script {
        name: "acks::at once on request",
        cites: &["5.3", "2.8", "2.23", "4.10"],
        run: requested,
    },
    Script {
        name: "acks::twice, on two routes",
        cites: &["5.4", "1.16"],
        run: two_routes,
    },
    Script {
        name: "acks::at once on a change of the mark",
        cites: &["5.3", "5.6", "2.28"],
        run: marks,
    },
    Script {
        name: "acks::echo of the latest transmission",
        cites: &["5.7", "5.12", "2.28", "1.7"],
        run: echo,
    },
    Script {
        name: "acks::numbers",
        cites: &["5.2", "5.10", "2.11"],
        run: numbers,
    },
    Script {
        name: "acks::a stream block in three ACKs",
        cites: &["5.9", "2.29", "6.1"],
        run: stream_block_repeats,
    },
    Script {
        name: "acks::blocks take turns",
        cites: &["2.26", "2.27", "5.1"],
        run: turns,
    },
    Script {
        name: "acks::what is allowed",
        cites: &["2.25", "8.8", "8.18", "8.21"],
        run: allowance,
    },
];

fn connected(bench: &mut Bench) -> Result<(usize, Region)> {
    let at = bench.connect(&ConnectOptions::default())?;
    let region = bench.target.region(1 << 16, 0, "")?;
    Ok((at, region))
}

/// A WRITE of 8 bytes to place `number` of the region.
fn small(bench: &mut Bench, at: usize, region: &Region, number: u32) -> DataHeader {
    bench.stream(at).write(region, u64::from(number) * 8, 8)
}

fn counted(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    for number in 0..MANY {
        let header = small(bench, at, &region, number);
        bench.send((number % 4) as u8, &header, &[7; 8])?;
    }
    let mut acks = 0;
    let mut done = BTreeSet::new();
    bench.peer.expect("ACKs of all packets", |_, got| {
        acks += u32::from(got.allowance().is_some());
        let full = |path| {
            let block = got.block(path)?;
            (block.cumulative.0 == MANY / 4 && block.received == (MANY / 4) as u16).then_some(path)
        };
        done.extend((0..4).filter_map(full));
        (done.len() == 4).then_some(())
    })?;
    ensure!(
        acks >= MANY / PACKETS_PER_ACK,
        "{acks} ACKs for {MANY} packets"
    );
    Ok(())
}

fn gap(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let headers: Vec<DataHeader> = (0..3)
        .map(|number| small(bench, at, &region, number))
        .collect();
    bench.send(0, &headers[0], &[1; 8])?;
    bench.acknowledged(0, 1)?;
    let lost = bench.peer.data(0, BaseFlags::NONE, &headers[1], &[2; 8]);
    bench.send(0, &headers[2], &[3; 8])?;
    bench.peer.expect("ACK that shows the gap", |_, got| {
        let block = got.block(0)?;
        let ones: Vec<u32> = block.vector.ones().collect();
        (block.cumulative.0 == 1 && ones == [1]).then_some(())
    })?;
    let again = bench.peer.again(&lost);
    bench.peer.send(&again)?;
    let ack = bench.acknowledged(0, 3)?;
    let block = ack.block(0).context("no block")?;
    ensure!(
        block.vector.is_empty() && block.duplicates == 0,
        "{block:?}"
    );
    Ok(())
}

fn duplicate(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let header = small(bench, at, &region, 0);
    let packet = bench.send(0, &header, &[1; 8])?;
    bench.acknowledged(0, 1)?;
    let before = bench.target.counter("duplicates_received")?;
    let again = bench.peer.again(&packet);
    bench.peer.send(&again)?;
    let stamp = u32::from_be_bytes(again[12..16].try_into()?);
    bench
        .peer
        .expect("ACK that counts the duplicate", |_, got| {
            let block = got.block(0)?;
            (block.duplicates == 1 && block.received == 2 && block.echoed_stamp.0 == stamp)
                .then_some(())
        })?;
    bench.counted("duplicates_received", before, 1)
}

fn requested(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let flags = [
        BaseFlags::ACK_REQUESTED,
        BaseFlags::MARKER,
        BaseFlags::PROBE,
        BaseFlags::ANNOUNCE,
        BaseFlags::RETRANSMISSION,
    ];
    for (number, flag) in (0..).zip(flags) {
        let path = number as u8;
        let header = small(bench, at, &region, number);
        let packet = bench.peer.data(path, flag, &header, &[1; 8]);
        bench.peer.send(&packet)?;
        bench.acknowledged(path, 1)?;
        // A NOP has no PSN; the echo of its stamp acknowledges it.
        let nop = bench.peer.nop(path, flag);
        bench.peer.send(&nop)?;
        let stamp = u32::from_be_bytes(nop[12..16].try_into()?);
        let what = format!("ACK of the stamp of a NOP with the flag {flag}");
        bench.peer.expect(&what, |_, got| {
            let block = got.block(path)?;
            (block.echoed_stamp.0 == stamp && block.cumulative.0 == 1).then_some(())
        })?;
    }
    Ok(())
}

fn two_routes(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let header = small(bench, at, &region, 0);
    let packet = bench.send(0, &header, &[1; 8])?;
    bench.acknowledged(0, 1)?;
    let again = bench.peer.again(&packet);
    let probe = bench.peer.nop(0, BaseFlags::PROBE);
    for packet in [again, probe] {
        bench.peer.collect_for(QUIET)?;
        bench.peer.send(&packet)?;
        let stamp = u32::from_be_bytes(packet[12..16].try_into()?);
        let mut ports = BTreeSet::new();
        let mut copies = Vec::new();
        bench
            .peer
            .expect("ACK and its copy from another port", |_, got| {
                if got.block(0)?.echoed_stamp.0 == stamp {
                    ports.insert(got.from.port());
                    copies.push(got.bytes.clone());
                }
                (ports.len() == 2).then_some(())
            })?;
        ensure!(copies[0] == copies[1], "the copy of an ACK is another one");
    }
    // What asks for nothing of the kind is acknowledged once.
    bench.peer.collect_for(QUIET)?;
    let header = small(bench, at, &region, 1);
    bench.send(0, &header, &[1; 8])?;
    let acks = bench.peer.collect_for(QUIET)?;
    let of_it = acks.iter().filter(|got| got.block(0).is_some());
    ensure!(of_it.count() == 1, "a packet is acknowledged twice");
    Ok(())
}

fn marks(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let mut marked = 0;
    for (number, ce) in (0..).zip([false, true, true, false, true]) {
        let header = small(bench, at, &region, number);
        let packet = bench.peer.data(0, BaseFlags::NONE, &header, &[1; 8]);
        if ce {
            bench.peer.send_marked(&packet)?;
        } else {
            bench.peer.send(&packet)?;
        }
        marked += u16::from(ce);
        let ack = bench.acknowledged(0, number + 1)?;
        let block = ack.block(0).context("no block")?;
        let told = (block.flags.contains(PathFlags::CE_STATE), block.ce_count);
        ensure!(
            told == (ce, marked),
            "packet {number}: CE flag and count are {told:?}, not {:?}",
            (ce, marked)
        );
    }
    Ok(())
}

fn echo(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let headers: Vec<DataHeader> = (0..3)
        .map(|number| small(bench, at, &region, number))
        .collect();
    // Sent first on an old route, arrives last.
    let late = bench.peer.data(0, BaseFlags::NONE, &headers[0], &[1; 8]);
    bench.peer.path(0).epoch = Epoch(1);
    let newer = bench.send(0, &headers[1], &[2; 8])?;
    let stamp = u32::from_be_bytes(newer[12..16].try_into()?);
    bench.peer.expect("echo of epoch 1", |_, got| {
        let block = got.block(0)?;
        let delay_known = block.ack_delay != AckDelay::NO_SAMPLE;
        ((block.epoch.0, block.echoed_stamp.0) == (1, stamp) && delay_known).then_some(())
    })?;
    bench.peer.send(&late)?;
    let ack = bench.acknowledged(0, 2)?;
    let block = ack.block(0).context("no block")?;
    ensure!(
        (block.epoch.0, block.echoed_stamp.0) == (1, stamp),
        "the echo went back: {block:?}"
    );
    ensure!(
        block.ack_delay == AckDelay::NO_SAMPLE,
        "a delay for a stamp that was echoed before: {block:?}"
    );
    Ok(())
}

fn numbers(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let mut last = None;
    for number in 0..20 {
        let header = small(bench, at, &region, number);
        bench.send(0, &header, &[1; 8])?;
        let ack = bench.acknowledged(0, number + 1)?;
        ensure!(
            last.is_none_or(|last| last < ack.base.psn.0),
            "ACK number {} after {last:?}",
            ack.base.psn.0
        );
        last = Some(ack.base.psn.0);
    }
    // ACKs are not acknowledged. (One that tells of a grant or of W0 may come by itself.)
    const MANY: usize = 20;
    bench.peer.collect_for(QUIET)?;
    for _ in 0..MANY {
        bench.peer.acknowledge()?;
    }
    let answers = bench.peer.collect_for(QUIET)?;
    let answers = answers
        .iter()
        .filter(|got| got.allowance().is_some())
        .count();
    ensure!(answers < MANY / 2, "{MANY} ACKs are answered by {answers}");
    Ok(())
}

fn stream_block_repeats(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    let header = small(bench, at, &region, 0);
    bench.send(0, &header, &[1; 8])?;
    bench.executed(at, 1)?;
    let qpn = bench.stream(at).my_qpn;
    let token = bench.stream(at).my_token;
    let mut with_block = vec![true];
    for _ in 0..5 {
        let nop = bench.peer.nop(0, BaseFlags::ACK_REQUESTED);
        bench.peer.send(&nop)?;
        let stamp = u32::from_be_bytes(nop[12..16].try_into()?);
        let ack = bench.peer.expect("ACK", |_, got| {
            (got.block(0)?.echoed_stamp.0 == stamp).then(|| got.clone())
        })?;
        let block = ack.streams().iter().find(|block| block.qpn == qpn);
        ensure!(
            block.is_none_or(|block| block.token == token && block.msn_executed.0 == 1),
            "{block:?}"
        );
        with_block.push(block.is_some());
    }
    ensure!(
        with_block[..3] == [true; 3],
        "the block is not in the first three ACKs: {with_block:?}"
    );
    Ok(())
}

fn turns(bench: &mut Bench) -> Result<()> {
    const USED: u32 = 60;
    // An ACK of 256 + 64 bytes has room for 14 path blocks.
    bench.peer.hello.payload_bytes = 256;
    let (at, region) = connected(bench)?;
    for number in 0..USED {
        let header = small(bench, at, &region, number);
        bench.send(number as u8, &header, &[1; 8])?;
    }
    let mut told = BTreeSet::new();
    bench.peer.expect("blocks of all paths", |_, got| {
        told.extend((0..USED as u8).filter(|path| got.block(*path).is_some()));
        (told.len() == USED as usize).then_some(())
    })?;
    bench.executed(at, USED)
}

fn allowance(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench)?;
    for number in 0..10 {
        let header = small(bench, at, &region, number);
        bench.send(0, &header, &[1; 8])?;
        let ack = bench.acknowledged(0, number + 1)?;
        let allowed = ack.allowance().context("no ACK")?;
        ensure!(
            allowed.window_bytes >= 2 * 256 && allowed.grant_kib_per_s > 0,
            "nothing is allowed: {allowed:?}"
        );
        ensure!(
            allowed.grant_kib_per_s == GRANT_UNLIMITED,
            "a lone sender is limited to {} KiB/s, and no queue was ever seen",
            allowed.grant_kib_per_s
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
