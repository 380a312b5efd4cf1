//! What an engine tells about itself, as one JSON object: the answer to `metaroce stat` and the line in the file of
//! `METAROCE_STATS`. Taken under the engine's lock in parts, written without it.

use super::Inner;
use super::core::Core;
use super::statistics::EngineCounters;
use crate::telemetry::REPORT_VERSION;
use metaroce_proto::cc::Others;
use metaroce_proto::telemetry::json::Json;
use metaroce_proto::telemetry::{ConnectionInfo, EndpointInfo, PathInfo, ReceivingPathInfo};
use metaroce_proto::types::{LocalIndex, SourceSlot, Time};
use metaroce_udp as udp;

/// Connections taken in one go: some 1,000 paths, 50 µs.
pub(super) const CONNECTIONS_AT_ONCE: usize = 64;
/// Connections that are told; more are counted only. With 16 paths each this is 20 MB of JSON.
const MAX_CONNECTIONS: usize = 1024;

/// A snapshot in the making.
pub(super) struct Report {
    now: Time,
    endpoint: EndpointInfo,
    engine: EngineCounters,
    others: Others,
    connections: Vec<ConnectionInfo>,
    /// Where to go on.
    next: Option<usize>,
}

impl Report {
    /// Begins with the numbers of the endpoint as a whole and the first connections.
    pub(super) fn begin(core: &Core, now: Time) -> Report {
        let mut report = Report {
            now,
            endpoint: core.endpoint.info(),
            engine: core.counters,
            others: core.neighbours.others(),
            connections: Vec::new(),
            next: Some(0),
        };
        report.go_on(core);
        report
    }

    /// Takes the next connections.
    pub(super) fn go_on(&mut self, core: &Core) {
        let Some(from) = self.next else { return };
        let (mut some, next) = core.endpoint.some_connections(from, CONNECTIONS_AT_ONCE);
        self.connections.append(&mut some);
        self.next = next;
    }

    /// Whether [`Report::go_on`] has something to take.
    pub(super) fn is_complete(&self) -> bool {
        self.next.is_none() || self.connections.len() >= MAX_CONNECTIONS
    }

    /// All in one go, for a caller who has the lock anyway.
    pub(super) fn whole(core: &Core, now: Time) -> Report {
        let mut report = Report::begin(core, now);
        while !report.is_complete() {
            report.go_on(core);
        }
        report
    }

    /// The object, without a line feed.
    pub(super) fn json(&self, inner: &Inner) -> String {
        let mut out = String::new();
        let mut json = Json::object(&mut out);
        let age = |at: Time| self.now.since_ns(at);
        json.number("version", REPORT_VERSION)
            .number("pid", u64::from(std::process::id()))
            .text("program", program_name())
            .text("device", &inner.device.name)
            .text("interface", &inner.device.interface)
            .number("udp_port", u64::from(inner.sockets.port()))
            .number("age_ns", age(super::clock::START))
            .number("queue_pairs", u64::from(self.endpoint.queue_pairs))
            .number("active_senders", u64::from(self.endpoint.active_senders))
            .number("other_senders", u64::from(self.others.unlimited))
            .number("other_limited_bytes_per_s", self.others.limited_bytes_per_s)
            .number("other_connections", u64::from(self.others.connections))
            .number_if_any("drain_bytes_per_s", self.endpoint.drain_bytes_per_s)
            .number("held_bytes", self.endpoint.held_bytes)
            .number("held_most_bytes", self.endpoint.held_most_bytes)
            .number("hold_limit_bytes", self.endpoint.hold_limit_bytes)
            .number(
                "receive_buffer_bytes",
                inner.sockets.receive_buffer_bytes() as u64,
            );
        let planes: Vec<usize> = (0..inner.device.planes.len()).collect();
        let state = inner.port.last_seen();
        json.objects("planes", &planes, |json, number| {
            let plane = &inner.device.planes[*number];
            let active = state.as_ref().and_then(|state| state.planes.get(*number));
            json.number("plane", *number as u64)
                .text("interface", &plane.interface)
                .number("speed_mbps", u64::from(plane.speed_mbps))
                .truth("active", active.copied().unwrap_or(plane.active));
        });
        json.nested("counters")
            .numbers(self.endpoint.counters.iter())
            .numbers(self.engine.iter());
        json.nested("ended")
            .number("connections", self.endpoint.ended.connections)
            .numbers(self.endpoint.ended.sending.iter())
            .numbers(self.endpoint.ended.receiving.iter());
        let told = self.connections.len().min(MAX_CONNECTIONS);
        let left_out = (self.endpoint.connections as usize).saturating_sub(told);
        json.number("connections_left_out", left_out as u64);
        json.objects(
            "connections",
            &self.connections[..told],
            |json, connection| {
                write_connection(json, inner, connection, &age);
            },
        );
        drop(json);
        out
    }
}

fn write_connection(
    json: &mut Json<'_>,
    inner: &Inner,
    connection: &ConnectionInfo,
    age: &dyn Fn(Time) -> u64,
) {
    let grant = Some(connection.grant_bytes_per_s).filter(|grant| *grant != u64::MAX);
    json.text("id", format_args!("{:08x}", connection.id.0))
        .text("peer_id", format_args!("{:08x}", connection.peer_id.0))
        .text("source", connection.source_gid)
        .text("destination", connection.dest_gid)
        .text("peer", connection.peer)
        .text("state", connection.state.name())
        .number("age_ns", age(connection.began_at))
        .number("silent_ns", age(connection.last_heard_at))
        .number("streams", u64::from(connection.streams))
        .number("streams_opening", u64::from(connection.streams_opening))
        .number("payload_bytes", u64::from(connection.payload_bytes))
        .number(
            "most_payload_bytes",
            u64::from(connection.most_payload_bytes),
        )
        .number("in_flight_bytes", connection.in_flight_bytes)
        .number("window_bytes", connection.window_bytes)
        .number_if_any("grant_bytes_per_s", grant);
    json.objects("planes", &connection.lanes, |json, lane| {
        let (local, _) = source_of(inner, lane.local, SourceSlot(0));
        json.number("plane", u64::from(lane.plane))
            .text("local", local)
            .text("destination", lane.destination)
            .truth("joined", lane.joined)
            .truth("up", lane.up)
            .truth("enabled", lane.enabled)
            .truth("proved", lane.proved)
            .number("speed_mbps", u64::from(lane.speed_mbps))
            .number("peer_speed_mbps", u64::from(lane.peer_speed_mbps))
            .number("paths", u64::from(lane.paths))
            .number("resting_paths", u64::from(lane.resting_paths))
            .number("data_bytes_sent", lane.data_bytes_sent);
    });
    json.objects("paths", &connection.paths, |json, path| {
        write_path(json, inner, path)
    });
    json.objects(
        "receiving_paths",
        &connection.receiving_paths,
        |json, path| {
            write_receiving_path(json, inner, path);
        },
    );
}

fn write_path(json: &mut Json<'_>, inner: &Inner, path: &PathInfo) {
    let (local, port) = source_of(inner, path.route.local, path.route.source);
    json.number("path", u64::from(path.id.0))
        .text("state", path.state.name())
        .text("local", local)
        .number("source_port", u64::from(port))
        .text("destination", path.route.destination)
        .number("plane", u64::from(path.plane))
        .number("epoch", u64::from(path.epoch))
        .truth("copied_route", path.copied_route)
        .number("probes_unanswered", u64::from(path.probes_unanswered))
        .number("outstanding_packets", u64::from(path.outstanding_packets))
        .number("in_flight_packets", u64::from(path.in_flight_packets))
        .number("in_flight_bytes", path.in_flight_bytes)
        .fraction("window_packets", path.window_packets)
        .truth("slow_start", path.slow_start)
        .fraction("marked_fraction", path.marked_fraction)
        .number("srtt_ns", path.srtt_ns)
        .number("min_rtt_ns", path.min_rtt_ns)
        .number("rtt_variation_ns", path.rtt_variation_ns)
        .number("ack_delay_ns", path.ack_delay_ns)
        .number("reorder_tolerance_ns", path.reorder_tolerance_ns)
        .numbers(path.counters.iter());
}

fn write_receiving_path(json: &mut Json<'_>, inner: &Inner, path: &ReceivingPathInfo) {
    let (local, _) = source_of(inner, path.local, SourceSlot(0));
    json.number("path", u64::from(path.id.0))
        .text("local", local)
        .text(
            "from",
            path.from.map_or_else(String::new, |ip| ip.to_string()),
        )
        .number("plane", u64::from(path.plane))
        .number("epoch", u64::from(path.epoch))
        .numbers(path.counters.iter());
}

/// Address and port of a source socket.
pub(super) fn source_of(inner: &Inner, local: LocalIndex, source: SourceSlot) -> (String, u16) {
    let local = udp::LocalIndex(local.0);
    let address = inner.sockets.locals().find(|(index, _)| *index == local);
    let slot = udp::SourceSlot {
        local,
        index: u16::from(source.0),
    };
    let ip = address.map_or_else(String::new, |(_, address)| address.ip().to_string());
    (ip, inner.sockets.source_port(slot).unwrap_or(0))
}

/// The name of the process, as the kernel has it.
fn program_name() -> String {
    let name = std::fs::read("/proc/self/comm").unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}
