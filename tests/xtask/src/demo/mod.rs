//! `cargo xtask demo`: what metaroce does, in a few minutes on one machine.
//!
//! Two hosts with four planes between them; unmodified `ib_write_bw` with one queue pair over the
//! distribution's libibverbs, a TCP stream of equally large writes, and iperf3. Each runs over a whole path,
//! then in the mode in which every packet travels alone, without and with 1 % loss: loss is judged against
//! the former of these two. All is removed at the end, also after Ctrl-C or a failure.

mod contenders;
mod table;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use metaroce_e2e::fabric::{DEFAULT_MTU_BYTES, LossRates};
use metaroce_e2e::{Artefacts, Fabric, Host, Topology, artefacts, interrupt, packages, tool};

use crate::{build, output};
use contenders::{CONTENDERS, Contender, Measured};

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Planes between the hosts.
    #[arg(long, default_value_t = 4)]
    planes: u8,
    /// Packet loss of the last mode.
    #[arg(long, default_value = "1%", value_parser = metaroce_e2e::fabric::parts_per_million)]
    loss: u64,
    /// MTU of every link, in bytes.
    #[arg(long, default_value_t = DEFAULT_MTU_BYTES, value_name = "BYTES")]
    mtu: u32,
    /// Duration of each run, in seconds.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=60))]
    seconds: u32,
}

/// The state of the path during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// As it is: trains of packets travel as one.
    Trains,
    /// Every packet alone, this many of a million lost.
    PerPacket { loss_ppm: u64 },
}

impl Mode {
    fn title(self) -> String {
        match self {
            Self::Trains => "no loss, trains".to_owned(),
            Self::PerPacket { loss_ppm: 0 } => "no loss, single packets".to_owned(),
            Self::PerPacket { loss_ppm } => {
                format!("{} % loss, single packets", loss_ppm as f64 / 10_000.0)
            }
        }
    }

    fn apply(self, fabric: &Fabric) -> Result<()> {
        match self {
            Self::Trains => fabric.clear_loss(&Host::BOTH),
            Self::PerPacket { loss_ppm } => fabric.set_loss(&Host::BOTH, LossRates::all(loss_ppm)),
        }
    }
}

/// One contender in one mode.
struct Row {
    contender: Contender,
    mode: Mode,
    result: Result<Measured>,
}

/// Runs the demo.
///
/// # Errors
/// It cannot be set up, or a run failed; the table of what went well is printed before.
pub fn run(arguments: &Arguments) -> Result<()> {
    let started = Instant::now();
    if !tool::is_root() {
        bail!("the demo needs root (network namespaces): run `cargo xtask demo` as root");
    }
    output::line(format_args!(
        "This installs Debian packages where they are missing, builds metaroce, makes two hosts"
    ));
    output::line(format_args!(
        "in network namespaces, measures, and removes the hosts again."
    ));
    packages::install_missing(packages::DEMO)?;
    interrupt::check()?;
    let artefacts = product()?;
    let topology = Topology::Planes(arguments.planes);
    let fabric = Fabric::temporary(topology, arguments.mtu)?;
    output::line(format_args!(
        "Two hosts are up: {topology}, MTU {} bytes.",
        arguments.mtu
    ));

    let rows = measure(arguments, &fabric, &artefacts)?;
    fabric.down()?;

    output::line(format_args!("\n{}", table::render(&rows)));
    output::line(format_args!(
        "The whole demo took {:.0} s. Both hosts are removed.",
        started.elapsed().as_secs_f64()
    ));
    let failures: Vec<String> = rows.iter().filter_map(failure).collect();
    if failures.is_empty() {
        Ok(())
    } else {
        bail!("{}", failures.join("\n"))
    }
}

/// A fresh build, or the one that the environment names.
fn product() -> Result<Artefacts> {
    if std::env::var_os(artefacts::FOLDER_VARIABLE).is_some() {
        return Artefacts::find();
    }
    output::line(format_args!("Building metaroce …"));
    build::build_product()
}

fn measure(arguments: &Arguments, fabric: &Fabric, artefacts: &Artefacts) -> Result<Vec<Row>> {
    let duration = Duration::from_secs(arguments.seconds.into());
    let modes = [
        Mode::Trains,
        Mode::PerPacket { loss_ppm: 0 },
        Mode::PerPacket {
            loss_ppm: arguments.loss,
        },
    ];
    let mut rows = Vec::new();
    for mode in modes {
        mode.apply(fabric)?;
        for contender in CONTENDERS {
            output::line(format_args!(
                "Running {} ({}) for {} s …",
                contender.title(),
                mode.title(),
                arguments.seconds
            ));
            let result = contender.run(fabric, artefacts, duration);
            interrupt::check()?;
            rows.push(Row {
                contender,
                mode,
                result,
            });
        }
    }
    Ok(rows)
}

fn failure(row: &Row) -> Option<String> {
    let error = row.result.as_ref().err()?;
    Some(format!(
        "{} ({}): {error:#}",
        row.contender.title(),
        row.mode.title()
    ))
}
