//! Owns the sockets: opening them on one port of all local addresses, and what they can tell about themselves.
//! Sending is in `send.rs`, receiving in `recv.rs`, ICMP errors in `errors.rs`; all three are methods of [`Sockets`].

use crate::address::local_socket_address;
use crate::config::{Config, PortChoice};
use crate::explained;
use crate::sockopt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::iter::repeat;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Most local addresses of one engine: a wire HELLO lists 16, and bit sets over them fit a word.
pub const MAX_LOCALS: usize = 16;
/// Most source sockets for one address: a path number has 8 bits, more ports than paths are of no use.
const MAX_SOURCE_PORTS: usize = 256;
/// Tries to get an ephemeral port outside of the receive range, before one inside is accepted.
const MAX_EPHEMERAL_TRIES: usize = 16;
/// What one UDP_SEGMENT send may hold since Linux 6.8; older kernels refuse more than 64 and are noticed then.
pub(crate) const SEGMENTS_OF_NEW_KERNELS: usize = 128;
/// The limit of kernels before 6.8.
pub(crate) const SEGMENTS_OF_OLD_KERNELS: usize = 64;

/// Position of a local address in [`Config::locals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalIndex(pub u8);

/// One source socket: a local address and one of its ephemeral ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceSlot {
    /// Whose sockets.
    pub local: LocalIndex,
    /// 0 to [`Sockets::source_count`] - 1.
    pub index: u16,
}

/// How full a receive buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveFill {
    /// Bytes of kernel memory in use. Exact once the socket has been read empty; in between the kernel gives memory
    /// back in lots of a quarter of the buffer, so this may be too high by that much.
    pub used_bytes: usize,
    /// Bytes of kernel memory allowed (twice what `SO_RCVBUF` was asked for).
    pub limit_bytes: usize,
    /// Packets dropped for want of room since the socket was opened, modulo 2^32.
    pub drops: u32,
}

/// One source socket.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) fd: OwnedFd,
    port: u16,
    /// The error queue may hold something. Set by a failed send and by the poller, cleared before the queue is read.
    pub(crate) has_errors: AtomicBool,
}

/// The sockets of one local address.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) address: SocketAddr,
    pub(crate) receive: OwnedFd,
    pub(crate) sources: Vec<Source>,
    receive_buffer_bytes: usize,
    /// The newest SO_RXQ_OVFL count seen.
    pub(crate) drops: AtomicU32,
    /// False once the kernel or the driver refused a train that it then took packet by packet.
    pub(crate) segmentation: AtomicBool,
    pub(crate) max_segments: AtomicUsize,
}

/// All sockets of one engine. Sending, receiving and reading errors take `&self`: the kernel does the locking.
#[derive(Debug)]
pub struct Sockets {
    pub(crate) locals: Vec<Local>,
    port: u16,
    port_index: u16,
    receive_offload: bool,
    /// Own addresses with the index of their interface, if they are on several.
    own_ways: Vec<(IpAddr, u32)>,
    /// Some source has `has_errors` set: saves the walk over all of them.
    pub(crate) any_errors: AtomicBool,
}

impl Sockets {
    /// Opens and binds all sockets.
    ///
    /// # Errors
    /// Bad configuration (`InvalidInput`), an address that is not on this host, all ports taken, too few file
    /// descriptors, or a kernel older than 4.18. The message names cause and cure.
    pub fn open(config: &Config) -> io::Result<Sockets> {
        check(config)?;
        let (base, count) = match config.port {
            PortChoice::Fixed(port) => (port, 1),
            PortChoice::Range { base, count } => (base, count),
        };
        let (port_index, receive) = bind_receive_sockets(&config.locals, base, count)?;
        let avoid = u32::from(base)..u32::from(base) + u32::from(count);
        let mut locals = Vec::with_capacity(config.locals.len());
        let mut receive_offload = true;
        let interfaces = config.interfaces.iter().copied().chain(repeat(0));
        for ((&ip, receive), interface) in config.locals.iter().zip(receive).zip(interfaces) {
            let is_v4 = ip.to_canonical().is_ipv4();
            let raw = receive.as_raw_fd();
            receive_offload &= sockopt::set_receive_options(raw, is_v4, config.receive_offload)
                .map_err(|error| explain(ip, &error))?;
            let receive_buffer_bytes =
                sockopt::set_receive_buffer(raw, config.receive_buffer_bytes)?;
            let sources = (0..config.source_ports)
                .map(|_| open_source(ip, interface, &avoid, config.send_buffer_bytes))
                .collect::<io::Result<Vec<_>>>()
                .map_err(|error| explain(ip, &error))?;
            let segmentation = config.segmentation_offload && sockopt::knows_segmentation(raw);
            locals.push(Local {
                address: sockopt::bound_address(raw)?,
                receive,
                sources,
                receive_buffer_bytes,
                drops: AtomicU32::new(0),
                segmentation: AtomicBool::new(segmentation),
                max_segments: AtomicUsize::new(SEGMENTS_OF_NEW_KERNELS),
            });
        }
        Ok(Sockets {
            locals,
            port: base + port_index,
            port_index,
            receive_offload,
            own_ways: own_ways(config),
            any_errors: AtomicBool::new(false),
        })
    }

    /// The interface that leads to an own address, where planes have several interfaces.
    #[inline]
    pub(crate) fn way_to_own(&self, ip: IpAddr) -> Option<u32> {
        let mut ways = self.own_ways.iter();
        ways.find(|(own, _)| *own == ip)
            .map(|(_, interface)| *interface)
    }

    /// The UDP port of the receive sockets.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Position of [`Sockets::port`] in the configured range, 0 for a fixed port.
    pub fn port_index(&self) -> u16 {
        self.port_index
    }

    /// Number of local addresses.
    pub fn local_count(&self) -> usize {
        self.locals.len()
    }

    /// All local addresses, by their index.
    pub fn locals(&self) -> impl Iterator<Item = (LocalIndex, SocketAddr)> + '_ {
        self.locals
            .iter()
            .enumerate()
            .map(|(index, local)| (LocalIndex(index as u8), local.address))
    }

    /// Number of source sockets of each local address.
    pub fn source_count(&self) -> usize {
        self.locals[0].sources.len()
    }

    /// The ephemeral port of a source socket; `None` for a slot that does not exist.
    pub fn source_port(&self, slot: SourceSlot) -> Option<u16> {
        let local = self.locals.get(usize::from(slot.local.0))?;
        Some(local.sources.get(usize::from(slot.index))?.port)
    }

    /// The smallest receive buffer that the kernel gave, in bytes as `SO_RCVBUF` counts them. Less than asked for
    /// where `net.core.rmem_max` caps it and the process may not exceed it.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.locals
            .iter()
            .map(|local| local.receive_buffer_bytes)
            .min()
            .unwrap_or(0)
    }

    /// True while trains leave this address with one system call (UDP_SEGMENT).
    pub fn segmentation_offload(&self, local: LocalIndex) -> bool {
        self.locals
            .get(usize::from(local.0))
            .is_some_and(|local| local.segmentation.load(Ordering::Relaxed))
    }

    /// True if the kernel merges packets on receive (UDP_GRO).
    pub fn receive_offload(&self) -> bool {
        self.receive_offload
    }

    /// The most packets that one train may have. Shrinks once if the kernel turns out to be an old one.
    pub fn max_train_segments(&self) -> usize {
        self.locals
            .iter()
            .map(|local| local.max_segments.load(Ordering::Relaxed))
            .min()
            .unwrap_or(1)
    }

    /// Packets dropped by the receive socket of `local` for want of room, modulo 2^32, as the packets received so far
    /// have told. Costs nothing; [`Sockets::receive_fill`] asks the kernel.
    pub fn drops(&self, local: LocalIndex) -> u32 {
        self.locals
            .get(usize::from(local.0))
            .map_or(0, |local| local.drops.load(Ordering::Relaxed))
    }

    /// Asks the kernel how full the receive buffer of `local` is. One system call.
    ///
    /// # Errors
    /// `InvalidInput` for an index that does not exist; what `getsockopt(SO_MEMINFO)` answers.
    pub fn receive_fill(&self, local: LocalIndex) -> io::Result<ReceiveFill> {
        /// linux/sock_diag.h: positions in the array that SO_MEMINFO fills.
        const RMEM_ALLOC: usize = 0;
        const RCVBUF: usize = 1;
        const DROPS: usize = 8;
        let local = self
            .locals
            .get(usize::from(local.0))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let info: [u32; 9] = sockopt::get(
            local.receive.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
        )?;
        Ok(ReceiveFill {
            used_bytes: info[RMEM_ALLOC] as usize,
            limit_bytes: info[RCVBUF] as usize,
            drops: info[DROPS],
        })
    }

    /// The descriptors of the receive sockets, one for each local address, for a poll set of the caller's own.
    pub fn receive_fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.locals.iter().map(|local| local.receive.as_raw_fd())
    }

    pub(crate) fn source(&self, slot: SourceSlot) -> Option<(&Local, &Source)> {
        let local = self.locals.get(usize::from(slot.local.0))?;
        Some((local, local.sources.get(usize::from(slot.index))?))
    }

    /// Notes that the error queue of a source may hold something.
    pub(crate) fn note_errors(&self, source: &Source) {
        // Release/Acquire with `recv_errors`: who sees `any_errors` also sees the source's own flag.
        source.has_errors.store(true, Ordering::Release);
        self.any_errors.store(true, Ordering::Release);
    }
}

/// Whether a socket can be bound to `ip` now: it is on this host, and (IPv6) the check for duplicates is over.
///
/// # Errors
/// What `bind` answers, with an explanation.
pub fn can_bind(ip: IpAddr) -> io::Result<()> {
    let address = local_socket_address(ip, 0);
    let bound = sockopt::udp_socket(&address)
        .and_then(|socket| sockopt::bind(socket.as_raw_fd(), &address));
    bound.map_err(|error| explain(ip, &error))
}

fn check(config: &Config) -> io::Result<()> {
    let bad = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    if config.locals.is_empty() || config.locals.len() > MAX_LOCALS {
        return bad(format!(
            "{} local addresses: there must be 1 to {MAX_LOCALS}",
            config.locals.len()
        ));
    }
    if config.source_ports == 0 || config.source_ports > MAX_SOURCE_PORTS {
        return bad(format!(
            "{} source ports: there must be 1 to {MAX_SOURCE_PORTS}",
            config.source_ports
        ));
    }
    for (position, ip) in config.locals.iter().enumerate() {
        if ip.is_unspecified() || ip.is_multicast() {
            return bad(format!(
                "{ip} is not the address of an interface: name the device's own addresses"
            ));
        }
        if config.locals[..position].contains(ip) {
            return bad(format!("local address {ip} is named twice"));
        }
    }
    if let PortChoice::Range { base, count } = config.port
        && (count == 0 || u32::from(base) + u32::from(count) > 65536 || base == 0)
    {
        return bad(format!(
            "port range {base} + {count}: it must lie within 1 and 65535 and not be empty"
        ));
    }
    Ok(())
}

/// Binds one receive socket for each address, all to the first port of the range that is free on all of them.
fn bind_receive_sockets(
    locals: &[IpAddr],
    base: u16,
    count: u16,
) -> io::Result<(u16, Vec<OwnedFd>)> {
    let start = RandomState::new().build_hasher().finish() % u64::from(count);
    for step in 0..u64::from(count) {
        let index = ((start + step) % u64::from(count)) as u16;
        match bind_all(locals, base + index) {
            Ok(sockets) => return Ok((index, sockets)),
            Err((_, error)) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err((ip, error)) => return Err(explain(ip, &error)),
        }
    }
    let names: Vec<String> = locals.iter().map(IpAddr::to_string).collect();
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        format!(
            "all {count} UDP ports of {base}..{} are taken on {}: end a program that holds one, or choose another port base on all hosts",
            u32::from(base) + u32::from(count) - 1,
            names.join(", ")
        ),
    ))
}

fn bind_all(locals: &[IpAddr], port: u16) -> Result<Vec<OwnedFd>, (IpAddr, io::Error)> {
    locals
        .iter()
        .map(|&ip| {
            let address = local_socket_address(ip, port);
            let open = || {
                let socket = sockopt::udp_socket(&address)?;
                sockopt::bind(socket.as_raw_fd(), &address)?;
                Ok(socket)
            };
            open().map_err(|error| (ip, error))
        })
        .collect()
}

fn own_ways(config: &Config) -> Vec<(IpAddr, u32)> {
    let locals = config.locals.iter().map(IpAddr::to_canonical);
    let ways = locals.zip(config.interfaces.iter().copied());
    let ways: Vec<_> = ways.filter(|(_, interface)| *interface != 0).collect();
    let several = ways.iter().any(|(_, interface)| *interface != ways[0].1);
    if several { ways } else { Vec::new() }
}

fn open_source(
    ip: IpAddr,
    interface: u32,
    avoid: &std::ops::Range<u32>,
    send_buffer_bytes: usize,
) -> io::Result<Source> {
    let address = local_socket_address(ip, 0);
    let mut tries = 0;
    loop {
        tries += 1;
        let fd = sockopt::udp_socket(&address)?;
        // Before bind: no packet may slip in ahead of the filter.
        sockopt::set_source_options(fd.as_raw_fd(), address.is_ipv4())?;
        sockopt::set_send_buffer(fd.as_raw_fd(), send_buffer_bytes)?;
        if interface != 0 {
            sockopt::set_way_out(fd.as_raw_fd(), address.is_ipv4(), interface)?;
        }
        sockopt::bind(fd.as_raw_fd(), &address)?;
        let port = sockopt::bound_address(fd.as_raw_fd())?.port();
        // A host may have widened its ephemeral range over ours: leave those ports to the engines that will want them.
        if !avoid.contains(&u32::from(port)) || tries >= MAX_EPHEMERAL_TRIES {
            return Ok(Source {
                fd,
                port,
                has_errors: AtomicBool::new(false),
            });
        }
    }
}

/// Adds to a system error what it means here and what helps.
fn explain(ip: IpAddr, error: &io::Error) -> io::Error {
    let cure = match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => {
            "the address is not on this host (or not usable yet): see `ip address`"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "too many open files: raise `ulimit -n` (100 for each device and process are enough)"
        }
        Some(libc::EACCES | libc::EPERM) => "not permitted: ports below 1024 need privileges",
        Some(libc::EAFNOSUPPORT) => "this kernel has no such address family",
        Some(libc::ENOPROTOOPT) => {
            "this kernel lacks a socket option that is needed: Linux 4.18 or newer has it"
        }
        _ => "cannot open a UDP socket",
    };
    explained::explain(error, format!("{ip}: {cure} ({error})"))
}
