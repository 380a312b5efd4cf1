//! HELLO and OPEN of the peer, the lives that they open, and the answers to them that every peer gives.

use std::collections::BTreeSet;

use anyhow::Result;
use metaroce_proto::wire::{
    ConnectionId, DataHeader, Msn, Opcode, Open, OpenFlags, Qpn, Rkey, Shut, ShutReason, Ssn,
    StreamBlock, Token,
};
use rand::Rng;

use super::paths::Arrived;
use super::{Got, Item, Peer};
use crate::target::Region;

/// What the two programs agree upon about a queue pair.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Further words of the target's `create`.
    pub create: &'static str,
    /// Further words of the target's `connect`.
    pub connect: &'static str,
    /// First SSN without a receive, as the peer's OPEN tells.
    pub credit: u32,
    /// PSNs of the two programs, of the target's and of the peer's messages.
    pub psns: (u32, u32),
    /// The target's code for how long an RNR lasts, and the peer's.
    pub rnr_timer: u8,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            create: "",
            connect: "",
            credit: 1_000_000,
            psns: (0x11_1111, 0x22_2222),
            rnr_timer: 1,
        }
    }
}

/// A queue pair of the target and the peer's end of it.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its number at the target.
    pub qp: u64,
    /// The target's QPN.
    pub qpn: Qpn,
    /// The peer's.
    pub my_qpn: Qpn,
    /// Token of the peer's life.
    pub my_token: Token,
    /// Token of the target's life; zero until it was told.
    pub token: Token,
    /// The target has echoed the peer's token.
    pub echoed: bool,
    /// The PSNs of the two programs, as in [`ConnectOptions`].
    pub psns: (u32, u32),
    /// MSN of the peer's next message.
    pub msn: Msn,
    /// SSN of its next message that takes a receive.
    pub ssn: Ssn,
    /// What the peer's ACKs say of the target's messages.
    pub block: StreamBlock,
    /// The newest that the target said of the peer's messages.
    pub told: Option<StreamBlock>,
    whole: BTreeSet<u32>,
    arrived: Arrived,
}

impl Stream {
    /// A header with what all messages of this stream have, and the next MSN.
    fn next(&mut self, opcode: Opcode) -> DataHeader {
        let msn = self.msn;
        self.msn = msn.next();
        DataHeader {
            opcode,
            qpn: self.qpn,
            token: self.token,
            msn,
            ssn: self.ssn,
            ..DataHeader::default()
        }
    }

    /// A WRITE of `bytes` to `offset` of `region`, whole in one packet; a script cuts it with [`cut`].
    pub fn write(&mut self, region: &Region, offset: u64, bytes: u32) -> DataHeader {
        let header = self.next(Opcode::Write);
        to_region(header, region, offset, bytes)
    }

    /// A WRITE with immediate.
    pub fn write_imm(&mut self, region: &Region, offset: u64, bytes: u32, imm: u32) -> DataHeader {
        let header = self.next(Opcode::WriteImm);
        self.ssn = self.ssn.next();
        DataHeader {
            immediate: imm,
            ..to_region(header, region, offset, bytes)
        }
    }

    /// A SEND.
    pub fn send(&mut self, bytes: u32) -> DataHeader {
        let header = self.next(Opcode::Send);
        self.ssn = self.ssn.next();
        DataHeader {
            message_bytes: bytes,
            payload_bytes: bytes as u16,
            ..header
        }
    }

    /// A READ of `bytes` at `offset` of `region`.
    pub fn read(&mut self, region: &Region, offset: u64, bytes: u32) -> DataHeader {
        let header = self.next(Opcode::ReadReq);
        DataHeader {
            payload_bytes: 0,
            ..to_region(header, region, offset, bytes)
        }
    }

    /// An atomic, whose operands are the payload.
    pub fn atomic(&mut self, opcode: Opcode, region: &Region, offset: u64) -> DataHeader {
        let header = self.next(opcode);
        to_region(header, region, offset, 16)
    }

    /// A request of the target arrived: messages that are whole count as executed, in order.
    pub(super) fn arrive(&mut self, header: &DataHeader) {
        if self.arrived.add(header) {
            self.whole.insert(header.msn.0);
        }
        while self.whole.remove(&self.block.msn_executed.next().0) {
            self.block.msn_executed = self.block.msn_executed.next();
        }
        self.arrived.forget_through(self.block.msn_executed);
    }
}

fn to_region(header: DataHeader, region: &Region, offset: u64, bytes: u32) -> DataHeader {
    DataHeader {
        remote_address: region.addr + offset,
        rkey: Rkey(region.rkey),
        message_bytes: bytes,
        payload_bytes: bytes as u16,
        ..header
    }
}

/// The segment of a message at `offset`.
pub fn cut(header: &DataHeader, offset: u32, bytes: u16) -> DataHeader {
    DataHeader {
        offset,
        payload_bytes: bytes,
        ..*header
    }
}

impl Peer {
    /// A queue pair number of this endpoint.
    pub fn fresh_qpn(&mut self) -> Qpn {
        let local = self.random.random_range(2..1 << 14);
        Qpn::truncate(u32::from(self.index) << 14 | local)
    }

    /// A token that is not 0.
    pub fn fresh_token(&mut self) -> Token {
        Token::truncate(self.random.random_range(1..1 << 24))
    }

    /// Begins a life: remembers what the target's queue pair `qp` with `qpn` is to be connected with.
    pub fn begin(&mut self, qp: u64, qpn: Qpn, options: &ConnectOptions) -> usize {
        let (my_qpn, my_token) = (self.fresh_qpn(), self.fresh_token());
        // Who receives where is named by the QPN (1.14).
        self.target
            .set_port(self.port - self.index + qpn.endpoint_index());
        let block = StreamBlock {
            qpn,
            credit: Ssn(options.credit),
            rnr_timer: options.rnr_timer,
            ..StreamBlock::default()
        };
        self.streams.push(Stream {
            qp,
            qpn,
            my_qpn,
            my_token,
            token: Token::ZERO,
            echoed: false,
            psns: options.psns,
            msn: Msn(1),
            ssn: Ssn(0),
            block,
            told: None,
            whole: BTreeSet::new(),
            arrived: Arrived::default(),
        });
        self.streams.len() - 1
    }

    /// The peer's OPEN of a life.
    pub fn open_of(&self, stream: &Stream) -> Open {
        let wanted = OpenFlags::NONE.set(OpenFlags::ANSWER_WANTED, !stream.echoed);
        Open {
            from_qpn: stream.my_qpn,
            to_qpn: stream.qpn,
            flags: wanted,
            rnr_timer: stream.block.rnr_timer,
            token: stream.my_token,
            echo: stream.token,
            send_psn: stream.psns.1,
            receive_psn: stream.psns.0,
            credit: stream.block.credit,
            max_dest_rd_atomic: 16,
            max_rd_atomic: 16,
        }
    }

    /// Sends the OPEN of a life.
    ///
    /// # Errors
    /// It cannot be sent.
    pub fn send_open(&mut self, at: usize) -> Result<()> {
        let open = self.open_of(&self.streams[at]);
        let packet = self.control(|builder| builder.push_open(&open))?;
        self.send(&packet)
    }

    /// Sends a HELLO with `echo`.
    ///
    /// # Errors
    /// It cannot be sent.
    pub fn send_hello(&mut self, echo: ConnectionId) -> Result<()> {
        let hello = self.my_hello(echo);
        let packet = self.control_to(self.id, |builder| builder.push_hello(&hello))?;
        self.send(&packet)
    }

    /// Learns from a HELLO of the target; true if it did not know this peer's id yet.
    pub fn learn(&mut self, got: &Got) -> bool {
        let Some(hello) = got.hello() else {
            return false;
        };
        self.id = hello.identity.my_id;
        self.standing.payload_bytes = hello.payload_bytes.min(self.hello.payload_bytes);
        self.hello_of_target = Some(hello.clone());
        hello.identity.echo != self.my_id
    }

    /// Learns from an OPEN of the target. The life that it is for, and whether it wants an answer.
    pub fn learn_open(&mut self, open: &Open) -> Option<(usize, bool)> {
        let at = self
            .streams
            .iter()
            .rposition(|stream| stream.my_qpn == open.to_qpn && stream.qpn == open.from_qpn)?;
        let stream = &mut self.streams[at];
        stream.token = open.token;
        stream.block.token = open.token;
        stream.echoed |= open.echo == stream.my_token;
        Some((at, open.flags.contains(OpenFlags::ANSWER_WANTED)))
    }

    /// What the target's stream blocks say is kept.
    pub(super) fn note_executed(&mut self, got: &Got) {
        for block in got.streams() {
            let of_it =
                |stream: &&mut Stream| stream.my_qpn == block.qpn && stream.my_token == block.token;
            if let Some(stream) = self.streams.iter_mut().find(of_it) {
                let newer = stream
                    .told
                    .is_none_or(|told| told.msn_executed.is_at_or_before(block.msn_executed));
                if newer {
                    stream.told = Some(*block);
                }
            }
        }
    }

    /// Answers what a CONTROL packet asks.
    pub(super) fn answer_control(&mut self, got: &Got) -> Result<()> {
        if got.hello().is_some() && self.learn(got) {
            self.send_hello(self.id)?;
        }
        for item in got.items() {
            match item {
                Item::Open(open) => {
                    if let Some((at, true)) = self.learn_open(open) {
                        self.send_open(at)?;
                    }
                }
                Item::Shut(shut) => self.answer_shut(shut)?,
                Item::Close(..) => {
                    let packet = self.control(|builder| {
                        builder.push_close_answer(Default::default(), &[]).is_some()
                    })?;
                    self.send(&packet)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Answers a SHUT, whatever it says.
    ///
    /// # Errors
    /// The answer cannot be sent.
    pub fn answer_shut(&mut self, shut: &Shut) -> Result<()> {
        let mut streams = self.streams.iter();
        let known =
            streams.find(|stream| stream.my_qpn == shut.to_qpn && stream.token == shut.from_token);
        let answer = Shut {
            from_qpn: shut.to_qpn,
            reason: known.map_or(ShutReason::Unknown, |_| shut.reason),
            from_token: known.map_or(Token::ZERO, |stream| stream.my_token),
            to_qpn: shut.from_qpn,
            to_token: shut.from_token,
            msn_executed: known.map_or(Msn(0), |stream| stream.block.msn_executed),
        };
        let packet = self.control(|builder| builder.push_shut_answer(&answer))?;
        self.send(&packet)
    }

    /// Opens connection and life `at`, as the passive side of both would: repeats of the target are answered.
    ///
    /// # Errors
    /// They do not open in time.
    pub fn open_up(&mut self, at: usize) -> Result<()> {
        if self.id == ConnectionId(0) {
            self.expect("HELLO of the target", |peer, got| {
                got.hello()?;
                peer.learn(got);
                Some(())
            })?;
            self.send_hello(self.id)?;
        }
        if self.streams[at].echoed {
            return Ok(());
        }
        self.send_open(at)?;
        self.expect("OPEN that echoes the token", |peer, got| {
            // A HELLO that rides in front is answered, too.
            peer.answer_control(got).ok()?;
            peer.streams[at].echoed.then_some(())
        })
    }

    /// The target may use `id` for packets to this peer, too.
    pub fn also_known_as(&mut self, id: ConnectionId) {
        self.standing.former_ids.push(id.0);
    }

    /// Takes a new incarnation, as after a restart: a fresh id, no lives, PSNs from 0.
    pub fn restart(&mut self) {
        self.standing.former_ids.push(self.my_id.0);
        self.my_id = ConnectionId(self.random.random_range(1..=u32::MAX));
        self.incarnation.0 = self.random.random();
        self.standing.my_id = self.my_id.0;
        self.standing.forget();
        self.id = ConnectionId(0);
        self.streams.clear();
        self.sending.fill(Default::default());
        self.received.fill(Default::default());
    }
}
