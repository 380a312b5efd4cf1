//! What stays of a path that has nothing to do for long: the numbers that must go on where they were, what is known of the
//! route, and the window. The sent ring, the bare transmissions, the losses and the timer are as good as new then, and take
//! several times as much.

use crate::cc::PathWindow;
use crate::path::{Constants, PathTx, RoundTrip};
use crate::types::Time;
use crate::wire::{Epoch, PathId, Psn};

use super::PeerCounts;

/// A path that sleeps; see the file's head.
#[derive(Debug)]
pub struct ParkedTx {
    last_transmission: u64,
    first_transmission: u64,
    echoed: u64,
    last_sent: Option<Time>,
    last_ack: Option<Time>,
    rtt: RoundTrip,
    window: PathWindow,
    next_psn: Psn,
    counts: PeerCounts,
    id: PathId,
    epoch: Epoch,
    heard: Option<Epoch>,
    first_epoch: Epoch,
}

impl<R: Copy> PathTx<R> {
    /// Whether nothing is outstanding, asked for, waited for or to be proved.
    #[must_use]
    pub fn can_park(&self) -> bool {
        self.ring.is_empty() && self.ring.span() == 0 && !self.caller_waits && !self.is_resting()
    }

    /// Puts a path to sleep that [`Self::can_park`]. A tolerance of reordering that it had, and losses of large packets
    /// that it saw, are forgotten: both are about the round trips just before.
    #[must_use]
    pub fn park(self) -> ParkedTx {
        debug_assert!(self.can_park(), "the path is in use");
        ParkedTx {
            last_transmission: self.last_transmission,
            first_transmission: self.first_transmission,
            echoed: self.echoed,
            last_sent: self.last_sent,
            last_ack: self.last_ack,
            rtt: self.rtt,
            window: self.window,
            next_psn: self.ring.next_psn(),
            counts: self.counts,
            id: self.id,
            epoch: self.epoch,
            heard: self.heard,
            first_epoch: self.first_epoch,
        }
    }

    /// The path as it was, to be used again.
    #[must_use]
    pub fn wake(parked: ParkedTx, constants: Constants, now: Time) -> Self {
        Self {
            heard: parked.heard,
            first_epoch: parked.first_epoch,
            last_transmission: parked.last_transmission,
            first_transmission: parked.first_transmission,
            last_sent: parked.last_sent,
            echoed: parked.echoed,
            rtt: parked.rtt,
            last_ack: parked.last_ack,
            counts: parked.counts,
            ..Self::with_window(
                parked.id,
                constants.driving,
                now,
                parked.next_psn,
                parked.epoch,
                parked.window,
            )
        }
    }
}

impl ParkedTx {
    /// Number of the path.
    #[must_use]
    pub fn id(&self) -> PathId {
        self.id
    }

    /// Epoch of its route.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Round-trip estimate.
    #[must_use]
    pub fn rtt(&self) -> &RoundTrip {
        &self.rtt
    }

    /// The path's window.
    #[must_use]
    pub fn window(&self) -> &PathWindow {
        &self.window
    }
}
