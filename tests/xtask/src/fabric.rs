//! `cargo xtask fabric`: the virtual network by hand.
//!
//! Everything is in `metaroce_e2e::fabric`; here are only arguments and printing.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use metaroce_e2e::fabric::{
    self, DEFAULT_MTU_BYTES, DEFAULT_NAME, LossRates, State, parts_per_million,
};
use metaroce_e2e::{Fabric, Host, Topology};

/// What `fabric` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make two hosts, joined by one link or by several planes.
    Up {
        #[command(flatten)]
        topology: Shape,
        /// MTU of every link, in bytes.
        #[arg(long, default_value_t = DEFAULT_MTU_BYTES, value_name = "BYTES")]
        mtu: u32,
        #[command(flatten)]
        name: Name,
    },
    /// Run a command on host a or b.
    Exec {
        /// The host: a or b.
        host: Host,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
        #[command(flatten)]
        name: Name,
    },
    /// Drop single packets that arrive at the hosts, with a probability.
    Impair(Impair),
    /// Show packets and bytes of every plane, and what was dropped.
    Counters(Name),
    /// Remove the fabric.
    Down(Name),
    /// List the fabrics that are up.
    Status,
}

/// The name of a fabric.
#[derive(Debug, Args)]
pub struct Name {
    /// Name of the fabric, which prefixes its network namespaces.
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

/// The shape of a fabric: one of the two.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Shape {
    /// One link between the hosts.
    #[arg(long)]
    direct: bool,
    /// A leaf at each host and N links between the leaves, chosen by ECMP over UDP and TCP ports.
    #[arg(long, value_name = "N")]
    planes: Option<u8>,
}

/// Arguments of `impair`.
#[derive(Debug, Args)]
pub struct Impair {
    /// Probability that a packet is lost: 1%, 0.1%, 250ppm; 0 ends the impairment.
    #[arg(long, value_parser = parts_per_million)]
    loss: u64,
    /// Only at this host (default: both directions).
    #[arg(long)]
    host: Option<Host>,
    /// Which packets.
    #[arg(long, value_enum, default_value_t = Protocol::All)]
    protocol: Protocol,
    /// With a loss of 0: stay in the mode in which packets travel one by one, to compare with.
    #[arg(long)]
    per_packet: bool,
    #[command(flatten)]
    name: Name,
}

/// Packets that can be lost.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Protocol {
    /// UDP and TCP.
    All,
    /// UDP only.
    Udp,
    /// TCP only.
    Tcp,
}

/// Runs one command.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Up {
            topology,
            mtu,
            name,
        } => up(&topology, mtu, &name.name)?,
        Command::Exec {
            host,
            command,
            name,
        } => exec(host, &command, &name.name)?,
        Command::Impair(arguments) => impair(&arguments)?,
        Command::Counters(name) => counters(&name.name)?,
        Command::Down(name) => {
            let was_up = fabric::down_if_up(&name.name)?;
            println!(
                "fabric `{}` {}",
                name.name,
                if was_up { "is removed" } else { "was not up" }
            );
        }
        Command::Status => status(),
    }
    Ok(ExitCode::SUCCESS)
}

fn up(shape: &Shape, mtu_bytes: u32, name: &str) -> Result<()> {
    let topology = match shape.planes {
        Some(planes) => Topology::Planes(planes),
        None => Topology::Direct,
    };
    let fabric = Fabric::up(name, topology, mtu_bytes)?;
    println!("fabric `{name}` is up: {topology}, MTU {mtu_bytes}");
    for host in Host::BOTH {
        let ipv6 = if fabric.state().ipv6 {
            format!(", {}", host.ipv6())
        } else {
            String::new()
        };
        println!(
            "  host {host}: {}{ipv6}   (network namespace {})",
            host.ipv4(),
            fabric.namespace(host)
        );
    }
    let option = if name == DEFAULT_NAME {
        String::new()
    } else {
        format!(" --name {name}")
    };
    println!("try: cargo xtask fabric exec{option} a -- ip addr");
    Ok(())
}

/// Becomes the command, so that signals and the exit status are the command's own.
fn exec(host: Host, command: &[String], name: &str) -> Result<()> {
    let (program, arguments) = command
        .split_first()
        .context("a command is wanted behind --")?;
    let mut prepared = Fabric::open(name)?.command(host, program)?;
    let error = prepared.args(arguments).exec();
    Err(error).context("cannot start `ip netns exec`")
}

fn impair(arguments: &Impair) -> Result<()> {
    let fabric = Fabric::open(&arguments.name.name)?;
    let hosts = match arguments.host {
        Some(host) => vec![host],
        None => Host::BOTH.to_vec(),
    };
    if arguments.per_packet && arguments.loss != 0 {
        bail!("--per-packet says how to travel without loss: it goes with --loss 0 only");
    }
    if arguments.loss == 0 && !arguments.per_packet {
        fabric.clear_loss(&hosts)?;
        println!("no impairment");
        return Ok(());
    }
    let rates = match arguments.protocol {
        Protocol::All => LossRates::all(arguments.loss),
        Protocol::Udp => LossRates::udp(arguments.loss),
        Protocol::Tcp => LossRates {
            udp_ppm: 0,
            tcp_ppm: arguments.loss,
        },
    };
    fabric.set_loss(&hosts, rates)?;
    for host in hosts {
        print_loss(&fabric, host)?;
    }
    Ok(())
}

fn counters(name: &str) -> Result<()> {
    let fabric = Fabric::open(name)?;
    print!("{}", fabric.counters()?);
    for host in Host::BOTH {
        print_loss(&fabric, host)?;
    }
    Ok(())
}

/// One line about the loss program at a host, if it is attached.
fn print_loss(fabric: &Fabric, host: Host) -> Result<()> {
    let (Some(rates), Some(counts)) = (fabric.loss_rates(host)?, fabric.loss_counts(host)?) else {
        return Ok(());
    };
    println!(
        "arriving at {host}: UDP {} % lost ({} of {} packets so far), TCP {} % ({} of {})",
        percent(rates.udp_ppm),
        counts.udp_dropped,
        counts.udp_dropped + counts.udp_passed,
        percent(rates.tcp_ppm),
        counts.tcp_dropped,
        counts.tcp_dropped + counts.tcp_passed,
    );
    Ok(())
}

fn percent(ppm: u64) -> f64 {
    // At most a million, so exact.
    ppm as f64 / 10_000.0
}

fn status() {
    let all = State::all();
    if all.is_empty() {
        println!("no fabric is up");
    }
    for state in all {
        let owner = match &state.owner {
            Some(owner) if owner.is_alive() => format!(", belongs to process {}", owner.pid),
            Some(_) => ", left behind by a process that died".to_owned(),
            None => String::new(),
        };
        println!(
            "{}: {}, MTU {}{owner}; namespaces: {}",
            state.name,
            state.topology,
            state.mtu_bytes,
            state.namespaces.join(" ")
        );
    }
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
            &["x", "up"][..],
            &["x", "up", "--direct", "--planes", "4"],
            &["x", "impair", "--loss", "1"],
        ] {
            assert!(Line::try_parse_from(bad).is_err(), "{bad:?}");
        }
        for good in [
            &["x", "up", "--planes", "4", "--mtu", "1500"][..],
            &["x", "impair", "--loss", "0.1%", "--host", "b"],
            &["x", "exec", "a", "--", "ip", "-s", "link"],
        ] {
            assert!(Line::try_parse_from(good).is_ok(), "{good:?}");
        }
    }
}
