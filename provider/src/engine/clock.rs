//! The only place that reads the clock. The core and everything else get their time from here, as an argument.

use metaroce_proto::types::Time;
use nix::time::{ClockId, clock_gettime};
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
    /// What the host's own clock showed then.
    origin_on_host_ns: u64,
}

impl Clock {
    /// Starts now.
    pub(crate) fn start() -> Clock {
        // Every kernel has this clock.
        let on_host =
            clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        Clock {
            origin: Instant::now(),
            origin_on_host_ns: on_host.as_nanos() as u64,
        }
    }

    /// The time since the start. One vDSO call, about 25 ns.
    pub(crate) fn now(&self) -> Time {
        Time::from_ns(START_NS + self.origin.elapsed().as_nanos() as u64)
    }

    /// The same time by CLOCK_MONOTONIC, which all processes of the host read alike, in nanoseconds.
    pub(crate) fn on_host_ns(&self, now: Time) -> u64 {
        self.origin_on_host_ns + now.since_ns(START)
    }
}

/// How long from `now` to `then`; zero if that is over.
pub(crate) fn until(now: Time, then: Time) -> Duration {
    Duration::from_nanos(then.since_ns(now))
}
