//! The peer's paths. As a sender: PSN and stamp of what it sends, which a script may choose otherwise. As a receiver: what
//! it says to have received, which is what the script has [`Peer::take`]n.

use std::collections::HashMap;

use anyhow::Result;
use metaroce_proto::wire::{
    ACK_HEADER_BYTES, AckBuilder, AckDelay, AckNumber, Base, BaseFlags, BitVector, DataHeader,
    Epoch, Msn, Opcode, PathBlock, PathFlags, PathId, Psn, Stamp, StreamBlock, seal,
};

use super::{Got, PATHS, Peer};

/// Unit of stamps.
const STAMP_NS: u128 = 64;

/// Largest ACK that the peer builds.
const ACK_BYTES: usize = 4096;

/// A path of the peer's as a sender.
#[derive(Clone, Debug, Default)]
pub struct Sending {
    /// The PSN that it uses next.
    pub next: Psn,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its last stamp.
    stamp: Option<Stamp>,
    /// Added to the clock's stamps.
    shift: u32,
}

/// A path of the target's, as the peer has received it.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// Lowest PSN not received.
    pub cumulative: Psn,
    /// What was received beyond.
    pub vector: BitVector,
    newest: Option<(Epoch, Stamp)>,
    received: u16,
    duplicates: u16,
    news: bool,
}

impl Received {
    /// Takes a packet; true if it was not there before.
    fn take(&mut self, got: &Got) -> bool {
        self.received = self.received.wrapping_add(1);
        self.news = true;
        let stamp = got.base.stamp;
        if self
            .newest
            .is_none_or(|(_, newest)| newest.is_before(stamp))
        {
            self.newest = Some((got.base.epoch, stamp));
        }
        if got.message().is_none() {
            return false;
        }
        let ahead = self.cumulative.distance(got.base.psn);
        if ahead < 0 || !(ahead as u32) < 256 || self.vector.get(ahead as u32) {
            self.duplicates = self.duplicates.wrapping_add(1);
            return false;
        }
        self.vector.set(ahead as u32);
        let run = self.vector.leading_run();
        self.vector.shift_down(run);
        self.cumulative = self.cumulative.advance(run);
        true
    }

    /// The block that says so.
    pub fn block(&self, path: u8) -> Option<PathBlock> {
        let (epoch, echoed_stamp) = self.newest?;
        Some(PathBlock {
            path: PathId(path),
            epoch,
            flags: PathFlags::NONE,
            cumulative: self.cumulative,
            vector: self.vector,
            echoed_stamp,
            ack_delay: AckDelay(1),
            ce_count: 0,
            duplicates: self.duplicates,
            received: self.received,
        })
    }
}

impl Peer {
    // ---- As a sender ----

    /// A path of this peer's as a sender, for scripts that choose PSN and epoch themselves.
    pub fn path(&mut self, path: u8) -> &mut Sending {
        &mut self.sending[usize::from(path)]
    }

    /// Makes the stamps of a path go on from `stamp`.
    pub fn set_stamp(&mut self, path: u8, stamp: u32) {
        let now = self.clock();
        self.sending[usize::from(path)].shift = stamp.wrapping_sub(now);
    }

    fn clock(&self) -> u32 {
        (self.started.elapsed().as_nanos() / STAMP_NS) as u32
    }

    /// The next stamp of a path: the clock's, or one more than the last.
    pub fn stamp(&mut self, path: u8) -> Stamp {
        let now = self.clock();
        let sending = &mut self.sending[usize::from(path)];
        let clock = Stamp(now.wrapping_add(sending.shift));
        let stamp = sending.stamp.map_or(clock, |last| last.next().later(clock));
        sending.stamp = Some(stamp);
        stamp
    }

    /// A DATA packet on `path` with its next PSN and stamp, whose payload is `payload`.
    pub fn data(
        &mut self,
        path: u8,
        flags: BaseFlags,
        header: &DataHeader,
        payload: &[u8],
    ) -> Vec<u8> {
        let psn = self.sending[usize::from(path)].next;
        if header.opcode.takes_psn() {
            self.sending[usize::from(path)].next = psn.next();
        }
        self.data_as(path, psn, flags, header, payload)
    }

    /// A DATA packet on `path` with a PSN of the script's choice.
    pub fn data_as(
        &mut self,
        path: u8,
        psn: Psn,
        flags: BaseFlags,
        header: &DataHeader,
        payload: &[u8],
    ) -> Vec<u8> {
        let base = Base {
            flags,
            path: PathId(path),
            epoch: self.sending[usize::from(path)].epoch,
            connection: self.id,
            psn,
            stamp: self.stamp(path),
        };
        let mut packet = header.emit(&base).to_vec();
        packet.extend_from_slice(payload);
        packet
    }

    /// A NOP with `flags` on `path`.
    pub fn nop(&mut self, path: u8, flags: BaseFlags) -> Vec<u8> {
        self.data(path, flags, &DataHeader::default(), &[])
    }

    /// The same packet, sent again: a later stamp, and the flag.
    pub fn again(&mut self, packet: &[u8]) -> Vec<u8> {
        let path = packet[2];
        let stamp = self.stamp(path);
        let mut packet = packet.to_vec();
        packet[1] |= BaseFlags::RETRANSMISSION.bits();
        packet[12..16].copy_from_slice(&stamp.0.to_be_bytes());
        seal(&mut packet);
        packet
    }

    // ---- As a receiver ----

    /// Takes a packet for received. True if it is a message's, and was not there before.
    pub fn take(&mut self, got: &Got) -> bool {
        self.received[usize::from(got.base.path.0)].take(got)
    }

    /// What was received of a path.
    pub fn received(&mut self, path: u8) -> &mut Received {
        &mut self.received[usize::from(path)]
    }

    /// The lives' MSN executed is raised to what a packet belongs to if the message is whole in it and the next one.
    pub(super) fn execute(&mut self, got: &Got) {
        let Some((header, _)) = got.message() else {
            return;
        };
        if !header.opcode.is_request() {
            return;
        }
        let qpn = header.qpn;
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.my_qpn == qpn) else {
            return;
        };
        stream.arrive(header);
    }

    /// The path blocks that are news.
    pub fn path_blocks(&mut self) -> Vec<PathBlock> {
        let paths = self.received.iter_mut().zip(0..PATHS);
        let news = paths.filter(|(path, _)| path.news);
        news.filter_map(|(path, number)| {
            path.news = false;
            path.block(number as u8)
        })
        .collect()
    }

    /// Sends an ACK with all path blocks that are news, and the stream blocks of all lives.
    ///
    /// # Errors
    /// It cannot be sent.
    pub fn acknowledge(&mut self) -> Result<()> {
        let blocks = self.path_blocks();
        let streams: Vec<StreamBlock> = self.streams.iter().map(|stream| stream.block).collect();
        self.send_ack(&blocks, &streams)
    }

    /// Sends an ACK with these blocks and the next number.
    ///
    /// # Errors
    /// It cannot be sent.
    pub fn send_ack(&mut self, paths: &[PathBlock], streams: &[StreamBlock]) -> Result<()> {
        self.ack_number = self.ack_number.next();
        for block in paths {
            self.standing.acknowledged(block.path.0, block.cumulative.0);
        }
        let packet = self.ack_packet(self.ack_number, paths, streams);
        self.send(&packet)
    }

    /// An ACK with these blocks and a number of the script's choice.
    pub fn ack_packet(
        &self,
        number: AckNumber,
        paths: &[PathBlock],
        streams: &[StreamBlock],
    ) -> Vec<u8> {
        let mut packet = vec![0; ACK_BYTES.max(ACK_HEADER_BYTES)];
        let mut builder = AckBuilder::new(&mut packet);
        let all = paths.iter().all(|block| builder.push_path(block))
            && streams.iter().all(|block| builder.push_stream(block));
        debug_assert!(all, "an ACK of the suite is too small for its blocks");
        let base = Base {
            connection: self.id,
            stamp: Stamp(self.clock()),
            ..Base::default()
        };
        let length = builder.finish(&base, number, &self.allowance, 0);
        packet.truncate(length);
        packet
    }

    /// Number of the last ACK.
    pub fn ack_number(&self) -> AckNumber {
        self.ack_number
    }
}

/// Bytes of each message that have arrived, to know when it is whole.
#[derive(Clone, Debug, Default)]
pub struct Arrived {
    bytes: HashMap<u32, (u8, u64)>,
}

impl Arrived {
    /// Takes a request's packet. True if its message is whole now.
    pub fn add(&mut self, header: &DataHeader) -> bool {
        let entry = self.bytes.entry(header.msn.0).or_default();
        match header.attempt.0.wrapping_sub(entry.0).cast_signed() {
            ..0 => return false,
            0 => {}
            1.. => *entry = (header.attempt.0, 0),
        }
        entry.1 += u64::from(header.payload_bytes);
        header.opcode == Opcode::ReadReq
            || header.opcode.is_atomic()
            || entry.1 == u64::from(header.message_bytes)
    }

    /// Whether a message is whole is asked once.
    pub fn forget_through(&mut self, msn: Msn) {
        self.bytes.retain(|other, _| *other > msn.0);
    }
}
