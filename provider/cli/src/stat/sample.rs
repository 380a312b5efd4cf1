//! One sample: what all engines said at one time, as they said it ([`Sample::json`]) and as far as this program
//! understands it ([`Report`]).

use super::ask::{self, Answer, Engine};
use super::{Options, find, rates};
use anyhow::Result;
use metaroce::telemetry::REPORT_VERSION;
use nix::unistd::Uid;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What all engines said.
#[derive(Debug)]
pub(super) struct Sample {
    /// When.
    pub(super) at: Instant,
    time_ns: u64,
    /// Those that answered, by process and device.
    pub(super) engines: Vec<Heard>,
    /// Those that did not, and why.
    pub(super) silent: Vec<(Engine, String)>,
    /// Engines of other users.
    pub(super) others: usize,
    /// Those that the filters left out, by process and device.
    pub(super) passed_over: Vec<Engine>,
    /// Nobody's engines were hidden from us.
    pub(super) as_root: bool,
}

/// An engine that answered.
#[derive(Debug)]
pub(super) struct Heard {
    /// Who.
    pub(super) engine: Engine,
    /// As it said it.
    pub(super) raw: Value,
    /// As far as it is understood.
    pub(super) report: Report,
}

/// The engine's JSON object; a field that is missing is 0 or empty, one that is unknown is not looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Report {
    version: u64,
    pub(super) program: String,
    pub(super) device: String,
    pub(super) interface: String,
    pub(super) udp_port: u16,
    pub(super) age_ns: u64,
    pub(super) queue_pairs: u64,
    pub(super) held_bytes: u64,
    pub(super) hold_limit_bytes: u64,
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) connections_left_out: u64,
    pub(super) connections: Vec<Connection>,
}

/// A connection of a [`Report`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Connection {
    pub(super) id: String,
    pub(super) source: String,
    pub(super) peer: String,
    pub(super) state: String,
    pub(super) silent_ns: u64,
    pub(super) streams: u64,
    pub(super) payload_bytes: u64,
    pub(super) most_payload_bytes: u64,
    pub(super) in_flight_bytes: u64,
    pub(super) window_bytes: u64,
    pub(super) grant_bytes_per_s: Option<u64>,
    pub(super) planes: Vec<Plane>,
    pub(super) paths: Vec<Path>,
    pub(super) receiving_paths: Vec<ReceivingPath>,
}

/// A plane of a [`Connection`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Plane {
    pub(super) plane: u64,
    pub(super) local: String,
    pub(super) destination: String,
    pub(super) up: bool,
    pub(super) enabled: bool,
    pub(super) proved: bool,
    pub(super) speed_mbps: u64,
    pub(super) peer_speed_mbps: u64,
    pub(super) paths: u64,
    pub(super) resting_paths: u64,
    pub(super) data_bytes_sent: u64,
}

impl Plane {
    /// How it is, in a word.
    pub(super) fn state(&self) -> &'static str {
        match self {
            Self { enabled: false, .. } => "off",
            Self { up: false, .. } => "down",
            Self { proved: false, .. } => "untried",
            _ if self.paths == self.resting_paths => "silent",
            _ => "works",
        }
    }
}

/// A path of a [`Connection`], as a sender.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Path {
    pub(super) path: u64,
    pub(super) plane: u64,
    pub(super) state: String,
    pub(super) local: String,
    pub(super) source_port: u64,
    pub(super) in_flight_packets: u64,
    pub(super) window_packets: f64,
    pub(super) srtt_ns: u64,
    pub(super) min_rtt_ns: u64,
    pub(super) data_packets_sent: u64,
    pub(super) data_bytes_sent: u64,
    pub(super) retransmissions: u64,
    pub(super) packets_lost: u64,
    pub(super) probes_sent: u64,
    pub(super) moves: u64,
    pub(super) ce_echoed: u64,
}

/// A path of the peer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivingPath {
    pub(super) path: u64,
    pub(super) plane: u64,
    pub(super) from: String,
    pub(super) local: String,
    pub(super) data_packets_received: u64,
    pub(super) data_bytes_received: u64,
    pub(super) duplicates_received: u64,
    pub(super) ce_received: u64,
}

/// Asks everybody.
///
/// # Errors
/// The list of sockets cannot be read.
pub(super) fn take(options: &Options, before: Option<&Sample>) -> Result<Sample> {
    let namespaces = find::namespaces()?;
    let asked = ask::all(
        &namespaces,
        |engine| options.wants(&[engine.pid, engine.name.pid], &engine.name.device),
        |engine| {
            before.is_some_and(|before| before.silent.iter().any(|(silent, _)| silent == engine))
        },
    );
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut sample = Sample {
        at: Instant::now(),
        time_ns: since_epoch.as_nanos() as u64,
        engines: Vec::new(),
        silent: Vec::new(),
        others: 0,
        passed_over: asked.passed_over,
        as_root: Uid::effective().is_root(),
    };
    for (engine, answer) in asked.answers {
        match answer {
            Answer::Text(text) => match understand(&text) {
                Ok((raw, report)) => sample.engines.push(Heard {
                    engine,
                    raw,
                    report,
                }),
                Err(why) => sample.silent.push((engine, why)),
            },
            Answer::Silence(why) => sample.silent.push((engine, why)),
            Answer::Foreign => sample.others += 1,
            Answer::Gone => {}
        }
    }
    let order = |a: &Engine, b: &Engine| (a.pid, &a.name).cmp(&(b.pid, &b.name));
    sample.engines.sort_by(|a, b| order(&a.engine, &b.engine));
    sample.passed_over.sort_by(order);
    Ok(sample)
}

/// Reads an engine's answer.
pub(super) fn understand(text: &[u8]) -> Result<(Value, Report), String> {
    let incomplete = |error: serde_json::Error| format!("its answer is damaged: {error}");
    let raw: Value = serde_json::from_slice(text).map_err(incomplete)?;
    let report: Report = serde_json::from_value(raw.clone()).map_err(incomplete)?;
    if report.version != REPORT_VERSION {
        return Err(format!(
            "it runs a metaroce that reports by version {}, this one reads version {REPORT_VERSION}: use its own \
             `metaroce stat`",
            report.version
        ));
    }
    Ok((raw, report))
}

impl Sample {
    /// The same engine in this sample: a new process that was given the same number has another age.
    pub(super) fn find(&self, now: &Heard) -> Option<&Heard> {
        self.engines
            .iter()
            .find(|before| before.engine == now.engine && before.report.age_ns <= now.report.age_ns)
    }

    /// Nobody is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.engines.is_empty() && self.silent.is_empty()
    }

    #[cfg(test)]
    pub(super) fn of_test(at: Instant, engines: Vec<Heard>) -> Self {
        Self {
            at,
            time_ns: 0,
            engines,
            silent: Vec::new(),
            others: 0,
            passed_over: Vec::new(),
            as_root: false,
        }
    }

    /// Seconds since an earlier sample.
    pub(super) fn seconds_since(&self, before: &Sample) -> f64 {
        self.at.duration_since(before.at).as_secs_f64()
    }

    /// One object: what the engines said, with what we know of them and rates since the sample before.
    pub(super) fn json(&self, before: Option<&Sample>) -> Value {
        let engines = self.engines.iter().map(|heard| {
            let mut object = heard.raw.clone();
            if let Some(earlier) = before.and_then(|before| before.find(heard)) {
                // The engine's own clock, which does not know how long asking took.
                let ns = heard.report.age_ns - earlier.report.age_ns;
                rates::add(&mut object, &earlier.raw, ns as f64 / 1e9);
            }
            object["pid"] = json!(heard.engine.pid);
            object["network_namespace"] = json!(heard.engine.namespace);
            object
        });
        let silent = self.silent.iter().map(|(engine, why)| {
            json!({
                "pid": engine.pid,
                "device": engine.name.device,
                "udp_port": engine.name.udp_port,
                "network_namespace": engine.namespace,
                "why": why,
            })
        });
        json!({
            "time_ns": self.time_ns,
            "interval_s": before.map(|before| self.seconds_since(before)),
            "engines": engines.collect::<Vec<_>>(),
            "silent": silent.collect::<Vec<_>>(),
            "of_other_users": self.others,
        })
    }
}
