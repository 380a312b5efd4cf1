//! The lanes between two ends, made of their addresses and plane numbers (WIRE 4.30), and what is known of each.
//! Called by `route.rs`, which keeps them.

use std::net::IpAddr;

use smallvec::SmallVec;

use crate::conn::route::socket_address;
use crate::path::entropy::Lane;
use crate::types::{LocalAddress, LocalIndex, Time};

/// Lanes of a connection: as many as planes that a HELLO can list.
const LANES_MAX: usize = 16;

/// A lane that has never answered is tried after this, then after twice as long …
const FIRST_TRY_NS: u64 = 20_000_000;
/// … but at least this often: 5 s.
const TRIES_DOUBLED_MAX: u8 = 8;

/// An address that the peer told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub ip: IpAddr,
    pub plane: u8,
    pub speed_mbps: u32,
}

/// What is known of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneState {
    /// Both ends have its number.
    pub joined: bool,
    /// Packets can leave this host there.
    pub up: bool,
    /// The program has not switched it off.
    pub enabled: bool,
    /// It may be taken to work: it is joined, or a path on it was answered once.
    pub proved: bool,
    /// It swallows what carries data, and is not used before then if there is another (WIRE 4.32).
    pub left_alone_until: Option<Time>,
    /// Speed of the peer's link, 0 if not known.
    pub peer_speed_mbps: u32,
    /// Bytes of DATA payload that paths sent there before they left it again.
    pub sent_bytes: u64,
    /// While it is not proved: tries so far, and when the next one is due.
    tries: u8,
    next_try: Time,
}

impl LaneState {
    /// Of a lane that is taken to work.
    pub(super) fn joined(peer_speed_mbps: u32) -> Self {
        Self {
            joined: true,
            up: true,
            enabled: true,
            proved: true,
            left_alone_until: None,
            peer_speed_mbps,
            sent_bytes: 0,
            tries: 0,
            next_try: Time::ZERO,
        }
    }

    /// Whether a path should look if it works: at once where it did before, else less and less often.
    pub(crate) fn try_now(&mut self, now: Time) -> bool {
        if self.proved {
            return true;
        }
        let due = self.next_try <= now;
        if due {
            self.next_try = now + (FIRST_TRY_NS << self.tries);
            self.tries = (self.tries + 1).min(TRIES_DOUBLED_MAX);
        }
        due
    }
}

/// Whether two addresses can send to each other as far as their kind tells.
fn same_kind(a: IpAddr, b: IpAddr) -> bool {
    match (a, b) {
        (IpAddr::V4(_), IpAddr::V4(_)) => true,
        (IpAddr::V6(a), IpAddr::V6(b)) => a.is_unicast_link_local() == b.is_unicast_link_local(),
        _ => false,
    }
}

/// Numbers, ascending and each once.
fn distinct(planes: impl Iterator<Item = u8>) -> SmallVec<[u8; 16]> {
    let mut numbers: SmallVec<[u8; 16]> = planes.collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// The plane that stands for number `plane` at the end that has `numbers`: the same one, or else they take turns.
fn stands_for(numbers: &[u8], plane: u8) -> Option<u8> {
    if numbers.contains(&plane) {
        return Some(plane);
    }
    let turn = usize::from(plane).checked_rem(numbers.len())?;
    numbers.get(turn).copied()
}

/// Addresses of two planes that can send to each other, best of the kind of `like`.
fn pair(
    locals: &[LocalAddress],
    told: &[Told],
    [own, peer]: [u8; 2],
    like: IpAddr,
) -> Option<(usize, Told)> {
    let fits = |address: &Told| {
        let mut own_ips = locals
            .iter()
            .enumerate()
            .filter(|(_, one)| one.plane == own);
        own_ips
            .find(|(_, one)| same_kind(one.ip, address.ip))
            .map(|(at, _)| (at, *address))
    };
    let pairs = told.iter().filter(|one| one.plane == peer).filter_map(fits);
    let best = pairs.clone().find(|(_, one)| same_kind(one.ip, like));
    best.or_else(|| pairs.clone().next())
        .filter(|(at, _)| *at <= usize::from(u8::MAX))
}

/// The lanes between `locals` and the addresses that the peer told; `first`, between the GIDs, is the first of them.
pub(super) fn between(
    first: Lane,
    locals: &[LocalAddress],
    told: &[Told],
) -> Vec<(Lane, LaneState)> {
    let gid = told.iter().find(|one| one.ip == first.destination.ip());
    // The GIDs may be of different planes. What leads from one to the other works, or nobody would be here.
    let crosses = gid.is_some_and(|gid| gid.plane != first.plane);
    let mut state = LaneState::joined(gid.map_or(0, |gid| gid.speed_mbps));
    state.joined = !crosses;
    let mut lanes = vec![(first, state)];
    let own_planes = distinct(locals.iter().map(|local| local.plane));
    let peer_planes = distinct(told.iter().map(|one| one.plane));
    for plane in distinct(own_planes.iter().chain(&peer_planes).copied()) {
        if lanes.len() >= LANES_MAX || (plane == first.plane && !crosses) {
            continue;
        }
        let own = stands_for(&own_planes, plane);
        let peer = stands_for(&peer_planes, plane);
        let Some(planes) = own.zip(peer).map(|(own, peer)| [own, peer]) else {
            continue;
        };
        let Some((at, told)) = pair(locals, told, planes, first.destination.ip()) else {
            continue;
        };
        let lane = Lane {
            plane,
            local: LocalIndex(at as u8),
            destination: socket_address(told.ip, first.destination.port(), &locals[at]),
        };
        if lanes
            .iter()
            .any(|(other, _)| other.has(&lane.over(crate::types::SourceSlot(0))))
        {
            continue;
        }
        let joined = planes == [plane; 2];
        let state = LaneState {
            joined,
            proved: joined,
            ..LaneState::joined(told.speed_mbps)
        };
        lanes.push((lane, state));
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::net::SocketAddr;

    fn ip(end: u8, plane: u8) -> IpAddr {
        IpAddr::from([10, plane, 0, end])
    }

    /// As (plane, own plane, peer's plane, joined), for ends with these planes whose GIDs are of the first ones.
    fn lanes(own: &[u8], peer: &[u8]) -> Vec<(u8, u8, u8, bool)> {
        let local = |plane: &u8| LocalAddress {
            ip: ip(1, *plane),
            scope_id: 0,
            plane: *plane,
            speed_mbps: 1,
        };
        let told = |plane: &u8| Told {
            ip: ip(2, *plane),
            plane: *plane,
            speed_mbps: 2,
        };
        let locals: Vec<LocalAddress> = own.iter().map(local).collect();
        let told: Vec<Told> = peer.iter().map(told).collect();
        let first = Lane {
            plane: own[0],
            local: LocalIndex(0),
            destination: SocketAddr::new(ip(2, peer[0]), 24791),
        };
        let shown = |(lane, state): &(Lane, LaneState)| {
            assert_eq!(
                (state.proved, state.peer_speed_mbps),
                (state.joined || *lane == first, 2)
            );
            let to = told
                .iter()
                .find(|one| one.ip == lane.destination.ip())
                .unwrap();
            (
                lane.plane,
                own[usize::from(lane.local.0)],
                to.plane,
                state.joined,
            )
        };
        between(first, &locals, &told).iter().map(shown).collect()
    }

    // WIRE 4.30
    #[rstest]
    #[case::alike(&[0, 1], &[0, 1], &[(0, 0, 0, true), (1, 1, 1, true)])]
    #[case::four_against_two(&[0, 1, 2, 3], &[0, 1], &[(0, 0, 0, true), (1, 1, 1, true), (2, 2, 0, false), (3, 3, 1, false)])]
    #[case::two_against_four(&[0, 1], &[0, 1, 2, 3], &[(0, 0, 0, true), (1, 1, 1, true), (2, 0, 2, false), (3, 1, 3, false)])]
    #[case::four_against_one(&[0, 1, 2, 3], &[0], &[(0, 0, 0, true), (1, 1, 0, false), (2, 2, 0, false), (3, 3, 0, false)])]
    #[case::no_number_in_common(&[0], &[5], &[(0, 0, 5, false)])]
    #[case::gids_of_different_planes(&[1, 0], &[0, 1], &[(1, 1, 0, false), (0, 0, 0, true), (1, 1, 1, true)])]
    #[case::holes(&[0, 3], &[0, 1, 3], &[(0, 0, 0, true), (1, 3, 1, false), (3, 3, 3, true)])]
    fn planes_of_one_number_are_joined_and_the_others_reach_somebody(
        #[case] own: &[u8],
        #[case] peer: &[u8],
        #[case] expected: &[(u8, u8, u8, bool)],
    ) {
        assert_eq!(lanes(own, peer), expected);
    }

    #[test]
    fn a_peer_that_tells_nothing_has_the_lane_of_its_gid() {
        let first = Lane {
            plane: 3,
            local: LocalIndex(0),
            destination: SocketAddr::new(ip(2, 0), 24791),
        };
        let lanes = between(first, &[], &[]);
        assert_eq!(
            (lanes.len(), lanes[0].0, lanes[0].1.joined),
            (1, first, true)
        );
    }

    #[test]
    fn other_lanes_are_of_the_kind_of_the_first_where_they_can() {
        let six: IpAddr = "fd00::2".parse().unwrap();
        let local = |ip: &str, plane| LocalAddress {
            ip: ip.parse().unwrap(),
            scope_id: 0,
            plane,
            speed_mbps: 0,
        };
        let locals = [
            local("fd00::1", 0),
            local("10.1.0.1", 1),
            local("fd01::1", 1),
        ];
        let told = |ip, plane| Told {
            ip,
            plane,
            speed_mbps: 0,
        };
        let first = Lane {
            plane: 0,
            local: LocalIndex(0),
            destination: SocketAddr::new(six, 24791),
        };
        let both = [
            told(six, 0),
            told(ip(2, 1), 1),
            told("fd01::2".parse().unwrap(), 1),
        ];
        assert_eq!(between(first, &locals, &both)[1].0.local, LocalIndex(2));
        assert_eq!(
            between(first, &locals, &both[..2])[1].0.local,
            LocalIndex(1)
        );
    }

    // WIRE 4.21
    #[test]
    fn what_never_answered_is_tried_less_and_less() {
        let mut lane = LaneState {
            proved: false,
            ..LaneState::joined(0)
        };
        let tries = (0..30_000).filter(|ms| lane.try_now(Time::from_ns(ms * 1_000_000)));
        assert_eq!(tries.count(), 8 + 5);
        lane.proved = true;
        assert!(lane.try_now(Time::ZERO) && lane.try_now(Time::ZERO));
    }
}
