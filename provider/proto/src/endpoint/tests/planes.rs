//! Planes that come and go, that a program steers, and that only one end has.

use rstest::rstest;

use super::network::*;
use crate::endpoint::SteerError;
use crate::host::Visibility;
use crate::telemetry::{ConnectionInfo, LaneInfo};
use crate::types::*;

const LOCAL: u32 = 11;
const REMOTE: u32 = 22;
const BASE: u64 = 0x10_0000;
const BYTES: u32 = 4 << 20;

/// Two hosts with so many planes, and a queue pair of the first that has something to write.
struct Bench {
    network: Network,
    qp: QpId,
    writes: usize,
}

impl Bench {
    fn new(planes: [u8; 2], planes_apart: bool) -> Bench {
        let mut network = Network::unequal_pair(95, CALM, planes);
        network.planes_apart = planes_apart;
        let (qp, _) = network.connected(0, 1);
        let bytes = BYTES as usize;
        network.region(0, LOCAL, BASE, pattern(3, bytes), Visibility::Relaxed);
        network.region(1, REMOTE, BASE, vec![0; bytes], Visibility::Relaxed);
        Bench {
            network,
            qp,
            writes: 0,
        }
    }

    /// Writes it all once more, and looks at every byte.
    fn write(&mut self) {
        let operation = Operation::Write {
            remote_addr: BASE,
            rkey: REMOTE,
        };
        let cookie = self.writes as u64;
        self.writes += 1;
        let wanted = self.writes;
        let network = &mut self.network;
        let target = network.nodes[1].memory.regions.get_mut(&REMOTE).unwrap();
        target.bytes.fill(0);
        network.submit(0, self.qp, cookie, operation, gather(LOCAL, BASE, BYTES));
        assert!(network.run_until(1_000 * MS, |network| network.nodes[0].sends.len() >= wanted));
        let sends = &network.nodes[0].sends;
        assert_eq!(
            (sends.len(), sends[wanted - 1].status),
            (wanted, Status::Success)
        );
        let [from, to] = [(0, LOCAL), (1, REMOTE)]
            .map(|(node, key)| &network.nodes[node].memory.regions[&key].bytes);
        assert!(from == to, "bytes differ");
    }

    fn info(&mut self) -> ConnectionInfo {
        let endpoint = &mut self.network.nodes[0].endpoint;
        endpoint.connection_of(self.qp).expect("it is open")
    }

    fn lanes(&mut self) -> Vec<LaneInfo> {
        self.info().lanes
    }

    /// Paths that do not rest, lane by lane.
    fn working(&mut self) -> Vec<u32> {
        let lanes = self.lanes();
        lanes
            .iter()
            .map(|lane| lane.paths - lane.resting_paths)
            .collect()
    }

    /// What a write sends, lane by lane.
    fn sent(&mut self) -> Vec<u64> {
        let before = self.lanes();
        self.write();
        let after = self.lanes();
        let sent = |(after, before): (&LaneInfo, &LaneInfo)| {
            after.data_bytes_sent - before.data_bytes_sent
        };
        after.iter().zip(&before).map(sent).collect()
    }

    fn set_usable(&mut self, usable: LocalSet) {
        let now = self.network.now;
        self.network.nodes[0].endpoint.set_usable(now, usable);
        self.network.flush();
    }

    fn steer(&mut self, plane: u8, enabled: bool) -> Result<(), SteerError> {
        let now = self.network.now;
        let steered = self.network.nodes[0]
            .endpoint
            .steer(now, self.qp, plane, enabled);
        self.network.flush();
        steered
    }
}

fn without(gone: &[u8]) -> LocalSet {
    let left = (0..4).filter(|plane| !gone.contains(plane));
    left.fold(LocalSet::NONE, |set, plane| set.with(LocalIndex(plane)))
}

// WIRE 4.31
#[test]
fn paths_leave_what_is_down_at_this_host_at_once_and_come_back() {
    let mut bench = Bench::new([4, 4], true);
    bench.write();
    assert_eq!(bench.working(), [4; 4]);
    // The packets that are under way there are lost.
    bench.network.cut = vec![ip(1, 1)];
    bench.set_usable(without(&[1]));
    let sent = bench.sent();
    assert!(
        sent[1] == 0 && sent.iter().sum::<u64>() >= u64::from(BYTES),
        "{sent:?}"
    );
    assert_eq!(bench.working().iter().sum::<u32>(), 16);
    // Not a path rests: nobody had to find out by silence.
    assert!(
        bench
            .info()
            .paths
            .iter()
            .all(|path| path.route.local != LocalIndex(1))
    );
    bench.network.cut.clear();
    bench.set_usable(LocalSet::ALL);
    let mut rounds = 0;
    while bench.working().contains(&0) {
        bench.write();
        rounds += 1;
        assert!(rounds < 20, "{:?}", bench.lanes());
    }
    for _ in 0..20 {
        bench.write();
    }
    assert_eq!(bench.working(), [4; 4]);
}

// WIRE 4.31
#[test]
fn all_that_are_down_are_as_good_as_all_that_are_up() {
    let mut bench = Bench::new([4, 4], true);
    bench.write();
    bench.set_usable(LocalSet::NONE);
    bench.write();
    bench.set_usable(without(&[0, 1, 2]));
    bench.write();
    assert_eq!(bench.working(), [0, 0, 0, 16]);
}

// WIRE 4.31
#[test]
fn a_plane_that_is_switched_off_carries_nothing_new_until_it_is_switched_on() {
    let mut bench = Bench::new([4, 4], true);
    bench.write();
    assert_eq!(bench.steer(4, false), Err(SteerError::UnknownPlane));
    for plane in 0..3 {
        bench.steer(plane, false).unwrap();
    }
    assert_eq!(bench.steer(3, false), Err(SteerError::LastPlane));
    let sent = bench.sent();
    assert_eq!(sent[..3], [0; 3], "{sent:?}");
    // Long silence on it, or a plane that is tried again, changes nothing.
    bench.network.run(100 * MS);
    assert_eq!(bench.sent()[..3], [0; 3]);
    bench.steer(0, true).unwrap();
    for _ in 0..20 {
        bench.write();
    }
    assert_eq!(bench.working(), [8, 0, 0, 8]);
}

// WIRE 4.31
#[test]
fn what_is_steered_must_be_connected() {
    let mut bench = Bench::new([2, 2], true);
    let (unconnected, _) = bench.network.create(0);
    let now = bench.network.now;
    let endpoint = &mut bench.network.nodes[0].endpoint;
    let steered = endpoint.steer(now, unconnected, 0, false);
    assert_eq!(steered, Err(SteerError::NotConnected));
    assert!(endpoint.connection_of(unconnected).is_none());
}

// WIRE 4.30
#[rstest]
#[case([4, 2], 4)]
#[case([2, 4], 4)]
#[case([4, 1], 4)]
#[case([1, 4], 4)]
fn planes_that_one_end_lacks_reach_somebody_where_the_network_joins_them(
    #[case] planes: [u8; 2],
    #[case] lanes: usize,
) {
    let mut bench = Bench::new(planes, false);
    for _ in 0..40 {
        bench.write();
    }
    assert_eq!(bench.lanes().len(), lanes);
    assert!(
        bench.working().iter().all(|paths| *paths > 1),
        "{:?}",
        bench.lanes()
    );
    assert!(
        bench.sent().iter().all(|bytes| *bytes > 0),
        "{:?}",
        bench.lanes()
    );
}

// WIRE 4.30
#[rstest]
#[case([4, 2], 2)]
#[case([2, 4], 2)]
#[case([4, 1], 1)]
#[case([1, 4], 1)]
fn where_the_network_keeps_planes_apart_only_those_of_both_ends_are_used(
    #[case] planes: [u8; 2],
    #[case] common: usize,
) {
    let mut bench = Bench::new(planes, true);
    for _ in 0..40 {
        bench.write();
    }
    let lanes = bench.lanes();
    assert!(
        lanes.iter().all(|lane| lane.joined == lane.proved),
        "{lanes:?}"
    );
    assert_eq!(lanes.iter().filter(|lane| lane.joined).count(), common);
    let unproved = lanes.iter().filter(|lane| !lane.proved);
    assert_eq!(unproved.map(|lane| lane.data_bytes_sent).sum::<u64>(), 0);
    assert_eq!(
        bench.network.nodes[0].endpoint.counters().retransmissions,
        0
    );
}

#[test]
fn an_interface_without_room_gets_nothing_new_and_the_others_go_on() {
    let mut bench = Bench::new([2, 2], true);
    bench.write();
    let now = bench.network.now;
    let one = LocalSet::NONE.with(LocalIndex(0));
    bench.network.nodes[0].endpoint.set_blocked(now, one);
    assert_eq!(bench.sent()[0], 0);
    // Without any room nothing leaves, and it does as soon as there is some.
    let both = one.with(LocalIndex(1));
    bench.network.nodes[0]
        .endpoint
        .set_blocked(bench.network.now, both);
    let operation = Operation::Write {
        remote_addr: BASE,
        rkey: REMOTE,
    };
    bench
        .network
        .submit(0, bench.qp, 2, operation, gather(LOCAL, BASE, BYTES));
    bench.network.run(5 * MS);
    assert_eq!(bench.network.nodes[0].sends.len(), 2);
    let now = bench.network.now;
    bench.network.nodes[0]
        .endpoint
        .set_blocked(now, LocalSet::NONE);
    bench.network.flush();
    bench.writes += 1;
    assert!(
        bench
            .network
            .run_until(50 * MS, |network| network.nodes[0].sends.len() == 3)
    );
}
