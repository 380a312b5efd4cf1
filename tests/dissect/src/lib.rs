//! `cargo xtask dissect`: the metaroce packets of a capture file as text, JSON or a summary; and the dissector for
//! Wireshark, generated from the same table of fields (`metaroce_proto::wire::fields`).
//!
//! The way of a frame: `capture` (pcap, pcapng) → `datagram` (link, IP, UDP) → `packet` (trains are cut, the codec's
//! verdict) → `filter` → `show` or `summary`. A library, so that tests can call all of it; `cargo xtask` builds the
//! program and runs it.

pub mod capture;
pub mod datagram;
pub mod filter;
pub mod packet;
mod show;
pub mod summary;
pub mod wireshark;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;

use capture::Frame;
use datagram::Content;
use filter::Filter;
use packet::Verdict;
use summary::Summary;

/// Show the metaroce packets of a capture file, or make the dissector for Wireshark.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask dissect", bin_name = "cargo xtask dissect")]
pub struct Arguments {
    /// Capture file, pcap or pcapng; `-` is standard input.
    #[arg(required_unless_present = "wireshark")]
    file: Option<PathBuf>,
    /// Show every field of every packet.
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON: an object a line for each packet, or one object with --summary.
    #[arg(long)]
    json: bool,
    /// Print no packets but a summary: connections, paths, gaps, retransmissions, round trips.
    #[arg(long, conflicts_with = "verbose")]
    summary: bool,
    /// Only packets with this connection id (0x… or decimal); may be repeated, as may the others below.
    #[arg(long, value_name = "ID", value_parser = number)]
    connection: Vec<u32>,
    /// Only packets on this path, and ACKs about it.
    #[arg(long, value_name = "NUMBER")]
    path: Vec<u8>,
    /// Only packets of this kind: data, ack, control, an opcode (write, read-resp …), an item (hello, shut …), a flag
    /// (retransmission, probe, marker …), or bad.
    #[arg(long = "type", value_name = "KIND")]
    kind: Vec<String>,
    /// Only packets that name this queue pair.
    #[arg(long, value_name = "QPN", value_parser = number)]
    qpn: Vec<u32>,
    /// First UDP port of endpoints (METAROCE_PORT_BASE).
    #[arg(long, value_name = "PORT", default_value_t = wireshark::PORT_BASE)]
    port_base: u16,
    /// Number of UDP ports of endpoints (METAROCE_PORTS).
    #[arg(long, value_name = "COUNT", default_value_t = wireshark::PORTS)]
    ports: u16,
    /// Look at all UDP ports, and take what is a good packet.
    #[arg(long)]
    any_port: bool,
    /// Print the Lua dissector for Wireshark and tshark.
    #[arg(long, conflicts_with_all = ["file", "verbose", "json", "summary"])]
    wireshark: bool,
}

/// A number, decimal or hexadecimal.
fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("`{text}` is no number of 32 bits such as 24791 or 0x60d7"))
}

/// Runs the command with the arguments behind its name.
///
/// # Errors
/// The arguments are wrong (as clap tells it), or the file cannot be read.
pub fn run<T: Into<OsString>>(
    arguments: impl IntoIterator<Item = T>,
    output: &mut impl Write,
) -> Result<()> {
    let name = [OsString::from("cargo xtask dissect")];
    let arguments = Arguments::try_parse_from(
        name.into_iter()
            .chain(arguments.into_iter().map(Into::into)),
    )?;
    match arguments.go(output) {
        // Nobody reads on: `| head`.
        Err(error)
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            Ok(())
        }
        result => result,
    }
}

impl Arguments {
    fn go(self, output: &mut impl Write) -> Result<()> {
        let Some(path) = &self.file else {
            output.write_all(wireshark::script().as_bytes())?;
            return Ok(());
        };
        let input: Box<dyn Read + Send> = if path.as_os_str() == "-" {
            Box::new(io::stdin())
        } else {
            let file =
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
                bail!(
                    "{} is a directory; name a capture file in it",
                    path.display()
                );
            }
            Box::new(file)
        };
        let mut run = Run {
            filter: Filter {
                connections: self.connection.clone(),
                paths: self.path.clone(),
                kinds: self.kind.clone(),
                qpns: self.qpn.clone(),
            },
            arguments: &self,
            summary: Summary::default(),
            first_ns: None,
            unknown_links: BTreeMap::new(),
            fragments: 0,
            looked_at: 0,
            passed: 0,
            kinds: BTreeSet::new(),
        };
        capture::read(input, |frame| run.frame(&frame, output).map(|()| true))
            .with_context(|| path.display().to_string())?;
        run.close(output)
    }
}

/// One pass through a file.
struct Run<'a> {
    arguments: &'a Arguments,
    filter: Filter,
    summary: Summary,
    first_ns: Option<u64>,
    /// Frames of kinds that are not known, by the kind's number.
    unknown_links: BTreeMap<i32, u64>,
    fragments: u64,
    /// Packets of ours.
    looked_at: u64,
    /// Those of them that the filter passes.
    passed: u64,
    /// What they may be called, where a kind is asked for.
    kinds: BTreeSet<&'static str>,
}

impl Run<'_> {
    fn frame(&mut self, frame: &Frame<'_>, output: &mut impl Write) -> Result<()> {
        self.summary.frames += 1;
        let first_ns = *self.first_ns.get_or_insert(frame.time_ns);
        let datagram = match datagram::look(frame) {
            Content::Udp(datagram) => datagram,
            Content::Fragment => {
                self.fragments += 1;
                return Ok(());
            }
            Content::UnknownLink(link) => {
                *self.unknown_links.entry(link.0).or_default() += 1;
                return Ok(());
            }
            Content::Other => return Ok(()),
        };
        let port = datagram.destination.port();
        let arguments = self.arguments;
        let in_range = port
            .checked_sub(arguments.port_base)
            .is_some_and(|index| index < arguments.ports);
        if !in_range && !arguments.any_port {
            return Ok(());
        }
        for seen in packet::packets(frame.number, frame.time_ns, &datagram) {
            // Elsewhere bad packets are somebody else's good ones.
            let is_ours = in_range || matches!(seen.verdict, Verdict::Good(_));
            if !is_ours {
                continue;
            }
            self.looked_at += 1;
            if !self.filter.kinds.is_empty() {
                self.note_kinds(&seen);
            }
            if !self.filter.passes(&seen) {
                continue;
            }
            self.passed += 1;
            if arguments.summary {
                self.summary.see(&seen);
            } else if arguments.json {
                writeln!(output, "{}", show::object(&seen))?;
            } else {
                writeln!(output, "{}", show::line(&seen, first_ns))?;
                if arguments.verbose {
                    output.write_all(show::details(&seen).as_bytes())?;
                }
            }
        }
        Ok(())
    }

    fn note_kinds(&mut self, seen: &packet::Seen<'_>) {
        self.kinds.extend(seen.words());
    }

    /// Nothing was shown: why.
    fn tell_of_nothing(&self) {
        let arguments = self.arguments;
        if self.looked_at == 0 && !arguments.any_port {
            let last = u32::from(arguments.port_base) + u32::from(arguments.ports) - 1;
            eprintln!(
                "note: no packet to a UDP port from {} to {last}; --port-base and --ports look elsewhere, --any-port everywhere",
                arguments.port_base
            );
        } else if self.looked_at == 0 {
            eprintln!("note: no packet of metaroce is in the file");
        } else if self.kinds.is_empty() {
            eprintln!("note: none of {} packets is as asked for", self.looked_at);
        } else {
            let kinds: Vec<&str> = self.kinds.iter().copied().collect();
            eprintln!(
                "note: none of {} packets is as asked for; their kinds: {}",
                self.looked_at,
                kinds.join(", ")
            );
        }
    }

    fn close(self, output: &mut impl Write) -> Result<()> {
        if self.arguments.summary && self.arguments.json {
            writeln!(output, "{}", self.summary.object())?;
        } else if self.arguments.summary {
            write!(output, "{}", self.summary.text())?;
        }
        output.flush()?;
        if self.passed == 0 {
            self.tell_of_nothing();
        }
        if self.fragments > 0 {
            eprintln!("note: {} IP fragments were left out", self.fragments);
        }
        let unknown: u64 = self.unknown_links.values().sum();
        if unknown > 0 && unknown == self.summary.frames {
            bail!(
                "no frame could be read: their link types {:?} are not known here; capture on one interface, or with `-i any`",
                self.unknown_links.keys().collect::<Vec<_>>()
            );
        }
        if unknown > 0 {
            eprintln!("note: {unknown} frames of unknown link types were left out");
        }
        Ok(())
    }
}
