//! `cargo xtask fabric impair`: what goes wrong on purpose, where, and how to end it.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use metaroce_e2e::fabric::{
    DEFAULT_LATE_BY, Direction, LossRates, Place, Rate, largest_packet, parts_per_million,
};
use metaroce_e2e::{Fabric, Host};

use super::Name;
use super::status;
use crate::output;

/// Arguments of `impair`. What is not named stays as it is.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct Arguments {
    /// Share of packets that are lost, one by one: 1%, 0.1%, 250ppm; 0 ends it.
    #[arg(long, value_name = "SHARE", value_parser = parts_per_million)]
    loss: Option<u64>,
    /// Which packets are lost.
    #[arg(long, value_enum, default_value_t = Protocol::All, requires = "loss")]
    protocol: Protocol,
    /// With a loss of 0: stay in the mode in which packets travel one by one, to compare with.
    #[arg(long, requires = "loss")]
    per_packet: bool,
    /// Share of packets that are marked as having met congestion, of those that can be; 0 ends it.
    #[arg(long, value_name = "SHARE", value_parser = parts_per_million)]
    ce: Option<u64>,
    /// Share of packets that come late, so that others pass them; 0 ends it.
    #[arg(long, value_name = "SHARE", value_parser = parts_per_million)]
    reorder: Option<u64>,
    /// How late they come, in microseconds (default: 200).
    #[arg(long, value_name = "US", requires = "reorder")]
    late_us: Option<u64>,
    /// Bytes of the largest packet that passes, with its IP header, as through a switch with a smaller MTU: 68 at
    /// least; 0 ends it.
    #[arg(long, value_name = "BYTES", value_parser = largest_packet)]
    largest: Option<u64>,
    /// Speed of the links: 2gbit, 500mbit; none ends the limit.
    #[arg(long, value_name = "SPEED")]
    rate: Option<OrNone<Rate>>,
    /// Planes, from 1, that drop silently all they carry: 2, 1,3, 2:ab (a to b only), 2:to-c, 2:from-c, all. These
    /// become black holes, and no others are; none ends it.
    #[arg(long, value_name = "PLANES")]
    blackhole: Option<OrNone<Places>>,
    /// Only this plane, from 1 (with --nics, 1 is eth0; of loss, ce, reorder, largest and rate; default: all).
    #[arg(long, value_name = "N")]
    plane: Option<u8>,
    /// Only this direction (of loss, ce, reorder, largest and rate): ab, ba, to-c, from-c.
    #[arg(long, default_value_t = Direction::Both)]
    direction: Direction,
    /// Only what arrives at this host: the same as --direction to-HOST.
    #[arg(long, conflicts_with = "direction")]
    host: Option<Host>,
    /// End everything, before what else is asked for.
    #[arg(long)]
    clear: bool,
    #[command(flatten)]
    name: Name,
}

/// Packets that can be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Protocol {
    /// UDP and TCP.
    All,
    /// UDP only.
    Udp,
    /// TCP only.
    Tcp,
}

impl Protocol {
    fn rates(self, ppm: u64) -> LossRates {
        match self {
            Self::All => LossRates::all(ppm),
            Self::Udp => LossRates::udp(ppm),
            Self::Tcp => LossRates {
                udp_ppm: 0,
                tcp_ppm: ppm,
            },
        }
    }
}

/// Something, or the word `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OrNone<T> {
    Some(T),
    None,
}

impl<T: FromStr> FromStr for OrNone<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text {
            "none" => Ok(Self::None),
            _ => text.parse().map(Self::Some),
        }
    }
}

/// Some places, with commas between them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Places(Vec<Place>);

impl FromStr for Places {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let places: Result<_, _> = text.split(',').map(str::parse).collect();
        places.map(Self)
    }
}

impl Arguments {
    fn place(&self) -> Place {
        Place {
            plane: self.plane,
            direction: self.host.map_or(self.direction, Direction::To),
        }
    }

    /// Refuses what would do nothing, or nothing sensible.
    fn check(&self) -> Result<()> {
        let elsewhere = self.loss.is_some()
            || self.ce.is_some()
            || self.reorder.is_some()
            || self.largest.is_some()
            || self.rate.is_some();
        if !elsewhere && self.place() != Place::ALL {
            bail!(
                "--plane, --direction and --host say where --loss, --ce, --reorder, --largest and --rate are wanted, and \
                 none of these is given; a black hole is given its place itself: --blackhole 2:ab"
            );
        }
        if !elsewhere && self.blackhole.is_none() && !self.clear {
            bail!(
                "say what is wanted: --loss, --ce, --reorder, --largest, --rate, --blackhole or --clear"
            );
        }
        if self.per_packet && self.loss != Some(0) {
            bail!("--per-packet says how to travel without loss: it goes with --loss 0 only");
        }
        Ok(())
    }
}

/// Makes and ends impairments, and shows what is in force then.
pub fn run(arguments: &Arguments) -> Result<()> {
    arguments.check()?;
    let fabric = Fabric::open(&arguments.name.name)?;
    let place = arguments.place();
    if arguments.clear {
        fabric.clear_impairments()?;
    }
    match arguments.loss {
        Some(0) if !arguments.per_packet => fabric.clear_loss_at(place)?,
        Some(ppm) => fabric.set_loss_at(place, arguments.protocol.rates(ppm))?,
        None => {}
    }
    if let Some(ppm) = arguments.ce {
        fabric.set_ce(place, ppm)?;
    }
    if let Some(ppm) = arguments.reorder {
        let late_by = arguments
            .late_us
            .map_or(DEFAULT_LATE_BY, Duration::from_micros);
        fabric.set_reorder(place, ppm, late_by)?;
    }
    if let Some(bytes) = arguments.largest {
        fabric.set_largest(place, bytes)?;
    }
    match arguments.rate {
        Some(OrNone::Some(rate)) => fabric.set_rate(place, rate)?,
        Some(OrNone::None) => fabric.clear_rate(place)?,
        None => {}
    }
    match &arguments.blackhole {
        Some(OrNone::Some(Places(places))) => fabric.set_blackholes(places)?,
        Some(OrNone::None) => fabric.set_blackholes(&[])?,
        None => {}
    }
    output::write(&status::in_force(&fabric)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn check(line: &[&str]) -> bool {
        let line = [&["x"], line].concat();
        Line::try_parse_from(line).is_ok_and(|line| line.arguments.check().is_ok())
    }

    #[test]
    fn lines_that_make_sense_are_taken() {
        for good in [
            &["--loss", "0.1%", "--host", "b"][..],
            &["--loss", "0", "--per-packet"],
            &[
                "--loss",
                "1%",
                "--ce",
                "5%",
                "--reorder",
                "1%",
                "--rate",
                "2gbit",
                "--blackhole",
                "2",
            ],
            &["--rate", "none", "--plane", "2"],
            &["--largest", "1500", "--direction", "ab"],
            &["--largest", "68"],
            &["--largest", "0"],
            &["--blackhole", "none"],
            &["--blackhole", "1:ab,3"],
            &["--clear"],
            &["--clear", "--rate", "500mbit", "--direction", "from-c"],
        ] {
            assert!(check(good), "{good:?}");
        }
    }

    #[test]
    fn lines_that_make_none_are_refused() {
        for bad in [
            &[][..],
            &["--loss", "1"],
            &["--loss", "101%"],
            &["--loss", "1%", "--per-packet"],
            &["--per-packet"],
            &["--plane", "2"],
            &["--plane", "2", "--blackhole", "1"],
            &["--rate", "2"],
            &["--rate", "0gbit"],
            &["--blackhole", "x"],
            &["--blackhole", "1,none"],
            &["--ce", "1%", "--direction", "up"],
            &["--ce", "1%", "--direction", "ab", "--host", "a"],
            &["--late-us", "100"],
            &["--largest", "1"],
            &["--largest", "67"],
            &["--protocol", "udp"],
        ] {
            assert!(!check(bad), "{bad:?}");
        }
    }
}
