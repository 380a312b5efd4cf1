//! A peer that knows everything that a peer knows, and lies about all of it: every field of every kind of packet, with
//! right checksums. It may break its own streams and its connection. It must not break the endpoint: not its other memory,
//! not its other peers, not its memory use.

use std::time::Duration;

use anyhow::{Result, ensure};
use metaroce_proto::wire::{
    AckDelay, AckNumber, Allowance, Attempt, Base, BaseFlags, BitVector, ConnectionId, DataHeader,
    Epoch, Gid, Incarnation, Msn, NakCode, Opcode, Open, PathBlock, PathFlags, PathId,
    PlaneAddress, PlaneId, Psn, Qpn, Rkey, Shut, ShutReason, Ssn, Stamp, StreamBlock, Token,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::bench::Bench;
use crate::peer::ConnectOptions;
use crate::script::Script;
use crate::target::Region;

/// All of this file.
pub const SCRIPTS: &[Script] = &[Script {
    name: "liars::nothing but its own is broken",
    cites: &["9.1", "9.2", "9.4", "9.7"],
    run: lies,
}];

/// Connections that are lied to, and packets on each.
const ROUNDS: u32 = 60;
const PACKETS: u32 = 400;
/// Endpoints that they come from, one after the other.
const LIARS: u32 = 7;
/// After so many packets the liar reads what came, for so long.
const LOOKS_EVERY: u32 = 40;
const LOOKS_FOR: Duration = Duration::from_millis(3);
/// What the target may take more after the second half of all lies.
const GROWTH_BYTES: u64 = 4 << 20;

/// Numbers near which something may go wrong.
fn number(bench: &mut Bench, usual: u32) -> u32 {
    let random = &mut bench.peer.random;
    match random.random_range(0..8) {
        0 => 0,
        1 => u32::MAX - random.random_range(0..3),
        2 => 1 << random.random_range(0..32),
        3 => random.random(),
        4 => usual.wrapping_sub(random.random_range(0..300)),
        5 => usual.wrapping_add(random.random_range(0..300)),
        _ => usual,
    }
}

fn base(bench: &mut Bench) -> Base {
    let path = match bench.peer.random.random_range(0..8) {
        0 => bench.peer.random.random(),
        n => n % 3,
    };
    let next = bench.peer.path(path).next.0;
    let psn = number(bench, next);
    if psn == next {
        bench.peer.path(path).next = Psn(next.wrapping_add(1));
    }
    let stamp = bench.peer.stamp(path).0;
    Base {
        flags: BaseFlags::from_bits(bench.peer.random.random()),
        path: PathId(path),
        epoch: Epoch(number(bench, 0) as u8),
        connection: bench.peer.id,
        psn: Psn(psn),
        stamp: Stamp(number(bench, stamp)),
    }
}

fn data(bench: &mut Bench, at: usize, region: &Region) -> Vec<u8> {
    const OPCODES: [Opcode; 12] = [
        Opcode::Nop,
        Opcode::Write,
        Opcode::WriteImm,
        Opcode::Send,
        Opcode::SendImm,
        Opcode::SendInv,
        Opcode::ReadReq,
        Opcode::ReadResp,
        Opcode::CmpSwap,
        Opcode::FetchAdd,
        Opcode::AtomicResp,
        Opcode::Fill,
    ];
    let stream = bench.stream(at).clone();
    let opcode = OPCODES[bench.peer.random.random_range(0..OPCODES.len())];
    let lie = bench.peer.random.random_range(0..3) == 0;
    let bytes = match opcode {
        Opcode::CmpSwap | Opcode::FetchAdd => 16,
        Opcode::AtomicResp => 8,
        Opcode::Nop | Opcode::Fill | Opcode::ReadReq => 0,
        _ => bench.peer.random.random_range(1..1_200),
    };
    let message = match opcode {
        Opcode::CmpSwap | Opcode::FetchAdd => 16,
        Opcode::AtomicResp => 8,
        Opcode::Nop | Opcode::Fill => 0,
        Opcode::ReadReq => number(bench, 64),
        _ => number(bench, bytes).max(bytes),
    };
    let usual_msn = stream.msn.0;
    let msn = number(bench, usual_msn);
    if msn == usual_msn {
        bench.stream(at).msn = Msn(msn.wrapping_add(1));
    }
    let offset = match bytes {
        0 | 8 | 16 => 0,
        _ => number(bench, 0).min(message - bytes),
    };
    let address = number(bench, 0);
    let header = DataHeader {
        opcode,
        attempt: Attempt(number(bench, 0) as u8),
        payload_bytes: bytes as u16,
        qpn: stream.qpn,
        token: if lie {
            Token::truncate(number(bench, stream.token.get()))
        } else {
            stream.token
        },
        msn: Msn(msn),
        ssn: Ssn(number(bench, stream.ssn.0)),
        message_bytes: message,
        offset,
        remote_address: region
            .addr
            .wrapping_add(u64::from(address).wrapping_mul(if lie { u64::MAX } else { 1 })),
        rkey: Rkey(number(bench, region.rkey)),
        immediate: match opcode {
            Opcode::Fill => bench.peer.random.random_range(0..3),
            _ => number(bench, 0),
        },
        ..DataHeader::default()
    };
    let base = base(bench);
    let mut packet = header.emit(&base).to_vec();
    packet.resize(packet.len() + bytes as usize, 0x66);
    packet
}

fn vector(a: u32, b: u64) -> BitVector {
    BitVector([a & !1, b as u32, (b >> 32) as u32, a, 0, 0, 0, a & b as u32])
}

fn ack(bench: &mut Bench, at: usize) -> Vec<u8> {
    let stream = bench.stream(at).clone();
    bench.peer.allowance = Allowance {
        grant_kib_per_s: number(bench, u32::MAX),
        window_bytes: number(bench, 1 << 20),
        w0_packets: number(bench, 16) as u16,
    };
    let mut paths = Vec::new();
    for _ in 0..bench.peer.random.random_range(0..20) {
        let path = bench.peer.random.random_range(0..20_u8);
        let random = &mut bench.peer.random;
        let (a, b) = (random.random(), random.random::<u64>());
        let stamp = bench.peer.stamp(path).0;
        paths.push(PathBlock {
            path: PathId(path),
            epoch: Epoch(number(bench, 0) as u8),
            flags: PathFlags::NONE,
            cumulative: Psn(number(bench, 0)),
            vector: vector(a, b),
            echoed_stamp: Stamp(number(bench, stamp)),
            ack_delay: AckDelay(number(bench, 1) as u16),
            ce_count: number(bench, 0) as u16,
            duplicates: number(bench, 0) as u16,
            received: number(bench, 0) as u16,
        });
    }
    let mut streams = Vec::new();
    for _ in 0..bench.peer.random.random_range(0..4) {
        let executed = stream.block.msn_executed.0;
        streams.push(StreamBlock {
            qpn: stream.qpn,
            code: NakCode::from_wire(bench.peer.random.random_range(0..20)).unwrap_or_default(),
            token: stream.token,
            attempt: Attempt(number(bench, 0) as u8),
            msn_executed: Msn(number(bench, executed)),
            credit: Ssn(number(bench, 1_000)),
            rnr_timer: number(bench, 1) as u8 & 31,
        });
    }
    let newest = bench.peer.ack_number().0;
    let number = AckNumber(number(bench, newest));
    bench.peer.ack_packet(number, &paths, &streams)
}

fn control(bench: &mut Bench, at: usize) -> Result<Vec<u8>> {
    let stream = bench.stream(at).clone();
    let token = number(bench, stream.my_token.get());
    let theirs = number(bench, stream.token.get());
    let qpn = number(bench, stream.qpn.get());
    let mine = number(bench, stream.my_qpn.get());
    let reason = [ShutReason::Reset, ShutReason::Error, ShutReason::Unknown]
        [bench.peer.random.random_range(0..3)];
    let shut = Shut {
        from_qpn: Qpn::truncate(mine),
        reason,
        from_token: Token::truncate(token),
        to_qpn: Qpn::truncate(qpn),
        to_token: Token::truncate(theirs),
        msn_executed: Msn(number(bench, 3)),
    };
    match bench.peer.random.random_range(0..40) {
        0 => bench.peer.control(|builder| builder.push_shut(&shut)),
        1 => bench
            .peer
            .control(|builder| builder.push_close(Default::default(), &[]).is_some()),
        2..8 => bench
            .peer
            .control(|builder| (0..30).all(|_| builder.push_shut_answer(&shut))),
        8..20 => {
            let mut open: Open = bench.peer.open_of(&stream);
            open.token = Token::truncate(token | 1);
            open.echo = Token::truncate(theirs);
            open.credit = Ssn(number(bench, 0));
            open.send_psn = number(bench, open.send_psn);
            open.from_qpn = Qpn::truncate(mine);
            open.to_qpn = Qpn::truncate(qpn);
            bench
                .peer
                .control(|builder| (0..30).all(|_| builder.push_open(&open)))
        }
        _ => {
            let mut hello = bench.peer.my_hello(bench.peer.id);
            hello.identity.my_id = ConnectionId(number(bench, hello.identity.my_id.0));
            hello.identity.echo = ConnectionId(number(bench, hello.identity.echo.0));
            if bench.peer.random.random() {
                hello.identity.incarnation = Incarnation(u64::from(number(bench, 0)));
            }
            hello.payload_bytes = number(bench, 4_096) as u16;
            hello.paths = (number(bench, 64) as u16).clamp(1, 256);
            hello.window_bytes = number(bench, 1 << 20);
            hello.w0_packets = number(bench, 16) as u16;
            hello.message_span = number(bench, 1_024);
            hello.packet_span = number(bench, 4_096);
            for _ in 0..bench.peer.random.random_range(0..17) {
                let mut gid = Gid::from_ip(bench.place.peer);
                let last = number(bench, 0);
                gid.0[12..].copy_from_slice(&(0x7f00_0000 | last & 0xff_ffff).to_be_bytes());
                hello.addresses.push(PlaneAddress {
                    gid,
                    plane: PlaneId(number(bench, 0) as u8),
                    speed_mbps: number(bench, 0) & 0xff_ffff,
                });
            }
            let id = bench.peer.id;
            let to = ConnectionId(number(bench, id.0));
            bench
                .peer
                .control_to(to, |builder| builder.push_hello(&hello))
        }
    }
}

/// Makes queue pair `qp` of the target a requester with something of everything under way.
fn busy(bench: &mut Bench, qp: u64, region: &Region) -> Result<()> {
    const OPERATIONS: [(&str, u32); 6] = [
        ("write", 3_000),
        ("send", 3_000),
        ("read", 3_000),
        ("cmp_swap", 8),
        ("write_imm", 3_000),
        ("fetch_add", 8),
    ];
    let number = region.number;
    for id in 0..8 {
        bench.target.tell(&format!(
            "receive qp={qp} id={id} region={number} offset=0 bytes=1024"
        ))?;
    }
    for (op, bytes) in OPERATIONS.iter().cycle().take(2 * OPERATIONS.len()) {
        bench.target.tell(&format!(
            "post qp={qp} op={op} id=9 region={number} offset=0 bytes={bytes} remote=8 rkey=5"
        ))?;
    }
    Ok(())
}

fn lies(bench: &mut Bench) -> Result<()> {
    // One that no peer may write to, one of another protection domain, and the one that the liars know.
    let guard = bench.target.region(1 << 16, 0x11, "access=1")?;
    let foreign = bench.target.region(1 << 16, 0x22, "domain=1")?;
    let region = bench.target.region(1 << 12, 0, "")?;
    let honest = bench.connect(&ConnectOptions::default())?;
    let mut before = None;
    for round in 0..ROUNDS {
        let mut liar = bench.another_peer(1 + (round % LIARS) as u16)?;
        liar.random = SmallRng::seed_from_u64(u64::from(round));
        liar.restart();
        std::mem::swap(&mut bench.peer, &mut liar);
        let at = bench.connect(&ConnectOptions::default())?;
        let qp = bench.stream(at).qp;
        busy(bench, qp, &region)?;
        for count in 0..PACKETS {
            let packet = match bench.peer.random.random_range(0..6) {
                0..3 => data(bench, at, &region),
                3..5 => ack(bench, at),
                _ => control(bench, at)?,
            };
            bench.peer.send(&packet)?;
            if count % LOOKS_EVERY == 0 {
                bench.peer.collect_for(LOOKS_FOR)?;
            }
        }
        // What it got for answers means nothing.
        let _ = bench.peer.violations(false);
        std::mem::swap(&mut bench.peer, &mut liar);
        bench.target.tell(&format!("destroy qp={qp}"))?;
        bench.target.poll()?;
        while bench.target.next_completion().is_some() {}
        ensure!(
            bench.target.other_than(&guard, 0x11)? == 0
                && bench.target.other_than(&foreign, 0x22)? == 0,
            "round {round}: memory was written that the peer has no right to"
        );
        if round == ROUNDS / 2 {
            before = bench.target.resident_bytes()?;
        }
    }
    if let (Some(before), Some(after)) = (before, bench.target.resident_bytes()?) {
        ensure!(
            after < before + GROWTH_BYTES,
            "the target grew from {before} to {after} bytes"
        );
    }
    bench.works(honest, 0)
}
