//! `ibv_rc_pingpong -c` of the distribution: sizes from 1 byte to 16 MiB, polling and by events.
//!
//! With `-c` the server looks at one byte per page and says "invalid data" if it is wrong, but ends with
//! status 0 all the same: so its output is read.

use std::time::Duration;

use anyhow::{Result, ensure};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Host, Program};

use super::{Bench, Case, ON_DEVICE, next_port};

/// Message size in bytes and iterations.
const SIZES: &[(u32, u32)] = &[(1, 1000), (4 << 10, 1000), (1 << 20, 200), (16 << 20, 50)];

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &(size_bytes, iterations) in SIZES {
        for events in [false, true] {
            let name = format!(
                "pingpong::{size_bytes} B{}",
                if events { " -e" } else { "" }
            );
            let case = Case::new(name, ON_DEVICE, move |bench| {
                run(bench, size_bytes, iterations, events)
            })
            .needing(Need::Program("ibv_rc_pingpong"));
            let large = size_bytes > 1 << 20;
            cases.push(if large {
                case.slow(Duration::from_secs(90))
            } else {
                case
            });
        }
    }
    cases
}

/// What users complain about: "writes over one MTU failed", "read/send tests hang silently".
fn run(bench: &Bench, size_bytes: u32, iterations: u32, events: bool) -> Result<()> {
    let fabric = bench.direct()?;
    let port = next_port();
    let server = Program::new("ibv_rc_pingpong")
        .args(["-d", "metaroce0", "-g", "0", "-c"])
        .args(["-p".to_owned(), port.to_string()])
        .args([
            "-s".to_owned(),
            size_bytes.to_string(),
            "-n".to_owned(),
            iterations.to_string(),
        ])
        .args(events.then_some("-e"));
    let client = server.clone().args([Host::A.ipv4().to_string()]);
    let outcome = bench.pair(&fabric, server, client, port)?.success()?;
    for side in [&outcome.server, &outcome.client] {
        let text = format!("{}{}", side.stdout, side.stderr);
        ensure!(
            !text.contains("invalid data"),
            "wrong bytes arrived:\n{}",
            side.describe()
        );
        ensure!(text.contains("iters in"), "no result:\n{}", side.describe());
    }
    Ok(())
}
