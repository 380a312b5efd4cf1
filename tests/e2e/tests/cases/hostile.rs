//! Hostile packets at the port while the byte checker runs: random, mutated, truncated, replayed and forged ones. They must
//! be counted and dropped, and no byte may be wrong.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::NIC;
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Host, Program, c_program};

use super::{Bench, Case, ON_DEVICE, in_full, next_port};

/// Packets sent at the endpoint, and seconds that the transfer runs; the packets take about as long.
const USUAL: (u32, u32) = (300_000, 10);
const IN_FULL: (u32, u32) = (1_000_000, 30);

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let needs = [ON_DEVICE, &[Need::VerbsHeaders]].concat();
    vec![
        Case::new(
            "hostile::packets during a transfer",
            &needs,
            during_a_transfer,
        )
        .slow(Duration::from_secs(150)),
    ]
}

fn during_a_transfer(bench: &Bench) -> Result<()> {
    let (packets, seconds) = if in_full() { IN_FULL } else { USUAL };
    let fabric = bench.direct()?;
    let port = next_port();
    let statistics = std::env::temp_dir().join(format!("hostile-{port}.json"));
    let server = Program::new(c_program::compile("byte_check")?).args([
        "-p".to_owned(),
        port.to_string(),
        "-q".to_owned(),
        "4".to_owned(),
        "-t".to_owned(),
        seconds.to_string(),
    ]);
    let client = server
        .clone()
        .args(["-s".to_owned(), Host::A.ipv4().to_string()]);
    let server = bench.on_device(&fabric, Host::A, server.env("METAROCE_STATS", &statistics))?;
    let client = bench.on_device(&fabric, Host::B, client)?;
    let mut server = server.spawn()?;
    server.wait_listening(port, Duration::from_secs(15))?;
    let client = client.spawn()?;
    let attack = Program::new(env!("CARGO_BIN_EXE_hostile"))
        .on(&fabric, Host::B)
        .args([
            NIC.to_owned(),
            Host::B.ipv4().to_string(),
            Host::A.ipv4().to_string(),
        ])
        .args([packets.to_string(), "1".to_owned()])
        .limit(bench.time_left())
        .run()?
        .success()?;
    let (client, server) = (client.wait()?.success()?, server.wait()?.success()?);
    for side in [&client, &server] {
        ensure!(
            side.stdout.trim_end().ends_with("OK"),
            "no OK:\n{}",
            side.describe()
        );
    }
    let text = std::fs::read_to_string(&statistics)
        .with_context(|| format!("no statistics in {}", statistics.display()))?;
    let _ = std::fs::remove_file(&statistics);
    let dropped = dropped(&text)?;
    println!("{}dropped and counted {dropped}", attack.stdout);
    ensure!(
        dropped > u64::from(packets) / 10,
        "{packets} hostile packets were sent, only {dropped} drops counted: {text}"
    );
    Ok(())
}

/// The sum of all counters of drops.
fn dropped(statistics: &str) -> Result<u64> {
    let value: serde_json::Value =
        serde_json::from_str(statistics).context("the statistics are not JSON")?;
    let object = value["counters"]
        .as_object()
        .context("the statistics have no counters")?;
    Ok(object
        .iter()
        .filter(|(name, _)| name.starts_with("dropped"))
        .filter_map(|(_, value)| value.as_u64())
        .sum())
}
