//! Plain UDP between hosts, for the cases of the test bed: who reaches whom, how much arrives.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metaroce_e2e::{Fabric, Host};

/// What still is under way arrives within this.
pub const SETTLE: Duration = Duration::from_millis(200);

/// The two families of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// Those that the kernel has.
pub fn families(fabric: &Fabric) -> &'static [Family] {
    if fabric.state().ipv6 {
        &[Family::V4, Family::V6]
    } else {
        &[Family::V4]
    }
}

/// A host's address.
pub fn address(host: Host, nic: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(host.ipv4_on(nic)),
        Family::V6 => IpAddr::V6(host.ipv6_on(nic)),
    }
}

/// A socket on a NIC of a host, at a port of the kernel's choice.
pub fn bind(fabric: &Fabric, host: Host, nic: u8, family: Family) -> Result<UdpSocket> {
    let address = address(host, nic, family);
    fabric
        .inside(host, || UdpSocket::bind((address, 0)))?
        .with_context(|| format!("{address} of host {host} cannot be used"))
}

/// Senders on one host, each with a port of its own, and the receiver on another.
pub struct Flows {
    pub senders: Vec<UdpSocket>,
    pub receiver: UdpSocket,
}

impl Flows {
    /// `count` flows between the NICs number `nic` of two hosts.
    pub fn new(
        fabric: &Fabric,
        [from, to]: [Host; 2],
        nic: u8,
        family: Family,
        count: usize,
    ) -> Result<Self> {
        let receiver = bind(fabric, to, nic, family)?;
        let target: SocketAddr = receiver.local_addr()?;
        let senders = (0..count)
            .map(|_| {
                let socket = bind(fabric, from, nic, family)?;
                socket.connect(target)?;
                Ok(socket)
            })
            .collect::<Result<_>>()?;
        Ok(Self { senders, receiver })
    }

    /// Sends `count` datagrams on every flow, one at a time, and counts what arrives. A refusal to send counts
    /// as a loss: routes may be gone.
    pub fn exchange(&self, count: u64, payload_bytes: usize) -> Result<u64> {
        let payload = vec![0; payload_bytes];
        let mut arrived = 0;
        for _ in 0..count {
            for sender in &self.senders {
                let _ = sender.send(&payload);
            }
            arrived += drain(&self.receiver, None)?;
        }
        self.receiver.set_nonblocking(false)?;
        self.receiver.set_read_timeout(Some(SETTLE))?;
        let sent = count * self.senders.len() as u64;
        while arrived < sent && self.receiver.recv(&mut [0; 16]).is_ok() {
            arrived += 1;
        }
        Ok(arrived)
    }
}

/// Receives until nothing comes for `patience`, or nothing is there; how many datagrams came.
pub fn drain(receiver: &UdpSocket, patience: Option<Duration>) -> Result<u64> {
    receiver.set_nonblocking(patience.is_none())?;
    receiver.set_read_timeout(patience)?;
    let mut datagrams = 0;
    while receiver.recv(&mut [0; 16]).is_ok() {
        datagrams += 1;
    }
    Ok(datagrams)
}

/// Sets an option of a socket that is one int.
fn set_option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: u32) -> Result<()> {
    let value = libc::c_int::try_from(value)?;
    // SAFETY: the kernel reads one int, which outlives the call, from the pointer.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    ensure!(
        status == 0,
        "socket option {level}/{name} is refused: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// Has the kernel cut what `socket` sends into packets of this much payload, late (UDP_SEGMENT).
pub fn send_in_trains_of(socket: &UdpSocket, payload_bytes: u32) -> Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, payload_bytes)
}

/// Gives the socket room for as much as the kernel allows.
pub fn buffer_much(socket: &UdpSocket) -> Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 16 << 20)
}

/// Has `socket` send packets that routers may mark: ECT(0).
pub fn send_markable(socket: &UdpSocket, family: Family) -> Result<()> {
    const ECT_0: u32 = 2;
    match family {
        Family::V4 => set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, ECT_0),
        Family::V6 => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, ECT_0),
    }
}

/// Has the kernel tell the traffic class of each packet, for [`receive_ecn`].
pub fn tell_ecn(socket: &UdpSocket, family: Family) -> Result<()> {
    match family {
        Family::V4 => set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
        Family::V6 => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
    }
}

/// Receives one datagram; its two ECN bits. None if the socket's patience is at its end.
pub fn receive_ecn(socket: &UdpSocket) -> Result<Option<u8>> {
    let mut payload = [0_u8; 16];
    // Aligned for cmsghdr.
    let mut control = [0_u64; 8];
    let mut slice = libc::iovec {
        iov_base: payload.as_mut_ptr().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: msghdr is plain data, for which zeros are the empty value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: all pointers in the message are to live buffers of the lengths given beside them.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    if received < 0 {
        let error = std::io::Error::last_os_error();
        return match error.kind() {
            std::io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(error).context("cannot receive"),
        };
    }
    // SAFETY: the kernel filled `control` with headers and set its length in the message.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
    let header = header.context("no traffic class came with a packet")?;
    // SAFETY: the data of a header lies behind it, one byte at least for either family's class: IPv4 gives a
    // byte, IPv6 an int, of which the first byte is read on this (little-endian) machine.
    let class = unsafe { *libc::CMSG_DATA(header) };
    Ok(Some(class & 3))
}
