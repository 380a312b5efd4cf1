//! `cargo xtask fabric`: the virtual network by hand.
//!
//! Everything is in `metaroce_e2e::fabric`; here are only arguments and printing.

mod impair;
mod status;

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use metaroce_e2e::fabric::{self, DEFAULT_MTU_BYTES, DEFAULT_NAME, MAX_HOSTS, MAX_PLANES, Shape};
use metaroce_e2e::{Fabric, Host, Topology};

use crate::output;

/// What `fabric` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make hosts, joined by one link, by several planes or by switches.
    Up {
        #[command(flatten)]
        wanted: Wanted,
        /// MTU of every link, in bytes.
        #[arg(long, default_value_t = DEFAULT_MTU_BYTES, value_name = "BYTES")]
        mtu: u32,
        #[command(flatten)]
        name: Name,
    },
    /// Run a command on a host; ends as it does, or with 127 (not found) or 126 (not executable), as shells do.
    Exec {
        /// The host: a, b, c …
        host: Host,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
        #[command(flatten)]
        name: Name,
    },
    /// Lose, mark, reorder or slow down packets, or swallow them all; several together if wanted.
    Impair(impair::Arguments),
    /// Cut the links of a plane, or mend them.
    Plane {
        /// Number of the plane, from 1 (with --nics, 1 is eth0).
        plane: u8,
        /// What its links become.
        #[arg(value_enum)]
        link: Link,
        #[command(flatten)]
        name: Name,
    },
    /// Show packets and bytes of every plane, and what was dropped.
    Counters(Name),
    /// Remove the fabric.
    Down(Name),
    /// Show the fabrics that are up: what is counted and what is in force on every plane.
    Status(status::Arguments),
}

/// The name of a fabric.
#[derive(Debug, Args)]
pub struct Name {
    /// Name of the fabric, which prefixes its network namespaces.
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

/// The shape of a fabric. The three topologies exclude each other.
#[derive(Debug, Args)]
pub struct Wanted {
    /// One link between two hosts.
    #[arg(long, conflicts_with_all = ["planes", "nics"])]
    direct: bool,
    /// A leaf at each host and N planes between the leaves, chosen by ECMP over UDP and TCP ports.
    #[arg(long, value_name = "N", conflicts_with = "nics", value_parser = up_to_planes())]
    planes: Option<u8>,
    /// N NICs in each host, each with a network and a switch of its own; no ECMP.
    #[arg(long, value_name = "N", value_parser = up_to_planes())]
    nics: Option<u8>,
    /// Number of hosts, 2 to 16: a, b, c … Without a topology they are put around one switch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=i64::from(MAX_HOSTS)))]
    hosts: Option<u8>,
}

fn up_to_planes() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=i64::from(MAX_PLANES))
}

impl Wanted {
    fn shape(&self) -> Result<Shape> {
        let topology = match (self.planes, self.nics) {
            (Some(planes), _) => Topology::Planes(planes),
            (None, Some(nics)) => Topology::Nics(nics),
            (None, None) if self.direct => Topology::Direct,
            (None, None) if self.hosts.is_some() => Topology::Nics(1),
            (None, None) => bail!(
                "say what the fabric shall look like: --direct, --planes N, --nics N or --hosts N"
            ),
        };
        Ok(topology.with_hosts(self.hosts.unwrap_or(2)))
    }
}

/// State of the links of a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Link {
    /// Cut.
    Down,
    /// Mended.
    Up,
}

/// Runs one command.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Up { wanted, mtu, name } => up(wanted.shape()?, mtu, &name.name)?,
        Command::Plane { plane, link, name } => plane_link(plane, link, &name.name)?,
        Command::Exec {
            host,
            command,
            name,
        } => exec(host, &command, &name.name)?,
        Command::Impair(arguments) => impair::run(&arguments)?,
        Command::Counters(name) => counters(&name.name)?,
        Command::Down(name) => {
            let was_up = fabric::down_if_up(&name.name)?;
            output::line(format_args!(
                "fabric `{}` {}",
                name.name,
                if was_up { "is removed" } else { "was not up" }
            ));
        }
        Command::Status(arguments) => status::run(&arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn up(shape: Shape, mtu_bytes: u32, name: &str) -> Result<()> {
    let fabric = Fabric::up(name, shape, mtu_bytes)?;
    output::line(format_args!(
        "fabric `{name}` is up: {shape}, MTU {mtu_bytes}"
    ));
    for host in fabric.hosts() {
        let addresses: Vec<String> = (0..shape.nics())
            .map(|nic| match fabric.state().ipv6 {
                true => format!("{}, {}", host.ipv4_on(nic), host.ipv6_on(nic)),
                false => host.ipv4_on(nic).to_string(),
            })
            .collect();
        output::line(format_args!(
            "  host {host}: {}   (network namespace {})",
            addresses.join("; "),
            fabric.namespace(host)
        ));
    }
    let option = if name == DEFAULT_NAME {
        String::new()
    } else {
        format!(" --name {name}")
    };
    output::line(format_args!(
        "try: cargo xtask fabric exec{option} a -- ip addr"
    ));
    Ok(())
}

/// Becomes the command, so that signals and the exit status are the command's own.
fn exec(host: Host, command: &[String], name: &str) -> Result<()> {
    let error = Fabric::open(name)?.shell_command(host, command)?.exec();
    Err(error).context("cannot start `ip netns exec`")
}

fn plane_link(plane: u8, link: Link, name: &str) -> Result<()> {
    let fabric = Fabric::open(name)?;
    match link {
        Link::Down => fabric.plane_down(plane)?,
        Link::Up => fabric.plane_up(plane)?,
    }
    let up = fabric.planes_up()?;
    let list: Vec<String> = up.iter().map(u8::to_string).collect();
    match list.is_empty() {
        true => output::line(format_args!("no plane is up")),
        false => output::line(format_args!("up: plane {}", list.join(", "))),
    }
    Ok(())
}

fn counters(name: &str) -> Result<()> {
    let fabric = Fabric::open(name)?;
    let text = format!("{}{}", fabric.counters()?, status::in_force(&fabric)?);
    output::write(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }

    #[test]
    fn a_fabric_has_one_shape() {
        for bad in [
            &["x", "up", "--direct", "--planes", "4"][..],
            &["x", "up", "--nics", "4", "--planes", "4"],
            &["x", "up", "--planes", "9"],
            &["x", "up", "--hosts", "17"],
            &["x", "plane", "2", "sideways"],
            &["x", "impair", "--loss", "1"],
        ] {
            assert!(Line::try_parse_from(bad).is_err(), "{bad:?}");
        }
        for good in [
            &["x", "up", "--planes", "4", "--mtu", "1500"][..],
            &["x", "up", "--hosts", "16", "--nics", "8"],
            &["x", "plane", "2", "down"],
            &["x", "status", "--json"],
            &["x", "impair", "--loss", "0.1%", "--host", "b"],
            &["x", "exec", "a", "--", "ip", "-s", "link"],
        ] {
            assert!(Line::try_parse_from(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn the_help_says_from_where_planes_count() {
        for line in [&["x", "plane", "--help"][..], &["x", "impair", "--help"]] {
            let help = Line::try_parse_from(line).unwrap_err().to_string();
            assert!(help.contains("from 1 (with --nics, 1 is eth0"), "{help}");
        }
    }
}
