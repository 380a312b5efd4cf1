//! Chapter 4, the target as sender: what it makes of losses, and of ACKs that are late, old or wrong.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metaroce_proto::wire::{AckNumber, BaseFlags, Psn};

use super::requester::{post_write, sender};
use crate::bench::Bench;
use crate::peer::Got;
use crate::script::Script;

/// Packets of the short messages: one train.
const SHORT: u64 = 8;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "losses::one at every place of a train",
        cites: &["4.2", "4.5", "4.8", "4.11", "4.12", "4.6", "1.9"],
        run: every_place,
    },
    Script {
        name: "losses::many in a long message",
        cites: &["4.5", "4.8", "4.1", "6.2"],
        run: long_message,
    },
    Script {
        name: "losses::of the retransmission too",
        cites: &["4.5", "4.14", "4.8"],
        run: again_and_again,
    },
    Script {
        name: "losses::of the marker too",
        cites: &["4.11", "4.14", "4.10"],
        run: marker_too,
    },
    Script {
        name: "losses::of ACKs",
        cites: &["5.8", "5.2", "4.14", "5.4"],
        run: of_acks,
    },
    Script {
        name: "losses::old ACKs take nothing back",
        cites: &["5.8", "5.2"],
        run: old_acks,
    },
    Script {
        name: "losses::ACKs of what was never sent",
        cites: &["5.8", "5.5", "9.2"],
        run: false_acks,
    },
    Script {
        name: "losses::retransmissions are not held back",
        cites: &["4.9", "8.6"],
        run: not_held_back,
    },
];

/// Loses the `n`th first transmission, and tells which it was.
fn lose_first(bench: &mut Bench, n: u64) {
    let mut seen = 0;
    bench.peer.lose = Box::new(move |got| {
        let first = got.message().is_some() && !got.is_again();
        seen += u64::from(first);
        first && seen == n + 1
    });
}

/// What was sent again though it had arrived, and not by a timeout, which repeats what nothing is known of: that takes
/// 5 ms at least, by the target's own stamps, and a busy machine makes it happen.
fn needless(record: &[Got], lost: &[(u8, u32)]) -> Vec<(u8, u32)> {
    const TIMEOUT: u32 = 5_000_000 / 64;
    let mut sent = HashMap::new();
    let messages = record.iter().filter(|got| got.message().is_some());
    let mut found = Vec::new();
    for got in messages {
        let before = sent.insert(got.place(), got.base.stamp.0);
        let soon = before.is_some_and(|before| got.base.stamp.0.wrapping_sub(before) < TIMEOUT);
        if got.is_again() && soon && !lost.contains(&got.place()) {
            found.push(got.place());
        }
    }
    found
}

/// Exactly what was lost is sent again, on its path and under its number.
fn only_lost_again(record: &[Got], lost: &[(u8, u32)]) -> Result<()> {
    let again = places(record, true);
    let missing: Vec<_> = lost.iter().filter(|place| !again.contains(place)).collect();
    ensure!(
        missing.is_empty(),
        "{missing:?} were lost and not sent again"
    );
    let needless = needless(record, lost);
    ensure!(
        needless.is_empty(),
        "{needless:?} were sent again without reason; lost were {lost:?}"
    );
    Ok(())
}

fn places(record: &[Got], again: bool) -> Vec<(u8, u32)> {
    let messages = record.iter().filter(|got| got.message().is_some());
    messages
        .filter(|got| got.is_again() == again)
        .map(Got::place)
        .collect()
}

fn every_place(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    for lost in 0..SHORT {
        bench.peer.record.clear();
        lose_first(bench, lost);
        post_write(bench, at, lost, SHORT)?;
        bench.completes(lost, 0)?;
        let first = places(&bench.peer.record, false);
        ensure!(
            first.len() as u64 == SHORT,
            "{} packets for {SHORT} KiB",
            first.len()
        );
        let paths: BTreeSet<u8> = first.iter().map(|(path, _)| *path).collect();
        ensure!(paths.len() == 1, "a train on paths {paths:?}");
        only_lost_again(&bench.peer.record, &[first[lost as usize]])?;
    }
    Ok(())
}

fn long_message(bench: &mut Bench) -> Result<()> {
    const LONG: u64 = 1_000;
    const EACH: u64 = 37;
    let at = sender(bench)?;
    let mut seen = 0;
    bench.peer.lose = Box::new(move |got| {
        let first = got.message().is_some() && !got.is_again();
        seen += u64::from(first);
        first && seen % EACH == 0
    });
    post_write(bench, at, 1, LONG)?;
    bench.completes(1, 0)?;
    let first = places(&bench.peer.record, false);
    ensure!(first.len() as u64 == LONG, "{} packets", first.len());
    let numbered = (1..).zip(&first);
    let lost = numbered.filter(|(number, _)| number % EACH == 0);
    let lost: Vec<_> = lost.map(|(_, place)| *place).collect();
    only_lost_again(&bench.peer.record, &lost)
}

fn again_and_again(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    let mut copies = 0;
    // The fourth first transmission, and its first three retransmissions.
    let (mut seen, mut lost_place) = (0, None);
    bench.peer.lose = Box::new(move |got| {
        if got.message().is_none() {
            return false;
        }
        seen += u64::from(!got.is_again());
        if seen == 4 && !got.is_again() {
            lost_place = Some(got.place());
        }
        copies += u32::from(lost_place == Some(got.place()));
        lost_place == Some(got.place()) && copies <= 4
    });
    post_write(bench, at, 1, SHORT)?;
    bench.completes(1, 0)?;
    let first = places(&bench.peer.record, false);
    let again = places(&bench.peer.record, true);
    let copies = again.iter().filter(|place| **place == first[3]).count();
    ensure!(copies == 4, "sent again were {again:?}");
    only_lost_again(&bench.peer.record, &first[3..4])
}

fn marker_too(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    // The last segment, and all that follows within a while: only a probe can tell.
    let mut seen = 0;
    let mut markers = 3;
    bench.peer.lose = Box::new(move |got| {
        seen += u64::from(got.message().is_some() && !got.is_again());
        let last = seen == SHORT && got.message().is_some() && !got.is_again();
        let marker = seen == SHORT && got.is_nop(BaseFlags::MARKER) && markers > 0;
        markers -= u32::from(marker);
        last || marker
    });
    post_write(bench, at, 1, SHORT)?;
    bench.completes(1, 0)?;
    let first = places(&bench.peer.record, false);
    only_lost_again(&bench.peer.record, &first[7..8])?;
    let marked = bench
        .peer
        .record
        .iter()
        .filter(|got| got.base.flags.contains(BaseFlags::MARKER));
    ensure!(
        marked.count() >= 2,
        "behind a train goes a NOP with the flag, besides the train's last segment"
    );
    Ok(())
}

fn of_acks(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    // All arrives, and the answers are lost for a while.
    bench.peer.answers.data = false;
    post_write(bench, at, 1, SHORT)?;
    let quiet = bench.peer.collect_for(Duration::from_millis(3))?;
    for got in &quiet {
        if got.data().is_some() {
            bench.peer.take(got);
        }
    }
    bench.stream(at).block.msn_executed = bench.stream(at).block.msn_executed.next();
    let probe = bench.peer.expect("probe", |_, got| {
        got.is_nop(BaseFlags::PROBE).then(|| got.clone())
    })?;
    bench.peer.take(&probe);
    bench.peer.acknowledge()?;
    bench.completes(1, 0)?;
    Ok(())
}

fn old_acks(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, SHORT)?;
    bench.completes(1, 0)?;
    let got = bench.peer.record.last().context("nothing was sent")?;
    let path = got.base.path.0;
    // What an ACK said before anything had arrived: no gap, no less.
    let mut old = bench.peer.received(path).block(path).context("no block")?;
    old.cumulative = Psn(old.cumulative.0 - SHORT as u32);
    old.echoed_stamp.0 -= 1_000_000;
    let older = AckNumber(bench.peer.ack_number().0 - 3);
    bench.peer.record.clear();
    for number in [older, bench.peer.ack_number().next()] {
        let packet = bench.peer.ack_packet(number, &[old], &[]);
        bench.peer.send(&packet)?;
    }
    bench
        .peer
        .never("an old ACK makes a retransmission", |got| {
            got.is_again() && got.message().is_some()
        })?;
    post_write(bench, at, 2, SHORT)?;
    bench.completes(2, 0)?;
    Ok(())
}

fn false_acks(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, SHORT)?;
    bench.completes(1, 0)?;
    let got = bench.peer.record.last().context("nothing was sent")?;
    let path = got.base.path.0;
    let right = bench.peer.received(path).block(path).context("no block")?;
    let before = bench.target.counter("dropped_out_of_window")?;
    let mut beyond = right;
    beyond.cumulative = right.cumulative.advance(5);
    let mut bit = right;
    bit.vector.set(100);
    let mut epoch = right;
    epoch.epoch.0 = epoch.epoch.0.wrapping_add(9);
    epoch.echoed_stamp = epoch.echoed_stamp.next();
    let number = bench.peer.ack_number();
    for (step, block) in (1..).zip([beyond, bit, epoch]) {
        let packet = bench.peer.ack_packet(number.advance(step), &[block], &[]);
        bench.peer.send(&packet)?;
    }
    // Bit 0 is set by hand: the codec does not write that.
    bit.vector.set(1);
    let mut packet = bench.peer.ack_packet(number.advance(4), &[bit], &[]);
    let malformed = bench.target.counter("dropped_malformed")?;
    packet[32 + 20 + 3] |= 1;
    metaroce_proto::wire::seal(&mut packet);
    bench.peer.send(&packet)?;
    bench.settle()?;
    bench.counted("dropped_out_of_window", before, 3)?;
    bench.counted("dropped_malformed", malformed, 1)?;
    post_write(bench, at, 2, SHORT)?;
    bench.completes(2, 0)?;
    let again = places(&bench.peer.record, true);
    ensure!(again.is_empty(), "sent again were {again:?}");
    Ok(())
}

fn not_held_back(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    lose_first(bench, 2);
    // Next to nothing is allowed from the first ACK on.
    bench.peer.allowance.window_bytes = 1;
    bench.peer.allowance.grant_kib_per_s = 1;
    post_write(bench, at, 1, SHORT)?;
    // At 1 KiB/s it would take seconds.
    let within = Duration::from_millis(500);
    let lost = bench
        .peer
        .expect_within(within, "retransmission", |_, got| {
            (got.is_again() && got.message().is_some()).then(|| got.place())
        })?;
    let first = places(&bench.peer.record, false);
    ensure!(
        first.get(2) == Some(&lost),
        "{lost:?} was sent again, {first:?} were sent"
    );
    Ok(())
}
