//! What a capture tells about one path of one connection.

use std::collections::{HashMap, VecDeque};

use metaroce_proto::wire::{Base, BaseFlags, DataHeader, Epoch, PathBlock};

use super::serial::Serial;

/// Stamps that wait for their echo, at most: a path has 256 packets outstanding, and a few without a PSN. Older ones
/// will not be echoed any more.
const STAMPS_MAX: usize = 1024;

/// Round trips kept for the median; of more, the first count.
const SAMPLES_MAX: usize = 1 << 20;

/// The packets of a path.
#[derive(Clone, Debug, Default)]
pub struct Path {
    /// Packets.
    pub packets: u64,
    /// Bytes of payload.
    pub payload_bytes: u64,
    /// Packets that were sent before under their PSN.
    pub retransmitted: u64,
    /// NOPs: probes, markers, announcements.
    pub bare: u64,
    /// Packets with a congestion mark.
    pub marked: u64,
    /// Changes of the epoch: moves to another route.
    pub moves: u64,
    /// PSNs.
    pub psns: Serial,
    /// Path blocks about it in the ACKs of the other side.
    pub acknowledged: u64,
    epoch: Option<Epoch>,
    stamps: HashMap<u32, u64>,
    stamp_order: VecDeque<u32>,
    samples_ns: Vec<u64>,
}

impl Path {
    /// Takes a DATA packet.
    pub fn data(&mut self, base: &Base, header: &DataHeader, marked: bool, time_ns: u64) {
        self.packets += 1;
        self.payload_bytes += u64::from(header.payload_bytes);
        self.marked += u64::from(marked);
        if header.opcode.takes_psn() {
            self.psns.see(base.psn.0);
            self.retransmitted += u64::from(base.flags.contains(BaseFlags::RETRANSMISSION));
        } else {
            self.bare += 1;
        }
        match self.epoch {
            // Late packets of an earlier route are no move.
            Some(epoch) if base.epoch.is_at_or_before(epoch) => {}
            Some(_) => {
                self.moves += 1;
                self.epoch = Some(base.epoch);
            }
            None => self.epoch = Some(base.epoch),
        }
        if self.stamps.insert(base.stamp.0, time_ns).is_none() {
            self.stamp_order.push_back(base.stamp.0);
        }
        if self.stamp_order.len() > STAMPS_MAX
            && let Some(oldest) = self.stamp_order.pop_front()
        {
            self.stamps.remove(&oldest);
        }
    }

    /// Whether a packet with this stamp was seen, and not yet echoed.
    #[must_use]
    pub fn has_stamp(&self, stamp: u32) -> bool {
        self.stamps.contains_key(&stamp)
    }

    /// Takes a path block about it. The first echo of a stamp is a round trip, seen from where the capture was made:
    /// the whole one at the sender, nothing at the receiver.
    pub fn echo(&mut self, block: &PathBlock, time_ns: u64) {
        self.acknowledged += 1;
        let Some(sent_ns) = self.stamps.remove(&block.echoed_stamp.0) else {
            return;
        };
        if let Some(delay_ns) = block.ack_delay.as_ns()
            && self.samples_ns.len() < SAMPLES_MAX
        {
            let round_trip_ns = time_ns.saturating_sub(sent_ns);
            self.samples_ns.push(round_trip_ns.saturating_sub(delay_ns));
        }
    }

    /// Round trips without the delay of the acknowledgement: number, least, median and most in ns.
    #[must_use]
    pub fn round_trips(&self) -> Option<RoundTrips> {
        let mut samples_ns = self.samples_ns.clone();
        samples_ns.sort_unstable();
        Some(RoundTrips {
            samples: samples_ns.len(),
            least_ns: *samples_ns.first()?,
            median_ns: *samples_ns.get(samples_ns.len() / 2)?,
            most_ns: *samples_ns.last()?,
        })
    }
}

/// Round trips of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrips {
    /// How many.
    pub samples: usize,
    /// The shortest.
    pub least_ns: u64,
    /// The median.
    pub median_ns: u64,
    /// The longest.
    pub most_ns: u64,
}
