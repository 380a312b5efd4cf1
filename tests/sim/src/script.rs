//! The fate of single packets, chosen by bytes: a fuzzer writes them, so that it can find out by itself which packet has
//! to be lost, late, doubled or damaged for something to go wrong. One byte a packet, in the order in which they are
//! sent; after the last byte, or after `LASTS_NS`, everything arrives. Called by `network.rs` for each datagram.
//!
//! A *hostile* script also forges: it alters fields and repairs the checksum, which no network does. Then nothing is left
//! of the contract but what an endpoint owes to itself (see `Ledger::break_down`).

use std::collections::VecDeque;
use std::rc::Rc;

use metaroce_proto::types::Time;
use metaroce_proto::wire::seal;

use crate::network::Datagram;

/// Datagrams that are kept to be sent once more.
const KEPT: usize = 32;

/// Damage beyond this is found by the UDP checksum, in DATA packets.
const HEADER_BYTES: usize = 64;

/// The shortest delay, which the argument of a step doubles.
const DELAY_NS: u64 = 1_000;

/// A script is over after this, whatever is left of it: where packets are rare (set-up is tried once a second) a few
/// bytes would otherwise make the network dark for longer than any program is patient.
const LASTS_NS: u64 = 10_000_000_000;

/// What happens to one datagram.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// It arrives, with a congestion mark or not.
    Deliver {
        /// Congestion mark.
        mark: bool,
    },
    /// It does not.
    Lose,
    /// It arrives so much later, out of order.
    Delay(u64),
    /// It arrives, and so much later once more.
    Duplicate(u64),
    /// It arrives with these bytes.
    Alter(Rc<[u8]>),
    /// It arrives, and with it an earlier datagram once more.
    Replay(Box<Datagram>),
}

/// See the file's head.
#[derive(Clone, Debug, Default)]
pub struct Script {
    bytes: Vec<u8>,
    at: usize,
    hostile: bool,
    losses_left: u8,
    began: Option<Time>,
    kept: VecDeque<Datagram>,
}

impl Script {
    /// The script in `bytes`.
    #[must_use]
    pub fn new(bytes: &[u8], hostile: bool) -> Self {
        Self {
            bytes: bytes.to_vec(),
            hostile,
            ..Self::default()
        }
    }

    /// Whether it forges.
    #[must_use]
    pub fn is_hostile(&self) -> bool {
        self.hostile
    }

    /// When it is over at the latest; `None` if that is now.
    pub(crate) fn ends_by(&self) -> Option<Time> {
        let rest = self.losses_left > 0 || self.at < self.bytes.len();
        self.began.filter(|_| rest).map(|began| began + LASTS_NS)
    }

    fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// What happens to `datagram`, sent `now`; `None` when the script is over.
    pub(crate) fn next(&mut self, now: Time, datagram: &Datagram) -> Option<Step> {
        let began = *self.began.get_or_insert(now);
        if now.since_ns(began) > LASTS_NS {
            return None;
        }
        if self.losses_left > 0 {
            self.losses_left -= 1;
            return Some(Step::Lose);
        }
        if self.at >= self.bytes.len() {
            return None;
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(datagram.clone());
        let byte = self.byte();
        let (kind, argument) = (byte & 0xf, byte >> 4);
        Some(match kind {
            7 => Step::Lose,
            8 => {
                self.losses_left = argument;
                Step::Lose
            }
            9 => Step::Delay(DELAY_NS << argument),
            10 => Step::Duplicate(DELAY_NS << argument),
            11 => Step::Deliver { mark: true },
            12 => {
                let at = usize::from(self.byte());
                let flip = self.byte() | 1;
                let mut bytes = datagram.bytes.to_vec();
                let length = bytes.len().min(HEADER_BYTES);
                bytes[at % length] ^= flip;
                Step::Alter(bytes.into())
            }
            13 => {
                let back = usize::from(self.byte()) % self.kept.len();
                Step::Replay(Box::new(self.kept[back].clone()))
            }
            14 => {
                let length = usize::from(self.byte()) % datagram.bytes.len();
                Step::Alter(datagram.bytes[..length].into())
            }
            15 if self.hostile => Step::Alter(self.forge(datagram, argument)),
            _ => Step::Deliver { mark: false },
        })
    }

    /// Another packet with a right checksum: some bytes overwritten, or a run of them taken from an earlier datagram.
    fn forge(&mut self, datagram: &Datagram, argument: u8) -> Rc<[u8]> {
        let mut bytes = datagram.bytes.to_vec();
        let length = bytes.len();
        for _ in 0..=argument & 3 {
            let at = usize::from(self.byte());
            let value = self.byte();
            match argument >> 2 {
                // Small steps around a number, which is big-endian.
                0 => bytes[at % length] = bytes[at % length].wrapping_add(value),
                1 => bytes[at % length] = value,
                2 => bytes.truncate((at + 16).min(length)),
                _ => {
                    let other = &self.kept[usize::from(value) % self.kept.len()].bytes;
                    let from = at % length.min(other.len());
                    let to = (from + 4).min(length).min(other.len());
                    bytes[from..to].copy_from_slice(&other[from..to]);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        seal(&mut bytes);
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;
    use metaroce_proto::types::SourceSlot;

    fn datagram(bytes: &[u8]) -> Datagram {
        Datagram {
            from: NodeId(0),
            to: NodeId(1),
            plane: 0,
            slot: SourceSlot(0),
            destination: ([10, 0, 0, 2], 1).into(),
            ce: false,
            bytes: bytes.into(),
            uncarried_bytes: 0,
        }
    }

    #[test]
    fn each_byte_decides_one_packet_and_then_all_is_well() {
        let mut script = Script::new(&[0, 7, 0x18, 0x39, 0x0b], false);
        let packet = datagram(&[1; 20]);
        let mut next = || script.next(Time::ZERO, &packet);
        assert!(matches!(next(), Some(Step::Deliver { mark: false })));
        assert!(matches!(next(), Some(Step::Lose)));
        // Two in a row from one byte.
        assert!(matches!(next(), Some(Step::Lose)));
        assert!(matches!(next(), Some(Step::Lose)));
        assert!(matches!(next(), Some(Step::Delay(8_000))));
        assert!(matches!(next(), Some(Step::Deliver { mark: true })));
        assert!(next().is_none());
    }

    #[test]
    fn a_script_is_over_in_time() {
        let mut script = Script::new(&[0xf8; 100], false);
        let packet = datagram(&[1; 20]);
        let began = Time::from_ns(7_000);
        assert!(matches!(script.next(began, &packet), Some(Step::Lose)));
        let last = began + LASTS_NS;
        assert!(matches!(script.next(last, &packet), Some(Step::Lose)));
        assert!(script.next(last + 1, &packet).is_none());
    }

    #[test]
    fn damage_always_alters_and_only_the_hostile_forge() {
        let packet = datagram(&[1; 20]);
        let mut script = Script::new(&[12, 25, 0, 15, 3, 9], false);
        let Some(Step::Alter(bytes)) = script.next(Time::ZERO, &packet) else {
            panic!("not altered")
        };
        assert_eq!((bytes.len(), bytes[5]), (20, 0));
        assert!(matches!(
            script.next(Time::ZERO, &packet),
            Some(Step::Deliver { mark: false })
        ));
        let mut script = Script::new(&[15, 3, 9], true);
        let Some(Step::Alter(bytes)) = script.next(Time::ZERO, &packet) else {
            panic!("not forged")
        };
        assert_eq!(bytes[3], 10);
    }
}
