//! What holds of every packet that a target sends, in every script: checked as it arrives, and told when the script ends.

use std::collections::HashMap;

use metaroce_proto::wire::{
    BaseFlags, DATA_HEADER_BYTES, DataHeader, Opcode, Packet, Stamp, emit_again,
};

use super::got::{Body, Got};
use crate::sockets::ECT0;

/// The sentences that these checks are about: each script tests them.
pub const CITES: &[&str] = &[
    "1.16", "1.17", "1.18", "2.1", "2.2", "2.3", "2.4", "2.5", "2.7", "2.8", "2.9", "2.11", "2.12",
    "2.14", "2.16", "2.18", "2.24", "2.25", "2.26", "2.28", "2.29", "2.32", "3.4", "4.1", "4.2",
    "4.8", "5.2", "5.10",
];

/// Outstanding packets of a path at most (4.1).
pub const SPAN: u32 = 256;

/// Violations that are told; the first ones say it.
const TOLD: usize = 8;

/// What is known of the target's packets.
#[derive(Default)]
pub struct Standing {
    /// The id that the target was told.
    pub my_id: u32,
    /// Ids that it may still use, as it was told them before.
    pub former_ids: Vec<u32>,
    /// Payload size agreed upon.
    pub payload_bytes: u16,
    /// Lowest PSN of each path that was not acknowledged to the target.
    acknowledged: HashMap<u8, u32>,
    /// First transmission of each PSN: stamp, header and payload.
    first: HashMap<(u8, u32), (Stamp, DataHeader, Vec<u8>)>,
    /// PSNs of a path run up to here.
    next: HashMap<u8, u32>,
    stamps: HashMap<(u8, u32), Vec<u8>>,
    acks: HashMap<u32, Vec<u8>>,
    /// What was wrong.
    pub violations: Vec<String>,
}

impl Standing {
    /// Of a peer whose id is `my_id`.
    pub fn new(my_id: u32) -> Self {
        Self {
            my_id,
            payload_bytes: 4096,
            ..Self::default()
        }
    }

    fn object(&mut self, sentence: &str, got: &Got, why: &str) {
        if self.violations.len() < TOLD {
            let shown = metaroce_proto::wire::dissect(&got.bytes);
            self.violations
                .push(format!("W-{sentence}: {why}: {shown}"));
        }
    }

    /// The target was told that everything below `psn` of `path` has arrived.
    pub fn acknowledged(&mut self, path: u8, psn: u32) {
        let lowest = self.acknowledged.entry(path).or_default();
        *lowest = psn.max(*lowest);
    }

    /// A connection begins anew: PSNs start at 0 again.
    pub fn forget(&mut self) {
        self.acknowledged.clear();
        self.first.clear();
        self.next.clear();
        self.stamps.clear();
        self.acks.clear();
    }

    /// Checks a packet.
    pub fn check(&mut self, got: &Got) {
        if got.ecn.is_some_and(|ecn| ecn != ECT0) {
            self.object("1.17", got, "not sent with ECT(0)");
        }
        self.check_written_again(got);
        let id = got.base.connection.0;
        let known = id == self.my_id || self.former_ids.contains(&id);
        let nameless = id == 0 && (got.hello().is_some() || got.reset().is_some());
        if !known && !nameless {
            self.object("2.7", got, "a connection id that it was not told");
        }
        match &got.body {
            Body::Data { header, payload } => self.check_data(got, header, payload),
            Body::Ack { .. } => self.check_ack(got),
            Body::Control(_) => {
                if got.base.psn.0 != 0 {
                    self.object("2.11", got, "a CONTROL packet with a PSN");
                }
            }
        }
    }

    /// What the codec reads and writes again has the same bytes: reserved ones are 0.
    fn check_written_again(&mut self, got: &Got) {
        let Ok(packet) = Packet::parse(&got.bytes) else {
            return;
        };
        // The padding of an ACK is not written again.
        let padded = matches!(packet, Packet::Ack(_));
        let again = emit_again(&packet, got.bytes.len());
        let same = again.as_deref() == Some(&got.bytes[..])
            || padded
                && again.is_some_and(|again| {
                    again.len() < got.bytes.len()
                        && got.bytes[again.len()..].iter().all(|b| *b == 0)
                });
        if !same {
            self.object("2.3", got, "reserved bits, or padding, are not 0");
        }
    }

    fn check_data(&mut self, got: &Got, header: &DataHeader, payload: &[u8]) {
        if header.payload_bytes > self.payload_bytes {
            self.object("1.18", got, "more payload than was agreed upon");
        }
        if got.bytes.len() > usize::from(self.payload_bytes) + DATA_HEADER_BYTES {
            self.object("1.18", got, "a packet larger than was agreed upon");
        }
        let (path, psn) = (got.base.path.0, got.base.psn.0);
        let stamp = (path, got.base.stamp.0);
        let repeated = self.stamps.get(&stamp);
        if repeated.is_some_and(|other| *other != got.bytes) {
            self.object("2.9", got, "two transmissions of a path with one stamp");
        }
        self.stamps.insert(stamp, got.bytes.clone());
        let next = self.next.get(&path).copied().unwrap_or(0);
        if !header.opcode.takes_psn() {
            // Ones that were sent before may be overtaken by it, never the other way round, by much.
            if header.opcode == Opcode::Nop && psn.wrapping_sub(next) > SPAN && psn > next {
                self.object("2.11", got, "not the PSN that the path uses next");
            }
            return;
        }
        let lowest = self.acknowledged.get(&path).copied().unwrap_or(0);
        if psn >= lowest + SPAN {
            self.object("4.1", got, "more than 256 outstanding");
        }
        if psn >= next {
            self.next.insert(path, psn + 1);
        }
        match self.first.get(&(path, psn)) {
            None => {
                let entry = (got.base.stamp, *header, payload.to_vec());
                self.first.insert((path, psn), entry);
            }
            Some((stamp, first, bytes)) => {
                let (stamp, first) = (*stamp, *first);
                let same = first == *header && bytes == payload;
                if !got.is_again() {
                    self.object("2.8", got, "sent again without the flag retransmission");
                }
                if !same && header.opcode != Opcode::Fill {
                    self.object("4.8", got, "another content under the same PSN");
                }
                if !stamp.is_before(got.base.stamp) {
                    self.object("2.9", got, "a stamp that is not later");
                }
            }
        }
    }

    fn check_ack(&mut self, got: &Got) {
        if got.bytes.len() > usize::from(self.payload_bytes) + DATA_HEADER_BYTES {
            self.object("2.26", got, "an ACK larger than the payload size + 64");
        }
        let before = self.acks.insert(got.base.psn.0, got.bytes.clone());
        if before.is_some_and(|before| before != got.bytes) {
            self.object("5.2", got, "two ACKs with one number");
        }
        let flags = BaseFlags::ACK_REQUESTED | BaseFlags::PROBE | BaseFlags::MARKER;
        if got.base.flags.intersects(flags) {
            self.object("5.10", got, "an ACK that asks for one");
        }
    }

    /// At the end of a script: no path has left out a PSN (4.1), and one that was never seen is still missing.
    pub fn holes(&mut self) -> Option<String> {
        let mut paths: Vec<_> = self.next.iter().collect();
        paths.sort_unstable();
        paths.into_iter().find_map(|(path, next)| {
            let hole = (0..*next).find(|psn| !self.first.contains_key(&(*path, *psn)))?;
            Some(format!(
                "W-4.1: path {path} went on to PSN {} and never sent {hole}",
                next - 1
            ))
        })
    }
}
