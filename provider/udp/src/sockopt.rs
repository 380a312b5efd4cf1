//! Opening one UDP socket and setting its options. Called by `sockets.rs` only.
//! Options that every kernel since 4.18 has are required; the rest are tried and reported.

use crate::address::RawAddress;
use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// linux/in6.h: the interface that unicast packets leave by; libc has it for some C libraries only.
const IPV6_UNICAST_IF: libc::c_int = 76;
/// ECT(0): "this transport understands ECN" (RFC 3168), in the two low bits of TOS and traffic class.
const ECT0: i32 = 2;
/// Segments the UDP socket's outgoing buffer (linux/udp.h); libc has it for glibc only.
pub(crate) const UDP_SEGMENT: i32 = 103;
/// Delivers merged packets and their segment size (linux/udp.h).
pub(crate) const UDP_GRO: i32 = 104;

/// Sets one socket option.
pub(crate) fn set<T: Copy>(fd: RawFd, level: i32, name: i32, value: T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes at `value`, which lives through the call.
    let rc = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Reads one socket option whose value is a `T` of plain integers.
pub(crate) fn get<T: Copy + Default>(fd: RawFd, level: i32, name: i32) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`; callers use integer types only, so any bytes are valid.
    let rc = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}

/// A new UDP socket of the family of `address`, non-blocking and close-on-exec, with don't-fragment and ECT(0) set.
pub(crate) fn udp_socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; a non-negative result is a descriptor that nobody else owns.
    let fd = unsafe {
        let fd = libc::socket(family, kind, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let raw = fd.as_raw_fd();
    // PROBE sets don't-fragment and ignores the kernel's cached path MTU: finding the real one is the transport's work.
    if address.is_ipv4() {
        set(
            raw,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        )?;
        set(raw, libc::IPPROTO_IP, libc::IP_TOS, ECT0)?;
    } else {
        set(raw, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1i32)?;
        set(
            raw,
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
        )?;
        set(raw, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1i32)?;
        set(raw, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, ECT0)?;
    }
    Ok(fd)
}

/// Binds a socket.
pub(crate) fn bind(fd: RawFd, address: &SocketAddr) -> io::Result<()> {
    let (raw, len) = RawAddress::new(address);
    // SAFETY: `raw` holds `len` initialised bytes and lives through the call.
    let rc = unsafe { libc::bind(fd, (&raw const raw).cast(), len) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The address that a socket is bound to.
pub(crate) fn bound_address(fd: RawFd) -> io::Result<SocketAddr> {
    let mut raw = RawAddress::empty();
    let mut len = RawAddress::CAPACITY;
    // SAFETY: the kernel writes at most `len` bytes into `raw`.
    let rc = unsafe { libc::getsockname(fd, (&raw mut raw).cast(), &raw mut len) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    raw.get()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Asks for a receive buffer, beyond the host's limit where the process may. Returns what was got, in the caller's
/// measure: the kernel doubles the request for its own overhead, and this halves it again.
pub(crate) fn set_receive_buffer(fd: RawFd, bytes: usize) -> io::Result<usize> {
    set_buffer(fd, bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
}

/// The same for the send buffer.
pub(crate) fn set_send_buffer(fd: RawFd, bytes: usize) -> io::Result<usize> {
    set_buffer(fd, bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
}

fn set_buffer(fd: RawFd, bytes: usize, force: i32, plain: i32) -> io::Result<usize> {
    // i32::MAX / 2: the kernel doubles the value in an int.
    let wanted = bytes.min(i32::MAX as usize / 2) as i32;
    if set(fd, libc::SOL_SOCKET, force, wanted).is_err() {
        set(fd, libc::SOL_SOCKET, plain, wanted)?;
    }
    let got: i32 = get(fd, libc::SOL_SOCKET, plain)?;
    Ok(got.max(0) as usize / 2)
}

/// Makes received packets carry their ECN bits, the drop counter and (if `gro`) the segment size of merged packets.
/// Returns whether the kernel merges.
pub(crate) fn set_receive_options(fd: RawFd, is_v4: bool, gro: bool) -> io::Result<bool> {
    if is_v4 {
        set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1i32)?;
    } else {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1i32)?;
    }
    set(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1i32)?;
    Ok(gro && set(fd, libc::SOL_UDP, UDP_GRO, 1i32).is_ok())
}

/// Makes a socket report ICMP errors (an unconnected one gets none without) and drop all data that is sent to it.
pub(crate) fn set_source_options(fd: RawFd, is_v4: bool) -> io::Result<()> {
    if is_v4 {
        set(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1i32)?;
    } else {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1i32)?;
    }
    // `ret #0`: accept no byte. The error queue is not filtered. Whoever learns the port could else fill a buffer
    // that nobody reads.
    let mut drop_all = libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut drop_all,
    };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Has packets leave by the interface of that index: routes over others are not looked at. Needs no rights, and does not
/// change what the socket receives.
pub(crate) fn set_way_out(fd: RawFd, is_v4: bool, interface: u32) -> io::Result<()> {
    // In network order, as the kernel wants it here and nowhere else.
    let index = interface.to_be();
    if is_v4 {
        set(fd, libc::IPPROTO_IP, libc::IP_UNICAST_IF, index)
    } else {
        set(fd, libc::IPPROTO_IPV6, IPV6_UNICAST_IF, index)
    }
}

/// True if the kernel knows UDP segmentation. Where it does not, the control message might be ignored silently and
/// a whole train would leave as one datagram: so the socket option is asked for before the first train.
pub(crate) fn knows_segmentation(fd: RawFd) -> bool {
    get::<i32>(fd, libc::SOL_UDP, UDP_SEGMENT).is_ok()
}
