//! The dissector: packets as text, over the very types that the transport uses.
//!
//! Each type lists its fields once ([`Fields`]); the printer makes one line of them (`{}`, only
//! what is worth mentioning) or one line each (`{:#}`, everything). [`dissect`] is for bytes
//! of which nobody knows yet whether they are a packet.

use std::fmt;

use super::{
    AckView, Base, CloseView, ControlItem, ControlView, DataFlags, DataHeader, GRANT_UNLIMITED,
    Hello, HelloIdentity, NakCode, Opcode, Open, Packet, ParseError, PathBlock, Reset, Service,
    Shut, StreamBlock,
};

/// What a type has to show.
trait Fields {
    /// Name of the thing, the first word of its line.
    fn title(&self) -> &'static str;
    /// Hands its fields to the printer, in the order of the wire.
    fn fields(&self, printer: &mut Printer<'_, '_>) -> fmt::Result;
}

/// Prints fields in one of the two forms.
struct Printer<'a, 'f> {
    out: &'a mut fmt::Formatter<'f>,
    depth: usize,
}

impl Printer<'_, '_> {
    /// A field that both forms show.
    fn field(&mut self, name: &str, value: &dyn fmt::Display) -> fmt::Result {
        self.detail(name, value, true)
    }

    /// A field that the one-line form shows only where it is noteworthy.
    fn detail(&mut self, name: &str, value: &dyn fmt::Display, noteworthy: bool) -> fmt::Result {
        if self.out.alternate() {
            let indent = 2 * self.depth;
            write!(self.out, "\n{:indent$}{name:<20} {value}", "")
        } else if noteworthy {
            write!(self.out, " {name}={value}")
        } else {
            Ok(())
        }
    }

    /// A part with fields of its own.
    fn part(&mut self, part: &dyn Fields) -> fmt::Result {
        if self.out.alternate() {
            let indent = 2 * self.depth;
            write!(self.out, "\n{:indent$}{}", "", part.title())?;
        } else {
            write!(self.out, " [{}", part.title())?;
        }
        self.depth += 1;
        part.fields(self)?;
        self.depth -= 1;
        if self.out.alternate() {
            Ok(())
        } else {
            self.out.write_str("]")
        }
    }

    /// The outermost thing.
    fn whole(out: &mut fmt::Formatter<'_>, whole: &dyn Fields) -> fmt::Result {
        out.write_str(whole.title())?;
        whole.fields(&mut Printer { out, depth: 1 })
    }
}

/// Gives types with fields a `Display`.
macro_rules! display_by_fields {
    ($($name:ty),+ $(,)?) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Printer::whole(f, self)
            }
        })+
    };
}

display_by_fields!(
    Base,
    DataHeader,
    AckView<'_>,
    PathBlock,
    StreamBlock,
    ControlView<'_>,
    ControlItem<'_>,
    Hello,
    Open,
    Shut,
    Reset,
    CloseView<'_>,
    Packet<'_>,
);

/// A number in hexadecimal, with as many digits as its field has.
struct Hex<T>(T);

impl fmt::Display for Hex<u32> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Display for Hex<u64> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// The base header's fields, under the name that the kind of packet gives the PSN field.
fn base_fields(base: &Base, psn_name: &str, p: &mut Printer<'_, '_>) -> fmt::Result {
    p.field("connection", &base.connection)?;
    p.field("path", &base.path)?;
    p.detail("epoch", &base.epoch, base.epoch.0 != 0)?;
    p.field(psn_name, &base.psn)?;
    p.field("stamp", &base.stamp)?;
    p.detail("flags", &base.flags, base.flags.bits() != 0)
}

impl Fields for Base {
    fn title(&self) -> &'static str {
        "BASE"
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        base_fields(self, "psn", p)
    }
}

impl Fields for DataHeader {
    fn title(&self) -> &'static str {
        self.opcode.name()
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        let stream = !self.qpn.is_zero();
        let fill = self.opcode == Opcode::Fill;
        p.detail("data-flags", &self.flags, self.flags != DataFlags::NONE)?;
        p.detail("attempt", &self.attempt, self.attempt.0 != 0)?;
        p.detail("payload", &self.payload_bytes, self.payload_bytes != 0)?;
        p.detail("qpn", &self.qpn, stream)?;
        p.detail("token", &self.token, stream)?;
        p.detail("msn", &self.msn, stream && self.service() == Service::Rc)?;
        p.detail("ssn", &self.ssn, self.opcode.consumes_receive())?;
        p.detail("message", &self.message_bytes, self.message_bytes != 0)?;
        p.detail("offset", &self.offset, self.offset != 0)?;
        if self.service() == Service::Ud {
            p.field("qkey", &Hex(self.ud_qkey()))?;
            p.field("source-qpn", &self.ud_source_qpn())?;
        } else {
            let memory = self.opcode.names_memory();
            p.detail("address", &Hex(self.remote_address), memory)?;
            p.detail("rkey", &self.rkey, memory)?;
        }
        match self.opcode {
            Opcode::SendInv => p.field("invalidate", &Hex(self.immediate)),
            _ if fill => p.field("status", &self.fill_status()),
            opcode => p.detail("immediate", &Hex(self.immediate), opcode.has_immediate()),
        }
    }
}

impl Fields for PathBlock {
    fn title(&self) -> &'static str {
        "path"
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        p.field("id", &self.path)?;
        p.detail("epoch", &self.epoch, self.epoch.0 != 0)?;
        p.detail("flags", &self.flags, self.flags.bits() != 0)?;
        p.field("cumulative", &self.cumulative)?;
        p.field("echoed-stamp", &self.echoed_stamp)?;
        p.field("ack-delay", &self.ack_delay)?;
        p.detail("ce", &self.ce_count, self.ce_count != 0)?;
        p.detail("duplicates", &self.duplicates, self.duplicates != 0)?;
        p.field("received", &self.received)?;
        p.detail("vector", &self.vector, !self.vector.is_empty())
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Rnr => "rnr",
            Self::RemoteAccess => "remote-access",
            Self::InvalidRequest => "invalid-request",
            Self::RemoteOperational => "remote-operational",
            Self::Length => "length",
            Self::Hold => "hold",
        })
    }
}

impl Fields for StreamBlock {
    fn title(&self) -> &'static str {
        "stream"
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        let refused = self.code != NakCode::None;
        p.field("qpn", &self.qpn)?;
        p.detail("code", &self.code, refused)?;
        p.field("token", &self.token)?;
        p.detail("attempt", &self.attempt, refused)?;
        p.field("msn-executed", &self.msn_executed)?;
        p.field("credit", &self.credit)?;
        p.detail("rnr-timer", &self.rnr_timer, self.code == NakCode::Rnr)
    }
}

impl Fields for AckView<'_> {
    fn title(&self) -> &'static str {
        "ACK"
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        base_fields(&self.base, "number", p)?;
        match self.allowance.grant_kib_per_s {
            GRANT_UNLIMITED => p.field("grant-kib-per-s", &"unlimited")?,
            grant => p.field("grant-kib-per-s", &grant)?,
        }
        p.field("window", &self.allowance.window_bytes)?;
        p.field("w0", &self.allowance.w0_packets)?;
        for block in self.path_blocks() {
            p.part(&block)?;
        }
        for block in self.stream_blocks() {
            p.part(&block)?;
        }
        Ok(())
    }
}

impl Fields for Hello {
    fn title(&self) -> &'static str {
        "HELLO"
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        p.field("my-id", &self.identity.my_id)?;
        p.field("incarnation", &self.identity.incarnation)?;
        p.field("echo", &self.identity.echo)?;
        p.field("source", &self.source_gid)?;
        p.field("destination", &self.dest_gid)?;
        p.field("port", &self.endpoint_port)?;
        p.field("payload", &self.payload_bytes)?;
        p.field("paths", &self.paths)?;
        p.field("checksum", &self.checksum_mode)?;
        p.field("window", &self.window_bytes)?;
        p.field("w0", &self.w0_packets)?;
        p.field("message-span", &self.message_span)?;
        p.field("packet-span", &self.packet_span)?;
        for address in &self.addresses {
            let (gid, plane) = (address.gid, address.plane);
            match address.speed_mbps {
                0 => p.field("address", &format_args!("{gid}@plane{plane}"))?,
                mbps => p.field("address", &format_args!("{gid}@plane{plane}/{mbps}Mb/s"))?,
            }
        }
        Ok(())
    }
}

impl Fields for Open {
    fn title(&self) -> &'static str {
        "OPEN"
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        p.field("from", &self.from_qpn)?;
        p.field("to", &self.to_qpn)?;
        p.detail("flags", &self.flags, self.flags.bits() != 0)?;
        p.field("rnr-timer", &self.rnr_timer)?;
        p.field("token", &self.token)?;
        p.field("echo", &self.echo)?;
        p.field("sq-psn", &self.send_psn)?;
        p.field("rq-psn", &self.receive_psn)?;
        p.field("credit", &self.credit)?;
        p.field("max-dest-rd-atomic", &self.max_dest_rd_atomic)?;
        p.field("max-rd-atomic", &self.max_rd_atomic)
    }
}

impl Fields for Shut {
    fn title(&self) -> &'static str {
        "SHUT"
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        p.field("from", &self.from_qpn)?;
        p.field("token", &self.from_token)?;
        p.field("to", &self.to_qpn)?;
        p.field("to-token", &self.to_token)?;
        p.field("msn-executed", &self.msn_executed)?;
        p.field("reason", &self.reason)
    }
}

impl Fields for Reset {
    fn title(&self) -> &'static str {
        "RESET"
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        p.field("unknown-id", &self.unknown_id)
    }
}

impl Fields for CloseView<'_> {
    fn title(&self) -> &'static str {
        "CLOSE"
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        p.field("reason", &self.reason)?;
        for block in self.stream_blocks() {
            p.part(&block)?;
        }
        Ok(())
    }
}

impl Fields for ControlItem<'_> {
    fn title(&self) -> &'static str {
        match self {
            Self::Hello(_) => "HELLO",
            Self::Open(_) => "OPEN",
            Self::Shut(_) => "SHUT",
            Self::ShutAnswer(_) => "SHUT-ANSWER",
            Self::Reset(_) => "RESET",
            Self::Close(_) => "CLOSE",
            Self::CloseAnswer(_) => "CLOSE-ANSWER",
        }
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        match self {
            Self::Hello(hello) => hello.fields(p),
            Self::Open(open) => open.fields(p),
            Self::Shut(shut) | Self::ShutAnswer(shut) => shut.fields(p),
            Self::Reset(reset) => reset.fields(p),
            Self::Close(close) | Self::CloseAnswer(close) => close.fields(p),
        }
    }
}

impl Fields for ControlView<'_> {
    fn title(&self) -> &'static str {
        "CONTROL"
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        p.field("connection", &self.base.connection)?;
        p.detail("path", &self.base.path, false)?;
        p.detail("epoch", &self.base.epoch, false)?;
        p.field("stamp", &self.base.stamp)?;
        for item in self.items() {
            p.part(&item)?;
        }
        Ok(())
    }
}

impl Fields for Packet<'_> {
    fn title(&self) -> &'static str {
        match self {
            Self::Data { header, .. } => header.title(),
            Self::Ack(ack) => ack.title(),
            Self::Control(control) => control.title(),
        }
    }

    fn fields(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        match self {
            Self::Data { base, header, .. } => {
                let psn_name = if header.opcode.takes_psn() {
                    "psn"
                } else {
                    "next-psn"
                };
                base_fields(base, psn_name, p)?;
                header.fields(p)
            }
            Self::Ack(ack) => ack.fields(p),
            Self::Control(control) => control.fields(p),
        }
    }
}

/// Bytes that may be a packet, to be shown as one.
#[derive(Clone, Copy, Debug)]
pub struct Dissection<'a>(&'a [u8]);

/// Shows any bytes: the packet in them, or why they are none.
#[must_use]
pub const fn dissect(datagram: &[u8]) -> Dissection<'_> {
    Dissection(datagram)
}

impl fmt::Display for Dissection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Packet::parse(self.0) {
            Ok(packet) => packet.fmt(f),
            Err(error) => {
                write!(f, "no packet: {error}, {} bytes", self.0.len())?;
                match (error, HelloIdentity::peek(self.0)) {
                    (ParseError::UnknownVersion, Some((version, identity))) => write!(
                        f,
                        "; HELLO of version {version} from incarnation {}",
                        identity.incarnation
                    ),
                    _ => Ok(()),
                }
            }
        }
    }
}
