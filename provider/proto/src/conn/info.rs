//! What a connection tells about itself: to `metaroce stat`, the statistics file and the tests. Nothing here changes
//! anything, but for the counters of paths that end with it.

use crate::cc::{Demand, PathWindow};
use crate::conn::schedule::TxPath;
use crate::conn::sleep::ParkedPath;
use crate::conn::streams::List;
use crate::conn::{Connection, RxPath, Shared, State};
use crate::event::Event;
use crate::path::RoundTrip;
use crate::telemetry::{
    ConnectionInfo, ConnectionState, GrantsInfo, PathInfo, PathState, ReceivingPathInfo,
};
use crate::types::Route;

impl Connection {
    /// A snapshot, with all paths.
    pub(crate) fn info(&self, shared: &Shared) -> ConnectionInfo {
        ConnectionInfo {
            id: self.my_id,
            peer_id: self.peer.id,
            source_gid: self.key.source,
            dest_gid: self.key.dest,
            peer: self.routes.first().destination,
            state: match self.state {
                State::Opening => ConnectionState::Opening,
                State::Open => ConnectionState::Open,
                State::Closing(_) | State::Dead => ConnectionState::Closing,
            },
            open: self.is_open(),
            began_at: self.began_at,
            last_heard_at: self.last_heard,
            streams: self.stream_count(),
            streams_opening: self.streams.of(List::Opening).len() as u32,
            payload_bytes: self.payload_bytes,
            most_payload_bytes: self.sizes.most_bytes(),
            in_flight_bytes: self.bytes_in_flight(),
            window_bytes: self.window.cap_bytes(),
            grant_bytes_per_s: self.window.grant_bytes_per_s().unwrap_or(u64::MAX),
            lanes: self.lane_infos(&shared.config),
            paths: self.path_infos(),
            receiving_paths: self.receiving_infos(shared),
        }
    }

    /// The rate that it is held to as a sender, in bytes of payload per second: the windows of its paths over their round
    /// trips, and what the peer grants.
    pub(crate) fn allowed_bytes_per_s(&self) -> u64 {
        let awake = self.paths.iter();
        let awake = awake.map(|path| (path.tx.rtt(), path.tx.window()));
        let parked = self.parked_paths().iter();
        let parked = parked.map(|path| (path.tx.rtt(), path.tx.window()));
        let of_path = |(rtt, window): (&RoundTrip, &PathWindow)| {
            let srtt_ns = rtt.smoothed_ns().filter(|srtt_ns| *srtt_ns > 0)?;
            Some(window.packets() * 1e9 / srtt_ns as f64)
        };
        let rates = awake.chain(parked).filter_map(of_path);
        let own = rates.sum::<f64>() * f64::from(self.payload_bytes);
        (own as u64).min(self.window.grant_bytes_per_s().unwrap_or(u64::MAX))
    }

    /// Its grants, in both directions.
    pub(crate) fn grants_info(&self) -> GrantsInfo {
        let demand = self.inbound.demand();
        GrantsInfo {
            id: self.my_id,
            peer_id: self.peer.id,
            grant_bytes_per_s: self.window.grant_bytes_per_s().unwrap_or(u64::MAX),
            peer_active: demand != Demand::Nothing,
            peer_limited: matches!(demand, Demand::Limited(_)),
            promised_bytes_per_s: self.inbound.promised(),
        }
    }

    /// Queue pairs that use it.
    pub(crate) fn stream_count(&self) -> u32 {
        self.streams.of(List::All).len() as u32
    }

    /// That the peer's host says that nobody listens there; nothing where nobody uses the connection.
    pub(crate) fn tell_unreachable(&self, shared: &mut Shared) {
        let queue_pairs = self.stream_count();
        if queue_pairs > 0 {
            shared.events.push_back(Event::PeerUnreachable {
                peer: self.routes.first().destination,
                own: self.key.source.to_ip(),
                queue_pairs,
            });
        }
    }

    /// The connection ends: what its paths counted is kept in the sum.
    pub(crate) fn end_counters(&mut self, shared: &mut Shared) {
        self.end_sending_counters(shared);
        for path in &mut self.rx_paths {
            shared
                .ended
                .receiving
                .add(&std::mem::take(&mut path.counters));
        }
        shared.ended.connections += 1;
    }

    /// All sending paths end.
    pub(super) fn end_sending_counters(&mut self, shared: &mut Shared) {
        for path in &mut self.paths {
            shared
                .ended
                .sending
                .add(&std::mem::take(&mut path.counters));
        }
    }
}

impl Connection {
    fn receiving_infos(&self, shared: &Shared) -> Vec<ReceivingPathInfo> {
        let awake = self.rx_paths.iter().map(|path| path.info(shared));
        let parked = self.parked_rx_paths().iter();
        awake
            .chain(parked.map(|path| path.wake().info(shared)))
            .collect()
    }

    fn path_infos(&self) -> Vec<PathInfo> {
        let awake = self.paths.iter().map(|path| self.path_info(path));
        let parked = self.parked_paths().iter();
        let parked = parked.map(|path| self.parked_info(path));
        awake.chain(parked).collect()
    }

    fn plane_of(&self, route: &Route) -> u8 {
        let lane = self.routes.lane_of(route);
        lane.map_or(0, |lane| self.routes.lanes()[lane].plane)
    }

    fn parked_info(&self, path: &ParkedPath) -> PathInfo {
        let (rtt, window) = (path.tx.rtt(), path.tx.window());
        let route = path.route(&self.routes);
        PathInfo {
            id: path.tx.id(),
            state: PathState::Idle,
            route,
            plane: self.plane_of(&route),
            epoch: path.tx.epoch().0,
            resting: false,
            copied_route: path.copied,
            probes_unanswered: 0,
            outstanding_packets: 0,
            in_flight_packets: 0,
            in_flight_bytes: 0,
            window_packets: window.packets(),
            slow_start: window.in_slow_start(),
            marked_fraction: window.marked_fraction(),
            srtt_ns: rtt.smoothed_ns().unwrap_or(0),
            min_rtt_ns: rtt.min_ns().unwrap_or(0),
            rtt_variation_ns: rtt.variation_ns(),
            ack_delay_ns: rtt.ack_delay_ns(),
            reorder_tolerance_ns: 0,
            counters: path.counters,
        }
    }

    fn path_info(&self, path: &TxPath) -> PathInfo {
        let tx = &path.tx;
        let state = if tx.is_resting() {
            PathState::Resting
        } else if tx.probes_unanswered() > 0 {
            PathState::Probing
        } else if tx.is_idle() {
            PathState::Idle
        } else {
            PathState::Busy
        };
        PathInfo {
            id: tx.id(),
            state,
            route: path.route,
            plane: self.plane_of(&path.route),
            epoch: tx.epoch().0,
            resting: tx.is_resting(),
            copied_route: path.copied,
            probes_unanswered: tx.probes_unanswered(),
            outstanding_packets: tx.outstanding(),
            in_flight_packets: tx.packets_in_flight(),
            in_flight_bytes: tx.bytes_in_flight(),
            window_packets: tx.window().packets(),
            slow_start: tx.window().in_slow_start(),
            marked_fraction: tx.window().marked_fraction(),
            srtt_ns: tx.srtt_ns().unwrap_or(0),
            min_rtt_ns: tx.min_rtt_ns().unwrap_or(0),
            rtt_variation_ns: tx.rtt().variation_ns(),
            ack_delay_ns: tx.rtt().ack_delay_ns(),
            reorder_tolerance_ns: tx.reorder_tolerance_ns(),
            counters: path.counters,
        }
    }
}

impl RxPath {
    fn info(&self, shared: &Shared) -> ReceivingPathInfo {
        let local = shared.config.locals.get(usize::from(self.local.0));
        ReceivingPathInfo {
            id: self.rx.id(),
            local: self.local,
            plane: local.map_or(0, |local| local.plane),
            from: self.from,
            epoch: self.rx.epoch().map_or(0, |epoch| epoch.0),
            counters: self.counters,
        }
    }
}
