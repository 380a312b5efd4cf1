//! What a receiver tells its senders: each active connection's part of the window and of the drain.
//!
//! The grant is the max-min part (WIRE 8.14): a level is looked for such that everybody who wants more gets the level, who
//! wants less gets that, and all together make the drain. Who wants what is [`Demand`], measured by [`Inbound`];
//! what the host can take in is the business of [`super::Drain`]. What was told is promised: a newcomer gets no more than is
//! left of the drain until others have been told that they get less, so that all grants together never exceed it. Other processes behind the same port count as
//! [`Others`]. Without a drain nothing is limited but by the window, which is the socket buffer that the endpoint really
//! got. Asked by `conn/` for every ACK, so it must stay cheap: the level is worked out when something has changed.

use crate::cc::Inbound;
use crate::wire::{Allowance, GRANT_UNLIMITED};

/// Bytes that cold connections of a host may send at it before it has told them anything.
const COLD_BYTES: u32 = 256 * 1024;
/// Cold-start packets at most (WIRE 8.13).
const W0_MAX_PACKETS: u32 = 16;
/// A connection always may have so many packets in flight: it could not use its paths otherwise.
const WINDOW_FLOOR_PACKETS: u32 = 2;
/// Part of the drain that is granted to several senders (WIRE 8.18): the rest empties queues.
const GRANTED_PER_MILLE: u64 = 985;
/// Least grant: one packet a millisecond, never 0 (WIRE 8.21).
const GRANT_FLOOR_PACKETS_PER_S: u64 = 1_000;

/// What a sender wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Demand {
    /// Nothing: it is not sending.
    #[default]
    Nothing,
    /// No more than that, in bytes per second.
    Limited(u64),
    /// As much as it gets.
    Unlimited,
}

/// What a sender that was told something should hear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Correction {
    /// Nothing.
    None,
    /// That it may send less.
    Less,
    /// That it may send more.
    More,
}

/// Senders to other processes of the host, behind the same port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Others {
    /// Senders that take as much as they get.
    pub unlimited: u32,
    /// What all that want less want together, in bytes per second.
    pub limited_bytes_per_s: u64,
    /// Connections that they have.
    pub connections: u32,
}

/// How a receiver divides what it can take.
#[derive(Clone, Debug)]
pub struct FairShare {
    window_bytes: u32,
    payload_bytes: u32,
    drain_bytes_per_s: Option<u64>,
    unlimited: u32,
    /// Demands of those that want less, ascending.
    limited: Vec<u64>,
    others: Others,
    /// What all senders to this process may send by what they were told last, in bytes per second.
    promised: u64,
    /// Somebody was told much less than the level, because it is promised to others.
    short: bool,
    /// Something has changed that may make what was told wrong.
    changed: bool,
    /// The level in bytes per second, unless it has to be looked for again.
    level: Option<u64>,
}

impl FairShare {
    /// Divides `window_bytes`, among packets of `payload_bytes`.
    #[must_use]
    pub fn new(window_bytes: u32, payload_bytes: u16) -> Self {
        Self {
            window_bytes,
            payload_bytes: u32::from(payload_bytes.max(1)),
            drain_bytes_per_s: None,
            unlimited: 0,
            limited: Vec::new(),
            others: Others::default(),
            promised: 0,
            short: false,
            changed: false,
            level: None,
        }
    }

    /// What this host can take in per second; nothing for no limit.
    pub fn set_drain(&mut self, bytes_per_s: Option<u64>) {
        if self.drain_bytes_per_s != bytes_per_s {
            self.drain_bytes_per_s = bytes_per_s;
            self.change_level();
        }
    }

    /// What other processes of the host receive.
    pub fn set_others(&mut self, others: Others) {
        if self.others != others {
            self.others = others;
            self.change_level();
        }
    }

    /// What the senders to this process want, for others.
    #[must_use]
    pub fn own(&self, connections: u32) -> Others {
        Others {
            unlimited: self.unlimited,
            limited_bytes_per_s: self.limited.iter().sum(),
            connections,
        }
    }

    /// Lets `what` happen to a sender, and takes note of what it wants then.
    pub fn observe<T>(&mut self, sender: &mut Inbound, what: impl FnOnce(&mut Inbound) -> T) -> T {
        let before = sender.demand();
        let result = what(sender);
        let after = sender.demand();
        if before != after {
            self.change(before, after);
            if after == Demand::Nothing {
                self.promise(sender, 0);
            }
        }
        result
    }

    fn change(&mut self, from: Demand, to: Demand) {
        self.change_level();
        match from {
            Demand::Nothing => {}
            Demand::Unlimited => self.unlimited = self.unlimited.saturating_sub(1),
            Demand::Limited(demand) => {
                if let Ok(at) = self.limited.binary_search(&demand) {
                    self.limited.remove(at);
                }
            }
        }
        match to {
            Demand::Nothing => {}
            Demand::Unlimited => self.unlimited += 1,
            Demand::Limited(demand) => {
                let at = self.limited.partition_point(|other| *other < demand);
                self.limited.insert(at, demand);
            }
        }
    }

    /// Senders to this process.
    #[must_use]
    pub fn active(&self) -> u32 {
        self.unlimited + self.limited.len() as u32
    }

    /// What all senders to this process may send by what they were told last, in bytes per second.
    #[must_use]
    pub fn promised(&self) -> u64 {
        self.promised
    }

    /// What all that want it get, in bytes per second; nothing where there is no limit.
    pub fn level(&mut self) -> Option<u64> {
        let drain = self.drain_bytes_per_s?;
        // A lone sender is not limited: nobody else fills a queue, and its window keeps it out of trouble.
        let sharers = u64::from(self.others.unlimited) + u64::from(self.active());
        if sharers <= 1 && self.others.limited_bytes_per_s == 0 {
            return None;
        }
        let level = match self.level {
            Some(level) => level,
            None => self.find_level(drain),
        };
        self.level = Some(level);
        Some(level)
    }

    /// What a peer is told in a HELLO, where there are so many connections.
    #[must_use]
    pub fn hello(&self, connections: u32) -> Allowance {
        Allowance {
            grant_kib_per_s: GRANT_UNLIMITED,
            window_bytes: self.window_bytes,
            w0_packets: self.w0(connections),
        }
    }

    /// What a sender may do, where there are so many connections: to be told to it.
    #[must_use]
    pub fn allowance(&mut self, sender: &mut Inbound, connections: u32) -> Allowance {
        let floor_bytes = WINDOW_FLOOR_PACKETS * self.payload_bytes;
        let allowance = Allowance {
            grant_kib_per_s: self.take_grant(sender),
            window_bytes: (self.window_bytes / self.active().max(1)).max(floor_bytes),
            w0_packets: self.w0(connections),
        };
        sender.on_told(allowance.grant_kib_per_s, allowance.w0_packets);
        allowance
    }

    fn change_level(&mut self) {
        self.level = None;
        self.changed = true;
    }

    /// The host has more or fewer connections: what W0 depends on.
    pub fn note_connections(&mut self) {
        self.changed = true;
    }

    /// Whether anything has changed since this was asked last.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Whether somebody was told much less than the level since this was asked last.
    pub fn take_short(&mut self) -> bool {
        std::mem::take(&mut self.short)
    }

    /// Whether it would help to tell this sender its grant again.
    #[must_use]
    pub fn must_tell(&mut self, sender: &Inbound, connections: u32, short: bool) -> Correction {
        let right = self.grant(sender.demand());
        let w0 = self.w0(connections);
        match sender.must_be_told(right, w0, short) {
            false => Correction::None,
            true if right < sender.told_kib_per_s() => Correction::Less,
            true => Correction::More,
        }
    }

    /// Packets with which a cold connection may start: 0 from many connections on.
    #[must_use]
    pub fn w0(&self, connections: u32) -> u16 {
        let all = connections.saturating_add(self.others.connections).max(1);
        let packets = COLD_BYTES / all / self.payload_bytes;
        packets.min(W0_MAX_PACKETS) as u16
    }

    /// The grant that a sender with this demand should have, in KiB per second.
    fn grant(&mut self, demand: Demand) -> u32 {
        match self.level() {
            Some(level) => self.kib_per_s(part(level, demand)),
            None => GRANT_UNLIMITED,
        }
    }

    /// The grant that a sender gets now, which is promised to it.
    fn take_grant(&mut self, sender: &mut Inbound) -> u32 {
        let Some(drain) = self.drain_bytes_per_s else {
            return GRANT_UNLIMITED;
        };
        let demand = sender.demand();
        let Some(level) = self.level() else {
            self.promise(sender, if demand == Demand::Nothing { 0 } else { drain });
            return GRANT_UNLIMITED;
        };
        let right = part(level, demand);
        if demand == Demand::Nothing {
            return self.kib_per_s(right);
        }
        let left = drain.saturating_sub(self.promised - sender.promised());
        let granted = right.min(left);
        if granted < right - right / 8 {
            (self.short, self.changed) = (true, true);
        }
        self.promise(
            sender,
            match demand {
                Demand::Limited(wants) => granted.min(wants),
                _ => granted,
            },
        );
        self.kib_per_s(granted)
    }

    fn promise(&mut self, sender: &mut Inbound, bytes_per_s: u64) {
        self.promised = self.promised - sender.promised() + bytes_per_s;
        sender.set_promised(bytes_per_s);
    }

    fn kib_per_s(&self, bytes_per_s: u64) -> u32 {
        let floor = GRANT_FLOOR_PACKETS_PER_S * u64::from(self.payload_bytes);
        u32::try_from(bytes_per_s.max(floor) / 1024)
            .map_or(GRANT_UNLIMITED - 1, |kib| kib.min(GRANT_UNLIMITED - 1))
    }

    /// Max-min: the lowest demands are met one after the other, as long as they are below what is left for each.
    fn find_level(&self, drain: u64) -> u64 {
        let mut sharers = u64::from(self.others.unlimited) + u64::from(self.active());
        let granted = drain / 1_000 * GRANTED_PER_MILLE;
        let mut left = granted.saturating_sub(self.others.limited_bytes_per_s);
        for demand in &self.limited {
            if *demand >= left / sharers.max(1) {
                break;
            }
            left -= *demand;
            sharers -= 1;
        }
        match sharers {
            // All get what they want.
            0 => granted,
            _ => left / sharers,
        }
    }
}

/// What a sender with this demand gets where the level is this.
fn part(level: u64, demand: Demand) -> u64 {
    match demand {
        // Who wants less may come to want half as much again before it is measured the next time.
        Demand::Limited(wants) => level.min(wants.saturating_add(wants / 2)),
        Demand::Nothing | Demand::Unlimited => level,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::Surroundings;
    use crate::types::{Driving, Time};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use rstest::rstest;

    fn share(drain: Option<u64>, demands: &[Demand]) -> FairShare {
        let mut share = FairShare::new(1 << 20, 4096);
        share.set_drain(drain);
        for demand in demands {
            share.change(Demand::Nothing, *demand);
        }
        share
    }

    // WIRE 8.13
    #[rstest]
    #[case(1, 16)]
    #[case(4, 16)]
    #[case(5, 12)]
    #[case(64, 1)]
    #[case(65, 0)]
    #[case(0, 16)]
    fn w0_follows_the_open_connections_of_the_host(#[case] connections: u32, #[case] packets: u16) {
        let mut share = share(None, &[]);
        assert_eq!(share.w0(connections), packets);
        share.set_others(Others {
            connections: connections / 2,
            ..Others::default()
        });
        assert_eq!(share.w0(connections - connections / 2), packets);
    }

    #[test]
    fn the_window_is_divided_but_never_below_two_packets() {
        let window = |count| {
            let mut share = share(None, &vec![Demand::Unlimited; count]);
            let allowance = share.allowance(&mut Inbound::new(), count as u32);
            assert_eq!(allowance.grant_kib_per_s, GRANT_UNLIMITED);
            allowance.window_bytes
        };
        assert_eq!(window(0), 1 << 20);
        assert_eq!(window(4), 1 << 18);
        assert_eq!(window(4_000), 8192);
    }

    // WIRE 8.14
    #[rstest]
    #[case::two(&[Demand::Unlimited, Demand::Unlimited], 492_500)]
    #[case::one_wants_little(
        &[Demand::Unlimited, Demand::Limited(81_920_000), Demand::Unlimited], 452_500
    )]
    #[case::two_want_little(
        &[Demand::Limited(102_400_000), Demand::Limited(204_800_000), Demand::Unlimited], 685_000
    )]
    #[case::one_wants_more_than_its_part(
        &[Demand::Limited(900_000_000), Demand::Unlimited], 492_500
    )]
    #[case::all_are_content(&[Demand::Limited(1), Demand::Limited(2)], 985_000)]
    fn the_level_is_the_max_min_one(#[case] demands: &[Demand], #[case] kib_per_s: u64) {
        let mut share = share(Some(1_024_000_000), demands);
        let level = share.level().unwrap();
        assert!(level.abs_diff(kib_per_s * 1024) < 1024, "{level}");
        assert_eq!(u64::from(share.grant(Demand::Unlimited)), level / 1024);
    }

    // WIRE 8.18
    #[test]
    fn a_lone_sender_is_not_limited() {
        let mut share = share(Some(1_024_000_000), &[Demand::Unlimited]);
        assert_eq!(share.level(), None);
        assert_eq!(share.grant(Demand::Unlimited), GRANT_UNLIMITED);
    }

    // WIRE 8.17
    #[test]
    fn who_wants_little_may_take_half_as_much_again() {
        let demands = [Demand::Unlimited, Demand::Limited(102_400_000)];
        let mut share = share(Some(1_024_000_000), &demands);
        assert_eq!(share.grant(demands[1]), 150_000);
    }

    // WIRE 8.21
    #[test]
    fn a_grant_is_never_nothing_and_never_the_mark_of_no_limit() {
        let mut share = share(Some(1_024_000_000), &vec![Demand::Unlimited; 10_000]);
        let grant = share.grant(Demand::Unlimited);
        assert_eq!(grant, 4_000, "a packet a millisecond");
        let mut share = self::share(Some(u64::MAX), &[Demand::Unlimited; 2]);
        let grant = share.grant(Demand::Unlimited);
        assert_eq!(grant, u32::MAX - 1);
    }

    #[test]
    fn other_processes_take_their_part() {
        let mut share = share(Some(1_024_000_000), &[Demand::Unlimited]);
        share.set_others(Others {
            unlimited: 3,
            limited_bytes_per_s: 102_400_000,
            connections: 4,
        });
        let level = share.level().unwrap();
        assert!(level.abs_diff(221_250 * 1024) < 1024, "{level}");
        assert_eq!(share.own(1).unlimited, 1);
    }

    #[test]
    fn who_leaves_is_forgotten() {
        let mut share = share(Some(1_000), &[Demand::Limited(5), Demand::Unlimited]);
        share.change(Demand::Limited(5), Demand::Limited(7));
        share.change(Demand::Unlimited, Demand::Nothing);
        assert_eq!((share.active(), share.own(0).limited_bytes_per_s), (1, 7));
        share.change(Demand::Limited(7), Demand::Nothing);
        assert_eq!((share.active(), share.level()), (0, None));
    }

    /// A sender that has just begun.
    fn begins(share: &mut FairShare) -> Inbound {
        let mut sender = Inbound::new();
        let around = Surroundings {
            driving: Driving::Busy,
            rtt_ns: None,
            train_bytes: 4096,
        };
        share.observe(&mut sender, |sender| {
            sender.on_packet(Time::ZERO, 1, false, &around)
        });
        sender
    }

    // WIRE 8.14
    #[test]
    fn a_newcomer_gets_what_is_left_until_the_others_know() {
        let mut share = share(Some(1_024_000_000), &[]);
        let mut first = begins(&mut share);
        let told = |share: &mut FairShare, sender: &mut Inbound| {
            share.allowance(sender, 2).grant_kib_per_s
        };
        assert_eq!(told(&mut share, &mut first), GRANT_UNLIMITED);
        let mut second = begins(&mut share);
        assert_eq!(
            told(&mut share, &mut second),
            4_000,
            "the least that is granted"
        );
        assert!(share.take_short() && !share.take_short());
        assert_eq!(share.must_tell(&first, 2, false), Correction::Less);
        assert_eq!(told(&mut share, &mut first), 492_500);
        assert_eq!(share.must_tell(&second, 2, false), Correction::More);
        assert_eq!(told(&mut share, &mut second), 492_500);
        assert_eq!(share.must_tell(&second, 2, false), Correction::None);
        assert!(!share.take_short());
        // What a sender had is there for others when it ends.
        share.observe(&mut first, Inbound::end);
        assert_eq!(told(&mut share, &mut second), GRANT_UNLIMITED);
        share.observe(&mut second, Inbound::end);
        assert_eq!(share.promised, 0);
    }

    // WIRE 8.14
    /// Whatever senders come, go, want and are told, and however the drain changes: nobody is promised what others were,
    /// beside the least that everybody gets.
    #[test]
    fn promises_never_exceed_the_drain() {
        let mut rng = SmallRng::seed_from_u64(7);
        let mut share = share(Some(1_000_000_000), &[]);
        let mut senders: Vec<Inbound> = Vec::new();
        for _ in 0..20_000 {
            match rng.random_range(0..10) {
                0 => senders.push(begins(&mut share)),
                1 if !senders.is_empty() => {
                    let mut gone = senders.swap_remove(rng.random_range(0..senders.len()));
                    share.observe(&mut gone, Inbound::end);
                }
                2 => share.set_drain(Some(rng.random_range(100_000_000..5_000_000_000))),
                _ if !senders.is_empty() => {
                    let at = rng.random_range(0..senders.len());
                    let before = share.promised;
                    let _told = share.allowance(&mut senders[at], 10);
                    let drain = share.drain_bytes_per_s.unwrap();
                    assert!(share.promised <= drain.max(before));
                }
                _ => {}
            }
            let sum: u64 = senders.iter().map(Inbound::promised).sum();
            assert_eq!(share.promised, sum);
            assert_eq!(share.active(), senders.len() as u32);
        }
        assert!(senders.len() > 10);
    }
}
