//! The only place that reads the clock. The core and everything else get their time from here, as an argument.

use metaroce_proto::types::Time;
use std::time::{Duration, Instant};

/// What the clock shows when the engine starts: not zero, so that `Time::ZERO` and small differences before the start
/// stay in the past.
const START_NS: u64 = 1_000_000_000;
/// When the engine started.
pub(crate) const START: Time = Time::from_ns(START_NS);

/// A monotonic clock in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts now.
    pub(crate) fn start() -> Clock {
        Clock {
            origin: Instant::now(),
        }
    }

    /// The time since the start. One vDSO call, about 25 ns.
    pub(crate) fn now(&self) -> Time {
        Time::from_ns(START_NS + self.origin.elapsed().as_nanos() as u64)
    }
}

/// How long from `now` to `then`; zero if that is over.
pub(crate) fn until(now: Time, then: Time) -> Duration {
    Duration::from_nanos(then.since_ns(now))
}
