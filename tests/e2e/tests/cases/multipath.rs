//! One queue pair over several planes, without and with loss: what a single flow cannot do.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use metaroce_e2e::fabric::LossRates;
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Program};

use super::{Bench, Case, ON_DEVICE, next_port};

const PLANES: u8 = 4;

/// Of each plane, in the direction of the data. Source ports fall on planes by the kernel's hash, so the share of a
/// plane is a matter of chance; that it has any is not.
const LEAST_SHARE: f64 = 0.02;

/// Transfers, each with ports of its own, of which one has to give each plane its share: a plane with one port of 32 may
/// well get less by chance, but a provider that keeps to fewer paths gets there in none.
const TRANSFERS: usize = 4;

/// Enough that hardly ever a plane is hashed to by no port: 4 × 0.75³² is one run in 2,500; 16 paths, one in 25.
const PATHS: &str = "32";

/// A gigabyte in messages of a mebibyte.
const MESSAGES: u32 = 1000;

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&Bench) -> Result<()>| {
        Case::new(name, ON_DEVICE, run).needing(Need::Program("ib_write_bw"))
    };
    vec![
        case("multipath::one queue pair uses all planes", all_planes),
        case("multipath::writes at 1 % loss", with_loss)
            .needing(Need::Loss)
            .slow(Duration::from_secs(120)),
    ]
}

fn write_bandwidth(bench: &Bench, fabric: &Fabric) -> Result<()> {
    let port = next_port();
    let server = Program::new("ib_write_bw")
        .args(["-F", "-d", "metaroce0", "-q", "1", "-s", "1048576"])
        .args([
            "-n".to_owned(),
            MESSAGES.to_string(),
            "-p".to_owned(),
            port.to_string(),
        ])
        .env("METAROCE_PATHS", PATHS);
    let client = server.clone().args([Host::A.ipv4().to_string()]);
    bench
        .pair(fabric, server, client, port)?
        .success()
        .map(drop)
}

/// Packets from the client (b) to the server (a), by plane.
fn spread(bench: &Bench, fabric: &Fabric) -> Result<Vec<u64>> {
    let before = fabric.counters()?;
    write_bandwidth(bench, fabric)?;
    let run = fabric.counters()?.since(&before);
    Ok(run
        .planes
        .iter()
        .map(|plane| plane.b_to_a().packets)
        .collect())
}

/// What users complain about: "more QPs needed to get bandwidth".
fn all_planes(bench: &Bench) -> Result<()> {
    let fabric = bench.planes(PLANES)?;
    let mut seen = Vec::new();
    for _ in 0..TRANSFERS {
        let packets = spread(bench, &fabric)?;
        let least = LEAST_SHARE * packets.iter().sum::<u64>() as f64;
        if packets.iter().all(|&count| count as f64 >= least) {
            return Ok(());
        }
        seen.push(packets);
    }
    bail!("a plane was left out in each transfer: {seen:?}");
}

fn with_loss(bench: &Bench) -> Result<()> {
    let fabric = bench.planes(PLANES)?;
    fabric.set_loss(&Host::BOTH, LossRates::udp(10_000))?;
    write_bandwidth(bench, &fabric)?;
    let counts = fabric
        .loss_counts(Host::A)?
        .context("the loss program is gone")?;
    ensure!(
        counts.udp_dropped > 100,
        "hardly a packet was lost: {counts:?}"
    );
    Ok(())
}
