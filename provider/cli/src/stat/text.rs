//! A sample for people: a head line for each process, one for each connection, and tables of the paths that are in use.
//! The first sample shows totals, later ones rates where a rate says more.

use super::sample::{Connection, Heard, Path, Plane, ReceivingPath, Sample};
use super::{Options, nothing};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What is compared: a value now, and in the sample before.
#[derive(Clone, Copy)]
struct Count {
    now: u64,
    before: Option<u64>,
    seconds: f64,
}

impl Count {
    /// A second; nothing in the first sample.
    fn rate(self) -> Option<f64> {
        let grown = self.now.saturating_sub(self.before?) as f64;
        (self.seconds > 0.0).then(|| grown / self.seconds)
    }
}

/// The whole sample.
pub(super) fn show(sample: &Sample, before: Option<&Sample>, options: &Options) -> String {
    if sample.is_empty() {
        return nothing::explain(sample, options) + "\n";
    }
    let mut out = String::new();
    for heard in &sample.engines {
        let earlier = before.and_then(|before| before.find(heard));
        show_engine(&mut out, heard, earlier, options.brief);
    }
    for (engine, why) in &sample.silent {
        let _ = writeln!(
            out,
            "pid {}  {}  UDP {}: {}",
            engine.pid,
            plain(&engine.name.device),
            engine.name.udp_port,
            plain(why)
        );
    }
    if sample.others > 0 {
        let _ = writeln!(out, "{} of other users (root sees them)", sample.others);
    }
    out
}

fn show_engine(out: &mut String, heard: &Heard, earlier: Option<&Heard>, brief: bool) {
    let report = &heard.report;
    let seconds = earlier.map_or(0.0, |earlier| {
        (report.age_ns - earlier.report.age_ns) as f64 / 1e9
    });
    let count = |name: &str| Count {
        now: counter(&report.counters, name),
        before: earlier.map(|earlier| counter(&earlier.report.counters, name)),
        seconds,
    };
    let _ = writeln!(
        out,
        "{}  pid {}  {} ({})  UDP {}  {}  {}  {} s old",
        plain(&report.program),
        heard.engine.pid,
        plain(&report.device),
        plain(&report.interface),
        report.udp_port,
        plural(report.queue_pairs, "queue pair"),
        plural(
            report.connections.len() as u64 + report.connections_left_out,
            "connection"
        ),
        report.age_ns / 1_000_000_000,
    );
    let dropped = |report: &BTreeMap<String, u64>| -> u64 {
        let drops = report
            .iter()
            .filter(|(name, _)| name.starts_with("dropped_"));
        drops.map(|(_, value)| value).sum()
    };
    let dropped = Count {
        now: dropped(&report.counters),
        before: earlier.map(|earlier| dropped(&earlier.report.counters)),
        seconds,
    };
    // Two lines: each fits a terminal of 80 columns.
    let _ = writeln!(
        out,
        "  sent {}, {}  received {}, {}\n  retransmitted {}  lost {}, spurious {}  dropped {}  overflows {}",
        bytes(count("data_bytes_sent")),
        events(count("data_packets_sent"), " data packets"),
        bytes(count("data_bytes_received")),
        events(count("data_packets_received"), " data packets"),
        events(count("retransmissions"), ""),
        events(count("packets_lost"), ""),
        events(count("spurious_retransmissions"), ""),
        events(dropped, ""),
        events(count("receive_overflows"), ""),
    );
    if counter(&report.counters, "packets_held") > 0 {
        let _ = writeln!(
            out,
            "  held {} of {}  held back {}  refused {}",
            with_unit(report.held_bytes as f64, "B"),
            with_unit(report.hold_limit_bytes as f64, "B"),
            events(count("packets_held"), " packets"),
            events(count("hold_refusals"), ""),
        );
    }
    for connection in &report.connections {
        let before = earlier.and_then(|earlier| {
            let mut connections = earlier.report.connections.iter();
            connections.find(|before| before.id == connection.id)
        });
        show_connection(out, connection, before, seconds, brief);
    }
    if report.connections_left_out > 0 {
        let _ = writeln!(
            out,
            "  and {}",
            plural(report.connections_left_out, "further connection")
        );
    }
}

fn counter(counters: &BTreeMap<String, u64>, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
}

fn show_connection(
    out: &mut String,
    connection: &Connection,
    before: Option<&Connection>,
    seconds: f64,
    brief: bool,
) {
    let grant = connection.grant_bytes_per_s.map_or_else(
        || "unlimited".into(),
        |grant| with_unit(grant as f64 * 8.0, "b/s"),
    );
    let payload = match (connection.payload_bytes, connection.most_payload_bytes) {
        (now, most) if now < most => format!("{now} of {most}"),
        (now, _) => now.to_string(),
    };
    let _ = writeln!(
        out,
        "  {} -> {}  {}  {}  payload {payload} B  in flight {} of {}  grant {grant}  silent {} ms",
        plain(connection.source.trim_start_matches("::ffff:")),
        plain(&connection.peer),
        plain(&connection.state),
        plural(connection.streams, "stream"),
        with_unit(connection.in_flight_bytes as f64, "B"),
        with_unit(connection.window_bytes as f64, "B"),
        tenths(connection.silent_ns as f64 / 1e6),
    );
    if brief {
        return;
    }
    show_planes(out, connection, before, seconds);
    let rates = before.is_some();
    let mut table = Table::new(&[
        "PATH",
        "STATE",
        "SOURCE",
        "RTT us",
        "MIN us",
        "WINDOW",
        "FLIGHT",
        if rates { "PKT/s" } else { "PACKETS" },
        if rates { "bit/s" } else { "BYTES" },
        if rates { "TOTALS: RETX" } else { "RETX" },
        "LOST",
        "PROBES",
        "MOVES",
        "CE",
    ]);
    let used = |path: &&Path| path.data_packets_sent > 0;
    for path in connection.paths.iter().filter(used) {
        let earlier = before.map(|before| {
            let mut paths = before.paths.iter();
            paths.find(|earlier| earlier.path == path.path)
        });
        table.row(sending_row(path, earlier, seconds));
    }
    table.print(out);
    let unused = connection.paths.iter().filter(|path| !used(path)).count();
    if unused > 0 && unused < connection.paths.len() {
        let _ = writeln!(out, "    {} unused", plural(unused as u64, "path"));
    }
    let mut table = Table::new(&[
        "FROM PATH",
        "SOURCE",
        "LOCAL",
        if rates { "PKT/s" } else { "PACKETS" },
        if rates { "bit/s" } else { "BYTES" },
        if rates {
            "TOTALS: DUPLICATES"
        } else {
            "DUPLICATES"
        },
        "CE",
    ]);
    for path in connection
        .receiving_paths
        .iter()
        .filter(|path| path.data_packets_received > 0)
    {
        let earlier = before.map(|before| {
            let mut paths = before.receiving_paths.iter();
            paths.find(|earlier| earlier.path == path.path)
        });
        table.row(receiving_row(path, earlier, seconds));
    }
    table.print(out);
}

/// A line for each plane, if there are several: what this end sends there, and what came in.
fn show_planes(
    out: &mut String,
    connection: &Connection,
    before: Option<&Connection>,
    seconds: f64,
) {
    if connection.planes.len() < 2 {
        return;
    }
    let rates = before.is_some();
    let mut table = Table::new(&[
        "PLANE",
        "STATE",
        "LOCAL",
        "PEER",
        "Gb/s",
        "PEER Gb/s",
        "PATHS",
        "RESTING",
        "FLIGHT",
        if rates { "SENT bit/s" } else { "SENT BYTES" },
        if rates {
            "RECEIVED bit/s"
        } else {
            "RECEIVED BYTES"
        },
    ]);
    let received = |connection: &Connection, plane: &Plane| -> u64 {
        let paths = connection.receiving_paths.iter();
        let on_it = paths.filter(|path| path.plane == plane.plane);
        on_it.map(|path| path.data_bytes_received).sum()
    };
    for plane in &connection.planes {
        let here = connection
            .paths
            .iter()
            .filter(|path| path.plane == plane.plane);
        let earlier = before.map(|before| {
            let mut planes = before.planes.iter();
            let same = planes
                .find(|one| (&one.local, &one.destination) == (&plane.local, &plane.destination));
            same.map_or(0, |plane| plane.data_bytes_sent)
        });
        let sent = Count {
            now: plane.data_bytes_sent,
            before: earlier,
            seconds,
        };
        let received = Count {
            now: received(connection, plane),
            before: before.map(|before| received(before, plane)),
            seconds,
        };
        table.row(vec![
            plane.plane.to_string(),
            plane.state().to_owned(),
            plain(&plane.local),
            plain(&plane.destination),
            tenths(plane.speed_mbps as f64 / 1e3),
            tenths(plane.peer_speed_mbps as f64 / 1e3),
            plane.paths.to_string(),
            plane.resting_paths.to_string(),
            here.map(|path| path.in_flight_packets)
                .sum::<u64>()
                .to_string(),
            cell(sent, 8.0),
            cell(received, 8.0),
        ]);
    }
    table.print(out);
}

/// `earlier`: the path in the sample before, if there is one; it may have come since, and began with 0.
fn sending_row(path: &Path, earlier: Option<Option<&Path>>, seconds: f64) -> Vec<String> {
    let count = |of: fn(&Path) -> u64| Count {
        now: of(path),
        before: earlier.map(|earlier| earlier.map_or(0, of)),
        seconds,
    };
    let us = |ns: u64| {
        if ns == 0 {
            "-".into()
        } else {
            tenths(ns as f64 / 1e3)
        }
    };
    vec![
        path.path.to_string(),
        plain(&path.state),
        format!("{}:{}", plain(&path.local), path.source_port),
        us(path.srtt_ns),
        us(path.min_rtt_ns),
        tenths(path.window_packets),
        path.in_flight_packets.to_string(),
        cell(count(|path| path.data_packets_sent), 1.0),
        cell(count(|path| path.data_bytes_sent), 8.0),
        path.retransmissions.to_string(),
        path.packets_lost.to_string(),
        path.probes_sent.to_string(),
        path.moves.to_string(),
        path.ce_echoed.to_string(),
    ]
}

fn receiving_row(
    path: &ReceivingPath,
    earlier: Option<Option<&ReceivingPath>>,
    seconds: f64,
) -> Vec<String> {
    let count = |of: fn(&ReceivingPath) -> u64| Count {
        now: of(path),
        before: earlier.map(|earlier| earlier.map_or(0, of)),
        seconds,
    };
    vec![
        path.path.to_string(),
        plain(&path.from),
        plain(&path.local),
        cell(count(|path| path.data_packets_received), 1.0),
        cell(count(|path| path.data_bytes_received), 8.0),
        path.duplicates_received.to_string(),
        path.ce_received.to_string(),
    ]
}

/// Columns that hold words.
const WORDS: [&str; 4] = ["STATE", "SOURCE", "LOCAL", "PEER"];

/// Columns as wide as they need to be: numbers to the right, words to the left.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(heads: &[&str]) -> Self {
        Self {
            rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()],
        }
    }

    fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Nothing if there is no row.
    fn print(&self, out: &mut String) {
        let [heads, rows @ ..] = &self.rows[..] else {
            return;
        };
        if rows.is_empty() {
            return;
        }
        for row in &self.rows {
            out.push_str("  ");
            for column in 0..heads.len() {
                let width = self
                    .rows
                    .iter()
                    .map(|row| row[column].chars().count())
                    .max()
                    .unwrap_or(0);
                let cell = &row[column];
                let _ = if WORDS.contains(&heads[column].as_str()) {
                    write!(out, "  {cell:<width$}")
                } else {
                    write!(out, "  {cell:>width$}")
                };
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
    }
}

/// In a table: a rate if there is one, else the total (bytes, whatever `unit` makes of a rate).
fn cell(count: Count, unit: f64) -> String {
    count
        .rate()
        .map_or_else(|| short(count.now as f64), |rate| short(rate * unit))
}

fn bytes(count: Count) -> String {
    match count.rate() {
        Some(rate) => with_unit(rate * 8.0, "b/s"),
        None => with_unit(count.now as f64, "B"),
    }
}

fn events(count: Count, what: &str) -> String {
    match count.rate() {
        Some(rate) => format!("{}{what}/s", short(rate)),
        None => format!("{}{what}", short(count.now as f64)),
    }
}

fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

/// `12.3k`
fn short(value: f64) -> String {
    let (digits, prefix) = scaled(value);
    digits + prefix
}

/// `12.3 kB`
fn with_unit(value: f64, unit: &str) -> String {
    let (digits, prefix) = scaled(value);
    format!("{digits} {prefix}{unit}")
}

/// Up to four digits, and the decimal prefix that they need.
fn scaled(mut value: f64) -> (String, &'static str) {
    const PREFIXES: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let mut prefix = 0;
    while value >= 9_999.5 && prefix + 1 < PREFIXES.len() {
        value /= 1_000.0;
        prefix += 1;
    }
    let whole = value >= 99.95 || value.fract().abs() < 1e-9;
    let digits = if whole {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    };
    (digits, PREFIXES[prefix])
}

/// Other processes' words must not command the terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars()
        .map(|character| {
            if character.is_control() {
                '?'
            } else {
                character
            }
        })
        .collect()
}
