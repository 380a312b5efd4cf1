//! `metaroce stat` beside running programs: what it shows is what the programs say at their end, it sees who may be
//! seen, and nobody makes it wait.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Proc, Program};
use serde_json::Value;

use super::{Bench, Case, ON_DEVICE, next_port};

/// A sample of processes that all answer takes milliseconds; of those of which one does not, a second.
const SAMPLE_WITHIN: Duration = Duration::from_secs(5);
/// Until something is seen that must happen.
const SEEN_WITHIN: Duration = Duration::from_secs(15);
/// What is said where no process is one of those that were asked for.
const NOBODY: &str = " matches --pid ";
/// Counters that paths have, as senders and as receivers.
const SENDING: [&str; 6] = [
    "data_packets_sent",
    "data_bytes_sent",
    "retransmissions",
    "packets_lost",
    "probes_sent",
    "moves",
];
const RECEIVING: [&str; 4] = [
    "data_packets_received",
    "data_bytes_received",
    "duplicates_received",
    "ce_received",
];

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&Bench) -> Result<()>| {
        Case::new(format!("telemetry::{name}"), ON_DEVICE, run)
            .needing(Need::Program("ib_write_bw"))
    };
    vec![
        case("stat follows a transfer to its end", follows_a_transfer),
        case(
            "stat waits for nobody and forgets the dead",
            waits_for_nobody,
        ),
        case("users see their own processes", own_processes)
            .needing(Need::Program("setpriv"))
            .needing(Need::Program("ibv_rc_pingpong")),
        Case::new(
            "telemetry::the event log, as text, JSON and log",
            ON_DEVICE,
            event_log,
        )
        .needing(Need::Program("ibv_rc_pingpong")),
        Case::new(
            "telemetry::devices name their users",
            ON_DEVICE,
            users_of_devices,
        )
        .needing(Need::Program("ibv_rc_pingpong")),
    ]
}

/// `ib_write_bw` between two hosts, for so many seconds.
pub(super) struct Transfer {
    /// The receiver.
    pub(super) server: Proc,
    client: Proc,
    /// Where each leaves its counters.
    statistics: [PathBuf; 2],
}

impl Transfer {
    pub(super) fn start(bench: &Bench, fabric: &Fabric, seconds: u32) -> Result<Transfer> {
        let port = next_port();
        let file =
            |side: &str| std::env::temp_dir().join(format!("metaroce-e2e-{side}-{port}.json"));
        let statistics = [file("server"), file("client")];
        // A patience of half a minute: one side is stopped for a while.
        let options = ["-F", "-d", "metaroce0", "-u", "20", "-D"];
        let program = Program::new("ib_write_bw").args(options).args([
            seconds.to_string(),
            "-p".into(),
            port.to_string(),
        ]);
        let server = program.clone().env("METAROCE_STATS", &statistics[0]);
        let client = program
            .env("METAROCE_STATS", &statistics[1])
            .args([Host::A.ipv4().to_string()]);
        let mut server = bench.on_device(fabric, Host::A, server)?.spawn()?;
        server.wait_listening(port, SEEN_WITHIN)?;
        let client = bench.on_device(fabric, Host::B, client)?.spawn()?;
        Ok(Transfer {
            server,
            client,
            statistics,
        })
    }

    fn pids(&self) -> [u32; 2] {
        [self.server.pid(), self.client.pid()]
    }
}

/// Samples of these processes, taken from outside of the fabric.
fn stat(bench: &Bench, pids: &[u32], options: &[&str]) -> Result<Vec<Value>> {
    let program = Program::new(bench.artefacts()?.launcher())
        .args(["stat", "--json"])
        .args(options)
        .args(
            pids.iter()
                .flat_map(|pid| ["--pid".to_owned(), pid.to_string()]),
        )
        .limit(SAMPLE_WITHIN);
    let outcome = program.run()?;
    // That there is nobody is an error, beside the sample that says so.
    if outcome.stderr.contains(NOBODY) {
        return samples(&outcome.stdout);
    }
    samples(&outcome.success()?.stdout)
}

fn samples(text: &str) -> Result<Vec<Value>> {
    text.lines()
        .map(|line| serde_json::from_str(line).context("a sample is not JSON"))
        .collect()
}

/// One sample, as soon as it satisfies `condition`.
pub(super) fn stat_until(
    bench: &Bench,
    pids: &[u32],
    what: &str,
    condition: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let end = Instant::now() + SEEN_WITHIN;
    loop {
        let sample = stat(bench, pids, &["--once"])?.pop().context("no sample")?;
        if condition(&sample) {
            return Ok(sample);
        }
        ensure!(Instant::now() < end, "{what} was not seen: {sample}");
    }
}

pub(super) fn engine(sample: &Value, pid: u32) -> Option<&Value> {
    sample["engines"]
        .as_array()?
        .iter()
        .find(|engine| engine["pid"] == pid)
}

fn number(value: &Value, name: &str) -> Result<u64> {
    value[name]
        .as_u64()
        .with_context(|| format!("no number {name} in {value}"))
}

fn sent_bytes(sample: &Value, pid: u32) -> u64 {
    engine(sample, pid).map_or(0, |engine| {
        engine["counters"]["data_bytes_sent"].as_u64().unwrap_or(0)
    })
}

/// Every counter that paths have is the sum over the paths, with those that are gone.
fn adds_up(engine: &Value) -> Result<()> {
    for (kind, names) in [("paths", &SENDING[..]), ("receiving_paths", &RECEIVING)] {
        for name in names {
            let mut sum = number(&engine["ended"], name)?;
            for connection in engine["connections"].as_array().context("no connections")? {
                for path in connection[kind].as_array().context("no paths")? {
                    sum += number(path, name)?;
                }
            }
            let total = number(&engine["counters"], name)?;
            ensure!(
                sum == total,
                "{name}: the {kind} have {sum}, the engine {total}"
            );
        }
    }
    Ok(())
}

fn follows_a_transfer(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let transfer = Transfer::start(bench, &fabric, 5)?;
    let pids @ [server, client] = transfer.pids();
    stat_until(bench, &pids, "the transfer", |sample| {
        sent_bytes(sample, client) > 0
    })?;
    let samples = stat(bench, &pids, &["--count", "3", "--interval", "0.3"])?;
    ensure!(samples.len() == 3, "{} samples", samples.len());
    let mut before = 0;
    for (index, sample) in samples.iter().enumerate() {
        for pid in pids {
            let engine =
                engine(sample, pid).with_context(|| format!("no engine of {pid} in {sample}"))?;
            adds_up(engine)?;
            ensure!(
                engine["program"] == "ib_write_bw" && engine["device"] == "metaroce0",
                "{engine}"
            );
            let connection = &engine["connections"][0];
            ensure!(
                connection["state"] == "open" && connection["streams"] == 1,
                "{connection}"
            );
            ensure!(
                engine["per_second"].is_object() == (index > 0),
                "rates come with the second sample"
            );
        }
        let bytes = sent_bytes(sample, client);
        ensure!(
            bytes > before,
            "the counts do not rise: {before}, then {bytes}"
        );
        before = bytes;
    }
    let busy = &engine(&samples[2], client).context("no client")?["connections"][0]["paths"][0];
    ensure!(
        number(busy, "srtt_ns")? > 0 && number(busy, "source_port")? > 1023,
        "{busy}"
    );
    ensure!(busy["local"] == Host::B.ipv4().to_string(), "{busy}");

    transfer.client.wait()?.success()?;
    transfer.server.wait()?.success()?;
    let [server_end, client_end] = transfer.statistics.map(|file| -> Result<Value> {
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
        let _ = std::fs::remove_file(&file);
        serde_json::from_str(&text).context("the statistics are not JSON")
    });
    let (server_end, client_end) = (server_end?, client_end?);
    for end in [&server_end, &client_end] {
        adds_up(end)?;
    }
    let sent = number(&client_end["counters"], "data_bytes_sent")?;
    let received = number(&server_end["counters"], "data_bytes_received")?;
    ensure!(
        sent == received && sent >= before,
        "sent {sent}, received {received}, last seen {before}"
    );
    let gone = stat(bench, &[server, client], &["--once"])?;
    ensure!(
        gone[0]["engines"] == Value::Array(vec![]) && gone[0]["silent"] == Value::Array(vec![]),
        "{gone:?}"
    );
    Ok(())
}

fn waits_for_nobody(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let transfer = Transfer::start(bench, &fabric, 40)?;
    let pids @ [server, client] = transfer.pids();
    stat_until(bench, &pids, "the transfer", |sample| {
        sent_bytes(sample, client) > 0
    })?;

    transfer.server.signal(libc::SIGSTOP);
    let began = Instant::now();
    let sample = stat(bench, &pids, &["--once"])?.remove(0);
    ensure!(
        began.elapsed() < SAMPLE_WITHIN,
        "a stopped process held stat for {:?}",
        began.elapsed()
    );
    ensure!(
        engine(&sample, server).is_none() && engine(&sample, client).is_some(),
        "{sample}"
    );
    let why = sample["silent"][0]["why"].as_str().unwrap_or_default();
    ensure!(
        sample["silent"][0]["pid"] == server && why.contains("stopped"),
        "{}",
        sample["silent"]
    );

    transfer.server.signal(libc::SIGCONT);
    stat_until(bench, &pids, "the process that goes on", |sample| {
        engine(sample, server).is_some()
    })?;

    transfer.server.signal(libc::SIGKILL);
    let sample = stat_until(bench, &pids, "the end of a process", |sample| {
        engine(sample, server).is_none()
    })?;
    ensure!(
        sample["silent"] == Value::Array(vec![]),
        "a dead process is told: {}",
        sample["silent"]
    );
    for file in &transfer.statistics {
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

fn own_processes(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let folder = std::env::temp_dir().join(format!("metaroce-e2e-stat-{}", std::process::id()));
    let copy = bench.artefacts()?.readable_copy(&folder)?;
    let result = (|| {
        let transfer = Transfer::start(bench, &fabric, 40)?;
        let pids @ [_, client] = transfer.pids();
        stat_until(bench, &pids, "the transfer", |sample| {
            sent_bytes(sample, client) > 0
        })?;
        // A server of nobody's beside root's; this one makes its queue pair before it waits for a client.
        let port = next_port();
        let server = Program::new("ibv_rc_pingpong")
            .args(["-d", "metaroce0", "-g", "0", "-p"])
            .args([port.to_string()])
            .on(&fabric, Host::A)
            .under_metaroce(&copy)
            .as_nobody();
        let server = server
            .env("HOME", "/nonexistent")
            .limit(bench.time_left())
            .spawn()?;
        let mine = server.pid();
        let ask = Program::new(copy.launcher()).args(["stat", "--json", "--once"]);
        let ask = ask.on(&fabric, Host::A).as_nobody().limit(SAMPLE_WITHIN);
        let end = Instant::now() + SEEN_WITHIN;
        loop {
            let sample = samples(&ask.run()?.success()?.stdout)?.remove(0);
            let engines = sample["engines"].as_array().context("no engines")?;
            if engines.iter().any(|engine| engine["pid"] == mine) {
                ensure!(
                    engines.len() == 1 && sample["of_other_users"] == 1,
                    "nobody sees {sample}"
                );
                break;
            }
            if Instant::now() >= end {
                bail!("nobody does not see its own process: {sample}");
            }
        }
        stat_until(bench, &[mine], "nobody's process, by root", |sample| {
            engine(sample, mine).is_some()
        })?;
        for file in &transfer.statistics {
            let _ = std::fs::remove_file(file);
        }
        Ok(())
    })();
    let _ = std::fs::remove_dir_all(&folder);
    result
}

/// What both sides of every connection live through, in this order; who is the first to leave has other last words.
const LIFE: [&[&str]; 5] = [
    &["connection_begun"],
    &["connection_opened"],
    &["stream_opened"],
    &["stream_ended", "stream_peer_gone"],
    &["connection_closing", "connection_ended"],
];

fn event_log(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let port = next_port();
    let folder = std::env::temp_dir().join(format!("metaroce-e2e-events-{port}"));
    std::fs::create_dir_all(&folder)?;
    let result = (|| {
        let server = Program::new("ibv_rc_pingpong")
            .args(["-d", "metaroce0", "-g", "0", "-p"])
            .args([port.to_string()]);
        let client = server.clone().args([Host::A.ipv4().to_string()]);
        let server = server.env("METAROCE_EVENTS", folder.join("server-%p.jsonl"));
        let client = client
            .env("METAROCE_EVENTS", folder.join("client.txt"))
            .env("METAROCE_LOG", "debug");
        let outcome = bench.pair(&fabric, server, client, port)?.success()?;

        let mut files: Vec<_> = std::fs::read_dir(&folder)?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        files.sort();
        ensure!(files.len() == 2, "{files:?}");
        let [text, json] = [
            std::fs::read_to_string(&files[0])?,
            std::fs::read_to_string(&files[1])?,
        ];
        let records = samples(&json)?;
        let names: Vec<&str> = records
            .iter()
            .filter_map(|record| record["event"].as_str())
            .collect();
        ensure!(in_order(&names), "the server's log: {json}");
        let times: Vec<u64> = records
            .iter()
            .filter_map(|record| record["time_ns"].as_u64())
            .collect();
        ensure!(
            times.len() == records.len() && times.is_sorted(),
            "times: {json}"
        );
        let pid = &records[0]["pid"];
        ensure!(
            files[1].ends_with(format!("server-{pid}.jsonl")),
            "{} of {pid}",
            files[1].display()
        );
        // Second, process, device, event.
        let names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(3))
            .collect();
        ensure!(in_order(&names), "the client's log: {text}");
        // Everything is in METAROCE_LOG, too.
        let logged = outcome
            .client
            .stderr
            .lines()
            .filter(|line| line.contains("metaroce::events"))
            .count();
        ensure!(
            logged == names.len(),
            "{logged} of {} on stderr:\n{}",
            names.len(),
            outcome.client.stderr
        );
        Ok(())
    })();
    let _ = std::fs::remove_dir_all(&folder);
    result
}

/// Whether all of [`LIFE`] happened, one after the other.
fn in_order(names: &[&str]) -> bool {
    let mut rest = names.iter();
    LIFE.iter()
        .all(|wanted| rest.any(|name| wanted.contains(name)))
}

fn users_of_devices(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let port = next_port();
    let server = Program::new("ibv_rc_pingpong").args(["-d", "metaroce0", "-g", "0", "-p"]);
    let server = server.args([port.to_string()]);
    let mut server = bench.on_device(&fabric, Host::A, server)?.spawn()?;
    server.wait_listening(port, SEEN_WITHIN)?;
    let list = |host| -> Result<Value> {
        let program = Program::new(bench.artefacts()?.launcher()).args(["devices", "--json"]);
        let outcome = program
            .on(&fabric, host)
            .limit(SAMPLE_WITHIN)
            .run()?
            .success()?;
        serde_json::from_str(&outcome.stdout).context("the devices are not JSON")
    };
    let (here, there) = (list(Host::A)?, list(Host::B)?);
    let used_by = &here[0]["used_by"];
    ensure!(
        here[0]["name"] == "metaroce0" && here[0]["active"] == true,
        "{here}"
    );
    ensure!(
        here[0]["gids"][0] == format!("::ffff:{}", Host::A.ipv4()),
        "{here}"
    );
    ensure!(
        used_by.as_array().is_some_and(|users| users.len() == 1),
        "{used_by}"
    );
    ensure!(
        used_by[0]["pid"] == server.pid() && used_by[0]["program"] == "ibv_rc_pingpong",
        "{used_by}"
    );
    ensure!(
        there[0]["used_by"] == Value::Array(vec![]),
        "the other host sees {there}"
    );
    Ok(())
}
