//! Plain UDP between hosts, for the cases of the test bed: who reaches whom, how much arrives.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
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
