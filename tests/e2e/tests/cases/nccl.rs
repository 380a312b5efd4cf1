//! NCCL's real IB transport, from its PyPI wheel, with host memory and every byte compared: one process, two processes,
//! two hosts, several communicators.

use std::time::Duration;

use anyhow::{Result, ensure};
use metaroce_e2e::fabric::NIC;
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Host, Pair, Program, c_program, nccl};

use super::{Bench, Case, ON_DEVICE, next_port};

/// The version that is driven.
const VERSION: &str = "2.21.5";

/// Bytes of the largest transfer.
const MAX_BYTES: u32 = 4 << 20;

/// Includes a download of some 190 MB, once.
const LIMIT: Duration = Duration::from_secs(240);

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let needs = [ON_DEVICE, &[Need::VerbsHeaders, Need::Program("python3")]].concat();
    let two_hosts = |comms: u32| {
        Case::new(
            format!("nccl::two hosts, {comms} comms"),
            &needs,
            move |bench| two_hosts(bench, comms),
        )
        .slow(LIMIT)
    };
    vec![
        Case::new("nccl::one process", &needs, one_process).slow(LIMIT),
        Case::new("nccl::two processes of a host", &needs, two_processes).slow(LIMIT),
        two_hosts(1),
        two_hosts(4),
    ]
}

fn driver(mode: &str, port: u16, comms: u32) -> Result<Program> {
    let driver = c_program::compile_with("nccl_net", &["-ldl"])?;
    let library = nccl::library(VERSION)?;
    Ok(Program::new(driver)
        .args([library.as_os_str()])
        .args([mode, &Host::A.ipv4().to_string(), &port.to_string()])
        .args([comms.to_string(), MAX_BYTES.to_string()])
        .env("NCCL_SOCKET_IFNAME", NIC)
        .env("NCCL_DEBUG", "WARN"))
}

fn one_process(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let program = driver("loop", next_port(), 2)?;
    let outcome = bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    ensure!(
        outcome.stdout.trim_end().ends_with("OK"),
        "no OK:\n{}",
        outcome.describe()
    );
    Ok(())
}

/// What users complain about: "loopback and same-host fail or hang".
fn two_processes(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let port = next_port();
    let server = bench.on_device(&fabric, Host::A, driver("server", port, 2)?)?;
    let client = bench.on_device(&fabric, Host::A, driver("client", port, 2)?)?;
    both_ok(Pair::new(server, client, port).run()?)
}

fn two_hosts(bench: &Bench, comms: u32) -> Result<()> {
    let fabric = bench.planes(4)?;
    let port = next_port();
    let server = driver("server", port, comms)?;
    let client = driver("client", port, comms)?;
    both_ok(bench.pair(&fabric, server, client, port)?)
}

fn both_ok(outcome: metaroce_e2e::PairOutcome) -> Result<()> {
    let outcome = outcome.success()?;
    for side in [&outcome.server, &outcome.client] {
        ensure!(
            side.stdout.trim_end().ends_with("OK"),
            "no OK:\n{}",
            side.describe()
        );
    }
    Ok(())
}
