//! perftest as it comes from the distribution: every program has to end with status 0 on both sides.
//!
//! It checks no payload; the byte checker does.

use std::time::Duration;

use anyhow::{Result, ensure};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Host, Program};

use super::{Bench, Case, ON_DEVICE, next_port};

/// Program, its options, slow or not.
const RUNS: &[(&str, &[&str], bool)] = &[
    ("ib_write_bw", &[], false),
    ("ib_write_lat", &[], false),
    ("ib_read_bw", &[], false),
    ("ib_read_lat", &[], false),
    ("ib_send_bw", &[], false),
    ("ib_send_lat", &[], false),
    // All sizes up to 8 MiB; the default of 5000 iterations would move 84 GB.
    ("ib_write_bw", &["-a", "-n", "200"], true),
    ("ib_write_lat", &["-a", "-n", "200"], true),
    ("ib_read_bw", &["-a", "-n", "200"], true),
    ("ib_read_lat", &["-a", "-n", "200"], true),
    ("ib_send_bw", &["-a", "-n", "200"], true),
    ("ib_send_lat", &["-a", "-n", "200"], true),
    ("ib_write_bw", &["-q", "8"], true),
    ("ib_read_bw", &["-q", "8"], true),
    ("ib_send_bw", &["-q", "8"], true),
    ("ib_send_bw", &["-e"], false),
    ("ib_atomic_bw", &["-A", "FETCH_AND_ADD"], false),
    ("ib_atomic_bw", &["-A", "CMP_AND_SWAP"], false),
    ("ib_atomic_lat", &["-A", "FETCH_AND_ADD"], false),
    ("ib_atomic_lat", &["-A", "CMP_AND_SWAP"], false),
];

/// Most runs take seconds; with all sizes up to a minute on two cores.
const SLOW_LIMIT: Duration = Duration::from_secs(120);

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    RUNS.iter()
        .map(|&(program, options, slow)| {
            let name = format!(
                "perftest::{program}{}",
                options
                    .iter()
                    .map(|option| format!(" {option}"))
                    .collect::<String>()
            );
            let case = Case::new(name, ON_DEVICE, move |bench| run(bench, program, options))
                .needing(Need::Program(program));
            if slow { case.slow(SLOW_LIMIT) } else { case }
        })
        .collect()
}

fn run(bench: &Bench, program: &str, options: &[&str]) -> Result<()> {
    let fabric = bench.direct()?;
    let port = next_port();
    let common = [
        "-F".to_owned(),
        "-d".to_owned(),
        "metaroce0".to_owned(),
        "-p".to_owned(),
        port.to_string(),
    ];
    let server = Program::new(program).args(&common).args(options);
    let client = server.clone().args([Host::A.ipv4().to_string()]);
    let outcome = bench.pair(&fabric, server, client, port)?.success()?;
    ensure!(
        outcome.client.stdout.lines().any(is_result),
        "{program} ended well but printed no result:\n{}",
        outcome.client.describe()
    );
    Ok(())
}

/// A line of results has the message size first and only numbers behind it.
fn is_result(line: &str) -> bool {
    let mut fields = line.split_whitespace().peekable();
    fields.peek().is_some() && fields.all(|field| field.parse::<f64>().is_ok())
}
