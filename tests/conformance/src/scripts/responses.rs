//! Chapter 6, the target as responder of requests that are answered: READs and atomics.

use anyhow::{Result, ensure};
use metaroce_proto::wire::{Attempt, DataHeader, FillStatus, Msn, NakCode, Opcode};

use super::responder::{connected, fails};
use crate::bench::Bench;
use crate::peer::ConnectOptions;
use crate::script::Script;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "responses::READ",
        cites: &["2.19", "2.21", "6.10", "6.5", "3.9"],
        run: read,
    },
    Script {
        name: "responses::too many READs",
        cites: &["6.24", "2.31"],
        run: too_many_reads,
    },
    Script {
        name: "responses::a READ of memory that is gone",
        cites: &["6.25", "2.21", "2.23", "6.27"],
        run: read_of_nothing,
    },
    Script {
        name: "responses::atomics exactly once",
        cites: &["2.20", "2.21", "6.12", "6.10"],
        run: atomics,
    },
    Script {
        name: "responses::an atomic that is not aligned",
        cites: &["6.26", "2.31"],
        run: misaligned,
    },
];

fn read(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let number = region.number;
    let line = format!("fill region={number} offset=100 value=9 bytes=10000");
    bench.target.tell(&line)?;
    let write = bench.stream(at).write(&region, 100, 1);
    let mut read = bench.stream(at).read(&region, 100, 10_000);
    read.attempt = Attempt(3);
    // The READ comes before the WRITE that is before it.
    bench.send(0, &read, b"")?;
    bench.acknowledged(0, 1)?;
    bench
        .peer
        .never("a READ is answered before its turn", |got| {
            got.message().is_some()
        })?;
    bench.send(0, &write, b"W")?;
    let stream = bench.stream(at).clone();
    let mut bytes = vec![0; 10_000];
    let mut came = 0;
    bench.peer.answers.data = true;
    bench.peer.expect("READ_RESP of 10000 bytes", |peer, got| {
        let (header, payload) = got.message()?;
        let right = header.opcode == Opcode::ReadResp
            && (header.qpn, header.token) == (stream.my_qpn, stream.my_token)
            && (header.msn, header.attempt, header.message_bytes) == (read.msn, Attempt(3), 10_000);
        if !right {
            return None;
        }
        let start = header.offset as usize;
        bytes[start..start + payload.len()].copy_from_slice(payload);
        came += payload.len();
        peer.take(got);
        peer.acknowledge().ok()?;
        (came == 10_000).then_some(())
    })?;
    ensure!(
        bytes[0] == b'W' && bytes[1..] == [9; 9_999],
        "the READ saw other bytes than the WRITE before it left"
    );
    bench.executed(at, 2)
}

fn too_many_reads(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "rd_atomic=2")?;
    // The first message stays away, so that none of the READs can be executed.
    let _write = bench.stream(at).write(&region, 0, 1);
    for number in 1..=3 {
        let read = bench.stream(at).read(&region, 0, 8);
        bench.send(0, &read, b"")?;
        bench.acknowledged(0, number)?;
    }
    let write = DataHeader {
        msn: Msn(1),
        ..bench.stream(at).write(&region, 0, 1)
    };
    bench.send(1, &write, b"W")?;
    let fatal = bench.told(at, "code 3", |block| block.code == NakCode::InvalidRequest)?;
    ensure!(fatal.msn_executed.0 == 3, "the third READ: {fatal:?}");
    fails(bench, at)
}

fn read_of_nothing(bench: &mut Bench) -> Result<()> {
    let at = bench.connect(&ConnectOptions::default())?;
    let region = bench.target.region(8 << 20, 1, "")?;
    let read = bench.stream(at).read(&region, 0, 8 << 20);
    // The answer begins, as much as the window allows, and the rest waits.
    bench.send(0, &read, b"")?;
    bench.peer.expect("READ_RESP", |peer, got| {
        let (header, _) = got.message()?;
        peer.take(got);
        (header.opcode == Opcode::ReadResp).then_some(())
    })?;
    let number = region.number;
    bench.target.tell(&format!("deregister region={number}"))?;
    let stream = bench.stream(at).clone();
    bench.peer.answers.data = true;
    bench.peer.expect("FILL with a status", |_, got| {
        let (header, _) = got.message()?;
        let of_it =
            (header.qpn, header.token, header.msn) == (stream.my_qpn, stream.my_token, read.msn);
        (header.opcode == Opcode::Fill && header.fill_status() != FillStatus::Nothing && of_it)
            .then_some(())
    })
}

fn atomics(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let value = |bench: &mut Bench| -> Result<u64> {
        let bytes = bench.target.read(&region, 64, 8)?;
        Ok(u64::from_ne_bytes(bytes.as_slice().try_into()?))
    };
    let add = bench.stream(at).atomic(Opcode::FetchAdd, &region, 64);
    let operands = [5_u64.to_be_bytes(), 0_u64.to_be_bytes()].concat();
    let packet = bench.send(0, &add, &operands)?;
    let stream = bench.stream(at).clone();
    // Its answer is lost, and sent again; the request too.
    let mut answers = Vec::new();
    for _ in 0..3 {
        let again = bench.peer.again(&packet);
        bench.peer.send(&again)?;
    }
    bench.peer.expect("ATOMIC_RESP, twice", |_, got| {
        let (header, payload) = got.message()?;
        if header.opcode == Opcode::AtomicResp {
            answers.push((header.qpn, header.token, header.msn, payload.to_vec()));
        }
        (answers.len() == 2).then_some(())
    })?;
    let expected = (stream.my_qpn, stream.my_token, Msn(1), vec![0; 8]);
    ensure!(
        answers.iter().all(|answer| *answer == expected),
        "{answers:?}"
    );
    ensure!(value(bench)? == 5, "executed {} times", value(bench)? / 5);
    bench.peer.answers.data = true;
    for (compare, swap, found) in [
        (4_u64, 9_u64, 5_u64),
        (5, 1 << 40, 5),
        (1 << 40, 7, 1 << 40),
    ] {
        let header = bench.stream(at).atomic(Opcode::CmpSwap, &region, 64);
        let operands = [compare.to_be_bytes(), swap.to_be_bytes()].concat();
        bench.send(0, &header, &operands)?;
        let before = bench.peer.expect("ATOMIC_RESP", |peer, got| {
            let (answer, payload) = got.message()?;
            peer.take(got);
            peer.acknowledge().ok()?;
            (answer.opcode == Opcode::AtomicResp && answer.msn == header.msn)
                .then(|| u64::from_be_bytes(payload.try_into().unwrap_or_default()))
        })?;
        ensure!(before == found, "found {before}, {found} was there");
    }
    ensure!(value(bench)? == 7, "{} is there", value(bench)?);
    Ok(())
}

fn misaligned(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let header = bench.stream(at).atomic(Opcode::FetchAdd, &region, 4);
    bench.send(0, &header, &[1; 16])?;
    bench.told(at, "code 3", |block| {
        block.code == NakCode::InvalidRequest && block.msn_executed.0 == 0
    })?;
    ensure!(bench.target.other_than(&region, 0)? == 0, "it was executed");
    fails(bench, at)
}
