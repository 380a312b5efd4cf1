//! From a frame to the UDP datagram in it: Ethernet (with VLAN tags), Linux cooked (both versions), loopback and raw
//! IP below; IPv4 and IPv6. The headers are the crate `etherparse`'s.

use std::net::SocketAddr;

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice, UdpHeader};
use pcap_parser::Linktype;

use crate::capture::Frame;

/// Bytes of the header of a cooked frame, and where its EtherType is (tcpdump's LINKTYPE_LINUX_SLL and _SLL2).
const COOKED: (usize, usize) = (16, 14);
const COOKED_2: (usize, usize) = (20, 0);

/// Bytes of the address family in front of a frame of a BSD loopback.
const FAMILY_BYTES: usize = 4;

/// The codepoint "congestion experienced".
pub const ECN_CE: u8 = 3;

/// A UDP datagram, or several of them that the kernel handles as one.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// From.
    pub source: SocketAddr,
    /// To.
    pub destination: SocketAddr,
    /// ECN codepoint.
    pub ecn: u8,
    /// Its payload. What was not captured is filled with zeros.
    pub payload: Vec<u8>,
    /// Bytes of the payload that were captured.
    pub captured: usize,
}

/// What is in a frame.
#[derive(Clone, Debug)]
pub enum Content {
    /// A UDP datagram.
    Udp(Datagram),
    /// A fragment of one: metaroce forbids them.
    Fragment,
    /// Something else.
    Other,
    /// A frame of a kind that is not known here.
    UnknownLink(Linktype),
}

/// Looks into a frame.
#[must_use]
pub fn look(frame: &Frame<'_>) -> Content {
    match slice(frame) {
        Ok(Some(packet)) => content(&packet),
        Ok(None) => Content::Other,
        Err(link) => Content::UnknownLink(link),
    }
}

fn slice<'a>(frame: &Frame<'a>) -> Result<Option<LaxSlicedPacket<'a>>, Linktype> {
    let bytes = frame.bytes;
    let ip = |bytes: &'a [u8]| LaxSlicedPacket::from_ip(bytes).ok();
    Ok(match frame.link {
        Linktype::ETHERNET => LaxSlicedPacket::from_ethernet(bytes).ok(),
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => ip(bytes),
        Linktype::NULL | Linktype::LOOP => bytes.get(FAMILY_BYTES..).and_then(ip),
        Linktype::LINUX_SLL => cooked(bytes, COOKED),
        Linktype::LINUX_SLL2 => cooked(bytes, COOKED_2),
        other => return Err(other),
    })
}

fn cooked(bytes: &[u8], (header, type_at): (usize, usize)) -> Option<LaxSlicedPacket<'_>> {
    let ether_type = bytes.get(type_at..type_at + 2)?;
    let ether_type = EtherType(u16::from_be_bytes([ether_type[0], ether_type[1]]));
    Some(LaxSlicedPacket::from_ether_type(
        ether_type,
        bytes.get(header..)?,
    ))
}

fn content(packet: &LaxSlicedPacket<'_>) -> Content {
    let (source, destination, ecn) = match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
            ip.header().ecn().value(),
        ),
        Some(LaxNetSlice::Ipv6(ip)) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
            ip.header().ecn().value(),
        ),
        _ => return Content::Other,
    };
    if packet
        .ip_payload()
        .is_some_and(|payload| payload.fragmented)
    {
        return Content::Fragment;
    }
    let Some(TransportSlice::Udp(udp)) = &packet.transport else {
        return Content::Other;
    };
    let mut payload = udp.payload().to_vec();
    let captured = payload.len();
    let length = usize::from(udp.length()).saturating_sub(UdpHeader::LEN);
    payload.resize(length.max(captured), 0);
    Content::Udp(Datagram {
        source: SocketAddr::new(source, udp.source_port()),
        destination: SocketAddr::new(destination, udp.destination_port()),
        ecn,
        payload,
        captured,
    })
}
