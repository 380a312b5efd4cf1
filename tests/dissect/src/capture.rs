//! Reads capture files, pcap and pcapng, frame by frame. The formats are the crate `pcap-parser`'s; here they become
//! one thing, a [`Frame`], and errors become messages.

use std::io::Read;

use anyhow::{Context, Result, anyhow, bail};
use pcap_parser::pcapng::Block;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Linktype, PcapBlockOwned, PcapError, create_reader};

/// A frame of the largest snapshot length that capture programs use (256 KiB) and its headers fit, with room.
const BUFFER_BYTES: usize = 1 << 20;

/// Interfaces that one section of a file may describe; nobody captures on more.
const INTERFACES_MAX: usize = 4096;

const NS_PER_S: u128 = 1_000_000_000;

/// A frame of the file.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its number, as other programs count: from 1.
    pub number: u64,
    /// When it was captured, since 1970; 0 if the file does not tell.
    pub time_ns: u64,
    /// What it begins with.
    pub link: Linktype,
    /// What was captured of it.
    pub bytes: &'a [u8],
}

/// What a file says about an interface.
#[derive(Clone, Copy)]
struct Interface {
    link: Linktype,
    snaplen: usize,
    units_per_s: u64,
    offset_s: i64,
}

/// What is known of the file so far.
#[derive(Default)]
struct Told {
    interfaces: Vec<Interface>,
    frames: u64,
}

/// Hands every frame of a capture file to `see`, until that says false.
///
/// # Errors
/// It is no capture file, is damaged, or cannot be read. A file whose last frame is cut off is none: what was
/// whole has been seen, and a line on standard error says it.
pub fn read(input: impl Read + Send, mut see: impl FnMut(Frame<'_>) -> Result<bool>) -> Result<()> {
    let mut reader = create_reader(BUFFER_BYTES, input).map_err(|error| match error {
        PcapError::Eof => anyhow!("the file is empty"),
        PcapError::HeaderNotRecognized | PcapError::Incomplete(_) => {
            anyhow!("no capture file: it is neither pcap nor pcapng")
        }
        error => anyhow!("{error}"),
    })?;
    let mut told = Told::default();
    loop {
        match reader.next() {
            Ok((bytes, block)) => {
                if let Some(frame) = told.block(&block)?
                    && !see(frame)?
                {
                    return Ok(());
                }
                reader.consume(bytes);
            }
            Err(PcapError::Eof) => return Ok(()),
            Err(PcapError::Incomplete(_)) => {
                if let Err(error) = reader.refill() {
                    bail!("cannot read on after frame {}: {error}", told.frames);
                }
            }
            Err(PcapError::UnexpectedEof) => {
                eprintln!(
                    "note: the file ends within the frame after frame {}",
                    told.frames
                );
                return Ok(());
            }
            Err(PcapError::BufferTooSmall) => bail!(
                "a block after frame {} is larger than {BUFFER_BYTES} bytes: the file is damaged",
                told.frames
            ),
            Err(_) => bail!("the file is damaged after frame {}", told.frames),
        }
    }
}

impl Told {
    /// Takes a block; if it is a frame, returns it.
    fn block<'a>(&mut self, block: &'a PcapBlockOwned<'_>) -> Result<Option<Frame<'a>>> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                self.interfaces = vec![Interface {
                    link: header.network,
                    snaplen: header.snaplen as usize,
                    units_per_s: match header.is_nanosecond_precision() {
                        true => 1_000_000_000,
                        false => 1_000_000,
                    },
                    offset_s: i64::from(header.thiszone),
                }];
                Ok(None)
            }
            PcapBlockOwned::Legacy(frame) => {
                let interface = self.interface(0)?;
                let units = u128::from(frame.ts_sec) * u128::from(interface.units_per_s)
                    + u128::from(frame.ts_usec);
                Ok(Some(self.frame(interface, units, frame.data)))
            }
            PcapBlockOwned::NG(block) => self.section_block(block),
        }
    }

    fn section_block<'a>(&mut self, block: &'a Block<'_>) -> Result<Option<Frame<'a>>> {
        match block {
            Block::SectionHeader(_) => self.interfaces.clear(),
            Block::InterfaceDescription(described) => {
                if self.interfaces.len() >= INTERFACES_MAX {
                    bail!("the file describes more than {INTERFACES_MAX} interfaces");
                }
                self.interfaces.push(Interface {
                    link: described.linktype,
                    snaplen: match described.snaplen {
                        0 => usize::MAX,
                        snaplen => snaplen as usize,
                    },
                    units_per_s: described
                        .ts_resolution()
                        .filter(|units| *units > 0)
                        .context("the file has an interface with an impossible time resolution")?,
                    offset_s: described.ts_offset(),
                });
            }
            Block::EnhancedPacket(packet) => {
                let interface = self.interface(packet.if_id)?;
                let units = u128::from(packet.ts_high) << 32 | u128::from(packet.ts_low);
                return Ok(Some(self.frame(interface, units, packet.packet_data())));
            }
            Block::SimplePacket(packet) => {
                let interface = Interface {
                    offset_s: 0,
                    ..self.interface(0)?
                };
                let length = (packet.origlen as usize).min(interface.snaplen);
                let data = packet.data.get(..length).unwrap_or(packet.data);
                return Ok(Some(self.frame(interface, 0, data)));
            }
            _ => {}
        }
        Ok(None)
    }

    fn interface(&self, id: u32) -> Result<Interface> {
        let interface = self.interfaces.get(id as usize).copied();
        interface.with_context(|| {
            format!(
                "frame {} is of interface {id}, which the file does not describe",
                self.frames + 1
            )
        })
    }

    fn frame<'a>(&mut self, interface: Interface, units: u128, bytes: &'a [u8]) -> Frame<'a> {
        self.frames += 1;
        let since_ns = units * NS_PER_S / u128::from(interface.units_per_s);
        let offset_ns = i128::from(interface.offset_s) * NS_PER_S as i128;
        let time_ns = i128::try_from(since_ns).unwrap_or(0) + offset_ns;
        Frame {
            number: self.frames,
            time_ns: u64::try_from(time_ns).unwrap_or(0),
            link: interface.link,
            bytes,
        }
    }
}
