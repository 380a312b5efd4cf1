//! Chapter 8: what a sender does with grant, window and W0, and what a receiver tells those that come and go.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_proto::wire::{BaseFlags, DataHeader, GRANT_UNLIMITED};

use super::requester::{PAYLOAD, post_write, sender};
use crate::bench::{Bench, begin};
use crate::peer::{ConnectOptions, Got, QUIET, SOON};
use crate::script::Script;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "rates::a cold start waits for its grant",
        cites: &["8.12", "2.35", "1.11", "2.8"],
        run: cold,
    },
    Script {
        name: "rates::W0 packets go with the announcement",
        cites: &["8.12", "8.13"],
        run: w0,
    },
    Script {
        name: "rates::the window",
        cites: &["8.6", "1.11"],
        run: window,
    },
    Script {
        name: "rates::a reserve for the oldest message of a stream",
        cites: &["6.29"],
        run: reserve,
    },
    Script {
        name: "rates::the grant",
        cites: &["8.7", "8.8", "2.25", "1.11"],
        run: grant,
    },
    Script {
        name: "rates::only the newest ACK allows",
        cites: &["5.2", "8.8"],
        run: newest,
    },
    Script {
        name: "rates::senders join and leave",
        cites: &["8.13", "8.21"],
        run: join_and_leave,
    },
    Script {
        name: "rates::backlog empty",
        cites: &["1.10", "2.8", "4.11"],
        run: backlog,
    },
];

fn messages(all: &[Got]) -> usize {
    all.iter()
        .filter(|got| got.message().is_some() && !got.is_again())
        .count()
}

fn cold(bench: &mut Bench) -> Result<()> {
    bench.peer.hello.w0_packets = 0;
    bench.peer.allowance.w0_packets = 0;
    let at = sender(bench)?;
    bench.peer.answers.data = false;
    post_write(bench, at, 1, 4)?;
    let announce = BaseFlags::ANNOUNCE | BaseFlags::PROBE;
    let announced = bench.peer.expect("announcement", |_, got| {
        got.is_nop(announce).then(|| got.clone())
    })?;
    bench.peer.never_for(
        QUIET / 4,
        "nothing is allowed before the announcement is answered",
        |got| got.message().is_some(),
    )?;
    // An ACK without path blocks is no answer.
    bench.peer.send_ack(&[], &[])?;
    bench.peer.never_for(
        QUIET / 4,
        "an ACK without path blocks ends a cold start",
        |got| got.message().is_some(),
    )?;
    bench.peer.take(&announced);
    bench.peer.answers.data = true;
    bench.peer.acknowledge()?;
    bench.completes(1, 0)?;
    Ok(())
}

fn w0(bench: &mut Bench) -> Result<()> {
    bench.peer.hello.w0_packets = 3;
    let at = sender(bench)?;
    bench.peer.answers.data = false;
    post_write(bench, at, 1, 40)?;
    // Until the first probes are unanswered nothing else may go.
    let all = bench.peer.collect_for(QUIET / 2)?;
    ensure!(
        messages(&all) <= 3,
        "{} packets went with the announcement, W0 is 3",
        messages(&all)
    );
    ensure!(
        all.iter().any(|got| got.is_nop(BaseFlags::ANNOUNCE)),
        "no announcement"
    );
    bench.peer.answers.data = true;
    for got in all.iter().filter(|got| got.data().is_some()) {
        bench.peer.answer(got)?;
    }
    bench.completes(1, 0)?;
    Ok(())
}

fn window(bench: &mut Bench) -> Result<()> {
    const WINDOW: u32 = 20 * PAYLOAD as u32;
    bench.peer.hello.window_bytes = WINDOW;
    bench.peer.allowance.window_bytes = WINDOW;
    let at = sender(bench)?;
    post_write(bench, at, 1, 4)?;
    bench.completes(1, 0)?;
    bench.settle()?;
    bench.peer.answers.data = false;
    post_write(bench, at, 2, 500)?;
    let all = bench.peer.collect_for(QUIET / 2)?;
    // The oldest message has a train of reserve, 64 KiB at most.
    let in_flight = messages(&all) * usize::from(PAYLOAD);
    ensure!(
        in_flight <= WINDOW as usize + 65_536,
        "{in_flight} bytes in flight, the window is {WINDOW}"
    );
    bench.peer.answers.data = true;
    for got in all.iter().filter(|got| got.data().is_some()) {
        bench.peer.answer(got)?;
    }
    bench.completes(2, 0)?;
    Ok(())
}

fn reserve(bench: &mut Bench) -> Result<()> {
    const WINDOW: u32 = 20 * PAYLOAD as u32;
    bench.peer.hello.window_bytes = WINDOW;
    bench.peer.allowance.window_bytes = WINDOW;
    let at = sender(bench)?;
    let other = bench.connect(&ConnectOptions::default())?;
    post_write(bench, at, 1, 4)?;
    bench.completes(1, 0)?;
    // What the window is filled with, by a message that is not the oldest, does not arrive; all else does.
    let (qpn, other_qpn) = (bench.stream(at).my_qpn, bench.stream(other).my_qpn);
    bench.peer.lose = Box::new(move |got| {
        got.message()
            .is_some_and(|(header, _)| header.qpn == qpn && header.msn.0 >= 2)
    });
    post_write(bench, at, 2, 1)?;
    post_write(bench, at, 3, 500)?;
    bench.peer.never_for(QUIET / 4, "", |_| false)?;
    let in_flight = messages(&bench.peer.record);
    ensure!(in_flight >= 15, "{in_flight} packets");
    // Another stream's oldest message goes all the same.
    post_write(bench, other, 4, 1)?;
    bench.completes(4, 0)?;
    let record = &bench.peer.record;
    ensure!(
        record.iter().any(|got| got
            .message()
            .is_some_and(|(header, _)| header.qpn == other_qpn)),
        "a request completed that was not sent"
    );
    bench.peer.lose = Box::new(|_| false);
    bench.completes(2, 0)?;
    bench.completes(3, 0)?;
    Ok(())
}

fn grant(bench: &mut Bench) -> Result<()> {
    const KIB_PER_S: u32 = 2_048;
    const PACKETS: u64 = 700;
    bench.peer.allowance.grant_kib_per_s = KIB_PER_S;
    let at = sender(bench)?;
    post_write(bench, at, 1, 8)?;
    bench.completes(1, 0)?;
    bench.settle()?;
    let started = Instant::now();
    post_write(bench, at, 2, PACKETS)?;
    bench.completes(2, 0)?;
    let took = started.elapsed();
    // 342 ms; a cold start's packets, a train, and what pacing may catch up with are before their time.
    ensure!(
        took >= Duration::from_millis(200),
        "{PACKETS} KiB at {KIB_PER_S} KiB/s took {took:?}"
    );
    // No limit: the same goes at once.
    bench.peer.allowance.grant_kib_per_s = GRANT_UNLIMITED;
    post_write(bench, at, 3, 8)?;
    bench.completes(3, 0)?;
    let started = Instant::now();
    post_write(bench, at, 4, PACKETS)?;
    bench.completes(4, 0)?;
    ensure!(
        started.elapsed() < SOON,
        "without a limit it took {:?}",
        started.elapsed()
    );
    Ok(())
}

fn newest(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, 8)?;
    bench.completes(1, 0)?;
    bench.peer.allowance.grant_kib_per_s = 1_024;
    bench.peer.send_ack(&[], &[])?;
    // Older ACKs that come late do not count.
    bench.peer.allowance.grant_kib_per_s = GRANT_UNLIMITED;
    let older = bench.peer.ack_number().retreat(1);
    let packet = bench.peer.ack_packet(older, &[], &[]);
    bench.peer.send(&packet)?;
    bench.peer.allowance.grant_kib_per_s = 1_024;
    bench.settle()?;
    let started = Instant::now();
    post_write(bench, at, 2, 400)?;
    bench.completes(2, 0)?;
    ensure!(
        started.elapsed() >= Duration::from_millis(200),
        "400 KiB at 1024 KiB/s took {:?}: an old ACK was believed",
        started.elapsed()
    );
    Ok(())
}

fn join_and_leave(bench: &mut Bench) -> Result<()> {
    const OTHERS: u16 = 7;
    let at = bench.connect(&ConnectOptions::default())?;
    let region = bench.target.region(1 << 12, 0, "")?;
    let asked = |bench: &mut Bench| -> Result<(u16, u32)> {
        let header = bench.stream(at).write(&region, 0, 8);
        bench.send(0, &header, &[1; 8])?;
        let next = bench.peer.path(0).next.0;
        let ack = bench.acknowledged(0, next)?;
        let allowed = ack.allowance().context("no ACK")?;
        ensure!(allowed.grant_kib_per_s > 0, "a grant of 0");
        Ok((allowed.w0_packets, allowed.window_bytes))
    };
    let alone = asked(bench)?;
    ensure!(alone.0 <= 16, "W0 of {}", alone.0);
    let mut others = Vec::new();
    for further in 1..=OTHERS {
        let mut peer = bench.another_peer(further)?;
        let at = begin(&mut bench.target, &mut peer, &ConnectOptions::default())?;
        peer.open_up(at)?;
        others.push((peer, at));
    }
    let many = asked(bench)?;
    // 256 KiB for all of them, and for connections of other processes of the host, in packets of 4 KiB.
    ensure!(
        many.0 <= 64 / (OTHERS + 1),
        "W0 is {} with {OTHERS} others",
        many.0
    );
    for (peer, at) in &mut others {
        let header = peer.streams[*at].write(&region, 0, 8);
        let packet = peer.data(0, BaseFlags::NONE, &header, &[1; 8]);
        peer.send(&packet)?;
        peer.expect("ACK with a grant", |_, got| {
            (got.allowance()?.grant_kib_per_s > 0 && got.block(0).is_some()).then_some(())
        })?;
        let qp = peer.streams[*at].qp;
        bench.target.tell(&format!("destroy qp={qp}"))?;
    }
    // They leave: CLOSE after a second, and then there is room again.
    for (peer, _) in &mut others {
        peer.expect("CLOSE", |peer, got| {
            peer.answer(got).ok()?;
            got.close().map(|_| ())
        })?;
    }
    let until = Instant::now() + SOON;
    loop {
        let again = asked(bench)?;
        // What other processes of this host need does not show from outside.
        if again.0 > many.0 || bench.target.other_connections()? > 0 {
            return Ok(());
        }
        ensure!(
            Instant::now() < until,
            "alone again W0 is {}, with {OTHERS} others it was {}",
            again.0,
            many.0
        );
        bench.peer.never_for(QUIET, "", |_| false)?;
    }
}

fn backlog(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, 300)?;
    bench.completes(1, 0)?;
    let record = &bench.peer.record;
    let first: Vec<&Got> = record
        .iter()
        .filter(|got| got.message().is_some() && !got.is_again())
        .collect();
    let empty = |got: &&Got| got.base.flags.contains(BaseFlags::BACKLOG_EMPTY);
    let last = |header: &DataHeader| {
        header.offset + u32::from(header.payload_bytes) == header.message_bytes
    };
    ensure!(
        first
            .iter()
            .filter(|got| empty(got))
            .all(|got| got.message().is_some_and(|(header, _)| last(header))),
        "backlog empty before the last packet"
    );
    ensure!(
        record.iter().any(|got| empty(&got)),
        "nobody was told that the backlog is empty"
    );
    // Every path that carried something is marked.
    let marked: Vec<u8> = record
        .iter()
        .filter(|got| got.base.flags.contains(BaseFlags::MARKER))
        .map(|got| got.base.path.0)
        .collect();
    ensure!(
        first.iter().all(|got| marked.contains(&got.base.path.0)),
        "a path that was used has no marker: {marked:?}"
    );
    Ok(())
}
