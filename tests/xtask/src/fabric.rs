//! `cargo xtask fabric`: the virtual network by hand.
//!
//! Everything is in `metaroce_e2e::fabric`; here are only arguments and printing.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use metaroce_e2e::fabric::{
    self, DEFAULT_MTU_BYTES, DEFAULT_NAME, LossRates, Place, Shape, State, parts_per_million,
};
use metaroce_e2e::{Fabric, Host, Topology};

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
    /// Run a command on a host.
    Exec {
        /// The host: a, b, c …
        host: Host,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
        #[command(flatten)]
        name: Name,
    },
    /// Drop single packets that arrive at the hosts, with a probability.
    Impair(Impair),
    /// Cut the links of a plane, or mend them.
    Plane {
        /// Number of the plane, from 1.
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

/// The shape of a fabric. The three topologies exclude each other.
#[derive(Debug, Args)]
pub struct Wanted {
    /// One link between two hosts.
    #[arg(long, conflicts_with_all = ["planes", "nics"])]
    direct: bool,
    /// A leaf at each host and N planes between the leaves, chosen by ECMP over UDP and TCP ports.
    #[arg(long, value_name = "N", conflicts_with = "nics")]
    planes: Option<u8>,
    /// N NICs in each host, each with a network and a switch of its own; no ECMP.
    #[arg(long, value_name = "N")]
    nics: Option<u8>,
    /// Number of hosts, 2 to 16: a, b, c … Without a topology they are put around one switch.
    #[arg(long, value_name = "N")]
    hosts: Option<u8>,
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

/// Arguments of `impair`.
#[derive(Debug, Args)]
pub struct Impair {
    /// Probability that a packet is lost: 1%, 0.1%, 250ppm; 0 ends the impairment.
    #[arg(long, value_parser = parts_per_million)]
    loss: Option<u64>,
    /// Planes that drop silently all they carry: 2, 1,3, 2:ab (a to b only), 2:to-c, all; none ends it.
    #[arg(long, value_name = "PLANES")]
    blackhole: Option<BlackHoles>,
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

/// The planes that become black holes.
#[derive(Debug, Clone)]
struct BlackHoles(Vec<Place>);

impl std::str::FromStr for BlackHoles {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        text.split(',')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }
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
        Command::Up { wanted, mtu, name } => up(wanted.shape()?, mtu, &name.name)?,
        Command::Plane { plane, link, name } => plane_link(plane, link, &name.name)?,
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

fn up(shape: Shape, mtu_bytes: u32, name: &str) -> Result<()> {
    let fabric = Fabric::up(name, shape, mtu_bytes)?;
    println!("fabric `{name}` is up: {shape}, MTU {mtu_bytes}");
    for host in fabric.hosts() {
        let addresses: Vec<String> = (0..shape.nics())
            .map(|nic| match fabric.state().ipv6 {
                true => format!("{}, {}", host.ipv4_on(nic), host.ipv6_on(nic)),
                false => host.ipv4_on(nic).to_string(),
            })
            .collect();
        println!(
            "  host {host}: {}   (network namespace {})",
            addresses.join("; "),
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

fn plane_link(plane: u8, link: Link, name: &str) -> Result<()> {
    let fabric = Fabric::open(name)?;
    match link {
        Link::Down => fabric.plane_down(plane)?,
        Link::Up => fabric.plane_up(plane)?,
    }
    let up = fabric.planes_up()?;
    let list: Vec<String> = up.iter().map(u8::to_string).collect();
    match list.is_empty() {
        true => println!("no plane is up"),
        false => println!("up: plane {}", list.join(", ")),
    }
    Ok(())
}

fn impair(arguments: &Impair) -> Result<()> {
    let fabric = Fabric::open(&arguments.name.name)?;
    let hosts = match arguments.host {
        Some(host) => vec![host],
        None => Host::BOTH.to_vec(),
    };
    if let Some(BlackHoles(places)) = &arguments.blackhole {
        fabric.set_blackholes(places)?;
    }
    let Some(loss) = arguments.loss else {
        return Ok(());
    };
    if arguments.per_packet && loss != 0 {
        bail!("--per-packet says how to travel without loss: it goes with --loss 0 only");
    }
    if loss == 0 && !arguments.per_packet {
        fabric.clear_loss(&hosts)?;
        println!("no impairment");
        return Ok(());
    }
    let rates = match arguments.protocol {
        Protocol::All => LossRates::all(loss),
        Protocol::Udp => LossRates::udp(loss),
        Protocol::Tcp => LossRates {
            udp_ppm: 0,
            tcp_ppm: loss,
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
            state.shape(),
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
            &["x", "up", "--direct", "--planes", "4"][..],
            &["x", "up", "--nics", "4", "--planes", "4"],
            &["x", "plane", "2", "sideways"],
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
