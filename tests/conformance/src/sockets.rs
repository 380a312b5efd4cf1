//! The peer's sockets: one at its endpoint port, which receives, and source ports, which only send. UDP as the kernel has
//! it, with the TOS byte of what arrives, and of what is sent: its lower two bits are ECN.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr::null;
use std::time::Instant;

use anyhow::{Context, Result};

/// Largest datagram.
const DATAGRAM_BYTES: usize = 65_536;

/// Asked of the kernel for the endpoint's socket, which may grant less: bursts must not be lost by accident.
const BUFFER_BYTES: libc::c_int = 4 << 20;

/// Source ports of a peer.
pub const SOURCES: usize = 4;

/// ECN code point ECT(0), and CE.
pub const ECT0: u8 = 0b10;
/// Congestion experienced.
pub const CE: u8 = 0b11;

/// What arrived.
pub struct Datagram {
    /// When it was read.
    pub at: Instant,
    /// Who sent it.
    pub from: SocketAddr,
    /// Its ECN bits, where the kernel tells them.
    pub ecn: Option<u8>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// All of a peer.
pub struct Sockets {
    endpoint: UdpSocket,
    sources: Vec<UdpSocket>,
    buffer: Vec<u8>,
}

impl Sockets {
    /// Binds `port` of `ip` and the source ports.
    ///
    /// # Errors
    /// The address is not of this host, or the port is taken.
    pub fn bind(ip: IpAddr, port: u16) -> Result<Self> {
        let endpoint = UdpSocket::bind((ip, port)).with_context(|| {
            format!("cannot bind {ip} port {port}: name another address of this host (--peer)")
        })?;
        endpoint.set_nonblocking(true)?;
        set_option(&endpoint, libc::SOL_SOCKET, libc::SO_RCVBUF, BUFFER_BYTES)?;
        let (level, receive) = match ip {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTOS),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
        };
        set_option(&endpoint, level, receive, 1)?;
        let sources = (0..SOURCES).map(|_| UdpSocket::bind((ip, 0)));
        let sources = sources.collect::<io::Result<Vec<_>>>()?;
        for source in &sources {
            source.set_nonblocking(true)?;
            set_ecn(source, ECT0)?;
        }
        Ok(Self {
            endpoint,
            sources,
            buffer: vec![0; DATAGRAM_BYTES],
        })
    }

    /// Sends a datagram from a source port.
    ///
    /// # Errors
    /// The kernel refuses it; an ICMP error that waits at the socket is none.
    pub fn send(&self, source: usize, to: SocketAddr, bytes: &[u8]) -> Result<()> {
        let socket = &self.sources[source % SOURCES];
        for _ in 0..2 {
            match socket.send_to(bytes, to) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                other => {
                    other.with_context(|| format!("cannot send {} bytes to {to}", bytes.len()))?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Sends a datagram with the ECN bits `ecn`.
    ///
    /// # Errors
    /// As [`Sockets::send`].
    pub fn send_marked(&self, source: usize, to: SocketAddr, bytes: &[u8], ecn: u8) -> Result<()> {
        let socket = &self.sources[source % SOURCES];
        set_ecn(socket, ecn)?;
        let sent = self.send(source, to, bytes);
        set_ecn(socket, ECT0)?;
        sent
    }

    /// Port of a source socket.
    ///
    /// # Errors
    /// None that is known.
    pub fn source_port(&self, source: usize) -> Result<u16> {
        Ok(self.sources[source % SOURCES].local_addr()?.port())
    }

    /// The next datagram at the endpoint's port, if one comes before `deadline`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn receive(&mut self, deadline: Instant) -> Result<Option<Datagram>> {
        loop {
            match self.receive_once() {
                Ok(datagram) => return Ok(Some(datagram)),
                Err(error) => match error.kind() {
                    // What waits at the deadline was still in time: this thread may have been kept from running.
                    io::ErrorKind::WouldBlock if Instant::now() >= deadline => return Ok(None),
                    io::ErrorKind::WouldBlock => self.wait(deadline)?,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused => {}
                    _ => return Err(error).context("cannot receive"),
                },
            }
        }
    }

    /// Waits for a datagram. By `ppoll`: the time limit of a socket has the grain of the kernel's tick.
    fn wait(&self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut endpoint = libc::pollfd {
            fd: self.endpoint.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let limit = libc::timespec {
            tv_sec: left.as_secs() as libc::time_t,
            tv_nsec: left.subsec_nanos() as libc::c_long,
        };
        // SAFETY: one pollfd and a timespec that live across the call; no signal mask.
        let result = unsafe { libc::ppoll(&raw mut endpoint, 1, &raw const limit, null()) };
        let error = io::Error::last_os_error();
        if result < 0 && error.kind() != io::ErrorKind::Interrupted {
            return Err(error).context("cannot wait for packets");
        }
        Ok(())
    }

    fn receive_once(&mut self) -> io::Result<Datagram> {
        let mut control = [0_u64; 16];
        let mut piece = libc::iovec {
            iov_base: self.buffer.as_mut_ptr().cast(),
            iov_len: self.buffer.len(),
        };
        // SAFETY: all-zero is a valid sockaddr_storage and a valid msghdr.
        let (mut from, mut message): (libc::sockaddr_storage, libc::msghdr) =
            unsafe { (zeroed(), zeroed()) };
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the message points to a name, a piece and control space that live across the call, with their lengths.
        let length = unsafe { libc::recvmsg(self.endpoint.as_raw_fd(), &raw mut message, 0) };
        let at = Instant::now();
        if length < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Datagram {
            at,
            from: address_of(&from)?,
            ecn: ecn_of(&message),
            bytes: self.buffer[..length as usize].to_vec(),
        })
    }

    /// A datagram that arrived at a source port, where none must.
    pub fn strayed(&self) -> Option<(u16, usize)> {
        let mut buffer = [0; 16];
        self.sources.iter().find_map(|source| {
            let length = source.recv(&mut buffer).ok()?;
            Some((source.local_addr().ok()?.port(), length))
        })
    }
}

/// The ECN bits that came with a message.
fn ecn_of(message: &libc::msghdr) -> Option<u8> {
    // SAFETY: the kernel filled in the control space; the macros stay within msg_controllen, and the data of a TOS or
    // TCLASS message is at least a byte (of IPv6 an int, of whose value a byte is used).
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) => return Some(*data & 3),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    return Some((data.cast::<libc::c_int>().read_unaligned() & 3) as u8);
                }
                _ => header = libc::CMSG_NXTHDR(message, header),
            }
        }
    }
    None
}

fn address_of(storage: &libc::sockaddr_storage) -> io::Result<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in, and the storage is aligned for all of them.
            let address = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = IpAddr::from(address.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::new(ip, u16::from_be(address.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, a sockaddr_in6.
            let address = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = IpAddr::from(address.sin6_addr.s6_addr);
            Ok(SocketAddr::new(ip, u16::from_be(address.sin6_port)))
        }
        other => Err(io::Error::other(format!("address family {other}"))),
    }
}

fn set_ecn(socket: &UdpSocket, ecn: u8) -> Result<()> {
    let (level, option) = match socket.local_addr()? {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    };
    set_option(socket, level, option, libc::c_int::from(ecn))
}

fn set_option(socket: &UdpSocket, level: i32, option: i32, value: libc::c_int) -> Result<()> {
    // SAFETY: the value is an int that lives across the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error()).context("cannot set up a socket of the peer");
    }
    Ok(())
}
