//! Who has heard nothing of whom, and since when: what the bound of a queue pair is for (WIRE 3.22). Where links lose half of all
//! packets and one host of many sends a few a bound, every answer of a bound gets lost now and then, and a request that ends with
//! RETRY_EXC is right. One whose endpoint did not ask often enough is not. And from a peer that is gone packets may still come:
//! its silence begins after the last of them.

use metaroce_proto::types::Time;

use crate::NodeId;

/// Packets that must have been sent in vain.
const LEAST_ASKED: u32 = 10;

/// For every two hosts, by who listens and who is listened to.
#[derive(Debug)]
pub(super) struct Silence {
    nodes: usize,
    pairs: Vec<Pair>,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    heard_at: Time,
    /// Packets sent since.
    asked: u32,
    /// When a packet was last read while its sender was closing or dead.
    gone_heard_at: Option<Time>,
}

impl Silence {
    pub(super) fn new(nodes: usize, start: Time) -> Self {
        let pair = Pair {
            heard_at: start,
            asked: 0,
            gone_heard_at: None,
        };
        Self {
            nodes,
            pairs: vec![pair; nodes * nodes],
        }
    }

    fn pair(&mut self, listener: NodeId, other: NodeId) -> &mut Pair {
        &mut self.pairs[listener.0 * self.nodes + other.0]
    }

    /// `listener` sent a packet to `other`.
    pub(super) fn asked(&mut self, listener: NodeId, other: NodeId) {
        self.pair(listener, other).asked += 1;
    }

    /// `listener` read a packet of `other`, which was closing or dead by then if it `is_gone`.
    pub(super) fn heard(&mut self, listener: NodeId, other: NodeId, now: Time, is_gone: bool) {
        let pair = self.pair(listener, other);
        pair.heard_at = now;
        pair.asked = 0;
        if is_gone {
            pair.gone_heard_at = Some(now);
        }
    }

    /// When `listener` last read a packet of `other` that was closing or dead by then.
    pub(super) fn heard_gone(&mut self, listener: NodeId, other: NodeId) -> Option<Time> {
        self.pair(listener, other).gone_heard_at
    }

    /// Whether `listener` may give `other` up, having heard nothing for `bound_ns`.
    pub(super) fn excuses(
        &mut self,
        listener: NodeId,
        other: NodeId,
        now: Time,
        bound_ns: u64,
    ) -> bool {
        let pair = self.pair(listener, other);
        pair.asked >= LEAST_ASKED && now.since_ns(pair.heard_at) >= bound_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_asked_and_heard_nothing_for_the_bound_is_excused() {
        let (a, b) = (NodeId(0), NodeId(1));
        let at = Time::from_ns;
        let mut silence = Silence::new(2, at(0));
        assert!(!silence.excuses(a, b, at(100), 100), "it did not ask");
        (0..LEAST_ASKED).for_each(|_| silence.asked(a, b));
        assert!(silence.excuses(a, b, at(100), 100));
        assert!(!silence.excuses(a, b, at(99), 100), "too early");
        assert!(!silence.excuses(b, a, at(100), 100), "the other did not");
        silence.heard(a, b, at(50), false);
        (0..LEAST_ASKED).for_each(|_| silence.asked(a, b));
        assert!(!silence.excuses(a, b, at(100), 100), "it heard something");
        assert!(silence.excuses(a, b, at(150), 100));
    }
}
