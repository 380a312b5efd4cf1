//! Chapter 9: stale, replayed, forged and broken packets. No byte is placed, the drop is counted, and work goes on.

use anyhow::{Result, ensure};
use metaroce_proto::wire::{
    BaseFlags, ConnectionId, DataHeader, Gid, Incarnation, Psn, Qpn, Rkey, Token, seal,
};
use rand::Rng;

use crate::bench::Bench;
use crate::peer::{ConnectOptions, QUIET};
use crate::script::Script;
use crate::target::Region;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "safety::every check holds a forgery back",
        cites: &["9.1", "9.7", "2.7", "3.16", "4.3"],
        run: forged,
    },
    Script {
        name: "safety::a key must be right",
        cites: &["9.1", "6.5", "6.21"],
        run: keys,
    },
    Script {
        name: "safety::rights and domains",
        cites: &["9.1", "6.5"],
        run: rights,
    },
    Script {
        name: "safety::a replay changes nothing",
        cites: &["4.3", "6.7", "9.1"],
        run: replay,
    },
    Script {
        name: "safety::broken packets",
        cites: &[
            "9.2", "9.3", "2.4", "2.17", "2.18", "2.19", "2.20", "2.23", "2.24",
        ],
        run: broken,
    },
    Script {
        name: "safety::noise",
        cites: &["9.2", "9.3", "2.4"],
        run: noise,
    },
    Script {
        name: "safety::strangers get nothing",
        cites: &["3.2", "9.5", "3.16"],
        run: strangers,
    },
    Script {
        name: "safety::forged control packets",
        cites: &["3.3", "3.13", "3.17", "9.2", "2.32", "2.33", "2.35"],
        run: control,
    },
];

/// A connection, a region of zeroes, and a WRITE that would be good.
fn prepared(bench: &mut Bench) -> Result<(usize, Region, DataHeader)> {
    let at = bench.connect(&ConnectOptions::default())?;
    bench.works(at, 0)?;
    let region = bench.target.region(4_096, 0, "")?;
    let header = bench.stream(at).write(&region, 0, 4);
    Ok((at, region, header))
}

fn untouched(bench: &mut Bench, region: &Region, what: &str) -> Result<()> {
    bench.settle()?;
    ensure!(
        bench.target.other_than(region, 0)? == 0,
        "{what}: bytes were placed"
    );
    Ok(())
}

/// The good WRITE goes through after all, on a path that nobody used.
fn still_works(bench: &mut Bench, at: usize, header: &DataHeader) -> Result<()> {
    bench.send(60, header, b"good")?;
    bench.executed(at, header.msn.0)
}

fn forged(bench: &mut Bench) -> Result<()> {
    let (at, region, header) = prepared(bench)?;
    let id = bench.peer.id;
    let index = u32::from(bench.stream(at).qpn.endpoint_index());
    let bad = |change: &dyn Fn(&mut DataHeader)| {
        let mut header = header;
        change(&mut header);
        header
    };
    let token = bad(&|header| header.token = Token::truncate(header.token.get() ^ 1));
    let qpn = bad(&|header| header.qpn = Qpn::truncate(header.qpn.get() ^ 0x1000));
    let elsewhere = bad(&|header| {
        header.qpn = Qpn::truncate((index ^ 1) << 14 | header.qpn.get() & 0x3fff);
    });
    // Each on a path of its own, so that none is a duplicate.
    for (path, counter, forged) in [
        (10, "dropped_bad_token", token),
        (11, "dropped_unknown_qp", qpn),
        (12, "dropped_unknown_qp", elsewhere),
    ] {
        let before = bench.target.counter(counter)?;
        bench.send(path, &forged, b"evil")?;
        bench.acknowledged(path, 1)?;
        bench.counted(counter, before, 1)?;
        untouched(bench, &region, counter)?;
    }
    let before = bench.target.counter("dropped_unknown_connection")?;
    bench.peer.id = ConnectionId(id.0 ^ 1);
    let packet = bench.peer.data(13, BaseFlags::PROBE, &header, b"evil");
    bench.peer.id = id;
    bench.peer.send(&packet)?;
    bench
        .peer
        .never("an unknown id is answered", |got| !got.is_correction())?;
    bench.counted("dropped_unknown_connection", before, 1)?;
    let before = bench.target.counter("dropped_out_of_window")?;
    for (path, psn) in [(14, 256), (14, 100_000), (255, 0)] {
        let flags = BaseFlags::PROBE;
        let packet = bench.peer.data_as(path, Psn(psn), flags, &header, b"evil");
        bench.peer.send(&packet)?;
    }
    bench.settle()?;
    let paths = bench
        .peer
        .hello_of_target
        .as_ref()
        .map_or(64, |hello| hello.paths);
    bench.counted(
        "dropped_out_of_window",
        before,
        if paths < 256 { 3 } else { 2 },
    )?;
    if paths < 256 {
        untouched(bench, &region, "out of the window")?;
    }
    let before = bench.target.counter("dropped_wrong_source")?;
    let packet = bench.peer.data(16, BaseFlags::PROBE, &header, b"evil");
    bench.peer.send_as_stranger(bench.place.stranger, &packet)?;
    untouched(bench, &region, "from a stranger's address")?;
    bench.counted("dropped_wrong_source", before, 1)?;
    still_works(bench, at, &header)
}

fn keys(bench: &mut Bench) -> Result<()> {
    let region = bench.target.region(4_096, 0, "")?;
    // Everything about a key that can be wrong ends the queue pair and places nothing.
    type Change = fn(&mut DataHeader);
    let changes: [(&str, Change); 4] = [
        ("a key that is none", |header| {
            header.rkey = Rkey(header.rkey.0 ^ 0x100)
        }),
        ("before the region", |header| header.remote_address -= 1),
        ("beyond the region", |header| header.remote_address += 4_093),
        ("an address that wraps", |header| {
            header.remote_address = u64::MAX - 1;
        }),
    ];
    for (what, change) in changes {
        let at = bench.connect(&ConnectOptions::default())?;
        let mut header = bench.stream(at).write(&region, 0, 4);
        change(&mut header);
        bench.send(0, &header, b"evil")?;
        bench
            .peer
            .expect(&format!("code 2 for {what}"), |peer, _| {
                let told = peer.streams[at].told?;
                (told.code == metaroce_proto::wire::NakCode::RemoteAccess).then_some(())
            })?;
        untouched(bench, &region, what)?;
    }
    Ok(())
}

fn rights(bench: &mut Bench) -> Result<()> {
    const LOCAL_WRITE: u32 = 1;
    let at = bench.connect(&ConnectOptions::default())?;
    let foreign = bench.target.region(64, 0, "domain=1")?;
    let readable = bench
        .target
        .region(64, 0, &format!("access={}", LOCAL_WRITE | 4))?;
    let gone = bench.target.region(64, 0, "")?;
    bench
        .target
        .tell(&format!("deregister region={}", gone.number))?;
    for (what, region) in [
        ("another protection domain", foreign),
        ("a region that may only be read", readable),
        ("a region that is deregistered", gone),
    ] {
        let at = bench.connect(&ConnectOptions::default())?;
        let header = bench.stream(at).write(&region, 0, 4);
        bench.send(0, &header, b"evil")?;
        bench
            .peer
            .expect(&format!("a refusal of {what}"), |peer, _| {
                peer.streams[at].told?.code.is_fatal().then_some(())
            })?;
        untouched(bench, &region, what)?;
    }
    // A queue pair that allows no WRITE.
    let region = bench.target.region(64, 0, "")?;
    let options = ConnectOptions {
        create: "access=4",
        ..ConnectOptions::default()
    };
    let read_only = bench.connect(&options)?;
    let header = bench.stream(read_only).write(&region, 0, 4);
    bench.send(0, &header, b"evil")?;
    bench.peer.expect("a refusal of a WRITE", |peer, _| {
        peer.streams[read_only].told?.code.is_fatal().then_some(())
    })?;
    untouched(bench, &region, "a queue pair without the right")?;
    bench.works(at, 0)
}

fn replay(bench: &mut Bench) -> Result<()> {
    let (at, region, header) = prepared(bench)?;
    let packet = bench.send(5, &header, b"once")?;
    bench.executed(at, header.msn.0)?;
    let number = region.number;
    bench
        .target
        .tell(&format!("fill region={number} value=0 bytes=4"))?;
    let before = bench.target.counter("duplicates_received")?;
    for _ in 0..10 {
        bench.peer.send(&packet)?;
    }
    untouched(bench, &region, "a replay")?;
    bench.counted("duplicates_received", before, 10)?;
    bench.works(at, 0)
}

fn broken(bench: &mut Bench) -> Result<()> {
    let (at, region, header) = prepared(bench)?;
    let before = bench.target.counter("dropped_malformed")?;
    let mut sent = 0;
    let packet = bench.peer.data(7, BaseFlags::PROBE, &header, b"evil");
    // Cut anywhere.
    for length in 1..packet.len() {
        bench.peer.send(&packet[..length])?;
        sent += 1;
    }
    // Any bit of the headers flipped: the checksum does not fit.
    for bit in 0..64 * 8 {
        let mut packet = packet.clone();
        packet[bit / 8] ^= 1 << (bit % 8);
        bench.peer.send(&packet)?;
        sent += 1;
    }
    // A right checksum, and lengths that contradict each other.
    for change in [
        &(|p: &mut [u8]| p[21] = 5) as &dyn Fn(&mut [u8]),
        &|p| p[39] = 3,
        &|p| p[43] = 1,
        &|p| p[40] = 0xff,
        &|p| p[16] = 0x06,
        &|p| p[16] = 0x08,
        &|p| p[16] = 0x0a,
        &|p| p[16] = 0x00,
        &|p| p[16] = 0x0b,
        &|p| p[16..22].copy_from_slice(&[0x01, 0, 0, 0, 0, 0]),
    ] {
        let mut packet = packet.clone();
        change(&mut packet);
        seal(&mut packet);
        bench.peer.send(&packet)?;
        sent += 1;
    }
    // An unknown status of a FILL.
    let mut fill = bench.peer.data_as(
        7,
        Psn(0),
        BaseFlags::PROBE,
        &DataHeader {
            opcode: metaroce_proto::wire::Opcode::Fill,
            ..DataHeader::default()
        },
        &[],
    );
    fill[59] = 3;
    seal(&mut fill);
    bench.peer.send(&fill)?;
    sent += 1;
    bench.peer.never("a broken packet is acknowledged", |got| {
        got.block(7).is_some()
    })?;
    bench.counted("dropped_malformed", before, sent)?;
    untouched(bench, &region, "a broken packet")?;
    // The payload's checksum is asked for by its flag alone.
    let mut checksummed = packet.clone();
    checksummed[17] |= 2;
    seal(&mut checksummed);
    let mut damaged = checksummed.clone();
    damaged[66] ^= 1;
    bench.peer.send(&damaged)?;
    untouched(bench, &region, "a payload that does not fit its checksum")?;
    bench.peer.send(&checksummed)?;
    bench.executed(at, header.msn.0)
}

fn noise(bench: &mut Bench) -> Result<()> {
    let (at, region, header) = prepared(bench)?;
    let packet = bench.peer.data(7, BaseFlags::PROBE, &header, b"evil");
    let hello = bench.peer.my_hello(bench.peer.id);
    let hello = bench.peer.control(|builder| builder.push_hello(&hello))?;
    let before = bench.target.counter("dropped")?;
    const PACKETS: u64 = 4_000;
    for round in 0..PACKETS {
        let mut packet = match round % 3 {
            0 => hello.clone(),
            1 => packet.clone(),
            _ => {
                let length = bench.peer.random.random_range(0..300);
                (0..length).map(|_| bench.peer.random.random()).collect()
            }
        };
        for _ in 0..bench.peer.random.random_range(1..4) {
            let end = packet.len().min(64);
            if end > 0 {
                let at = bench.peer.random.random_range(0..end);
                packet[at] ^= bench.peer.random.random_range(1..=255);
            }
        }
        bench.peer.send(&packet)?;
        if round % 200 == 0 {
            bench.peer.never_for(QUIET / 60, "", |_| false)?;
        }
    }
    untouched(bench, &region, "noise")?;
    let after = bench.target.counter("dropped")?;
    if let (Some(before), Some(after)) = (before, after) {
        ensure!(
            after - before > PACKETS / 2,
            "{} of {PACKETS} broken packets were counted",
            after - before
        );
    }
    still_works(bench, at, &header)
}

fn strangers(bench: &mut Bench) -> Result<()> {
    let at = bench.connect(&ConnectOptions::default())?;
    bench.peer.collect_for(QUIET)?;
    // HELLOs for connections that nobody here wants.
    for number in 0..500_u32 {
        let mut hello = bench.peer.my_hello(ConnectionId(0));
        hello.identity.my_id = ConnectionId(number + 1);
        hello.identity.incarnation = Incarnation(u64::from(number));
        hello.source_gid = Gid::from_ip(bench.place.stranger);
        let packet = bench
            .peer
            .control_to(ConnectionId(0), |builder| builder.push_hello(&hello))?;
        bench.peer.send(&packet)?;
    }
    bench
        .peer
        .never("a stranger is answered", |got| !got.is_correction())?;
    bench.works(at, 0)
}

fn control(bench: &mut Bench) -> Result<()> {
    let at = bench.connect(&ConnectOptions::default())?;
    bench.peer.collect_for(QUIET)?;
    let id = bench.peer.id;
    let shut = metaroce_proto::wire::Shut {
        from_qpn: bench.stream(at).my_qpn,
        from_token: bench.stream(at).my_token,
        to_qpn: bench.stream(at).qpn,
        to_token: bench.stream(at).token,
        ..Default::default()
    };
    // Another id, or another address, or a token that was guessed.
    let wrong_id = bench
        .peer
        .control_to(ConnectionId(id.0 ^ 1), |builder| builder.push_shut(&shut))?;
    bench.peer.send(&wrong_id)?;
    let stranger = bench.peer.control(|builder| builder.push_shut(&shut))?;
    bench
        .peer
        .send_as_stranger(bench.place.stranger, &stranger)?;
    let close = bench
        .peer
        .control(|builder| builder.push_close(Default::default(), &[]).is_some())?;
    bench.peer.send_as_stranger(bench.place.stranger, &close)?;
    // A HELLO that is not first, one without paths, an item that is longer than the packet.
    let before = bench.target.counter("dropped_malformed")?;
    let hello = bench.peer.my_hello(id);
    let mut second = bench
        .peer
        .control(|builder| builder.push_open(&bench.peer.open_of(&bench.peer.streams[at])))?;
    let first = bench.peer.control(|builder| builder.push_hello(&hello))?;
    second.truncate(second.len() - 4);
    second.extend(&first[16..]);
    seal(&mut second);
    let mut no_paths = first.clone();
    no_paths[16 + 4 + 52..16 + 4 + 54].copy_from_slice(&[0, 0]);
    seal(&mut no_paths);
    let mut long = first.clone();
    long[18..20].copy_from_slice(&0x1000_u16.to_be_bytes());
    seal(&mut long);
    let mut short = stranger.clone();
    short[19] -= 4;
    seal(&mut short);
    for packet in [second, no_paths, long, short] {
        bench.peer.send(&packet)?;
    }
    bench
        .peer
        .never("it is answered", |got| !got.is_correction())?;
    bench.counted("dropped_malformed", before, 4)?;
    let qp = bench.stream(at).qp;
    ensure!(
        bench.target.state(qp)? == "rts",
        "a forged packet ended a queue pair"
    );
    bench.works(at, 0)
}
