//! A diagnostic: paths take other routes for no reason, all the time (`EndpointConfig::reroll_ns`). What moves for a
//! reason is in `probe.rs`; this uses the very same move, so that a test or a user can see what moving costs, and whether
//! anything is sent twice or stands still because of it. It does nothing unless it is switched on.

use rand::Rng;
use rand::rngs::SmallRng;

use crate::conn::{Connection, Context};
use crate::telemetry::log::MoveCause;
use crate::types::Time;

/// The clock of the moves of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reroll {
    /// Time between two moves on average.
    every_ns: u64,
    /// From the next packet to the next move.
    gap_ns: u64,
    /// When it is; `None` until something is sent again: nothing ticks for ever.
    at: Option<Time>,
}

impl Reroll {
    /// `None` where it is switched off.
    pub(super) fn new(every_ns: u64, rng: &mut SmallRng) -> Option<Self> {
        (every_ns > 0).then(|| Self {
            every_ns,
            gap_ns: draw(every_ns, rng),
            at: None,
        })
    }

    pub(super) fn at(&self) -> Option<Time> {
        self.at
    }

    /// Something was sent.
    #[inline]
    pub(super) fn arm(&mut self, now: Time) {
        if self.at.is_none() {
            self.at = Some(now + self.gap_ns);
        }
    }
}

/// Evenly from 0 to twice the average, never 0.
fn draw(every_ns: u64, rng: &mut SmallRng) -> u64 {
    rng.random_range(1..=every_ns.saturating_mul(2))
}

impl Connection {
    /// A random path takes a random other route, if it is time.
    pub(super) fn reroll_timeout(&mut self, cx: &mut Context<'_>) {
        let Some(reroll) = &mut self.reroll else {
            return;
        };
        if reroll.at.is_none_or(|at| at > cx.now) {
            return;
        }
        reroll.at = None;
        reroll.gap_ns = draw(reroll.every_ns, &mut cx.shared.rng);
        // The next packet sets the clock again: a peer that is silent is left alone.
        if !self.is_open() {
            return;
        }
        let at = cx.shared.rng.random_range(0..self.paths.len());
        // Where the peer has heard of none of the last moves there is no epoch for another (WIRE 4.13): what is in
        // flight on two routes could not be told apart.
        if !self.paths[at].tx.can_begin_epoch() {
            return;
        }
        let present = self.paths[at].route;
        let route = self.routes.any_other(present, &mut cx.shared.rng);
        self.set_route(at, route);
        let path = self.path_mut(at);
        path.copied = false;
        path.counters.moves += 1;
        path.tx.move_to(cx.now);
        cx.shared.counters.moves += 1;
        self.log_move(cx, at, MoveCause::Reroll, present);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn off_means_off_and_the_average_is_kept() {
        let rng = &mut SmallRng::seed_from_u64(1);
        assert!(Reroll::new(0, rng).is_none());
        let total: u64 = (0..10_000).map(|_| draw(1_000, rng)).sum();
        assert!((9_500_000..10_500_000).contains(&total), "{total}");
    }

    #[test]
    fn it_is_armed_by_the_first_packet_only() {
        let rng = &mut SmallRng::seed_from_u64(1);
        let mut reroll = Reroll::new(1_000, rng).expect("on");
        assert_eq!(reroll.at(), None);
        reroll.arm(Time::from_ns(5));
        let at = reroll.at();
        reroll.arm(Time::from_ns(50));
        assert_eq!(reroll.at(), at);
    }
}
