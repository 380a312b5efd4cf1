//! Chapter 6, the target as responder: placing, executing, refusing.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metaroce_proto::wire::{Attempt, BaseFlags, DataHeader, Msn, NakCode, Opcode, Rkey, Token};

use crate::bench::Bench;
use crate::peer::{ConnectOptions, QUIET, cut};
use crate::script::Script;
use crate::target::Region;

/// Work completion statuses of verbs.
const LOC_LEN_ERR: u64 = 1;
const WR_FLUSH_ERR: u64 = 5;
/// `IBV_WC_WITH_IMM`.
const WITH_IMM: u64 = 1 << 1;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "responder::segments in any order",
        cites: &["6.5", "6.6", "2.16", "2.17", "2.18"],
        run: any_order,
    },
    Script {
        name: "responder::messages in order",
        cites: &["6.1", "6.2", "6.8", "6.11", "2.14"],
        run: in_order,
    },
    Script {
        name: "responder::what is executed is dropped",
        cites: &["6.7", "4.4"],
        run: executed_again,
    },
    Script {
        name: "responder::RNR",
        cites: &["2.31", "6.9", "6.14", "6.15", "6.19", "6.22", "4.4", "2.29"],
        run: rnr,
    },
    Script {
        name: "responder::attempts wrap",
        cites: &["1.20", "6.9"],
        run: attempts_wrap,
    },
    Script {
        name: "responder::receives are bound in order",
        cites: &["6.2", "6.14", "6.20"],
        run: bound_in_order,
    },
    Script {
        name: "responder::a peer that waits for credit",
        cites: &["2.8", "6.18", "6.19", "2.29"],
        run: waits_for_credit,
    },
    Script {
        name: "responder::a SEND that is too long",
        cites: &["2.31", "6.21", "6.23"],
        run: too_long,
    },
    Script {
        name: "responder::access errors in their turn",
        cites: &["2.31", "6.21", "6.22", "9.1"],
        run: access,
    },
    Script {
        name: "responder::empty messages",
        cites: &["2.18", "6.13", "6.11"],
        run: empty,
    },
    Script {
        name: "responder::FILL",
        cites: &["2.23", "4.2", "6.27"],
        run: fill,
    },
    Script {
        name: "responder::beyond the message span",
        cites: &["6.28", "9.7"],
        run: beyond_span,
    },
    Script {
        name: "responder::opcodes that are none",
        cites: &["2.15"],
        run: no_opcodes,
    },
    Script {
        name: "responder::UC and UD",
        cites: &["2.14", "2.22", "6.30", "6.31", "9.1"],
        run: unreliable,
    },
];

/// A connection, and a region of zeroes.
pub(super) fn connected(bench: &mut Bench, connect: &'static str) -> Result<(usize, Region)> {
    let options = ConnectOptions {
        connect,
        ..ConnectOptions::default()
    };
    let at = bench.connect(&options)?;
    let region = bench.target.region(1 << 16, 0, "")?;
    Ok((at, region))
}

/// Posts a receive of `bytes` at the front of `region`.
fn post_receive(bench: &mut Bench, at: usize, id: u64, region: &Region, bytes: u64) -> Result<()> {
    let qp = bench.stream(at).qp;
    let number = region.number;
    let line = format!("receive qp={qp} id={id} region={number} bytes={bytes}");
    bench.target.tell(&line)?;
    Ok(())
}

/// The queue pair is in the error state, soon.
pub(super) fn fails(bench: &mut Bench, at: usize) -> Result<()> {
    let qp = bench.stream(at).qp;
    for _ in 0..100 {
        if bench.target.state(qp)? == "error" {
            return Ok(());
        }
        bench.peer.never_for(QUIET / 4, "", |_| false)?;
    }
    anyhow::bail!("the queue pair is not in the error state")
}

fn any_order(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let whole = bench.stream(at).write(&region, 100, 4_000);
    let bytes: Vec<u8> = (0..4_000_u32).map(|i| (i % 251) as u8 + 1).collect();
    for part in [3, 1, 0, 2] {
        let (start, length) = (part * 1_000, 1_000);
        let header = cut(&whole, start as u32, length as u16);
        let payload = &bytes[start..start + length];
        let mut packet = bench
            .peer
            .data(part as u8 % 2, BaseFlags::NONE, &header, payload);
        // Padding is neither payload nor checksummed.
        packet.extend([0xee; 24]);
        bench.peer.send(&packet)?;
        // It is in its place before the message is whole.
        let nop = bench.peer.nop(part as u8 % 2, BaseFlags::PROBE);
        bench.peer.send(&nop)?;
        bench.peer.expect("ACK", |_, got| {
            let block = got.block(part as u8 % 2)?;
            (block.echoed_stamp.0.to_be_bytes() == nop[12..16]).then_some(())
        })?;
        let placed = bench.target.read(&region, 100 + start as u64, 1_000)?;
        ensure!(placed == payload, "segment {part} is not in its place");
    }
    bench.executed(at, 1)?;
    ensure!(
        bench.target.read(&region, 100, 4_000)? == bytes
            && bench.target.other_than(&region, 0)? == 4_000,
        "other bytes than those of the message were written"
    );
    Ok(())
}

fn in_order(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    post_receive(bench, at, 50, &region, 16)?;
    post_receive(bench, at, 51, &region, 0)?;
    let write = bench.stream(at).write(&region, 1_000, 8);
    let send = bench.stream(at).send(5);
    let imm = bench.stream(at).write_imm(&region, 2_000, 0, 0x0102_0304);
    // On three paths, the last message first.
    bench.send(1, &imm, b"")?;
    bench.acknowledged(1, 1)?;
    bench.send(2, &send, b"hello")?;
    bench.acknowledged(2, 1)?;
    bench.no_completion(QUIET)?;
    bench.send(3, &write, b"first it")?;
    bench.executed(at, 3)?;
    let first = bench.completes(50, 0)?;
    let second = bench.completes(51, 0)?;
    ensure!(first.bytes == 5, "a SEND of 5 bytes: {first:?}");
    ensure!(
        second.imm == 0x0102_0304 && second.flags & WITH_IMM != 0 && second.bytes == 0,
        "a WRITE of no bytes with immediate: {second:?}"
    );
    ensure!(
        bench.target.read(&region, 0, 6)? == b"hello\0",
        "the bytes of the SEND"
    );
    Ok(())
}

fn executed_again(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let write = bench.stream(at).write(&region, 0, 4);
    bench.send(0, &write, b"once")?;
    bench.executed(at, 1)?;
    // It came whole; the program has other things in that memory by now.
    let number = region.number;
    bench
        .target
        .tell(&format!("fill region={number} value=7 bytes=4"))?;
    let before = bench.target.counter("dropped_refused")?;
    for attempt in [0, 1] {
        let again = DataHeader {
            attempt: Attempt(attempt),
            ..write
        };
        // The three ACKs after the change have had the block.
        for _ in 0..3 {
            let nop = bench.peer.nop(0, BaseFlags::ACK_REQUESTED);
            bench.peer.send(&nop)?;
            bench.peer.collect_for(QUIET / 8)?;
        }
        bench.stream(at).told = None;
        bench.send(4, &again, b"evil")?;
        bench.told(at, "stream block that says that it is executed", |block| {
            block.msn_executed.0 == 1 && block.code == NakCode::None
        })?;
    }
    let nop = bench.peer.nop(4, BaseFlags::PROBE);
    bench.peer.send(&nop)?;
    bench.acknowledged(4, 2)?;
    bench.counted("dropped_refused", before, 2)?;
    ensure!(
        bench.target.read(&region, 0, 4)? == [7; 4],
        "a message that is executed was placed again"
    );
    bench.works(at, 0)
}

fn rnr(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions {
        rnr_timer: 9,
        ..ConnectOptions::default()
    };
    let at = bench.connect(&options)?;
    let region = bench.target.region(4_096, 0, "")?;
    let send = bench.stream(at).send(8);
    let first = cut(&send, 0, 4);
    bench.send(0, &first, b"ABCD")?;
    let refused = bench.told(at, "RNR", |block| block.code == NakCode::Rnr)?;
    ensure!(
        (
            refused.msn_executed.0,
            refused.attempt.0,
            refused.credit.0,
            refused.rnr_timer
        ) == (0, 0, 0, 9),
        "{refused:?}"
    );
    // A receive comes: it is told at once, and the rest of the refused attempt is still dropped.
    post_receive(bench, at, 60, &region, 8)?;
    bench.told(at, "credit, without anything that asked for it", |block| {
        block.credit.0 == 1
    })?;
    let rest = cut(&send, 4, 4);
    bench.send(0, &rest, b"EFGH")?;
    bench.acknowledged(0, 2)?;
    bench.no_completion(QUIET)?;
    ensure!(
        bench.target.other_than(&region, 0)? == 0,
        "a packet of a refused attempt was placed"
    );
    // The next attempt, from its beginning, in any order; packets of the old one are dropped.
    let next = |header: &DataHeader| DataHeader {
        attempt: Attempt(1),
        ..*header
    };
    bench.send(0, &next(&rest), b"efgh")?;
    bench.send(0, &first, b"ABCD")?;
    bench.send(0, &next(&first), b"abcd")?;
    bench.executed(at, 1)?;
    let done = bench.completes(60, 0)?;
    ensure!(done.bytes == 8, "{done:?}");
    ensure!(
        bench.target.read(&region, 0, 8)? == b"abcdefgh",
        "bytes of a refused attempt"
    );
    Ok(())
}

fn attempts_wrap(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let send = bench.stream(at).send(4);
    // Each further attempt is refused anew, across the wrap.
    for (number, attempt) in (1..).zip([0, 100, 200, 255, 3]) {
        let header = DataHeader {
            attempt: Attempt(attempt),
            ..send
        };
        bench.send(0, &header, b"wrap")?;
        bench.acknowledged(0, number)?;
        let told = bench.stream(at).told.context("no stream block")?;
        ensure!(
            told.code == NakCode::Rnr && told.attempt.0 == attempt,
            "attempt {attempt}: {told:?}"
        );
    }
    post_receive(bench, at, 61, &region, 4)?;
    let header = DataHeader {
        attempt: Attempt(4),
        ..send
    };
    bench.send(0, &header, b"wrap")?;
    bench.completes(61, 0)?;
    Ok(())
}

fn bound_in_order(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let first = bench.stream(at).send(2_000);
    let second = bench.stream(at).send(8);
    post_receive(bench, at, 70, &region, 4_000)?;
    // The second comes first: the one receive that there is belongs to the first.
    bench.send(0, &second, b"the 2nd.")?;
    bench.acknowledged(0, 1)?;
    bench.send(1, &cut(&first, 1_000, 1_000), &[2; 1_000])?;
    bench.send(1, &cut(&first, 0, 1_000), &[1; 1_000])?;
    let done = bench.completes(70, 0)?;
    ensure!(done.bytes == 2_000, "{done:?}");
    // Only now the second is the one that is told about.
    bench.told(at, "RNR about the second", |block| {
        block.code == NakCode::Rnr && block.msn_executed.0 == 1
    })?;
    // A receive that is bound to a message that will never be whole is flushed.
    post_receive(bench, at, 71, &region, 4_000)?;
    let again = DataHeader {
        attempt: Attempt(1),
        message_bytes: 16,
        ..second
    };
    bench.send(0, &again, b"half of.")?;
    bench.acknowledged(0, 2)?;
    let qp = bench.stream(at).qp;
    bench.target.tell(&format!("error qp={qp}"))?;
    bench.completes(71, WR_FLUSH_ERR)?;
    Ok(())
}

fn waits_for_credit(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    // A peer that does not dare to send more says so; the posting of a receive is told at once.
    let write = bench.stream(at).write(&region, 0, 4);
    let packet = bench
        .peer
        .data(0, BaseFlags::WAITING_FOR_CREDIT, &write, b"wait");
    bench.peer.send(&packet)?;
    bench.executed(at, 1)?;
    for credit in 1..4 {
        bench.peer.collect_for(QUIET / 4)?;
        post_receive(bench, at, u64::from(credit), &region, 4)?;
        bench.told(at, "credit", |block| block.credit.0 == credit)?;
        let write = bench.stream(at).write(&region, 0, 4);
        let packet = bench
            .peer
            .data(0, BaseFlags::WAITING_FOR_CREDIT, &write, b"wait");
        bench.peer.send(&packet)?;
        bench.executed(at, 1 + credit)?;
    }
    Ok(())
}

fn too_long(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    post_receive(bench, at, 80, &region, 7)?;
    post_receive(bench, at, 81, &region, 7)?;
    let write = bench.stream(at).write(&region, 100, 4);
    let send = bench.stream(at).send(8);
    bench.send(0, &send, b"too long")?;
    bench.acknowledged(0, 1)?;
    // Not before its turn.
    bench.no_completion(QUIET)?;
    bench.send(0, &write, b"turn")?;
    bench.told(at, "code 5 about MSN 2", |block| {
        block.code == NakCode::Length && block.msn_executed.0 == 1
    })?;
    bench.completes(80, LOC_LEN_ERR)?;
    bench.completes(81, WR_FLUSH_ERR)?;
    fails(bench, at)?;
    ensure!(
        bench.target.read(&region, 0, 8)? == [0; 8],
        "bytes of a SEND that does not fit were placed"
    );
    Ok(())
}

fn access(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let write = bench.stream(at).write(&region, 0, 4);
    let mut forbidden = bench.stream(at).write(&region, 8, 4);
    forbidden.rkey = Rkey(region.rkey ^ 1);
    let after = bench.stream(at).write(&region, 16, 4);
    bench.send(0, &forbidden, b"evil")?;
    bench.acknowledged(0, 1)?;
    let told = bench.stream(at).told;
    ensure!(
        told.is_none_or(|block| block.code == NakCode::None),
        "told before its turn: {told:?}"
    );
    bench.send(0, &write, b"good")?;
    let fatal = bench.told(at, "code 2 about MSN 2", |block| {
        block.code == NakCode::RemoteAccess
    })?;
    ensure!(fatal.msn_executed.0 == 1, "{fatal:?}");
    fails(bench, at)?;
    bench.send(0, &after, b"late")?;
    bench.acknowledged(0, 3)?;
    ensure!(
        bench.target.read(&region, 0, 4)? == b"good" && bench.target.other_than(&region, 0)? == 4,
        "bytes were placed without a right to"
    );
    Ok(())
}

fn empty(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    post_receive(bench, at, 90, &region, 0)?;
    let mut write = bench.stream(at).write(&region, 0, 0);
    write.rkey = Rkey(0x0bad_0bad);
    let send = bench.stream(at).send(0);
    let mut read = bench.stream(at).read(&region, 0, 0);
    read.rkey = Rkey(0x0bad_0bad);
    bench.send(0, &write, b"")?;
    bench.send(0, &send, b"")?;
    bench.send(0, &read, b"")?;
    let (my_qpn, msn) = (bench.stream(at).my_qpn, read.msn);
    let header = bench.peer.expect("empty READ_RESP", |_, got| {
        let (header, _) = got.message()?;
        (header.opcode == Opcode::ReadResp).then_some(*header)
    })?;
    ensure!(
        (header.qpn, header.msn, header.message_bytes) == (my_qpn, msn, 0),
        "{header:?}"
    );
    bench.executed(at, 3)?;
    bench.completes(90, 0)?;
    Ok(())
}

fn fill(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let (first, lost) = (
        bench.stream(at).write(&region, 0, 4),
        bench.stream(at).write(&region, 8, 4),
    );
    bench.send(0, &first, b"1st.")?;
    let _packet = bench.peer.data(0, BaseFlags::NONE, &lost, b"lost");
    let nop = bench.peer.nop(0, BaseFlags::PROBE);
    bench.peer.send(&nop)?;
    bench.acknowledged(0, 1)?;
    // Its content is no more; the PSN is filled, and the message goes again as the next attempt under another.
    let header = DataHeader {
        opcode: Opcode::Fill,
        ..DataHeader::default()
    };
    let packet = bench.peer.data_as(
        0,
        metaroce_proto::wire::Psn(1),
        BaseFlags::RETRANSMISSION,
        &header,
        &[],
    );
    bench.peer.send(&packet)?;
    bench.acknowledged(0, 2)?;
    let again = DataHeader {
        attempt: Attempt(1),
        ..lost
    };
    bench.send(0, &again, b"2nd.")?;
    bench.acknowledged(0, 3)?;
    bench.executed(at, 2)?;
    ensure!(
        bench.target.read(&region, 0, 12)? == b"1st.\0\0\0\x002nd.",
        "the bytes of two WRITEs"
    );
    Ok(())
}

fn beyond_span(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let hello = bench
        .peer
        .hello_of_target
        .clone()
        .context("no HELLO of the target")?;
    let write = bench.stream(at).write(&region, 0, 4);
    // The last one of the span is not executed, but welcome.
    let last = DataHeader {
        msn: Msn(hello.message_span),
        ..write
    };
    bench.send(0, &last, b"last")?;
    bench.acknowledged(0, 1)?;
    let qp = bench.stream(at).qp;
    bench.peer.never_for(QUIET, "", |_| false)?;
    ensure!(
        bench.target.state(qp)? == "rts",
        "a message within the span ends the queue pair"
    );
    let beyond = DataHeader {
        msn: Msn(hello.message_span + 1),
        remote_address: region.addr + 64,
        ..write
    };
    bench.send(0, &beyond, b"evil")?;
    fails(bench, at)?;
    ensure!(
        bench.target.read(&region, 64, 4)? == [0; 4],
        "a message beyond the span was placed"
    );
    Ok(())
}

/// In this version they are parsed and dropped ("Simplified in this version"); whoever has them checks token and key too.
fn unreliable(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    post_receive(bench, at, 95, &region, 64)?;
    let good = bench.stream(at).write(&region, 0, 4);
    let token = Token::truncate(good.token.get() ^ 1);
    let plain = |opcode| DataHeader {
        opcode,
        token,
        ..good
    };
    let datagram = |opcode| DataHeader {
        opcode,
        token: Token::ZERO,
        remote_address: DataHeader::ud_remote_address(0x1111_1111, good.qpn),
        ..good
    };
    for header in [
        plain(Opcode::UcWrite),
        plain(Opcode::UcWriteImm),
        plain(Opcode::UcSend),
        plain(Opcode::UcSendImm),
        datagram(Opcode::UdSend),
        datagram(Opcode::UdSendImm),
    ] {
        bench.send(0, &header, b"evil")?;
    }
    bench.no_completion(QUIET)?;
    ensure!(
        bench.target.other_than(&region, 0)? == 0,
        "an unreliable packet for a reliable queue pair was placed"
    );
    // They took no PSN.
    bench.send(0, &good, b"good")?;
    bench.acknowledged(0, 1)?;
    bench.executed(at, 1)
}

fn no_opcodes(bench: &mut Bench) -> Result<()> {
    let (at, region) = connected(bench, "")?;
    let write = bench.stream(at).write(&region, 0, 4);
    let packet = bench.peer.data(0, BaseFlags::PROBE, &write, b"good");
    let before = bench.target.counter("dropped_malformed")?;
    for opcode in [0x0c, 0x20, 0x25, 0x40, 0x45, 0x80, 0xff] {
        let mut packet = packet.clone();
        packet[16] = opcode;
        metaroce_proto::wire::seal(&mut packet);
        bench.peer.send(&packet)?;
    }
    bench
        .peer
        .never_for(Duration::from_millis(40), "it is acknowledged", |got| {
            got.block(0).is_some()
        })?;
    bench.counted("dropped_malformed", before, 7)?;
    bench.peer.send(&packet)?;
    bench.executed(at, 1)
}
