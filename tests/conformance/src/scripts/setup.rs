//! Chapter 3, the beginning: HELLO and OPEN, in both orders, repeated, refused.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_proto::wire::{ConnectionId, OpenFlags, Qpn};

use super::requester::{self, post, post_write};
use crate::bench::{Bench, begin, go_to_rts};
use crate::peer::{ConnectOptions, Peer, QUIET};
use crate::script::Script;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "setup::HELLO and OPEN",
        cites: &[
            "1.2", "1.3", "1.13", "1.14", "2.7", "2.34", "2.35", "2.36", "3.1", "3.2", "3.3",
            "3.5", "3.7", "3.8",
        ],
        run: hello_and_open,
    },
    Script {
        name: "setup::the peer comes first",
        cites: &["3.2", "3.8"],
        run: peer_first,
    },
    Script {
        name: "setup::repeated until answered",
        cites: &["2.40", "3.7", "3.5"],
        run: repeated,
    },
    Script {
        name: "setup::what is known is not answered",
        cites: &["3.2", "3.8"],
        run: nothing_new,
    },
    Script {
        name: "setup::OPENs that do not fit",
        cites: &["3.11", "3.8", "2.36"],
        run: misfits,
    },
    Script {
        name: "setup::no DATA before OPEN",
        cites: &["3.9", "3.23", "3.7"],
        run: no_data_before_open,
    },
    Script {
        name: "setup::tokens and numbers",
        cites: &["3.10", "3.12", "1.5", "1.13"],
        run: tokens,
    },
    Script {
        name: "setup::small packets and few paths",
        cites: &["1.18", "2.35", "4.22"],
        run: small_packets,
    },
    Script {
        name: "setup::another queue pair",
        cites: &["1.3", "3.7", "1.4"],
        run: another_queue_pair,
    },
    Script {
        name: "setup::the same index at another address",
        cites: &["1.13", "1.14", "1.15", "1.2"],
        run: same_index,
    },
    Script {
        name: "setup::room to grow",
        cites: &["2.33", "2.3", "2.6", "2.32"],
        run: room_to_grow,
    },
];

fn hello_and_open(bench: &mut Bench) -> Result<()> {
    let at = bench.begin(&ConnectOptions::default())?;
    let index = bench.stream(at).qpn.endpoint_index();
    bench.peer.answers.control = false;
    let hello = bench.peer.expect("HELLO", |_, got| {
        got.hello().map(|hello| (hello.clone(), got.base))
    })?;
    let (hello, base) = hello;
    ensure!(
        base.connection == ConnectionId(0),
        "a first HELLO has no id"
    );
    ensure!(
        hello.identity.echo == ConnectionId(0) && hello.identity.my_id != ConnectionId(0),
        "ids of a first HELLO: {hello:?}"
    );
    ensure!(
        hello.source_gid == bench.target.gid && hello.dest_gid == bench.peer.hello.source_gid,
        "GIDs: {hello:?}"
    );
    ensure!(
        hello.endpoint_port == bench.place.port_base + index,
        "the port of index {index} is {}",
        hello.endpoint_port
    );
    ensure!(
        hello.paths >= 1 && hello.payload_bytes >= 256 && hello.window_bytes > 0,
        "what it accepts: {hello:?}"
    );
    ensure!(
        hello.message_span > 0 && hello.packet_span > 0,
        "spans: {hello:?}"
    );
    let addresses = &hello.addresses;
    ensure!(
        addresses
            .iter()
            .any(|address| address.gid == hello.source_gid),
        "its own address is not among {addresses:?}"
    );
    // Its id comes back: the connection is open, and the OPENs follow.
    bench.peer.id = hello.identity.my_id;
    bench.peer.send_hello(hello.identity.my_id)?;
    let open = bench.peer.expect("OPEN", |peer, got| {
        (got.base.connection == peer.my_id).then(|| got.open().copied())?
    })?;
    let stream = bench.peer.streams[at].clone();
    ensure!(
        (open.from_qpn, open.to_qpn) == (stream.qpn, stream.my_qpn) && !open.token.is_zero(),
        "{open:?}"
    );
    ensure!(
        open.echo.is_zero() && open.flags.contains(OpenFlags::ANSWER_WANTED),
        "it knows no token yet: {open:?}"
    );
    ensure!(
        open.receive_psn == stream.psns.1 && [stream.psns.0, u32::MAX].contains(&open.send_psn),
        "PSNs of the programs: {open:?}"
    );
    ensure!(open.rnr_timer == 1, "RNR timer: {open:?}");
    bench.peer.learn_open(&open);
    bench.peer.send_open(at)?;
    let answer = bench.peer.expect("OPEN with the echo", |_, got| {
        got.open()
            .filter(|open| open.echo == stream.my_token)
            .copied()
    })?;
    ensure!(answer.token == open.token, "the token changed: {answer:?}");
    ensure!(
        (
            answer.send_psn,
            answer.max_rd_atomic,
            answer.max_dest_rd_atomic
        ) == (stream.psns.0, 16, 16),
        "in RTS: {answer:?}"
    );
    bench.peer.answers.control = true;
    bench.peer.streams[at].echoed = true;
    bench.works(at, 0)
}

fn peer_first(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions::default();
    let (qp, qpn) = bench.target.create("")?;
    let at = bench.peer.begin(qp, qpn, &options);
    for _ in 0..20 {
        bench.peer.send_hello(ConnectionId(0))?;
    }
    bench
        .peer
        .never("a stranger is answered", |got| !got.is_correction())?;
    go_to_rts(&mut bench.target, &bench.peer, at, &options)?;
    bench.peer.open_up(at)?;
    // An OPEN for a queue pair that is not in RTR, or is none, is not answered.
    let opened = qpn;
    let (qp, qpn) = bench.target.create("")?;
    let second = bench.peer.begin(qp, qpn, &options);
    bench.peer.send_open(second)?;
    let mut nobody = bench.peer.open_of(&bench.peer.streams[second]);
    nobody.to_qpn = Qpn::truncate(qpn.get() ^ 0x155);
    let packet = bench.peer.control(|builder| builder.push_open(&nobody))?;
    bench.peer.send(&packet)?;
    bench
        .peer
        .never("a queue pair in INIT, or none, answers an OPEN", |got| {
            got.open().is_some_and(|open| open.from_qpn != opened)
        })?;
    go_to_rts(&mut bench.target, &bench.peer, second, &options)?;
    bench.peer.open_up(second)?;
    bench.works(second, 0)
}

fn repeated(bench: &mut Bench) -> Result<()> {
    let at = bench.begin(&ConnectOptions::default())?;
    bench.peer.answers.control = false;
    let half = Duration::from_millis(500);
    // 1, 2, 4, 8 ms, then every 16 ms: 34 in half a second where nothing else runs.
    let hellos = bench.peer.collect_for(half)?;
    let hellos: Vec<_> = hellos.iter().filter_map(|got| got.hello()).collect();
    ensure!(
        (5..=40).contains(&hellos.len()),
        "{} HELLOs in {half:?}",
        hellos.len()
    );
    ensure!(
        hellos
            .iter()
            .all(|hello| hello.identity == hellos[0].identity),
        "repeated while opening a HELLO says the same"
    );
    let id = hellos[0].identity.my_id;
    bench.peer.id = id;
    bench.peer.send_hello(id)?;
    bench.peer.expect("OPEN", |_, got| got.open().map(|_| ()))?;
    // At most every 4 ms, as the peer is there: 125.
    let opens = bench.peer.collect_for(half)?;
    let opens: Vec<_> = opens.iter().filter_map(|got| got.open()).collect();
    ensure!(
        (10..=160).contains(&opens.len()),
        "{} OPENs in {half:?}",
        opens.len()
    );
    ensure!(
        opens
            .iter()
            .all(|open| open.token == opens[0].token
                && open.flags.contains(OpenFlags::ANSWER_WANTED)),
        "repeated OPENs want an answer"
    );
    bench.peer.answers.control = true;
    bench.peer.open_up(at)?;
    bench
        .peer
        .never("an OPEN is repeated after its answer", |got| {
            got.open()
                .is_some_and(|open| open.flags.contains(OpenFlags::ANSWER_WANTED))
        })
}

fn nothing_new(bench: &mut Bench) -> Result<()> {
    let at = bench.connect(&ConnectOptions::default())?;
    bench.peer.collect_for(QUIET)?;
    for _ in 0..5 {
        bench.peer.send_hello(bench.peer.id)?;
        // The echo is known, so no answer is wanted.
        bench.peer.send_open(at)?;
    }
    bench.peer.never("what is known is answered", |got| {
        got.hello().is_some() || got.open().is_some()
    })?;
    // One whose sender does not know the id is answered, with the same ids.
    bench.peer.send_hello(ConnectionId(0))?;
    let (id, my_id) = (bench.peer.id, bench.peer.my_id);
    bench.peer.expect("HELLO", |_, got| {
        let identity = got.hello()?.identity;
        (identity.my_id == id && identity.echo == my_id).then_some(())
    })?;
    // An OPEN that wants an answer gets one, with the echo and without a question.
    let open = bench.peer.open_of(&bench.peer.streams[at]);
    let asking = metaroce_proto::wire::Open {
        flags: OpenFlags::ANSWER_WANTED,
        ..open
    };
    let packet = bench.peer.control(|builder| builder.push_open(&asking))?;
    bench.peer.send(&packet)?;
    bench.peer.expect("OPEN", |_, got| {
        let answer = got.open()?;
        (answer.echo == open.token && !answer.flags.contains(OpenFlags::ANSWER_WANTED))
            .then_some(())
    })
}

fn misfits(bench: &mut Bench) -> Result<()> {
    let at = bench.begin(&ConnectOptions::default())?;
    bench.peer.expect("HELLO", |peer, got| {
        got.hello()?;
        peer.learn(got);
        Some(())
    })?;
    bench.peer.send_hello(bench.peer.id)?;
    bench.peer.answers.control = false;
    let token = bench
        .peer
        .expect("OPEN", |_, got| got.open().map(|open| open.token))?;
    let mut wrong_psn = bench.peer.open_of(&bench.peer.streams[at]);
    wrong_psn.echo = token;
    wrong_psn.send_psn ^= 1;
    let mut wrong_qpn = bench.peer.open_of(&bench.peer.streams[at]);
    wrong_qpn.echo = token;
    wrong_qpn.from_qpn = Qpn::truncate(wrong_qpn.from_qpn.get() ^ 1);
    for wrong in [wrong_psn, wrong_qpn] {
        let packet = bench.peer.control(|builder| builder.push_open(&wrong))?;
        bench.peer.send(&packet)?;
    }
    bench
        .peer
        .never("an OPEN that does not fit is answered", |got| {
            got.open().is_some_and(|open| !open.echo.is_zero())
        })?;
    bench.peer.answers.control = true;
    bench.peer.open_up(at)?;
    bench.works(at, 0)
}

fn no_data_before_open(bench: &mut Bench) -> Result<()> {
    let at = bench.begin(&ConnectOptions::default())?;
    bench.target.region(requester::MESSAGE, 1, "")?;
    post_write(bench, at, 1, 4)?;
    bench.peer.expect("HELLO", |peer, got| {
        got.hello()?;
        peer.learn(got);
        Some(())
    })?;
    bench.peer.send_hello(bench.peer.id)?;
    bench.peer.answers.control = false;
    bench
        .peer
        .never("DATA before its OPEN came", |got| got.message().is_some())?;
    // An OPEN that does not echo the token is not enough.
    bench.peer.send_open(at)?;
    bench.peer.never("DATA before its token came back", |got| {
        got.message().is_some()
    })?;
    bench.peer.answers.control = true;
    bench.peer.answers.data = true;
    bench.peer.answers.execute = true;
    bench.peer.open_up(at)?;
    bench.completes(1, 0)?;
    Ok(())
}

fn tokens(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions::default();
    let mut seen = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    let at = bench.connect(&options)?;
    seen.insert(bench.stream(at).token.get());
    numbers.insert(bench.stream(at).qpn.get());
    for _ in 0..6 {
        // Another life of the same queue pair.
        let stream = bench.stream(at).clone();
        bench.target.tell(&format!("reset qp={}", stream.qp))?;
        let next = bench.peer.begin(stream.qp, stream.qpn, &options);
        go_to_rts(&mut bench.target, &bench.peer, next, &options)?;
        bench.peer.open_up(next)?;
        let token = bench.peer.streams[next].token;
        ensure!(
            !token.is_zero() && seen.insert(token.get()),
            "token {token} came before"
        );
        // A number that was given back is not given out while others are free.
        let other = bench.connect(&options)?;
        let stream = bench.stream(other).clone();
        ensure!(
            stream.qpn.is_usable() && numbers.insert(stream.qpn.get()),
            "QPN {} came before",
            stream.qpn
        );
        bench.target.tell(&format!("destroy qp={}", stream.qp))?;
    }
    let index = bench.stream(at).qpn.endpoint_index();
    ensure!(
        numbers.iter().all(|qpn| qpn >> 14 == u32::from(index)),
        "the upper 10 bits of a QPN are the endpoint's index"
    );
    Ok(())
}

fn small_packets(bench: &mut Bench) -> Result<()> {
    bench.peer.hello.payload_bytes = 1000;
    bench.peer.hello.paths = 3;
    let at = bench.connect(&ConnectOptions::default())?;
    bench.target.region(requester::MESSAGE, 1, "")?;
    bench.peer.answers.data = true;
    bench.peer.answers.execute = true;
    post(bench, at, "op=write id=1 bytes=500001")?;
    bench.completes(1, 0)?;
    let record = &bench.peer.record;
    let messages = record.iter().filter_map(|got| got.message());
    let largest = messages.map(|(header, _)| header.payload_bytes).max();
    ensure!(largest == Some(1000), "the largest packet has {largest:?}");
    let paths: BTreeSet<u8> = record.iter().map(|got| got.base.path.0).collect();
    ensure!(
        paths.iter().all(|path| *path < 3),
        "3 paths are accepted, it uses {paths:?}"
    );
    let offsets: BTreeSet<u32> = record
        .iter()
        .filter_map(|got| got.message())
        .map(|(header, _)| header.offset)
        .collect();
    ensure!(
        offsets.len() == 501 && offsets.last() == Some(&500_000),
        "the segments are not those of 500001 bytes"
    );
    Ok(())
}

fn another_queue_pair(bench: &mut Bench) -> Result<()> {
    let first = bench.connect(&ConnectOptions::default())?;
    let id = bench.peer.id;
    bench.peer.collect_for(QUIET)?;
    let started = Instant::now();
    let second = begin(
        &mut bench.target,
        &mut bench.peer,
        &ConnectOptions::default(),
    )?;
    // The connection is there: its OPEN comes at once, without a HELLO that is a question.
    bench.peer.answers.control = false;
    let open = bench.peer.expect("OPEN", |_, got| {
        let open = got.open().copied()?;
        Some((open, got.hello().is_some()))
    })?;
    ensure!(!open.1, "a HELLO for a connection that is open");
    ensure!(
        started.elapsed() < Duration::from_secs(1),
        "an OPEN that is due at once took {:?}",
        started.elapsed()
    );
    bench.peer.learn_open(&open.0);
    bench.peer.answers.control = true;
    bench.peer.open_up(second)?;
    ensure!(bench.peer.id == id, "one connection has one id");
    bench.works(second, 0)?;
    bench.works(first, 0)
}

fn same_index(bench: &mut Bench) -> Result<()> {
    let (qp, qpn) = bench.target.create("")?;
    // The target's own port, at the peer's address: free only if the target is not bound to the wildcard.
    let (ip, base) = (bench.place.peer, bench.place.port_base);
    let mut peer = Peer::new(ip, base, qpn.endpoint_index(), bench.target.gid, 1)?;
    let options = ConnectOptions::default();
    let at = peer.begin(qp, qpn, &options);
    go_to_rts(&mut bench.target, &peer, at, &options)?;
    peer.open_up(at)?;
    bench.peer = peer;
    bench.works(at, 0)
}

fn room_to_grow(bench: &mut Bench) -> Result<()> {
    let at = bench.connect(&ConnectOptions::default())?;
    bench.peer.collect_for(QUIET)?;
    let malformed = bench.target.counter("dropped_malformed")?;
    // An item of a kind that is not known in front, and a body that is longer than known.
    let asking = metaroce_proto::wire::Open {
        flags: OpenFlags::ANSWER_WANTED,
        ..bench.peer.open_of(&bench.peer.streams[at])
    };
    let packet = bench.peer.control(|builder| builder.push_open(&asking))?;
    let (base, rest) = packet.split_at(16);
    let item = &rest[..rest.len() - 4];
    let mut longer = item.to_vec();
    longer[2..4].copy_from_slice(&36_u16.to_be_bytes());
    longer.extend([0xff; 4]);
    let unknown = [99, 0xff, 0, 4, 1, 2, 3, 4];
    let mut grown = [base, &unknown, &longer, &[0; 4]].concat();
    // Reserved bits are ignored: of the flags, and of the OPEN.
    grown[1] = 0x80;
    grown[16 + 8 + 4 + 11] = 0xff;
    metaroce_proto::wire::seal(&mut grown);
    bench.peer.send(&grown)?;
    bench
        .peer
        .expect("OPEN", |_, got| got.open().map(|_| ()))
        .context("a CONTROL packet with an unknown kind, a longer body and reserved bits set")?;
    bench.counted("dropped_malformed", malformed, 0)?;
    // Another version, and types that are none, are dropped.
    for first in [0x23, 0x03, 0x10, 0x14, 0x1f] {
        let mut packet = packet.clone();
        packet[0] = first;
        metaroce_proto::wire::seal(&mut packet);
        bench.peer.send(&packet)?;
    }
    bench
        .peer
        .never("a packet of another version or type is answered", |got| {
            got.open().is_some()
        })?;
    bench.counted("dropped_malformed", malformed, 5)?;
    bench.works(at, 0)
}
