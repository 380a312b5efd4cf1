//! Grants never exceed the drain (WIRE 8.14).
//!
//! What a host grants is in the ACKs that leave it, and is read there; what it says of itself (who is sending to it, what
//! its drain is, what it promised to whom) is held against that. Whenever a host has sent ACKs:
//!
//! 1. What it promised to all that are sending to it is no more than its drain, once anybody was told to get anything. It may be
//!    more only because the drain has fallen: nobody gets anything then, but the least that everybody gets (WIRE 8.21), until
//!    enough of them have been told that they get less.
//! 2. What the newest ACK grants a sender is what it was promised. One that wants less than its part is granted half as
//!    much again (WIRE 8.17); a lone one is promised the whole drain, and not limited (WIRE 8.18). So no promise is made by an
//!    ACK that never left, and no grant is in force that nobody remembers.
//! 3. Nothing is promised to connections that are gone.
//! 4. Where the drain has fallen, those who must give way are told soon (WIRE 8.19).
//!
//! And whenever a host has read ACKs, it keeps to the newest one that it got, by its number and not by when it came (WIRE 8.8).
//!
//! Therefore the grants that senders keep to never exceed the drain by more than this: what those who must give way had before,
//! until the ACK that tells them has arrived; half of what is promised to those that want little; the least grant of
//! each; and what those have that begin. These are cold (WIRE 8.12), and send W0 packets; or they were sending a moment
//! ago, up to ten round trips, and keep to their last grant, which is promised to nobody, until the next ACK tells them what they get.

use std::collections::HashMap;

use metaroce_proto::telemetry::{EndpointInfo, GrantsInfo};
use metaroce_proto::types::Time;
use metaroce_proto::wire::{AckNumber, AckView, ConnectionId, GRANT_UNLIMITED};

use crate::NodeId;

/// The least grant, in packets per second (WIRE 8.21).
const LEAST_PACKETS_PER_S: u64 = 1_000;

/// Who is promised more than this part above the drain is told so within this time: that is once a round, and takes up to a
/// quarter (WIRE 8.19: an eighth that the level has moved by unseen, and an eighth that a grant may be off). Twice as long
/// as what was ever seen.
const EXCESS_PART: u64 = 4;
const EXCESS_NS: u64 = 2_000_000;

/// What there is to know of a host besides its connections.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Which.
    pub node: NodeId,
    /// The time.
    pub now: Time,
    /// Payload of a full packet.
    pub payload_bytes: u16,
    /// It was not run until then.
    pub paused_until: Time,
    /// Its timers are up to this late.
    pub timer_slack_ns: u64,
    /// What its endpoint says.
    pub info: EndpointInfo,
}

/// The newest ACK of a connection.
#[derive(Clone, Copy, Debug)]
struct Newest {
    number: AckNumber,
    kib_per_s: u32,
    /// What was promised with it, in bytes per second.
    promised: u64,
    /// It was the last thing that left, or came, and was not looked at yet.
    fresh: bool,
}

/// See the file's head. A connection has the name that ACKs have: the id that their receiver chose.
#[derive(Debug, Default)]
pub struct Grants {
    /// By who sent them.
    left: HashMap<(NodeId, ConnectionId), Newest>,
    /// By who got them.
    came: HashMap<(NodeId, ConnectionId), Newest>,
    exceeded_since: HashMap<NodeId, Time>,
    shared: u64,
}

impl Grants {
    /// A node has nothing of what it had: it was started anew.
    pub fn forget(&mut self, node: NodeId) {
        self.left.retain(|key, _| key.0 != node);
        self.came.retain(|key, _| key.0 != node);
        self.exceeded_since.remove(&node);
    }

    /// How often somebody was told what several share.
    #[must_use]
    pub fn shared(&self) -> u64 {
        self.shared
    }

    /// An ACK left a node.
    pub fn on_left(&mut self, node: NodeId, ack: &AckView<'_>) {
        note(&mut self.left, node, ack);
    }

    /// An ACK was read by a node.
    pub fn on_came(&mut self, node: NodeId, ack: &AckView<'_>) {
        note(&mut self.came, node, ack);
    }

    /// A host has sent what it had to send: what is wrong with what it grants, if anything is.
    pub fn check_left(
        &mut self,
        host: &Host,
        connections: impl Iterator<Item = GrantsInfo>,
    ) -> Option<String> {
        let drain = host.info.drain_bytes_per_s;
        let (mut all, mut sharers, mut gets_something) = (0, 0, None);
        for connection in connections {
            let peer = connection.peer_id;
            let promised = connection.promised_bytes_per_s;
            all += promised;
            sharers += u32::from(promised > 0);
            let Some(newest) = self.left.get_mut(&(host.node, peer)) else {
                if promised > 0 {
                    return Some(format!(
                        "{promised} B/s are promised to {peer:?}, which got no ACK"
                    ));
                }
                continue;
            };
            if !std::mem::take(&mut newest.fresh) {
                if promised > 0 && promised != newest.promised {
                    return Some(format!(
                        "{promised} B/s are promised to {peer:?}, and {} were when it was told",
                        newest.promised
                    ));
                }
                continue;
            }
            newest.promised = promised;
            if let Some(drain) = drain.filter(|_| connection.peer_active) {
                let granted = newest.kib_per_s;
                if !is_covered(granted, &connection, drain, host.payload_bytes) {
                    return Some(format!(
                        "{granted} KiB/s are granted to {peer:?}, and {promised} B/s promised"
                    ));
                }
                gets_something = gets_something.or((promised > 0).then_some(peer));
            }
        }
        if all != host.info.promised_bytes_per_s {
            return Some(format!(
                "{} B/s are promised, of these {all} to connections that exist",
                host.info.promised_bytes_per_s
            ));
        }
        if let Some(wrong) = self.check_excess(host) {
            return Some(wrong);
        }
        let (peer, drain) = (gets_something?, drain?);
        self.shared += u64::from(sharers > 1);
        (all > drain).then(|| {
            format!(
                "{peer:?} is granted something, and {all} B/s are promised of a drain of {drain}"
            )
        })
    }

    /// What is promised may exceed a drain that has fallen, but not for long; a lone sender is not limited (WIRE 8.18), and
    /// need not be told.
    fn check_excess(&mut self, host: &Host) -> Option<String> {
        let promised = host.info.promised_bytes_per_s;
        let least = u64::from(host.info.active_senders) * least_bytes_per_s(host.payload_bytes);
        let exceeds = |drain: u64| promised > drain + drain / EXCESS_PART + least;
        let shared = host.info.active_senders > 1;
        if !(shared && host.info.drain_bytes_per_s.is_some_and(exceeds)) {
            self.exceeded_since.remove(&host.node);
            return None;
        }
        let since = *self.exceeded_since.entry(host.node).or_insert(host.now);
        let since = since.max(host.paused_until);
        (host.now.since_ns(since) > EXCESS_NS + host.timer_slack_ns)
            .then(|| {
                let senders = host.info.active_senders;
                let drain = host.info.drain_bytes_per_s.unwrap_or(0);
                format!(
                    "{promised} B/s are promised to {senders} of a drain of {drain}, too much all the time since {since:?}"
                )
            })
    }

    /// ACKs were read by `node`: what is wrong with what it keeps to, if anything is.
    pub fn check_came(
        &mut self,
        node: NodeId,
        connections: impl Iterator<Item = GrantsInfo>,
    ) -> Option<String> {
        for connection in connections {
            let id = connection.id;
            let Some(newest) = self.came.get_mut(&(node, id)) else {
                continue;
            };
            if !std::mem::take(&mut newest.fresh) {
                continue;
            }
            let granted = match newest.kib_per_s {
                GRANT_UNLIMITED => u64::MAX,
                kib_per_s => u64::from(kib_per_s) * 1024,
            };
            let kept = connection.grant_bytes_per_s;
            if kept != granted {
                return Some(format!(
                    "{id:?} keeps to {kept} B/s, and its newest ACK grants {granted}"
                ));
            }
        }
        None
    }
}

/// Whether a sender that was granted so much was promised it.
fn is_covered(kib_per_s: u32, connection: &GrantsInfo, drain: u64, payload_bytes: u16) -> bool {
    let promised = connection.promised_bytes_per_s;
    if kib_per_s == GRANT_UNLIMITED {
        return promised >= drain;
    }
    let most = match connection.peer_limited {
        true => promised + promised / 2,
        false => promised,
    };
    u64::from(kib_per_s) <= most.max(least_bytes_per_s(payload_bytes)) / 1024
}

fn least_bytes_per_s(payload_bytes: u16) -> u64 {
    LEAST_PACKETS_PER_S * u64::from(payload_bytes)
}

fn note(acks: &mut HashMap<(NodeId, ConnectionId), Newest>, node: NodeId, ack: &AckView<'_>) {
    let (key, number) = ((node, ack.base.connection), ack.number());
    if acks
        .get(&key)
        .is_none_or(|newest| newest.number.is_before(number))
    {
        let newest = Newest {
            number,
            kib_per_s: ack.allowance.grant_kib_per_s,
            promised: 0,
            fresh: true,
        };
        acks.insert(key, newest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metaroce_proto::endpoint::Endpoint;
    use metaroce_proto::wire::{AckBuilder, Allowance, Base, Packet, Psn};
    use rstest::rstest;

    use crate::node::{HostConfig, endpoint_config};

    const DRAIN: u64 = 1 << 30;
    const HOST: NodeId = NodeId(0);

    /// An ACK to the connection of this number.
    fn acks(peer: u32, number: u32, kib_per_s: u32, then: impl FnOnce(&AckView<'_>)) {
        let mut bytes = [0; 64];
        let base = Base {
            connection: ConnectionId(peer),
            psn: Psn(0),
            ..Base::default()
        };
        let allowance = Allowance {
            grant_kib_per_s: kib_per_s,
            ..Allowance::default()
        };
        let length = AckBuilder::new(&mut bytes).finish(&base, AckNumber(number), &allowance, 0);
        let Ok(Packet::Ack(ack)) = Packet::parse(&bytes[..length]) else {
            panic!("it is an ACK");
        };
        then(&ack);
    }

    /// A connection to the peer of this number, which is sending.
    fn connection(peer: u32, promised_bytes_per_s: u64) -> GrantsInfo {
        GrantsInfo {
            id: ConnectionId(100 + peer),
            peer_id: ConnectionId(peer),
            grant_bytes_per_s: u64::MAX,
            peer_active: true,
            peer_limited: false,
            promised_bytes_per_s,
        }
    }

    fn host(now_us: u64, drain: u64, promised_bytes_per_s: u64) -> Host {
        let config = HostConfig::default();
        let endpoint = Endpoint::new(endpoint_config(HOST, 1, &config), 1, Time::ZERO);
        Host {
            node: HOST,
            now: Time::from_ns(now_us * 1_000),
            payload_bytes: 1024,
            paused_until: Time::ZERO,
            timer_slack_ns: 0,
            info: EndpointInfo {
                drain_bytes_per_s: Some(drain),
                promised_bytes_per_s,
                active_senders: 2,
                ..endpoint.info()
            },
        }
    }

    // WIRE 8.14, 8.17, 8.18, 8.21
    /// Two senders, of which the first was told earlier: `told` is what the second is granted and promised, in KiB/s.
    #[rstest]
    #[case::half_each((512 << 10, 512 << 10), false, None)]
    #[case::twice_its_share((1 << 20, 512 << 10), false, Some("are granted to"))]
    #[case::what_the_other_has((768 << 10, 768 << 10), false, Some("is granted something"))]
    #[case::the_least((1_000, 0), false, None)]
    #[case::more_than_the_least((1_001, 0), false, Some("are granted to"))]
    #[case::no_limit((GRANT_UNLIMITED, 512 << 10), false, Some("are granted to"))]
    #[case::half_as_much_again((600 << 10, 400 << 10), true, None)]
    #[case::and_more((601 << 10, 400 << 10), true, Some("are granted to"))]
    fn who_is_granted_too_much_is_found(
        #[case] (granted, promised): (u32, u64),
        #[case] limited: bool,
        #[case] found: Option<&str>,
    ) {
        let mut grants = Grants::default();
        let promised = promised * 1024;
        let first = connection(1, DRAIN / 2);
        acks(1, 1, 512 << 10, |ack| grants.on_left(HOST, ack));
        let alone = grants.check_left(&host(0, DRAIN, DRAIN / 2), [first].into_iter());
        assert_eq!(alone, None);
        acks(2, 1, granted, |ack| grants.on_left(HOST, ack));
        let second = GrantsInfo {
            peer_limited: limited,
            ..connection(2, promised)
        };
        let both = host(0, DRAIN, DRAIN / 2 + promised);
        let wrong = grants.check_left(&both, [first, second].into_iter());
        match (&wrong, found) {
            (None, None) => {}
            (Some(wrong), Some(found)) => assert!(wrong.contains(found), "{wrong}"),
            _ => panic!("{wrong:?}, not {found:?}"),
        }
    }

    // WIRE 8.14
    #[test]
    fn a_promise_without_its_ack_is_found() {
        let mut grants = Grants::default();
        let check = |grants: &mut Grants, promised, all| {
            grants.check_left(&host(0, DRAIN, all), [connection(1, promised)].into_iter())
        };
        assert_eq!(check(&mut grants, 0, 0), None);
        let untold = check(&mut grants, 2_000, 2_000);
        assert!(untold.is_some_and(|wrong| wrong.contains("got no ACK")));
        acks(1, 1, 500_000, |ack| grants.on_left(HOST, ack));
        assert_eq!(check(&mut grants, 512_000_000, 512_000_000), None);
        let lowered = check(&mut grants, 400_000_000, 400_000_000);
        assert!(lowered.is_some_and(|wrong| wrong.contains("when it was told")));
        assert_eq!(check(&mut grants, 0, 0), None, "it has ended");
        let gone = check(&mut grants, 0, 3);
        assert!(gone.is_some_and(|wrong| wrong.contains("that exist")));
    }

    // WIRE 8.19
    #[test]
    fn a_drain_that_fell_and_nobody_was_told_is_found() {
        let mut grants = Grants::default();
        acks(1, 1, 1 << 20, |ack| grants.on_left(HOST, ack));
        let mut check = |now_us, drain| {
            let promised = [connection(1, DRAIN)].into_iter();
            grants.check_left(&host(now_us, drain, DRAIN), promised)
        };
        assert_eq!(check(0, DRAIN), None);
        assert_eq!(check(0, DRAIN / 2), None);
        assert_eq!(check(2_000, DRAIN / 2), None);
        assert_eq!(check(2_001, DRAIN), None);
        assert_eq!(check(3_000, DRAIN / 2), None);
        assert_eq!(check(5_000, DRAIN / 2), None);
        let wrong = check(5_001, DRAIN / 2);
        assert!(wrong.is_some_and(|wrong| wrong.contains("all the time")));
    }

    // WIRE 8.18
    #[test]
    fn a_lone_sender_need_not_be_told_that_the_drain_fell() {
        let mut grants = Grants::default();
        acks(1, 1, GRANT_UNLIMITED, |ack| grants.on_left(HOST, ack));
        let mut check = |now_us, drain| {
            let mut alone = host(now_us, drain, DRAIN);
            alone.info.active_senders = 1;
            grants.check_left(&alone, [connection(1, DRAIN)].into_iter())
        };
        assert_eq!(check(0, DRAIN), None);
        assert_eq!(check(1, DRAIN / 2), None);
        assert_eq!(check(1_000_000, DRAIN / 2), None);
    }

    // WIRE 8.8
    #[test]
    fn who_keeps_to_an_older_ack_is_found() {
        let mut grants = Grants::default();
        let keeps_to = |kib_per_s: u64| GrantsInfo {
            grant_bytes_per_s: kib_per_s * 1024,
            ..connection(1, 0)
        };
        acks(101, 2, 7, |ack| grants.on_came(HOST, ack));
        acks(101, 1, 9, |ack| grants.on_came(HOST, ack));
        assert_eq!(grants.check_came(HOST, [keeps_to(7)].into_iter()), None);
        acks(101, 3, 8, |ack| grants.on_came(HOST, ack));
        let wrong = grants.check_came(HOST, [keeps_to(9)].into_iter());
        assert!(wrong.is_some_and(|wrong| wrong.contains("keeps to")));
    }
}
