//! Both ends of one queue pair of RoCEv2: go-back-N. The sender sends in order, from the last acknowledged packet again when
//! the receiver refuses a gap or nothing is heard for too long; the receiver takes what comes in order and drops the rest.
//! Driven by `rocev2/mod.rs`, which has the clock, the links and the pace.

use metaroce_proto::types::Time;

use super::PAYLOAD_BYTES;
use super::dcqcn::Dcqcn;

/// Base transport header and invariant CRC, in every packet.
const BTH_BYTES: u32 = 12 + 4;

/// In the first packet of a WRITE: where it goes.
const RETH_BYTES: u32 = 16;

/// In the last packet of a WRITE with immediate.
const IMMEDIATE_BYTES: u32 = 4;

/// UDP payload of an acknowledgement.
pub(super) const ACK_BYTES: u32 = BTH_BYTES + 4;

/// UDP payload of a congestion notification.
pub(super) const CNP_BYTES: u32 = BTH_BYTES + 16;

/// The receiver acknowledges so many packets together, and the last one of a message at once.
const PACKETS_PER_ACK: u32 = 16;

/// What a packet is for. PSNs are counted from 0 and never wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packet {
    /// It may ask for an acknowledgement at once.
    Data { psn: u64, asks: bool },
    /// All before this PSN is there.
    Ack { psn: u64 },
    /// The same, and something after it came: send again from here.
    Nak { psn: u64 },
    /// Congestion.
    Cnp,
}

/// The sending end.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) rate: Dcqcn,
    /// Picosecond from which on the pace allows the next packet.
    pub(super) next_at_ps: u64,
    /// It waits in its host's round.
    pub(super) is_queued: bool,
    /// Nothing is heard until then: from the start again.
    pub(super) deadline: Time,
    pub(super) timer_runs: bool,
    /// Timeouts without any progress between them.
    pub(super) timeouts: u32,
    pub(super) failed: bool,
    message_bytes: u32,
    /// Packets of the messages that were submitted.
    submitted: u64,
    next: u64,
    acknowledged: u64,
    /// The first that was never sent.
    fresh: u64,
}

impl Sender {
    pub(super) fn new(rate: Dcqcn, message_bytes: u32) -> Self {
        Self {
            rate,
            next_at_ps: 0,
            is_queued: false,
            deadline: Time::ZERO,
            timer_runs: false,
            timeouts: 0,
            failed: false,
            message_bytes,
            submitted: 0,
            next: 0,
            acknowledged: 0,
            fresh: 0,
        }
    }

    pub(super) fn submit(&mut self) {
        self.submitted += packets_of(self.message_bytes);
    }

    pub(super) fn has_packets(&self) -> bool {
        !self.failed && self.next < self.submitted
    }

    pub(super) fn awaits(&self) -> bool {
        !self.failed && self.acknowledged < self.next
    }

    /// The next packet: its PSN, its bytes of UDP payload, and whether it was sent before.
    pub(super) fn take(&mut self) -> (u64, u32, bool) {
        let psn = self.next;
        self.next += 1;
        let again = psn < self.fresh;
        self.fresh = self.fresh.max(self.next);
        (psn, packet_bytes(psn, self.message_bytes), again)
    }

    /// All before `psn` is there, and if `refused`, nothing after it. Returns whether that is news.
    pub(super) fn acknowledge(&mut self, psn: u64, refused: bool) -> bool {
        let progress = psn > self.acknowledged;
        if psn < self.acknowledged {
            return false;
        }
        self.acknowledged = psn;
        self.next = self.next.max(psn);
        if progress {
            self.timeouts = 0;
        }
        if refused {
            self.next = psn;
        }
        progress || refused
    }

    /// Nothing was heard: all that is not acknowledged again.
    pub(super) fn time_out(&mut self) {
        self.next = self.acknowledged;
        self.timeouts += 1;
    }
}

/// The receiving end.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    expected: u64,
    /// The gap at `expected` is refused already: once is all that the protocol has.
    refused: bool,
    since_ack: u32,
    notified_at: Option<Time>,
}

/// What comes of a data packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    pub(super) answer: Option<Packet>,
    /// It completes a message.
    pub(super) message: bool,
}

impl Receiver {
    pub(super) fn take(&mut self, (psn, asks): (u64, bool), message_bytes: u32) -> Taken {
        if psn > self.expected {
            let refuses = !std::mem::replace(&mut self.refused, true);
            let answer = refuses.then_some(Packet::Nak { psn: self.expected });
            return Taken {
                answer,
                message: false,
            };
        }
        if psn < self.expected {
            let answer = Some(Packet::Ack { psn: self.expected });
            return Taken {
                answer,
                message: false,
            };
        }
        self.expected += 1;
        self.refused = false;
        self.since_ack += 1;
        let message = self.expected.is_multiple_of(packets_of(message_bytes));
        let answers = message || asks || self.since_ack >= PACKETS_PER_ACK;
        if answers {
            self.since_ack = 0;
        }
        Taken {
            answer: answers.then_some(Packet::Ack { psn: self.expected }),
            message,
        }
    }

    /// A marked packet came; whether the sender is to be told, at most once in `interval_ns`.
    pub(super) fn notifies(&mut self, now: Time, interval_ns: u64) -> bool {
        let told = self.notified_at;
        let notifies = told.is_none_or(|at| now.since_ns(at) >= interval_ns);
        if notifies {
            self.notified_at = Some(now);
        }
        notifies
    }
}

fn packets_of(message_bytes: u32) -> u64 {
    u64::from(message_bytes.div_ceil(PAYLOAD_BYTES))
}

/// UDP payload of a packet.
fn packet_bytes(psn: u64, message_bytes: u32) -> u32 {
    let packets = packets_of(message_bytes);
    let at = psn % packets;
    let mut bytes = BTH_BYTES;
    if at == 0 {
        bytes += RETH_BYTES;
    }
    if at + 1 < packets {
        return bytes + PAYLOAD_BYTES;
    }
    bytes + IMMEDIATE_BYTES + message_bytes - (packets as u32 - 1) * PAYLOAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::dcqcn::DcqcnConfig;
    use super::*;

    /// Three packets, the last of 100 bytes.
    const BYTES: u32 = 2 * PAYLOAD_BYTES + 100;

    fn sender() -> Sender {
        let rate = Dcqcn::new(DcqcnConfig::default(), 100e9, Time::ZERO);
        let mut sender = Sender::new(rate, BYTES);
        sender.submit();
        sender
    }

    #[test]
    fn headers_take_what_they_take() {
        let mut sender = sender();
        assert_eq!(sender.take(), (0, 4096 + 32, false));
        assert_eq!(sender.take(), (1, 4096 + 16, false));
        assert_eq!(sender.take(), (2, 100 + 20, false));
        assert!(!sender.has_packets());
        assert_eq!(packet_bytes(0, 1), 1 + 16 + 16 + 4);
    }

    #[test]
    fn a_gap_is_refused_once_and_everything_after_it_sent_again() {
        let (mut sender, mut receiver) = (sender(), Receiver::default());
        assert_eq!(receiver.take((sender.take().0, false), BYTES).answer, None);
        sender.take();
        let nak = receiver.take((sender.take().0, false), BYTES).answer;
        assert_eq!(nak, Some(Packet::Nak { psn: 1 }));
        assert_eq!(receiver.take((2, false), BYTES).answer, None);
        assert!(sender.acknowledge(1, true));
        assert_eq!(sender.take(), (1, 4096 + 16, true));
        assert_eq!(receiver.take((1, false), BYTES).answer, None);
        let last = receiver.take((sender.take().0, false), BYTES);
        assert_eq!(last.answer, Some(Packet::Ack { psn: 3 }));
        assert!(last.message);
        assert!(sender.acknowledge(3, false) && !sender.awaits());
        // What is older says nothing.
        assert!(!sender.acknowledge(1, true) && !sender.has_packets());
    }

    #[test]
    fn a_timeout_sends_all_again_and_duplicates_are_acknowledged() {
        let (mut sender, mut receiver) = (sender(), Receiver::default());
        while sender.has_packets() {
            receiver.take((sender.take().0, false), BYTES);
        }
        sender.time_out();
        assert_eq!(sender.take().0, 0);
        let taken = receiver.take((0, false), BYTES);
        assert_eq!(taken.answer, Some(Packet::Ack { psn: 3 }));
        assert!(!taken.message);
        assert!(sender.acknowledge(3, false) && !sender.has_packets());
    }

    #[test]
    fn congestion_is_told_once_in_the_interval() {
        let mut receiver = Receiver::default();
        let mut told = |us: u64| receiver.notifies(Time::from_ns(us * 1_000), 50_000);
        assert_eq!(
            [told(1), told(50), told(51), told(60)],
            [true, false, true, false]
        );
    }
}
