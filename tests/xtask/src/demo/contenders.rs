//! The programs that the demo measures, and how each is started and read.
//!
//! Servers run on host a, clients on host b; the data goes from b to a.

use std::fs;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use metaroce_e2e::{Artefacts, Fabric, Host, Pair, PairOutcome, Program, Statistics};
use serde_json::Value;

/// Set-up and tear-down that a run may take beyond its duration.
const MARGIN: Duration = Duration::from_secs(30);

/// A message or a write, in bytes.
const MESSAGE_BYTES: u32 = 1 << 20;

/// Who competes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// perftest's RDMA writes on one queue pair over metaroce.
    RdmaWrite,
    /// Our own TCP stream of equally large writes.
    TcpStream,
    /// iperf3 with its defaults.
    Iperf3,
}

/// In the order of their runs.
pub const CONTENDERS: [Contender; 3] = [
    Contender::RdmaWrite,
    Contender::TcpStream,
    Contender::Iperf3,
];

/// What a run showed.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Useful data at the receiver.
    pub gigabits_per_second: f64,
    /// Packets on each plane, in the direction of the data.
    pub packets_per_plane: Vec<u64>,
    /// Packets sent more than once, if the program tells.
    pub retransmissions: Option<u64>,
}

impl Contender {
    /// Name in the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::RdmaWrite => "ib_write_bw, 1 QP",
            Self::TcpStream => "TCP, 1 MiB writes",
            Self::Iperf3 => "iperf3",
        }
    }

    /// Runs it for `duration`.
    ///
    /// # Errors
    /// A program failed or printed no result.
    pub fn run(
        self,
        fabric: &Fabric,
        artefacts: &Artefacts,
        duration: Duration,
    ) -> Result<Measured> {
        let counters = fabric.counters()?;
        let (gigabits_per_second, retransmissions) = match self {
            Self::RdmaWrite => rdma_write(fabric, artefacts, duration)?,
            Self::TcpStream => tcp(fabric, duration, tcp_stream)?,
            Self::Iperf3 => tcp(fabric, duration, iperf3)?,
        };
        let run = fabric.counters()?.since(&counters);
        let packets_per_plane = run
            .planes
            .iter()
            .map(|plane| plane.b_to_a().packets)
            .collect();
        Ok(Measured {
            gigabits_per_second,
            packets_per_plane,
            retransmissions,
        })
    }
}

/// A port that no earlier run used.
fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(18_500);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn run_pair(
    fabric: &Fabric,
    server: Program,
    client: Program,
    port: u16,
    duration: Duration,
) -> Result<PairOutcome> {
    let limit = duration + MARGIN;
    let server = server.on(fabric, Host::A).limit(limit);
    let client = client.on(fabric, Host::B).limit(limit);
    Pair::new(server, client, port).run()?.success()
}

/// Gb/s and retransmissions of ib_write_bw.
fn rdma_write(
    fabric: &Fabric,
    artefacts: &Artefacts,
    duration: Duration,
) -> Result<(f64, Option<u64>)> {
    let port = next_port();
    let statistics = Statistics::new()?;
    let server = Program::new("ib_write_bw")
        .args(["-F", "-d", "metaroce0", "--report_gbits", "-q", "1"])
        .args(["-s".to_owned(), MESSAGE_BYTES.to_string()])
        .args([
            "-D".to_owned(),
            duration.as_secs().to_string(),
            "-p".to_owned(),
            port.to_string(),
        ])
        .under_metaroce(artefacts);
    let client = statistics.counted(server.clone().args([Host::A.ipv4().to_string()]));
    let outcome = run_pair(fabric, server, client, port, duration)?;
    let rate = perftest_gigabits(&outcome.client.stdout)
        .with_context(|| format!("no result: {}", outcome.client.describe()))?;
    Ok((rate, statistics.sum("retransmissions")))
}

/// The average of the last line of results: size, iterations, peak, average, message rate.
fn perftest_gigabits(output: &str) -> Option<f64> {
    output.lines().rev().find_map(|line| {
        let numbers: Option<Vec<f64>> = line
            .split_whitespace()
            .map(|field| field.parse().ok())
            .collect();
        let numbers = numbers?;
        (numbers.len() >= 4).then(|| numbers[3])
    })
}

/// Gb/s of a TCP program and the retransmissions of the sender's host meanwhile.
fn tcp(
    fabric: &Fabric,
    duration: Duration,
    program: impl Fn(&Fabric, Duration) -> Result<f64>,
) -> Result<(f64, Option<u64>)> {
    let before = tcp_retransmissions(fabric, Host::B)?;
    let rate = program(fabric, duration)?;
    let after = tcp_retransmissions(fabric, Host::B)?;
    Ok((
        rate,
        before
            .zip(after)
            .map(|(before, after)| after.saturating_sub(before)),
    ))
}

fn tcp_stream(fabric: &Fabric, duration: Duration) -> Result<f64> {
    let port = next_port();
    let this = std::env::current_exe().context("cannot tell where this program lies")?;
    let server = Program::new(&this).args(["tcp-stream", "server", "--port", &port.to_string()]);
    let seconds = duration.as_secs().to_string();
    let address = format!("{}:{port}", Host::A.ipv4());
    let client =
        Program::new(&this).args(["tcp-stream", "client", &address, "--seconds", &seconds]);
    let outcome = run_pair(fabric, server, client, port, duration)?;
    outcome
        .server
        .stdout
        .trim()
        .parse()
        .map_err(|_| anyhow!("no result: {}", outcome.server.describe()))
}

fn iperf3(fabric: &Fabric, duration: Duration) -> Result<f64> {
    let port = next_port().to_string();
    let server = Program::new("iperf3").args(["-s", "-1", "-p", &port]);
    let seconds = duration.as_secs().to_string();
    let address = Host::A.ipv4().to_string();
    let client = Program::new("iperf3").args(["-J", "-c", &address, "-p", &port, "-t", &seconds]);
    let outcome = run_pair(fabric, server, client, port.parse()?, duration)?;
    let report: Value =
        serde_json::from_str(&outcome.client.stdout).context("iperf3 printed no JSON")?;
    let rate = report
        .pointer("/end/sum_received/bits_per_second")
        .and_then(Value::as_f64);
    Ok(rate.context("iperf3 printed no rate")? / 1e9)
}

/// The kernel's count of TCP segments that a host sent more than once.
fn tcp_retransmissions(fabric: &Fabric, host: Host) -> Result<Option<u64>> {
    // thread-self: the namespace is entered by a thread, not by this process.
    let text = fabric.inside(host, || fs::read_to_string("/proc/thread-self/net/snmp"))??;
    Ok(snmp_value(&text, "Tcp:", "RetransSegs"))
}

/// A value of /proc/net/snmp, where a line of names is followed by a line of values.
fn snmp_value(text: &str, table: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let column = lines
        .next()?
        .split_whitespace()
        .position(|field| field == name)?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_perftest_is_found() {
        let output = " local address: LID 0000\n #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n \
                      1048576    11921            0.00               12.50              0.001490\n-----\n";
        assert_eq!(perftest_gigabits(output), Some(12.5));
        assert_eq!(perftest_gigabits("Couldn't connect"), None);
    }

    #[test]
    fn the_kernels_counters_are_read_by_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: OutSegs RetransSegs\nTcp: 100 7\n";
        assert_eq!(snmp_value(text, "Tcp:", "RetransSegs"), Some(7));
        assert_eq!(snmp_value(text, "Tcp:", "NoSuch"), None);
    }
}
