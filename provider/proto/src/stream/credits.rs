//! Receives of a stream: which are bound to its messages, how many more the peer may count on (credit), and how long a
//! peer waits after a refusal (RNR timer). `recv.rs` binds and consumes, `send.rs` obeys what the peer told.

use std::collections::VecDeque;

use super::MESSAGE_SPAN;
use crate::host::Host;
use crate::types::{Receive, RqId};
use crate::wire::Ssn;

/// Nanoseconds of an encoded RNR timer (IBA table 45; the upper three bits are not used).
pub fn rnr_timer_ns(encoded: u8) -> u64 {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
        1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    HUNDREDTHS_OF_MS[usize::from(encoded & 31)] * 10_000
}

/// Why a receive could not be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BindError {
    /// Too few are posted.
    Empty,
    /// The receive number is consumed already, or further ahead than messages may be.
    OutOfRange,
}

/// Receives that messages of one stream have bound and not consumed yet, by receive number.
///
/// Messages consume in the order of their receive numbers, because both are counted in the order of submission and
/// messages are executed in order: so this is a queue.
#[derive(Debug)]
pub(super) struct BoundReceives {
    queue: RqId,
    shared: bool,
    /// Receive number of the front of `bound`: the lowest not consumed.
    first: Ssn,
    bound: VecDeque<Receive>,
}

impl BoundReceives {
    pub(super) fn new(queue: RqId, shared: bool) -> Self {
        Self {
            queue,
            shared,
            first: Ssn::ZERO,
            bound: VecDeque::new(),
        }
    }

    /// Gives memory back that no receive needs.
    pub(super) fn let_go(&mut self) {
        self.bound.shrink_to_fit();
    }

    /// Binds all receive numbers up to `ssn`, lowest first: were only `ssn` bound, a later message could take the last
    /// receive from an earlier one and wait for it for ever. What was bound before the queue ran dry stays bound.
    pub(super) fn bind_through(&mut self, ssn: Ssn, host: &mut dyn Host) -> Result<(), BindError> {
        // Each receive number belongs to another message, so they cannot be further apart than messages.
        let Ok(index) = u32::try_from(self.first.distance(ssn)) else {
            return Err(BindError::OutOfRange);
        };
        if index >= MESSAGE_SPAN {
            return Err(BindError::OutOfRange);
        }
        while self.bound.len() <= index as usize {
            self.bound
                .push_back(host.take_receive(self.queue).ok_or(BindError::Empty)?);
        }
        Ok(())
    }

    /// The receive that `ssn` is bound to.
    pub(super) fn get(&self, ssn: Ssn) -> Option<&Receive> {
        usize::try_from(self.first.distance(ssn))
            .ok()
            .and_then(|index| self.bound.get(index))
    }

    /// Consumes the receive of `ssn`; `None` if that is not the next to be consumed.
    pub(super) fn consume(&mut self, ssn: Ssn) -> Option<Receive> {
        if ssn != self.first {
            return None;
        }
        let receive = self.bound.pop_front()?;
        self.first = self.first.next();
        Some(receive)
    }

    /// Takes the lowest receive without executing a message (flush).
    pub(super) fn pop(&mut self) -> Option<Receive> {
        let receive = self.bound.pop_front()?;
        self.first = self.first.next();
        Some(receive)
    }

    /// The first receive number for which there is no receive. Receives of a shared queue are nobody's until bound.
    pub(super) fn credit(&self, host: &mut dyn Host) -> Ssn {
        let unbound = self.next_unbound();
        if self.shared {
            return unbound;
        }
        // The peer cannot use more than it may have messages; and serial numbers need a bound to compare.
        unbound.advance(host.receives_available(self.queue).min(1 << 20))
    }

    /// The lowest receive number that no receive is bound to.
    pub(super) fn next_unbound(&self) -> Ssn {
        self.first.advance(self.bound.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::tests::FakeHost;
    use crate::types::SgeList;
    use rstest::rstest;

    fn host_with(receives: u64) -> FakeHost {
        let mut host = FakeHost::default();
        for cookie in 0..receives {
            host.post(
                RqId(0),
                Receive {
                    cookie,
                    sges: SgeList::new(),
                },
            );
        }
        host
    }

    #[rstest]
    #[case(0, 655_360_000)]
    #[case(1, 10_000)]
    #[case(12, 640_000)]
    #[case(14, 1_280_000)]
    #[case(31, 491_520_000)]
    #[case(32 + 1, 10_000)]
    fn rnr_timers_follow_table_45(#[case] encoded: u8, #[case] expected_ns: u64) {
        assert_eq!(rnr_timer_ns(encoded), expected_ns);
    }

    #[test]
    fn a_late_message_binds_the_receives_of_the_earlier_ones_first() {
        let mut host = host_with(3);
        let mut bound = BoundReceives::new(RqId(0), false);
        assert_eq!(bound.bind_through(Ssn(2), &mut host), Ok(()));
        assert_eq!(bound.get(Ssn(0)).map(|r| r.cookie), Some(0));
        assert_eq!(bound.get(Ssn(2)).map(|r| r.cookie), Some(2));
        assert!(bound.get(Ssn(3)).is_none());
        assert!(bound.consume(Ssn(1)).is_none(), "receive 0 comes first");
        assert_eq!(bound.consume(Ssn(0)).map(|r| r.cookie), Some(0));
    }

    #[test]
    fn too_few_receives_stay_bound_to_the_lowest_numbers() {
        let mut host = host_with(1);
        let mut bound = BoundReceives::new(RqId(0), false);
        assert_eq!(bound.bind_through(Ssn(1), &mut host), Err(BindError::Empty));
        assert_eq!(bound.credit(&mut host), Ssn(1));
        host.post(
            RqId(0),
            Receive {
                cookie: 7,
                sges: SgeList::new(),
            },
        );
        assert_eq!(bound.credit(&mut host), Ssn(2));
        assert_eq!(bound.bind_through(Ssn(1), &mut host), Ok(()));
        assert_eq!(bound.get(Ssn(1)).map(|r| r.cookie), Some(7));
    }

    #[test]
    fn receive_numbers_out_of_range_are_refused() {
        let mut host = host_with(4);
        let mut bound = BoundReceives::new(RqId(0), false);
        assert_eq!(
            bound.bind_through(Ssn(MESSAGE_SPAN), &mut host),
            Err(BindError::OutOfRange)
        );
        assert_eq!(
            bound.bind_through(Ssn(u32::MAX), &mut host),
            Err(BindError::OutOfRange)
        );
        assert_eq!(host.receives_available(RqId(0)), 4, "nothing was taken");
    }

    #[test]
    fn a_shared_queue_gives_no_credit() {
        let mut host = host_with(4);
        let bound = BoundReceives::new(RqId(0), true);
        assert_eq!(bound.credit(&mut host), Ssn(0));
    }
}
