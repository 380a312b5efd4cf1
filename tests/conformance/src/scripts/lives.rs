//! Chapter 3, the ends: SHUT, lives that follow each other, CLOSE, restarts, silence.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_proto::wire::{CloseReason, ConnectionId, Msn, Reset, Shut, ShutReason, Token};

use super::requester::{post_write, sender, sender_with};
use crate::bench::{Bench, go_to_rts};
use crate::peer::{ConnectOptions, QUIET, SOON};
use crate::script::Script;

/// Work completion statuses of verbs.
const RETRY_EXC_ERR: u64 = 12;
const WR_FLUSH_ERR: u64 = 5;
/// An asynchronous event.
const QP_FATAL: u64 = 1;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "lives::SHUT of the target",
        cites: &["2.37", "2.40", "3.13", "3.8", "1.5", "9.1"],
        run: shut_of_target,
    },
    Script {
        name: "lives::SHUT of the peer",
        cites: &["2.37", "3.13", "3.14", "3.21"],
        run: shut_of_peer,
    },
    Script {
        name: "lives::the last word of a SHUT",
        cites: &["3.13", "6.3"],
        run: last_word,
    },
    Script {
        name: "lives::SHUT of an unknown life",
        cites: &["3.15", "2.37"],
        run: unknown_life,
    },
    Script {
        name: "lives::packets of a former life",
        cites: &["1.5", "3.10", "3.13", "9.1"],
        run: former_life,
    },
    Script {
        name: "lives::CLOSE at exit",
        cites: &["2.39", "3.19", "2.40"],
        run: close_at_exit,
    },
    Script {
        name: "lives::CLOSE when idle",
        cites: &["3.20", "2.39"],
        run: close_when_idle,
    },
    Script {
        name: "lives::CLOSE of the peer",
        cites: &["3.19", "3.21", "2.39"],
        run: close_of_peer,
    },
    Script {
        name: "lives::the peer is restarted",
        cites: &["3.5", "3.4", "3.21"],
        run: peer_restarted,
    },
    Script {
        name: "lives::the target is restarted",
        cites: &["3.16", "2.38", "9.5", "2.7"],
        run: target_restarted,
    },
    Script {
        name: "lives::RESET is believed of the peer only",
        cites: &["3.17", "2.38", "3.21"],
        run: reset,
    },
    Script {
        name: "lives::silence",
        cites: &["3.22", "3.21", "3.16"],
        run: silence,
    },
    Script {
        name: "lives::nobody listens any more",
        cites: &["3.18", "3.21"],
        run: unreachable,
    },
];

fn shut_of_target(bench: &mut Bench) -> Result<()> {
    for (how, reason) in [
        ("reset", ShutReason::Reset),
        ("error", ShutReason::Error),
        ("destroy", ShutReason::Destroyed),
    ] {
        let at = bench.connect(&ConnectOptions::default())?;
        bench.works(at, 0)?;
        let stream = bench.stream(at).clone();
        bench.target.tell(&format!("{how} qp={}", stream.qp))?;
        bench.peer.answers.control = false;
        let shuts = bench.peer.collect_for(Duration::from_millis(200))?;
        let shuts: Vec<Shut> = shuts.iter().filter_map(|got| got.shut().copied()).collect();
        let expected = Shut {
            from_qpn: stream.qpn,
            reason,
            from_token: stream.token,
            to_qpn: stream.my_qpn,
            to_token: stream.my_token,
            msn_executed: Msn(1),
        };
        ensure!(
            (3..=70).contains(&shuts.len()) && shuts.iter().all(|shut| *shut == expected),
            "{} SHUTs in 200 ms after `{how}`, as {:?}",
            shuts.len(),
            shuts.first()
        );
        // What still comes for that life is not placed; a late OPEN that names it is answered by its SHUT.
        let region = bench.target.region(64, 0, "")?;
        let late = bench.stream(at).write(&region, 0, 4);
        bench.send(0, &late, b"late")?;
        bench
            .peer
            .expect("ACK by the path", |_, got| got.block(0).map(|_| ()))?;
        ensure!(
            bench.target.other_than(&region, 0)? == 0,
            "DATA of a life that is over was placed"
        );
        bench.peer.answers.control = true;
        bench.peer.answer_shut(&expected)?;
        bench.peer.collect_for(QUIET)?;
        bench
            .peer
            .never("a SHUT is repeated after its answer", |got| {
                got.shut().is_some()
            })?;
        bench.peer.send_open(at)?;
        bench.peer.expect("SHUT for a late OPEN", |_, got| {
            got.shut()
                .filter(|shut| shut.from_token == stream.token)
                .map(|_| ())
        })?;
        if how == "error" {
            bench.target.tell(&format!("destroy qp={}", stream.qp))?;
        }
    }
    Ok(())
}

/// The peer's SHUT of a life.
fn shut_of(bench: &Bench, at: usize) -> Shut {
    let stream = &bench.peer.streams[at];
    Shut {
        from_qpn: stream.my_qpn,
        reason: ShutReason::Destroyed,
        from_token: stream.my_token,
        to_qpn: stream.qpn,
        to_token: stream.token,
        msn_executed: stream.block.msn_executed,
    }
}

fn send_shut(bench: &mut Bench, shut: &Shut) -> Result<Shut> {
    let packet = bench.peer.control(|builder| builder.push_shut(shut))?;
    bench.peer.send(&packet)?;
    bench
        .peer
        .expect("SHUT-ANSWER", |_, got| got.shut_answer().copied())
}

fn shut_of_peer(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    bench.works(at, 0)?;
    bench.peer.answers.data = false;
    post_write(bench, at, 1, 4)?;
    post_write(bench, at, 2, 4)?;
    let stream = bench.stream(at).clone();
    let shut = shut_of(bench, at);
    let first = send_shut(bench, &shut)?;
    ensure!(
        (first.from_qpn, first.to_qpn) == (stream.qpn, stream.my_qpn)
            && first.to_token == stream.my_token
            && first.reason != ShutReason::Unknown
            && first.msn_executed == Msn(1),
        "{first:?}"
    );
    ensure!(
        send_shut(bench, &shut)? == first,
        "a repeated SHUT has another answer"
    );
    bench.completes(1, RETRY_EXC_ERR)?;
    bench.completes(2, WR_FLUSH_ERR)?;
    ensure!(
        bench.target.state(stream.qp)? == "error",
        "the queue pair is not in the error state"
    );
    bench.target.poll()?;
    ensure!(
        bench.target.events.contains(&QP_FATAL),
        "no asynchronous event tells it: {:?}",
        bench.target.events
    );
    Ok(())
}

fn last_word(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    bench.peer.answers.execute = false;
    post_write(bench, at, 1, 2)?;
    post_write(bench, at, 2, 2)?;
    bench.no_completion(QUIET)?;
    // All acknowledged; the SHUT says that the first was executed.
    let mut shut = shut_of(bench, at);
    shut.msn_executed = Msn(1);
    send_shut(bench, &shut)?;
    bench.completes(1, 0)?;
    bench.completes(2, RETRY_EXC_ERR)?;
    Ok(())
}

fn unknown_life(bench: &mut Bench) -> Result<()> {
    let at = bench.connect(&ConnectOptions::default())?;
    let right = shut_of(bench, at);
    let mut wrong_life = right;
    wrong_life.to_token = Token::truncate(right.to_token.get() ^ 1);
    wrong_life.from_token = Token::truncate(right.from_token.get() ^ 1);
    let mut wrong_qpn = right;
    wrong_qpn.to_qpn = metaroce_proto::wire::Qpn::truncate(right.to_qpn.get() ^ 0x77);
    for wrong in [wrong_life, wrong_qpn] {
        let answer = send_shut(bench, &wrong)?;
        ensure!(
            answer.reason == ShutReason::Unknown && answer.to_token == wrong.from_token,
            "{answer:?} to {wrong:?}"
        );
    }
    bench.works(at, 0)
}

fn former_life(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions::default();
    let at = bench.connect(&options)?;
    let region = bench.target.region(64, 0, "")?;
    let old = bench.stream(at).clone();
    bench.target.tell(&format!("reset qp={}", old.qp))?;
    let next = bench.peer.begin(old.qp, old.qpn, &options);
    // The peer's program takes its queue pair for the next life, too, of the same numbers.
    bench.peer.streams[next].my_qpn = old.my_qpn;
    go_to_rts(&mut bench.target, &bench.peer, next, &options)?;
    bench.peer.open_up(next)?;
    let before = bench.target.counter("dropped_bad_token")?;
    let late = bench.stream(at).write(&region, 0, 4);
    bench.send(0, &late, b"late")?;
    bench.acknowledged(0, 1)?;
    bench.counted("dropped_bad_token", before, 1)?;
    ensure!(
        bench.target.other_than(&region, 0)? == 0,
        "DATA of a former life was placed"
    );
    // A SHUT of the former life does not end the new one.
    let shut = shut_of(bench, at);
    send_shut(bench, &shut)?;
    bench.works(next, 0)
}

fn close_at_exit(bench: &mut Bench) -> Result<()> {
    let at = bench.connect(&ConnectOptions::default())?;
    bench.works(at, 0)?;
    let stream = bench.stream(at).clone();
    bench.peer.answers.control = false;
    bench.target.end();
    let mut ports = BTreeSet::new();
    let mut copies = 0;
    let started = Instant::now();
    bench.peer.expect("CLOSE on three routes", |_, got| {
        let (reason, blocks) = got.close()?;
        let told = blocks.iter().any(|block| {
            (block.qpn, block.token, block.msn_executed) == (stream.my_qpn, stream.my_token, Msn(1))
        });
        if reason == CloseReason::Exit && told {
            ports.insert(got.from.port());
            copies += 1;
        }
        (ports.len() >= 3).then_some(())
    })?;
    // Not answered: it is repeated, and given up soon.
    bench
        .peer
        .expect("CLOSE again", |_, got| got.close().map(|_| ()))?;
    bench.target.ended()?;
    ensure!(
        started.elapsed() < Duration::from_secs(2),
        "an exit without an answer took {:?}",
        started.elapsed()
    );
    Ok(())
}

fn close_when_idle(bench: &mut Bench) -> Result<()> {
    let at = bench.connect(&ConnectOptions::default())?;
    let qp = bench.stream(at).qp;
    bench.target.tell(&format!("destroy qp={qp}"))?;
    bench.peer.never_for(
        Duration::from_millis(600),
        "a connection is closed at once",
        |got| got.close().is_some(),
    )?;
    let reason = bench
        .peer
        .expect("CLOSE", |_, got| got.close().map(|(reason, _)| reason))?;
    ensure!(reason == CloseReason::Idle, "{reason:?}");
    Ok(())
}

fn close_of_peer(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    let quiet = bench.connect(&ConnectOptions::default())?;
    let quiet_qp = bench.stream(quiet).qp;
    bench.peer.answers.execute = false;
    post_write(bench, at, 1, 2)?;
    post_write(bench, at, 2, 2)?;
    bench.no_completion(QUIET)?;
    let mut block = bench.stream(at).block;
    block.msn_executed = Msn(1);
    let packet = bench
        .peer
        .control(|builder| builder.push_close(CloseReason::Exit, &[block]) == Some(1))?;
    bench.peer.send(&packet)?;
    bench
        .peer
        .expect("CLOSE-ANSWER", |_, got| got.is_close_answer().then_some(()))?;
    // Its final blocks are the last ACK.
    bench.completes(1, 0)?;
    bench.completes(2, RETRY_EXC_ERR)?;
    ensure!(
        bench.target.state(quiet_qp)? == "rts",
        "a queue pair without send work requests stays as it is"
    );
    bench
        .target
        .tell(&format!("post qp={quiet_qp} op=write id=3"))?;
    let started = Instant::now();
    bench.completes(3, RETRY_EXC_ERR)?;
    ensure!(
        started.elapsed() < Duration::from_millis(500),
        "a later request did not fail at once, but after {:?}",
        started.elapsed()
    );
    bench.whole = false;
    Ok(())
}

fn peer_restarted(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    bench.works(at, 0)?;
    let (id, my_id, old) = (bench.peer.id, bench.peer.my_id, bench.peer.incarnation);
    let streams = bench.peer.streams.clone();
    // Somebody says hello with another incarnation: a fresh id, and nothing else happens.
    bench.peer.answers.control = false;
    let mut stranger = bench.peer.my_hello(ConnectionId(0));
    stranger.identity.my_id.0 ^= 0x55;
    stranger.identity.incarnation.0 ^= 1;
    let packet = bench
        .peer
        .control_to(ConnectionId(0), |builder| builder.push_hello(&stranger))?;
    bench.peer.send(&packet)?;
    let standing_id = stranger.identity.my_id;
    bench.peer.also_known_as(standing_id);
    let fresh = bench.peer.expect("HELLO with a fresh id", |_, got| {
        let hello = got.hello()?;
        (hello.identity.echo == standing_id).then_some(hello.identity.my_id)
    })?;
    ensure!(fresh != id, "the id of the old connection is told again");
    bench.works(at, 0)?;
    post_write(bench, at, 1, 2)?;
    bench.completes(1, 0)?;
    // The echo of the fresh id proves it.
    bench.peer.answers.data = false;
    post_write(bench, at, 2, 2)?;
    stranger.identity.echo = fresh;
    let packet = bench
        .peer
        .control_to(fresh, |builder| builder.push_hello(&stranger))?;
    bench.peer.send(&packet)?;
    bench.completes(2, RETRY_EXC_ERR)?;
    ensure!(
        bench.target.state(streams[at].qp)? == "error",
        "the queue pairs of the old incarnation fail"
    );
    // The new connection counts its PSNs from 0.
    bench.peer.restart();
    bench.peer.my_id = standing_id;
    bench.peer.also_known_as(standing_id);
    bench.peer.id = fresh;
    bench.peer.incarnation = stranger.identity.incarnation;
    bench.peer.answers.control = true;
    let next = bench.connect(&ConnectOptions::default())?;
    bench.works(next, 0)?;
    ensure!(
        my_id != standing_id && old != stranger.identity.incarnation,
        "the script's ids"
    );
    bench.whole = false;
    Ok(())
}

fn target_restarted(bench: &mut Bench) -> Result<()> {
    let at = bench.connect(&ConnectOptions::default())?;
    bench.works(at, 0)?;
    bench.restart_target()?;
    // The endpoint is there again, somewhere in the range; it knows nothing of the connection.
    let (_, qpn) = bench.target.create("")?;
    let base = bench.place.port_base;
    bench.peer.target.set_port(base + qpn.endpoint_index());
    let id = bench.peer.id;
    let region = bench.target.region(64, 0, "")?;
    let before = bench.target.counter("dropped_unknown_connection")?;
    let write = bench.stream(at).write(&region, 0, 4);
    bench.send(0, &write, b"evil")?;
    bench
        .peer
        .never("DATA of an unknown connection is answered", |got| {
            !got.is_correction()
        })?;
    bench.counted("dropped_unknown_connection", before, 1)?;
    // A HELLO names the port at which its sender listens: it is answered by a RESET.
    let hello = bench.peer.my_hello(id);
    let packet = bench
        .peer
        .control_to(id, |builder| builder.push_hello(&hello))?;
    bench.peer.send(&packet)?;
    let length = bench.peer.expect("RESET", |_, got| {
        let reset = got.reset()?;
        (reset.unknown_id == id && got.base.connection == ConnectionId(0))
            .then_some(got.bytes.len())
    })?;
    ensure!(
        length <= packet.len(),
        "{length} bytes answer {} bytes",
        packet.len()
    );
    // A RESET is never answered by one.
    let reset = Reset {
        unknown_id: ConnectionId(id.0 ^ 1),
    };
    let packet = bench
        .peer
        .control_to(ConnectionId(0), |builder| builder.push_reset(&reset))?;
    bench.peer.send(&packet)?;
    bench
        .peer
        .never("a RESET is answered", |got| !got.is_correction())?;
    ensure!(
        bench.target.other_than(&region, 0)? == 0,
        "DATA of an unknown connection was placed"
    );
    // Rate-limited.
    for number in 0..2_000_u32 {
        let mut hello = hello.clone();
        hello.identity.echo = ConnectionId(0x8000_0000 | number);
        let packet = bench
            .peer
            .control_to(ConnectionId(0), |builder| builder.push_hello(&hello))?;
        bench.peer.send(&packet)?;
    }
    let resets = bench.peer.collect_for(QUIET)?;
    ensure!(
        resets.len() < 1_500,
        "{} RESETs for 2000 HELLOs: there is no limit",
        resets.len()
    );
    Ok(())
}

fn reset(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    let my_id = bench.peer.my_id;
    let reset = |bench: &Bench, id: u32| {
        let reset = Reset {
            unknown_id: ConnectionId(id),
        };
        bench
            .peer
            .control_to(ConnectionId(0), |builder| builder.push_reset(&reset))
    };
    let right = reset(bench, my_id.0)?;
    let wrong = reset(bench, my_id.0 ^ 1)?;
    bench.peer.send(&wrong)?;
    bench.peer.send_as_stranger(bench.place.stranger, &right)?;
    bench.peer.never_for(QUIET, "", |_| false)?;
    post_write(bench, at, 1, 2)?;
    bench.completes(1, 0)?;
    bench.peer.answers.data = false;
    post_write(bench, at, 2, 2)?;
    let unopened = bench.begin(&ConnectOptions::default())?;
    bench.peer.answers.control = false;
    bench.peer.expect("OPEN", |_, got| got.open().map(|_| ()))?;
    bench.peer.send(&right)?;
    bench.completes(2, RETRY_EXC_ERR)?;
    // A stream whose OPEN was not answered starts over.
    let unopened = bench.stream(unopened).clone();
    bench.peer.expect("HELLO of a fresh connection", |_, got| {
        (got.hello()?.identity.echo == ConnectionId(0)).then_some(())
    })?;
    ensure!(
        bench.target.state(unopened.qp)? == "rts",
        "a queue pair whose OPEN was not answered failed"
    );
    bench.whole = false;
    Ok(())
}

fn silence(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions {
        // (3 + 1) × 4.096 µs × 2^14 = 268 ms.
        connect: "timeout=14 retry=3",
        ..ConnectOptions::default()
    };
    let at = sender_with(bench, &options)?;
    // Unlimited.
    let patient = ConnectOptions {
        connect: "timeout=0 retry=0",
        ..ConnectOptions::default()
    };
    let patient = bench.connect(&patient)?;
    bench.peer.answers.data = false;
    bench.peer.answers.control = false;
    post_write(bench, patient, 7, 1)?;
    post_write(bench, at, 1, 1)?;
    let started = Instant::now();
    bench
        .peer
        .expect("HELLO that asks", |_, got| got.hello().map(|_| ()))?;
    bench.completes(1, RETRY_EXC_ERR)?;
    let took = started.elapsed();
    ensure!(
        took >= Duration::from_millis(200) && took < SOON,
        "a bound of 268 ms of silence was kept after {took:?}"
    );
    let qp = bench.stream(at).qp;
    ensure!(
        bench.target.state(qp)? == "error",
        "the queue pair is not in the error state"
    );
    bench.no_completion(QUIET)?;
    // A word of the peer, and work goes on.
    bench.peer.answers.control = true;
    bench.peer.answers.data = true;
    bench.completes(7, 0)?;
    bench.whole = false;
    Ok(())
}

fn unreachable(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions {
        connect: "timeout=0",
        ..ConnectOptions::default()
    };
    let at = sender_with(bench, &options)?;
    post_write(bench, at, 1, 2)?;
    bench.completes(1, 0)?;
    // The process is gone: its kernel answers for it.
    let other = bench.another_peer(1)?;
    std::mem::replace(&mut bench.peer, other).hang_up();
    bench
        .target
        .tell("post qp=0 op=write id=2 bytes=8 remote=4096 rkey=1")?;
    let started = Instant::now();
    let done = bench.completion_within(Duration::from_secs(15))?;
    ensure!(
        (done.id, done.status) == (2, RETRY_EXC_ERR),
        "{done:?} after {:?}",
        started.elapsed()
    );
    bench.target.poll().context("the target's last word")?;
    bench.whole = false;
    Ok(())
}
