//! The receiving half of a path: which packets have arrived, and what to tell the sender about it.
//!
//! `conn/` asks [`PathRx::verdict`] before it touches a packet's payload, calls [`PathRx::handle_packet`] once for
//! each packet that it accepts (whatever the stream layer then does with it), and writes [`PathRx::block`] into an
//! acknowledgement when [`Arrival::ack_at_once`] or its own schedule says so.
//!
//! WIRE 4.3, 5.3, 5.5 to 5.7 and 5.12. The echoed stamp is that of the latest transmission of which anything has
//! arrived. What was sent before it is received by its PSN like any other but leaves the echo alone.

use crate::path::{IDLE_EPOCH_NS, SPAN_PACKETS};
use crate::types::Time;
use crate::wire::{
    AckDelay, BaseFlags, BitVector, Epoch, PathBlock, PathFlags, PathId, Psn, Stamp,
};

/// Whether the path wants a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Not received before: place it.
    New,
    /// Received before: nothing to place.
    Duplicate,
    /// Beyond what a sender may have outstanding: drop it, as if it had never come.
    Beyond,
    /// Has no PSN of its own: nothing to place.
    Bare,
}

/// What the arrival of a packet calls for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// What it was.
    pub verdict: Verdict,
    /// An acknowledgement with this path's block is due at once: a gap opened, the congestion mark changed, or the
    /// packet asks for it.
    pub ack_at_once: bool,
    /// It answers a probe or a retransmission: to be sent twice, on two routes.
    pub ack_twice: bool,
}

/// The receiving half of a path.
#[derive(Debug, Clone)]
pub struct PathRx {
    id: PathId,
    cumulative: Psn,
    vector: BitVector,
    /// The latest transmission that arrived; nothing before the first packet.
    newest: Option<Echo>,
    ce_count: u16,
    duplicates: u16,
    received: u16,
    news: bool,
}

#[derive(Debug, Clone, Copy)]
struct Echo {
    epoch: Epoch,
    stamp: Stamp,
    arrived_at: Time,
    /// It came with a congestion mark.
    ce: bool,
    /// A block with it has been built: its delay would be the receiver's idleness, not the network's.
    told: bool,
}

/// What stays of it while nothing is missing and nothing comes.
#[derive(Debug)]
pub struct ParkedRx {
    newest: Option<Echo>,
    cumulative: Psn,
    ce_count: u16,
    duplicates: u16,
    received: u16,
    id: PathId,
    news: bool,
}

impl ParkedRx {
    /// The path as it was.
    #[must_use]
    pub fn wake(&self) -> PathRx {
        PathRx {
            id: self.id,
            cumulative: self.cumulative,
            vector: BitVector::EMPTY,
            newest: self.newest,
            ce_count: self.ce_count,
            duplicates: self.duplicates,
            received: self.received,
            news: self.news,
        }
    }
}

impl PathRx {
    /// Whether nothing is missing, and so the bitvector empty.
    #[must_use]
    pub fn can_park(&self) -> bool {
        self.vector.is_empty()
    }

    /// Puts a path to sleep that [`Self::can_park`].
    #[must_use]
    pub fn park(&self) -> ParkedRx {
        debug_assert!(self.can_park(), "something is missing");
        ParkedRx {
            newest: self.newest,
            cumulative: self.cumulative,
            ce_count: self.ce_count,
            duplicates: self.duplicates,
            received: self.received,
            id: self.id,
            news: self.news,
        }
    }

    /// A path of which nothing has arrived: PSNs start at 0.
    #[must_use]
    pub fn new(id: PathId) -> Self {
        Self::starting_at(id, Psn::ZERO)
    }

    pub(super) fn starting_at(id: PathId, psn: Psn) -> Self {
        Self {
            id,
            cumulative: psn,
            vector: BitVector::EMPTY,
            newest: None,
            ce_count: 0,
            duplicates: 0,
            received: 0,
            news: false,
        }
    }

    /// What a packet would be; `None` for one without a PSN of its own. Changes nothing.
    #[must_use]
    pub fn verdict(&self, psn: Option<Psn>) -> Verdict {
        let Some(psn) = psn else {
            return Verdict::Bare;
        };
        let distance = self.cumulative.distance(psn);
        if distance < 0 {
            Verdict::Duplicate
        } else if distance as u32 >= SPAN_PACKETS {
            Verdict::Beyond
        } else if self.vector.get(distance as u32) {
            Verdict::Duplicate
        } else {
            Verdict::New
        }
    }

    /// Takes a packet's arrival into account. `flags` are those of its base header.
    pub fn handle_packet(
        &mut self,
        now: Time,
        epoch: Epoch,
        psn: Option<Psn>,
        stamp: Stamp,
        ce: bool,
        flags: BaseFlags,
    ) -> Arrival {
        let verdict = self.verdict(psn);
        if verdict == Verdict::Beyond {
            // An echo of it would claim that it was received.
            return Arrival {
                verdict,
                ack_at_once: false,
                ack_twice: false,
            };
        }
        let gap = match (verdict, psn) {
            (Verdict::New, Some(psn)) => self.receive(psn),
            _ => false,
        };
        self.received = self.received.wrapping_add(1);
        if verdict == Verdict::Duplicate {
            self.duplicates = self.duplicates.wrapping_add(1);
        }
        self.ce_count = self.ce_count.wrapping_add(u16::from(ce));
        let mark_changed = self.take_stamp(now, epoch, stamp, ce);
        self.news = true;
        let ack_twice = flags.intersects(BaseFlags::PROBE | BaseFlags::RETRANSMISSION);
        let asked =
            flags.intersects(BaseFlags::ACK_REQUESTED | BaseFlags::MARKER | BaseFlags::ANNOUNCE);
        Arrival {
            verdict,
            ack_at_once: ack_twice || asked || gap || mark_changed || verdict == Verdict::Duplicate,
            ack_twice,
        }
    }

    /// Notes a PSN within the span. True if it opened a gap: packets right before it are missing that nothing later
    /// had shown to be missing.
    fn receive(&mut self, psn: Psn) -> bool {
        let index = psn.since(self.cumulative);
        if index == 0 && self.vector.is_empty() {
            // The usual case: nothing is missing.
            self.cumulative = psn.next();
            return false;
        }
        let expected = self.vector.highest().map_or(0, |highest| highest + 1);
        self.vector.set(index);
        let run = self.vector.leading_run();
        self.vector.shift_down(run);
        self.cumulative = self.cumulative.advance(run);
        index > expected
    }

    /// Takes the stamp for the echo if it is newer. True if the congestion mark changed with it.
    ///
    /// Stamps strictly increase and epochs follow them, so the stamp alone tells the order: the epoch, compared modulo
    /// 256, would take a packet of 129 epochs ago for one of a route to come, and no later packet could correct that.
    /// Only across a long silence a stamp can have wrapped; what comes then is newer than what came before (WIRE 5.12).
    fn take_stamp(&mut self, now: Time, epoch: Epoch, stamp: Stamp, ce: bool) -> bool {
        let newer = self.newest.is_none_or(|newest| {
            newest.stamp.is_before(stamp)
                || (newest.stamp != stamp && now.since_ns(newest.arrived_at) >= IDLE_EPOCH_NS)
        });
        if !newer {
            return false;
        }
        let before = self.newest.replace(Echo {
            epoch,
            stamp,
            arrived_at: now,
            ce,
            told: false,
        });
        before.is_some_and(|echo| echo.ce) != ce
    }

    /// What to tell the sender now; nothing before the first packet. The news count as told.
    pub fn block(&mut self, now: Time) -> Option<PathBlock> {
        let echo = self.newest.as_mut()?;
        let ack_delay = match std::mem::replace(&mut echo.told, true) {
            true => AckDelay::NO_SAMPLE,
            false => AckDelay::from_ns(now.since_ns(echo.arrived_at)),
        };
        self.news = false;
        Some(PathBlock {
            path: self.id,
            epoch: echo.epoch,
            flags: PathFlags::NONE.set(PathFlags::CE_STATE, echo.ce),
            cumulative: self.cumulative,
            vector: self.vector,
            echoed_stamp: echo.stamp,
            ack_delay,
            ce_count: self.ce_count,
            duplicates: self.duplicates,
            received: self.received,
        })
    }

    /// Whether something arrived since the last [`Self::block`].
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.news
    }

    /// Number of the path.
    #[must_use]
    pub fn id(&self) -> PathId {
        self.id
    }

    /// Epoch of the route on which the sender is, as far as packets have shown.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.newest.map(|newest| newest.epoch)
    }

    /// Lowest PSN not received.
    #[must_use]
    pub fn cumulative(&self) -> Psn {
        self.cumulative
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// A receiver and a clock of stamps.
    struct Receiver {
        rx: PathRx,
        stamp: Stamp,
    }

    impl Receiver {
        fn new() -> Self {
            Self {
                rx: PathRx::new(PathId(1)),
                stamp: Stamp(10),
            }
        }

        fn take(&mut self, psn: Option<u32>, ce: bool, flags: BaseFlags) -> Arrival {
            self.stamp = self.stamp.next();
            self.rx.handle_packet(
                Time::from_ns(100),
                Epoch(0),
                psn.map(Psn),
                self.stamp,
                ce,
                flags,
            )
        }

        fn plain(&mut self, psn: u32) -> Arrival {
            self.take(Some(psn), false, BaseFlags::NONE)
        }

        fn block(&mut self) -> PathBlock {
            self.rx.block(Time::from_ns(164)).unwrap()
        }
    }

    // WIRE 4.3, 5.5
    #[rstest]
    #[case(0, Verdict::New, 1, None, false)]
    #[case(1, Verdict::New, 0, Some(1), true)]
    #[case(255, Verdict::New, 0, Some(255), true)]
    #[case(256, Verdict::Beyond, 0, None, false)]
    #[case(0x7fff_ffff, Verdict::Beyond, 0, None, false)]
    #[case(u32::MAX, Verdict::Duplicate, 0, None, true)]
    fn the_edges_of_the_vector(
        #[case] psn: u32,
        #[case] verdict: Verdict,
        #[case] cumulative: u32,
        #[case] highest: Option<u32>,
        #[case] ack_at_once: bool,
    ) {
        let mut receiver = Receiver::new();
        assert_eq!(receiver.rx.verdict(Some(Psn(psn))), verdict);
        let arrival = receiver.plain(psn);
        assert_eq!(
            (arrival.verdict, arrival.ack_at_once),
            (verdict, ack_at_once)
        );
        assert_eq!(receiver.rx.has_news(), verdict != Verdict::Beyond);
        if verdict == Verdict::Beyond {
            assert_eq!(receiver.rx.block(Time::ZERO), None);
            return;
        }
        let block = receiver.block();
        assert_eq!(block.cumulative, Psn(cumulative));
        assert_eq!(block.vector.highest(), highest);
        assert!(!receiver.rx.has_news());
    }

    #[test]
    fn a_full_vector_falls_in_when_its_first_packet_comes() {
        let mut receiver = Receiver::new();
        for psn in (1..256).rev() {
            assert_eq!(receiver.plain(psn).verdict, Verdict::New);
        }
        assert_eq!(receiver.block().vector.count(), 255);
        assert_eq!(receiver.plain(256).verdict, Verdict::Beyond);
        assert_eq!(receiver.plain(0).verdict, Verdict::New);
        assert_eq!(receiver.rx.cumulative(), Psn(256));
        assert!(receiver.block().vector.is_empty());
        assert_eq!(receiver.plain(255).verdict, Verdict::Duplicate);
        assert_eq!(receiver.plain(511).verdict, Verdict::New);
        let block = receiver.block();
        assert_eq!((block.duplicates, block.received), (1, 258));
    }

    #[test]
    fn only_the_packet_that_opens_a_gap_is_told_at_once() {
        let mut receiver = Receiver::new();
        let at_once: Vec<bool> = [0, 2, 3, 5, 4, 1, 6]
            .map(|psn| receiver.plain(psn).ack_at_once)
            .into();
        assert_eq!(at_once, [false, true, false, true, false, false, false]);
    }

    // WIRE 5.3, 5.4
    #[rstest]
    #[case(BaseFlags::NONE, false, false)]
    #[case(BaseFlags::ACK_REQUESTED, true, false)]
    #[case(BaseFlags::MARKER, true, false)]
    #[case(BaseFlags::ANNOUNCE, true, false)]
    #[case(BaseFlags::PROBE, true, true)]
    #[case(BaseFlags::RETRANSMISSION, true, true)]
    #[case(BaseFlags::BACKLOG_EMPTY, false, false)]
    fn flags_call_for_acknowledgements(
        #[case] flags: BaseFlags,
        #[case] at_once: bool,
        #[case] twice: bool,
    ) {
        let mut receiver = Receiver::new();
        let arrival = receiver.take(Some(0), false, flags);
        assert_eq!((arrival.ack_at_once, arrival.ack_twice), (at_once, twice));
        let arrival = receiver.take(None, false, flags);
        assert_eq!(arrival.verdict, Verdict::Bare);
        assert_eq!((arrival.ack_at_once, arrival.ack_twice), (at_once, twice));
    }

    // WIRE 5.3, 5.6
    #[test]
    fn a_change_of_the_mark_is_told_at_once() {
        let mut receiver = Receiver::new();
        let at_once: Vec<bool> = [false, true, true, false, false]
            .into_iter()
            .enumerate()
            .map(|(psn, ce)| {
                receiver
                    .take(Some(psn as u32), ce, BaseFlags::NONE)
                    .ack_at_once
            })
            .collect();
        assert_eq!(at_once, [false, true, false, true, false]);
        let block = receiver.block();
        assert_eq!((block.ce_count, block.flags), (2, PathFlags::NONE));
    }

    /// Seconds, epoch and stamp of a packet that arrives; then epoch and stamp of the echo.
    type Step = ((u64, u8, u32), (u8, u32));

    #[rstest]
    #[case::within_an_epoch(&[((0, 7, 100), (7, 100)), ((0, 7, 90), (7, 100)), ((0, 7, 101), (7, 101))])]
    #[case::across_epochs(&[((0, 254, 100), (254, 100)), ((0, 1, 120), (1, 120)), ((0, 255, 110), (1, 120))])]
    #[case::of_129_epochs_ago(&[
        ((0, 0, 100), (0, 100)),
        ((1, 64, 200), (64, 200)),
        ((2, 128, 300), (128, 300)),
        ((3, 192, 400), (192, 400)),
        ((3, 1, 110), (192, 400)),
        ((3, 193, 401), (193, 401)),
    ])]
    #[case::across_the_wrap_of_stamps(&[((0, 1, u32::MAX), (1, u32::MAX)), ((0, 1, 0), (1, 0)), ((0, 1, u32::MAX), (1, 0))])]
    #[case::after_a_long_silence(&[
        ((0, 1, 100), (1, 100)),
        ((59, 1, 90), (1, 100)),
        ((60, 2, 0x9000_0000), (2, 0x9000_0000)),
        ((60, 2, 0x8fff_ffff), (2, 0x9000_0000)),
    ])]
    // A path at the end of its epochs keeps the number (WIRE 4.13).
    #[case::after_a_long_silence_in_one_epoch(&[((0, 65, 100), (65, 100)), ((200, 65, 0xc000_0000), (65, 0xc000_0000))])]
    fn the_echo_is_of_the_latest_transmission(#[case] steps: &[Step]) {
        let mut rx = PathRx::new(PathId(1));
        for (psn, ((seconds, epoch, stamp), echo)) in (0..).zip(steps) {
            let now = Time::from_ns(seconds * 1_000_000_000);
            let (epoch, stamp) = (Epoch(*epoch), Stamp(*stamp));
            rx.handle_packet(now, epoch, Some(Psn(psn)), stamp, false, BaseFlags::NONE);
            let block = rx.block(now).unwrap();
            assert_eq!((block.epoch.0, block.echoed_stamp.0), *echo, "step {psn}");
            assert_eq!(block.cumulative, Psn(psn + 1));
        }
    }

    // WIRE 5.7
    #[test]
    fn the_delay_is_told_once() {
        let mut receiver = Receiver::new();
        receiver.plain(0);
        assert_eq!(receiver.block().ack_delay, AckDelay(1));
        assert_eq!(receiver.block().ack_delay, AckDelay::NO_SAMPLE);
    }
}
