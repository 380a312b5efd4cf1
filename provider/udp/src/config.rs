//! What the caller may choose about the sockets, with the defaults that the measurements support.

use std::net::IpAddr;

/// The port of the receive sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChoice {
    /// This port or an error.
    Fixed(u16),
    /// The first port free on *all* local addresses, tried from a pseudo-random start, so that processes that
    /// start together do not all walk over the same taken ports.
    Range {
        /// First port of the range.
        base: u16,
        /// Number of ports in the range, at least 1; `base + count` must not pass 65,536.
        count: u16,
    },
}

/// How [`crate::Sockets::open`] shall open the sockets.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses of the device, IPv4 and IPv6 mixed, at most [`crate::MAX_LOCALS`]. The sockets bind to them and not
    /// to the wildcard: two devices of a host may then use one port.
    pub locals: Vec<IpAddr>,
    /// For each local address the index of the interface that its packets leave by, whatever the routing table prefers; 0, or
    /// none, leaves it to the routing table.
    pub interfaces: Vec<u32>,
    /// Port of the receive sockets.
    pub port: PortChoice,
    /// Source sockets for each local address, 1 to 256.
    pub source_ports: usize,
    /// Receive buffer to ask the kernel for, in bytes as `SO_RCVBUF` counts them. 4 MiB carry a window of 2 MiB without loss.
    pub receive_buffer_bytes: usize,
    /// Send buffer to ask the kernel for on each source socket, in bytes.
    pub send_buffer_bytes: usize,
    /// False sends each packet by itself (`sendmmsg`), as on a kernel or driver without UDP segmentation.
    pub segmentation_offload: bool,
    /// False receives each packet by itself, without UDP_GRO.
    pub receive_offload: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            locals: Vec::new(),
            interfaces: Vec::new(),
            port: PortChoice::Range {
                base: 24791,
                count: 1024,
            },
            source_ports: 32,
            receive_buffer_bytes: 8 << 20,
            send_buffer_bytes: 4 << 20,
            segmentation_offload: true,
            receive_offload: true,
        }
    }
}
