//! What the endpoint knows of the host as a receiver, and who must be told that his grant has changed (WIRE 8.14 to 8.21).
//!
//! Every ACK carries the grant of its connection; a sender that sends little gets few. So when the level of all has moved by
//! more than an eighth since it was last told to everybody, those whose grant is off get an ACK of their own. So do those who
//! send nothing, when many connections have opened since they were told with how many packets they may start.

use std::ops::RangeInclusive;

use smallvec::SmallVec;

use crate::cc::{Correction, Others};
use crate::conn::Context;
use crate::endpoint::Endpoint;
use crate::endpoint::table::ConnectionIndex;
use crate::types::{Driving, Time};

/// Between two such rounds: so much for every connection, within these bounds. The ACKs of a round take the link that data of
/// ours goes by, too: with 2 µs for 64 connections 1.5 % of the throughput where all send to all.
const BUSY_SPACING_NS: (u64, RangeInclusive<u64>) = (160, 2_000..=10_000);
const SOCKETS_SPACING_NS: (u64, RangeInclusive<u64>) = (10_000, 200_000..=1_000_000);
/// No less for every connection, however many there are: a round looks at each.
const LOOK_NS: u64 = 50;

/// What everybody was told.
#[derive(Debug)]
pub(super) struct Told {
    level: u64,
    w0: u16,
    /// Some were told less, because it was promised to others.
    short: bool,
    at: Time,
    /// When it is to be told anew, if it is.
    pub(super) due: Option<Time>,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            level: u64::MAX,
            w0: u16::MAX,
            short: false,
            at: Time::ZERO,
            due: None,
        }
    }
}

impl Endpoint {
    /// What the host knows of what it can take in, in bytes of DATA packets (payload of UDP) per second: the speed of its
    /// port, and what is less than that. What is not known is measured.
    pub fn set_drain(&mut self, port: Option<u64>, estimate: Option<u64>) {
        self.shared.drain.set_known(port, estimate);
        self.shared
            .fair_share
            .set_drain(self.shared.drain.bytes_per_s());
    }

    /// To be called after the socket was read: how full its buffer still is, in thousandths, and how many datagrams the
    /// kernel has dropped since the last time.
    pub fn set_receive_pressure(&mut self, now: Time, fill_per_mille: u64, drops: u32) {
        let shared = &mut self.shared;
        shared.counters.receive_overflows += u64::from(drops);
        shared.drain.on_drops(drops);
        shared.drain.on_fill(now, fill_per_mille);
        shared.fair_share.set_drain(shared.drain.bytes_per_s());
        self.tell_grants(now);
    }

    /// What the senders to this endpoint want: for other processes behind the same port.
    #[must_use]
    pub fn receivers_share(&self) -> Others {
        self.shared.fair_share.own(self.shared.connections)
    }

    /// What the senders to other processes behind the same port want.
    pub fn set_others(&mut self, now: Time, others: Others) {
        self.shared.fair_share.set_others(others);
        self.tell_grants(now);
    }

    /// Senders whose grant is off by much are told.
    pub(super) fn tell_grants(&mut self, now: Time) {
        let shared = &mut self.shared;
        if !shared.fair_share.take_changed() && self.told.due.is_none() {
            return;
        }
        let level = shared.fair_share.level().unwrap_or(u64::MAX);
        let w0 = shared.fair_share.w0(shared.connections);
        self.told.short |= shared.fair_share.take_short();
        let told = &mut self.told;
        // Who comes to see a larger W0 sees it when it matters.
        told.w0 = told.w0.max(w0);
        let off = told.level.abs_diff(level) > level / 8
            || u32::from(told.w0) * 4 > u32::from(w0) * 5
            || told.short;
        if !off {
            told.due = None;
            return;
        }
        let (each_ns, bounds) = match shared.config.driving {
            Driving::Busy => BUSY_SPACING_NS,
            Driving::Sockets => SOCKETS_SPACING_NS,
        };
        let connections = u64::from(shared.connections);
        let spacing_ns = (each_ns * connections).clamp(*bounds.start(), *bounds.end());
        let due = told.at + spacing_ns.max(LOOK_NS * connections);
        if now < due {
            told.due = Some(due);
            return;
        }
        let short = told.short;
        *told = Told {
            level,
            w0,
            short: false,
            at: now,
            due: None,
        };
        let indices: SmallVec<[ConnectionIndex; 64]> = self.connections.indices().collect();
        for index in indices {
            self.correct_grant(now, index, short);
        }
    }

    fn correct_grant(&mut self, now: Time, index: ConnectionIndex, short: bool) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        let correction = connection.grant_correction(&mut self.shared, short);
        if correction == Correction::None {
            return;
        }
        let cx = Context {
            now,
            shared: &mut self.shared,
            qps: &mut self.qps,
        };
        connection.correct_grant(&cx);
        // What one gives up is there for those behind it.
        if correction == Correction::Less && !connection.in_urgent {
            connection.in_urgent = true;
            self.urgent.push_front(index);
        }
        self.after(now, index);
    }
}
