//! Chapter 6, the target as requester: when requests complete, what refusals do, what is held back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use metaroce_proto::wire::{
    Attempt, BaseFlags, DataFlags, DataHeader, FillStatus, NakCode, Opcode, Ssn, StreamBlock, Token,
};

use super::requester::{PAYLOAD, REMOTE, post, post_write, sender, sender_with};
use crate::bench::Bench;
use crate::peer::{ConnectOptions, Got, QUIET};
use crate::script::Script;

/// Work completion statuses of verbs.
const WR_FLUSH_ERR: u64 = 5;
const REM_INV_REQ_ERR: u64 = 9;
const REM_ACCESS_ERR: u64 = 10;
const REM_OP_ERR: u64 = 11;
const RNR_RETRY_EXC_ERR: u64 = 13;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "requests::headers",
        cites: &[
            "2.12", "2.13", "2.14", "2.16", "2.18", "2.19", "2.20", "6.1", "6.2", "4.2",
        ],
        run: headers,
    },
    Script {
        name: "requests::complete when executed",
        cites: &["6.3", "6.4", "4.14", "2.23"],
        run: executed,
    },
    Script {
        name: "requests::blocks of another life",
        cites: &["2.30", "2.29"],
        run: another_life,
    },
    Script {
        name: "requests::RNR",
        cites: &["2.31", "6.9", "6.16", "6.17", "6.22"],
        run: rnr,
    },
    Script {
        name: "requests::RNR too often",
        cites: &["6.17", "3.21"],
        run: rnr_exceeded,
    },
    Script {
        name: "requests::a lost NAK",
        cites: &["6.4", "6.22", "2.31", "4.14"],
        run: lost_nak,
    },
    Script {
        name: "requests::every fatal code",
        cites: &["2.31", "6.23", "3.21", "6.22"],
        run: fatal_codes,
    },
    Script {
        name: "requests::HOLD",
        cites: &["2.31", "7.6", "6.9"],
        run: hold,
    },
    Script {
        name: "requests::credits",
        cites: &["6.18", "2.8", "2.36"],
        run: credits,
    },
    Script {
        name: "requests::READ",
        cites: &["2.21", "6.3", "6.4", "3.9"],
        run: read,
    },
    Script {
        name: "requests::a READ that fails",
        cites: &["6.25", "2.23", "6.27"],
        run: read_fails,
    },
    Script {
        name: "requests::atomics",
        cites: &["2.20", "2.21", "6.3"],
        run: atomic,
    },
    Script {
        name: "requests::the message span",
        cites: &["6.28", "2.35"],
        run: span,
    },
    Script {
        name: "requests::FILL for what is no more",
        cites: &["6.27", "2.23", "4.2"],
        run: fill,
    },
];

/// Request packets of the target, not taken and not acknowledged, until `count` came.
fn requests(bench: &mut Bench, count: usize) -> Result<Vec<Got>> {
    bench.peer.answers.data = false;
    let mut all = Vec::new();
    bench
        .peer
        .expect(&format!("{count} request packets"), |_, got| {
            if got.message().is_some() && !got.is_again() {
                all.push(got.clone());
            }
            (all.len() == count).then_some(())
        })?;
    Ok(all)
}

/// Takes packets for received and says so, with `block` about the stream.
fn acknowledge(bench: &mut Bench, at: usize, all: &[Got], block: StreamBlock) -> Result<()> {
    for got in all {
        bench.peer.take(got);
    }
    bench.stream(at).block = block;
    bench.peer.acknowledge()
}

fn headers(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    let stream = bench.stream(at).clone();
    let expected: [(&str, Opcode, u32, u32); 7] = [
        ("op=write bytes=10", Opcode::Write, 10, 0),
        ("op=send bytes=11 solicited=1", Opcode::Send, 11, 0),
        (
            "op=write_imm bytes=12 imm=0x01020304",
            Opcode::WriteImm,
            12,
            0x0102_0304,
        ),
        (
            "op=send_imm bytes=13 imm=0x0a0b0c0d",
            Opcode::SendImm,
            13,
            0x0a0b_0c0d,
        ),
        ("op=read bytes=14", Opcode::ReadReq, 14, 0),
        (
            "op=cmp_swap bytes=8 compare=0x1122334455667788 swap=9",
            Opcode::CmpSwap,
            16,
            0,
        ),
        ("op=fetch_add bytes=8 add=7", Opcode::FetchAdd, 16, 0),
    ];
    let mut ssn = 0;
    for (number, (words, opcode, bytes, imm)) in (1..).zip(expected) {
        post(bench, at, words)?;
        let got = requests(bench, 1)?.remove(0);
        let (header, payload) = got.message().context("no DATA")?;
        let takes_receive = matches!(opcode, Opcode::Send | Opcode::SendImm | Opcode::WriteImm);
        let addressed = !matches!(opcode, Opcode::Send | Opcode::SendImm);
        let (remote, key) = if addressed { REMOTE } else { (0, 0) };
        let right = DataHeader {
            opcode,
            flags: DataFlags::NONE.set(DataFlags::SOLICITED, words.contains("solicited")),
            attempt: Attempt(0),
            payload_bytes: if opcode == Opcode::ReadReq {
                0
            } else {
                bytes as u16
            },
            qpn: stream.my_qpn,
            token: stream.my_token,
            msn: metaroce_proto::wire::Msn(number),
            ssn: Ssn(ssn),
            message_bytes: bytes,
            offset: 0,
            remote_address: remote,
            rkey: metaroce_proto::wire::Rkey(key),
            immediate: imm,
        };
        ensure!(*header == right, "{words}: {header:?} and not {right:?}");
        match opcode {
            Opcode::CmpSwap => ensure!(
                payload == [0x1122_3344_5566_7788_u64.to_be_bytes(), 9_u64.to_be_bytes()].concat(),
                "compare and swap: {payload:x?}"
            ),
            Opcode::FetchAdd => ensure!(
                payload == [7_u64.to_be_bytes(), [0; 8]].concat(),
                "add and 0: {payload:x?}"
            ),
            _ => ensure!(
                payload.iter().all(|byte| *byte == 0x5a),
                "other bytes than those of the memory"
            ),
        }
        ssn += u32::from(takes_receive);
        bench.peer.take(&got);
        bench.peer.acknowledge()?;
    }
    Ok(())
}

fn executed(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, 2)?;
    post_write(bench, at, 2, 2)?;
    let all = requests(bench, 4)?;
    let block = bench.stream(at).block;
    acknowledge(bench, at, &all, block)?;
    // All packets have arrived, nothing is executed: it asks for the stream's block by name.
    let stream = bench.stream(at).clone();
    bench.peer.expect("probe that names the stream", |_, got| {
        let (header, _) = got.data()?;
        let named = (header.qpn, header.token) == (stream.my_qpn, stream.my_token);
        (got.is_nop(BaseFlags::PROBE) && named).then_some(())
    })?;
    bench.peer.answers.data = true;
    bench.peer.answers.execute = false;
    bench.no_completion(QUIET)?;
    bench.stream(at).block.msn_executed.0 = 1;
    bench.peer.acknowledge()?;
    bench.completes(1, 0)?;
    bench.no_completion(QUIET)?;
    bench.stream(at).block.msn_executed.0 = 2;
    // Even if that ACK is lost, a probe brings the next one.
    bench.completes(2, 0)?;
    Ok(())
}

fn another_life(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, 1)?;
    let all = requests(bench, 1)?;
    let right = bench.stream(at).block;
    let mut wrong = right;
    wrong.token = Token::truncate(right.token.get() ^ 1);
    wrong.msn_executed.0 = 1;
    acknowledge(bench, at, &all, wrong)?;
    wrong.code = NakCode::RemoteAccess;
    wrong.msn_executed.0 = 0;
    acknowledge(bench, at, &[], wrong)?;
    bench.no_completion(QUIET)?;
    let done = StreamBlock {
        msn_executed: metaroce_proto::wire::Msn(1),
        ..right
    };
    acknowledge(bench, at, &[], done)?;
    bench.completes(1, 0)?;
    Ok(())
}

fn rnr(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions {
        credit: 0,
        ..ConnectOptions::default()
    };
    let at = sender_with(bench, &options)?;
    post(bench, at, "op=send id=1 bytes=100")?;
    post(bench, at, "op=write id=2 bytes=100")?;
    let all = requests(bench, 2)?;
    // 20 is 10.24 ms.
    let mut refused = StreamBlock {
        code: NakCode::Rnr,
        rnr_timer: 20,
        ..bench.stream(at).block
    };
    let refused_at = Instant::now();
    acknowledge(bench, at, &all, refused)?;
    post(bench, at, "op=send id=3 bytes=100")?;
    // The first goes again, alone, and not before its time; what is newer and takes a receive waits.
    let first = bench.peer.expect("the next attempt", |_, got| {
        let (header, _) = got.message()?;
        (header.msn.0 == 1 || header.msn.0 == 3).then(|| (*header, got.clone()))
    })?;
    let waited = first.1.at - refused_at;
    ensure!(
        first.0.msn.0 == 1 && first.0.attempt.0 == 1,
        "{:?} leaves where attempt 1 of the refused one is due",
        first.0
    );
    ensure!(
        waited >= Duration::from_millis(9),
        "an RNR timer of 10.24 ms was over after {waited:?}"
    );
    bench
        .peer
        .never("a SEND that is newer than a refused one", |got| {
            got.message()
                .is_some_and(|(header, _)| header.msn.0 == 3 && !got.is_again())
        })?;
    // A code about an older attempt is stale.
    acknowledge(bench, at, &[first.1], refused)?;
    bench.peer.never("a stale refusal is obeyed", |got| {
        got.message()
            .is_some_and(|(header, _)| header.attempt.0 > 1)
    })?;
    // 31 is 491 ms; a receive that is told ends the wait.
    refused.attempt = Attempt(1);
    refused.rnr_timer = 31;
    let refused_at = Instant::now();
    acknowledge(bench, at, &[], refused)?;
    refused.credit = Ssn(10);
    acknowledge(bench, at, &[], refused)?;
    let again = bench.peer.expect("the next attempt", |_, got| {
        let (header, _) = got.message()?;
        (header.msn.0 == 1 && header.attempt.0 == 2).then(|| got.clone())
    })?;
    let waited = again.at - refused_at;
    ensure!(
        waited < Duration::from_millis(400),
        "a receive was told, and the next attempt waited {waited:?}"
    );
    let done = StreamBlock {
        code: NakCode::None,
        msn_executed: metaroce_proto::wire::Msn(2),
        ..refused
    };
    acknowledge(bench, at, &[again], done)?;
    bench.completes(1, 0)?;
    bench.completes(2, 0)?;
    bench.peer.answers.data = true;
    bench.stream(at).block.msn_executed.0 = 3;
    bench.completes(3, 0)?;
    Ok(())
}

fn rnr_exceeded(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions {
        connect: "rnr_retry=3",
        credit: 0,
        ..ConnectOptions::default()
    };
    let at = sender_with(bench, &options)?;
    post(bench, at, "op=send id=1 bytes=8")?;
    post(bench, at, "op=send id=2 bytes=8")?;
    let all = requests(bench, 1)?;
    let mut refused = StreamBlock {
        code: NakCode::Rnr,
        rnr_timer: 1,
        ..bench.stream(at).block
    };
    acknowledge(bench, at, &all, refused)?;
    for attempt in 1..=3 {
        let got = bench.peer.expect("the next attempt", |_, got| {
            let (header, _) = got.message()?;
            (header.msn.0 == 1 && header.attempt.0 == attempt).then(|| got.clone())
        })?;
        refused.attempt = Attempt(attempt);
        acknowledge(bench, at, &[got], refused)?;
    }
    bench.completes(1, RNR_RETRY_EXC_ERR)?;
    bench.completes(2, WR_FLUSH_ERR)?;
    bench.peer.never("a further attempt", |got| {
        got.message()
            .is_some_and(|(header, _)| header.attempt.0 > 3)
    })
}

fn lost_nak(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, 2)?;
    let all = requests(bench, 2)?;
    // The ACK that told the code is lost; the path's news come with another one.
    for got in &all {
        bench.peer.take(got);
    }
    let blocks = bench.peer.path_blocks();
    bench.peer.send_ack(&blocks, &[])?;
    bench.no_completion(QUIET / 4)?;
    let stream = bench.stream(at).clone();
    let probe = bench.peer.expect("probe that names the stream", |_, got| {
        let (header, _) = got.data()?;
        (got.is_nop(BaseFlags::PROBE) && header.qpn == stream.my_qpn).then(|| got.clone())
    })?;
    let fatal = StreamBlock {
        code: NakCode::RemoteAccess,
        ..bench.stream(at).block
    };
    acknowledge(bench, at, &[probe], fatal)?;
    bench.completes(1, REM_ACCESS_ERR)?;
    Ok(())
}

fn fatal_codes(bench: &mut Bench) -> Result<()> {
    sender(bench)?;
    bench.peer.answers.execute = false;
    let codes = [
        (NakCode::RemoteAccess, REM_ACCESS_ERR),
        (NakCode::InvalidRequest, REM_INV_REQ_ERR),
        (NakCode::RemoteOperational, REM_OP_ERR),
        (NakCode::Length, REM_INV_REQ_ERR),
    ];
    for (number, (code, status)) in (0..).zip(codes) {
        let at = bench.connect(&ConnectOptions::default())?;
        let id = 10 * number;
        for more in 1..=3 {
            post(bench, at, &format!("op=send id={} bytes=8", id + more))?;
        }
        let all = requests(bench, 3)?;
        let fatal = StreamBlock {
            code,
            msn_executed: metaroce_proto::wire::Msn(1),
            ..bench.stream(at).block
        };
        acknowledge(bench, at, &all, fatal)?;
        bench.completes(id + 1, 0)?;
        bench.completes(id + 2, status)?;
        bench.completes(id + 3, WR_FLUSH_ERR)?;
        let qp = bench.stream(at).qp;
        ensure!(bench.target.state(qp)? == "error", "after code {code:?}");
    }
    Ok(())
}

fn hold(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions {
        connect: "rnr_retry=0",
        credit: 0,
        ..ConnectOptions::default()
    };
    let at = sender_with(bench, &options)?;
    post_write(bench, at, 1, 1)?;
    post_write(bench, at, 2, 1)?;
    let all = requests(bench, 2)?;
    // MSN 2 is refused; it is told when MSN 1 is executed.
    let held = StreamBlock {
        code: NakCode::Hold,
        msn_executed: metaroce_proto::wire::Msn(1),
        ..bench.stream(at).block
    };
    acknowledge(bench, at, &all, held)?;
    bench.completes(1, 0)?;
    let again = bench.peer.expect("the next attempt", |_, got| {
        let (header, _) = got.message()?;
        (header.msn.0 == 2 && header.attempt.0 == 1).then(|| got.clone())
    })?;
    let done = StreamBlock {
        code: NakCode::None,
        msn_executed: metaroce_proto::wire::Msn(2),
        ..held
    };
    acknowledge(bench, at, &[again], done)?;
    // With rnr_retry 0 an RNR would have been the end.
    bench.completes(2, 0)?;
    Ok(())
}

fn credits(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions {
        credit: 0,
        ..ConnectOptions::default()
    };
    let at = sender_with(bench, &options)?;
    for id in 1..=3 {
        post(bench, at, &format!("op=send id={id} bytes=8"))?;
    }
    // Only the oldest one may go without a receive.
    let all = requests(bench, 1)?;
    let (header, _) = all[0].message().context("no DATA")?;
    ensure!(header.ssn.0 == 0, "{header:?}");
    bench.peer.never("a SEND beyond the credit", |got| {
        got.message().is_some_and(|(header, _)| header.ssn.0 > 0)
    })?;
    let mut block = StreamBlock {
        msn_executed: metaroce_proto::wire::Msn(1),
        credit: Ssn(1),
        ..bench.stream(at).block
    };
    acknowledge(bench, at, &all, block)?;
    bench.completes(1, 0)?;
    let all = requests_again(bench, 1)?;
    block.msn_executed.0 = 2;
    block.credit = Ssn(3);
    acknowledge(bench, at, &all, block)?;
    bench.completes(2, 0)?;
    let all = requests_again(bench, 2)?;
    let flags = all[0].base.flags;
    ensure!(
        !flags.contains(BaseFlags::WAITING_FOR_CREDIT),
        "it waits for nothing: {flags}"
    );
    block.msn_executed.0 = 3;
    block.credit = Ssn(3);
    acknowledge(bench, at, &all, block)?;
    bench.completes(3, 0)?;
    // Another that waits behind one that goes: its packet says so.
    post(bench, at, "op=send id=4 bytes=8")?;
    post(bench, at, "op=send id=5 bytes=8")?;
    post(bench, at, "op=write id=6 bytes=8")?;
    let mut waiting = false;
    let mut seen = 0;
    let until = Instant::now() + QUIET;
    while let Some(got) = bench.peer.next_by(until)? {
        let Some((header, _)) = got.message() else {
            continue;
        };
        seen += 1;
        waiting |= got.base.flags.contains(BaseFlags::WAITING_FOR_CREDIT);
        if header.ssn.0 == 4 && header.opcode == Opcode::Send {
            bail!("a SEND beyond the credit: {header:?}");
        }
    }
    ensure!(
        seen > 0 && waiting,
        "{seen} packets, and none says that a SEND waits for credit"
    );
    Ok(())
}

/// The packet of message `msn`, which may have come while a completion was waited for.
fn requests_again(bench: &mut Bench, ssn: u32) -> Result<Vec<Got>> {
    let got = bench.peer.expect("SEND", |_, got| {
        let (header, _) = got.message()?;
        (header.ssn.0 == ssn).then(|| got.clone())
    })?;
    Ok(vec![got])
}

fn read(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post(bench, at, "op=read id=1 bytes=3000 offset=4096")?;
    let all = requests(bench, 1)?;
    let (request, _) = all[0].message().map(|(h, p)| (*h, p.len())).context("no")?;
    let mut block = bench.stream(at).block;
    block.msn_executed.0 = 1;
    acknowledge(bench, at, &all, block)?;
    // Executed, and not answered: it is not complete, and it asks.
    bench
        .peer
        .expect("probe", |_, got| got.is_nop(BaseFlags::PROBE).then_some(()))?;
    bench.peer.answers.data = true;
    bench.peer.answers.execute = false;
    bench.no_completion(QUIET)?;
    let stream = bench.stream(at).clone();
    let answer = |token, offset: u32, bytes: u16| DataHeader {
        opcode: Opcode::ReadResp,
        qpn: stream.qpn,
        token,
        msn: request.msn,
        attempt: request.attempt,
        message_bytes: 3_000,
        payload_bytes: bytes,
        offset,
        ..DataHeader::default()
    };
    // Of another life: dropped. Then in any order.
    let wrong = Token::truncate(stream.token.get() ^ 1);
    bench.send(0, &answer(wrong, 0, 1_000), &[0xee; 1_000])?;
    for part in [2, 0, 1_u32] {
        let header = answer(stream.token, part * 1_000, 1_000);
        bench.send(0, &header, &[part as u8 + 1; 1_000])?;
    }
    bench.completes(1, 0)?;
    let region = crate::target::Region {
        number: 0,
        addr: 0,
        rkey: 0,
    };
    let bytes = bench.target.read(&region, 4_096, 3_000)?;
    let expected: Vec<u8> = (0..3_000).map(|i| (i / 1_000) as u8 + 1).collect();
    ensure!(bytes == expected, "the READ left other bytes");
    ensure!(
        bench.target.other_than(&region, 0x5a)? == 3_000,
        "bytes beside the READ's were changed"
    );
    Ok(())
}

fn read_fails(bench: &mut Bench) -> Result<()> {
    for (number, status, expected) in [
        (1, FillStatus::RemoteAccess, REM_ACCESS_ERR),
        (2, FillStatus::RemoteOperational, REM_OP_ERR),
    ] {
        let at = if number == 1 {
            sender(bench)?
        } else {
            bench.connect(&ConnectOptions::default())?
        };
        post(bench, at, &format!("op=read id={number} bytes=3000"))?;
        let all = requests(bench, 1)?;
        let request = all[0].message().map(|(header, _)| *header).context("no")?;
        let mut block = bench.stream(at).block;
        block.msn_executed.0 = 1;
        acknowledge(bench, at, &all, block)?;
        let stream = bench.stream(at).clone();
        let fill = DataHeader {
            opcode: Opcode::Fill,
            qpn: stream.qpn,
            token: stream.token,
            msn: request.msn,
            attempt: request.attempt,
            immediate: status as u32,
            ..DataHeader::default()
        };
        bench.send(0, &fill, &[])?;
        bench.completes(number, expected)?;
    }
    Ok(())
}

fn atomic(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post(bench, at, "op=fetch_add id=1 bytes=8 add=3")?;
    let all = requests(bench, 1)?;
    let request = all[0].message().map(|(header, _)| *header).context("no")?;
    let mut block = bench.stream(at).block;
    block.msn_executed.0 = 1;
    acknowledge(bench, at, &all, block)?;
    let stream = bench.stream(at).clone();
    let answer = DataHeader {
        opcode: Opcode::AtomicResp,
        qpn: stream.qpn,
        token: stream.token,
        msn: request.msn,
        attempt: request.attempt,
        message_bytes: 8,
        payload_bytes: 8,
        ..DataHeader::default()
    };
    let value = 0x0102_0304_0506_0708_u64;
    bench.send(0, &answer, &value.to_be_bytes())?;
    bench.completes(1, 0)?;
    let region = crate::target::Region {
        number: 0,
        addr: 0,
        rkey: 0,
    };
    let bytes = bench.target.read(&region, 0, 8)?;
    ensure!(
        bytes == value.to_ne_bytes(),
        "in memory the value has the host's order: {bytes:x?}"
    );
    Ok(())
}

fn span(bench: &mut Bench) -> Result<()> {
    const SPAN: u32 = 5;
    bench.peer.hello.message_span = SPAN;
    let at = sender(bench)?;
    bench.peer.answers.data = false;
    post(bench, at, "op=write id=1 bytes=8 count=20")?;
    let mut highest = 0;
    let packets = bench.peer.collect_for(QUIET)?;
    for (header, _) in packets.iter().filter_map(Got::message) {
        highest = highest.max(header.msn.0);
    }
    ensure!(
        (1..=SPAN).contains(&highest),
        "MSN {highest} was sent, the span is {SPAN} and nothing is executed"
    );
    for got in packets.iter().filter(|got| got.data().is_some()) {
        bench.peer.put_back(got.clone());
    }
    bench.peer.answers.data = true;
    bench.peer.answers.execute = true;
    bench.completes(1, 0)?;
    Ok(())
}

fn fill(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    bench.peer.answers.data = false;
    post_write(bench, at, 1, 3)?;
    let all = requests(bench, 3)?;
    let qp = bench.stream(at).qp;
    bench.target.tell(&format!("destroy qp={qp}"))?;
    // The middle one was lost, and its queue pair is no more.
    for got in [&all[0], &all[2]] {
        bench.peer.take(got);
    }
    let blocks = bench.peer.path_blocks();
    bench.peer.send_ack(&blocks, &[])?;
    let place = all[1].place();
    let filled = bench.peer.expect("FILL under the lost PSN", |_, got| {
        let (header, payload) = got.message()?;
        (got.place() == place).then_some((header.opcode, header.fill_status(), payload.len()))
    })?;
    ensure!(
        filled == (Opcode::Fill, FillStatus::Nothing, 0) && PAYLOAD > 0,
        "{filled:?}"
    );
    Ok(())
}
