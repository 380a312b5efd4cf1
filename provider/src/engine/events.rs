//! Where the core's event log goes: to the file that `METAROCE_EVENTS` names, and to the log (`METAROCE_LOG=debug`, target
//! `metaroce::events`). A thread of its own drains the ring, so that nothing is written under the engine's lock; if nobody
//! asked there is neither thread nor ring. Started by `setup.rs`, flushed by `Engine::close`.

use super::Inner;
use super::asked::with_core;
use super::clock::Clock;
use super::config::{EVENTS_VARIABLE, Settings};
use super::output;
use super::report::source_of;
use metaroce_proto::telemetry::json::Json;
use metaroce_proto::telemetry::log::Record;
use metaroce_proto::types::Route;
use metaroce_udp::prepare_background_thread;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Target of the messages in the log.
const TARGET: &str = "metaroce::events";
/// Records that the ring keeps: what happens within [`DRAIN_EVERY`] on a very bad day. 1 MB.
pub(super) const RING_RECORDS: usize = 8192;
/// Between two drains.
const DRAIN_EVERY: Duration = Duration::from_millis(50);
/// Records taken under the engine's lock in one go: some 20 µs.
const RECORDS_AT_ONCE: usize = 1024;
/// How long the end of the process waits for the thread to write what it has.
const FLUSH_WITHIN: Duration = Duration::from_millis(200);
/// The thread need not wake on time.
const TIMER_SLACK_NS: u64 = 5_000_000;

/// Where records go.
#[derive(Debug)]
pub(super) struct Events {
    sink: Mutex<Sink>,
    /// Nanoseconds from the start of the engine's clock to the epoch.
    epoch_ns: u64,
    json: bool,
    logged: bool,
}

#[derive(Debug)]
struct Sink {
    file: Option<File>,
    records: Vec<Record>,
    text: String,
}

impl Events {
    /// What the settings ask for; `None` if nobody wants records. A file that cannot be written is told on the log: the
    /// program matters more.
    pub(super) fn wanted(settings: &Settings, clock: &Clock) -> Option<Events> {
        let logged = log::log_enabled!(target: TARGET, log::Level::Debug);
        let file = settings.events.as_deref().and_then(open);
        if file.is_none() && !logged {
            return None;
        }
        let name = settings.events.as_deref().unwrap_or_default();
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Some(Events {
            sink: Mutex::new(Sink {
                file,
                records: Vec::with_capacity(RECORDS_AT_ONCE),
                text: String::new(),
            }),
            epoch_ns: (since_epoch.as_nanos() as u64).saturating_sub(clock.now().as_ns()),
            json: name.ends_with(".json") || name.ends_with(".jsonl"),
            logged,
        })
    }

    /// Writes what is in the ring. Bounded: what comes meanwhile waits for the next time.
    pub(super) fn flush(&self, inner: &Inner) {
        let Some(mut sink) = self.sink.try_lock_for(FLUSH_WITHIN) else {
            return;
        };
        for _ in 0..=RING_RECORDS / RECORDS_AT_ONCE {
            let mut records = std::mem::take(&mut sink.records);
            records.clear();
            with_core(inner, |core| {
                let now = inner.clock.now();
                let more = std::iter::from_fn(|| core.endpoint.poll_log(now));
                records.extend(more.take(RECORDS_AT_ONCE));
            });
            let full = records.len() == RECORDS_AT_ONCE;
            self.write(inner, &mut sink, &records);
            sink.records = records;
            if !full {
                return;
            }
        }
    }

    fn write(&self, inner: &Inner, sink: &mut Sink, records: &[Record]) {
        let route = |route: &Route| {
            let (local, port) = source_of(inner, route.local, route.source);
            format!("{local}:{port}>{}", route.destination)
        };
        sink.text.clear();
        for record in records {
            if self.logged {
                log::debug!(target: TARGET, "{} {}", inner.device.name, record.text(&route));
            }
            if sink.file.is_some() {
                self.push_line(&mut sink.text, inner, record, &route);
            }
        }
        let Some(file) = sink.file.as_mut().filter(|_| !records.is_empty()) else {
            return;
        };
        // In one write: several processes may append to one file.
        if let Err(error) = output::write(file, sink.text.as_bytes()) {
            log::error!("{EVENTS_VARIABLE}: no more events are written: {error}");
            sink.file = None;
        }
    }

    fn push_line(
        &self,
        out: &mut String,
        inner: &Inner,
        record: &Record,
        route: &dyn Fn(&Route) -> String,
    ) {
        let time_ns = self.epoch_ns + record.at.as_ns();
        let pid = std::process::id();
        if self.json {
            let mut json = Json::object(out);
            json.number("time_ns", time_ns)
                .number("pid", u64::from(pid))
                .text("device", &inner.device.name);
            record.write(&mut json, route);
        } else {
            let (seconds, micros) = (time_ns / 1_000_000_000, time_ns / 1_000 % 1_000_000);
            out.push_str(&format!(
                "{seconds}.{micros:06} [{pid}] {} {}",
                inner.device.name,
                record.text(route)
            ));
        }
        out.push('\n');
    }
}

/// Appends: ranks of one job may share the file.
fn open(file: &str) -> Option<File> {
    output::open(file, true)
        .inspect_err(|error| log::error!("{EVENTS_VARIABLE}: cannot write {file}: {error}"))
        .ok()
}

/// Starts the thread that drains the ring, if anybody wants that.
///
/// # Errors
/// No thread can be made.
pub(super) fn start(inner: &Arc<Inner>) -> io::Result<Option<JoinHandle<()>>> {
    if inner.events.is_none() {
        return Ok(None);
    }
    let shared = inner.clone();
    let thread = Builder::new()
        .name("metaroce-events".into())
        .spawn(move || {
            prepare_background_thread(TIMER_SLACK_NS);
            while !shared.stop.load(Ordering::Acquire) {
                std::thread::park_timeout(DRAIN_EVERY);
                if let Some(events) = &shared.events {
                    events.flush(&shared);
                }
            }
        })?;
    Ok(Some(thread))
}
