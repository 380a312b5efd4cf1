//! Sends hostile packets at a metaroce endpoint while a transfer to it runs: random bytes, mutated, truncated, replayed
//! and forged copies of the real packets, which it overhears on the interface that they leave by.
//!
//! `hostile INTERFACE SOURCE_IP TARGET_IP COUNT SEED`, as root, on the host whose peer is the target. Prints how many
//! of each kind it sent. What it never sends is a packet that only someone who reads the traffic could make (right
//! connection id with new numbers): the protocol does not claim to withstand that.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use metaroce_proto::wire::{
    BASE_BYTES, ConnectionId, DATA_HEADER_BYTES, DataHeader, Packet, PacketType, Rkey, Token,
};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

/// Overheard packets that are kept to choose from; older ones are replaced at random.
const KEPT: usize = 2048;

/// The overhearing socket gives up when the transfer never starts.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// Packets sent between two looks at the wire.
const BURST: u64 = 64;

/// A packet that went to the target.
struct Overheard {
    port: u16,
    bytes: Vec<u8>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [interface, source, target, count, seed] = arguments.as_slice() else {
        bail!("usage: hostile INTERFACE SOURCE_IP TARGET_IP COUNT SEED");
    };
    let target: Ipv4Addr = target.parse().context("TARGET_IP")?;
    let count: u64 = count.parse().context("COUNT")?;
    let mut random = SmallRng::seed_from_u64(seed.parse().context("SEED")?);
    let socket = UdpSocket::bind((source.as_str(), 0)).context("cannot bind SOURCE_IP")?;
    let tap = Tap::open(interface, socket.local_addr()?.port())?;
    let mut kept = Vec::new();
    let started = Instant::now();
    while kept.len() < 16 {
        tap.overhear(target, &mut kept, &mut random)?;
        ensure!(
            started.elapsed() < STARTS_WITHIN,
            "no traffic to {target} within {} s",
            STARTS_WITHIN.as_secs()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut sent = BTreeMap::new();
    for number in 0..count {
        if number % BURST == 0 {
            tap.overhear(target, &mut kept, &mut random)?;
        }
        let sample = &kept[random.random_range(0..kept.len())];
        let (kind, bytes) = attack(sample, &mut random);
        // A refused packet (ICMP) or a full queue is no reason to stop.
        if socket.send_to(&bytes, (target, sample.port)).is_ok() {
            *sent.entry(kind).or_insert(0_u64) += 1;
        }
    }
    for (kind, number) in &sent {
        println!("{kind} {number}");
    }
    println!(
        "sent {} in {:.1} s",
        sent.values().sum::<u64>(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// One hostile packet made from an overheard one.
fn attack(sample: &Overheard, random: &mut SmallRng) -> (&'static str, Vec<u8>) {
    let mut bytes = sample.bytes.clone();
    match random.random_range(0..6) {
        0 => {
            bytes.resize(random.random_range(0..1500), 0);
            random.fill_bytes(&mut bytes);
            if let Some(first) = bytes.first_mut()
                && random.random()
            {
                *first = sample.bytes[0];
            }
            ("random", bytes)
        }
        1 => {
            // Header bits only: what flips payload bits is caught by the UDP checksum before it gets here.
            let header = bytes.len().min(DATA_HEADER_BYTES);
            for _ in 0..random.random_range(1..8) {
                bytes[random.random_range(0..header)] ^= 1 << random.random_range(0..8);
            }
            ("mutated", bytes)
        }
        2 => {
            bytes.truncate(random.random_range(0..bytes.len()));
            ("truncated", bytes)
        }
        3 => ("replayed", bytes),
        4 => forge(&bytes, random, true)
            .map_or(("replayed", bytes), |forged| ("forged connection", forged)),
        _ => forge(&bytes, random, false)
            .map_or(("replayed", bytes), |forged| ("forged keys", forged)),
    }
}

/// A DATA packet with a right checksum of a connection that was guessed, and perhaps with other token, key and address. With
/// the right connection id it could take the place of a packet that was lost: only a reader of the traffic can do that.
fn forge(bytes: &[u8], random: &mut SmallRng, connection: bool) -> Option<Vec<u8>> {
    let Ok(Packet::Data {
        mut base,
        mut header,
        payload,
    }) = Packet::parse(bytes)
    else {
        return None;
    };
    base.connection = ConnectionId(random.random());
    if !connection {
        header.token = Token::truncate(random.random());
        header.rkey = Rkey(random.random());
        header.remote_address = random.random();
    }
    debug_assert_eq!(bytes[0] & 0x0f, PacketType::Data as u8);
    let mut forged = DataHeader::emit(&header, &base).to_vec();
    forged.extend_from_slice(payload);
    Some(forged)
}

/// A packet socket that sees what leaves by an interface.
struct Tap {
    fd: OwnedFd,
    /// Source port of our own packets, which must not be taken for real ones.
    own_port: u16,
}

impl Tap {
    fn open(interface: &str, own_port: u16) -> Result<Self> {
        let index: i32 = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"))
            .with_context(|| format!("no interface {interface}"))?
            .trim()
            .parse()?;
        // SAFETY: socket() takes numbers only; a non-negative result is a descriptor that nobody else owns.
        let fd = unsafe {
            let fd = libc::socket(
                libc::AF_PACKET,
                libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
                i32::from((libc::ETH_P_ALL as u16).to_be()),
            );
            if fd < 0 {
                bail!(
                    "cannot overhear {interface}: {} (needs root)",
                    io::Error::last_os_error()
                );
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: all-zero is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        // SAFETY: the address is a sockaddr_ll of the length given and lives across the call.
        let bound = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        ensure!(
            bound == 0,
            "cannot overhear {interface}: {}",
            io::Error::last_os_error()
        );
        Ok(Self { fd, own_port })
    }

    /// Takes what is there, at most 64 packets.
    fn overhear(
        &self,
        target: Ipv4Addr,
        kept: &mut Vec<Overheard>,
        random: &mut SmallRng,
    ) -> Result<()> {
        let mut buffer = [0_u8; 8192];
        for _ in 0..64 {
            // SAFETY: the buffer is writable for the length given.
            let length = unsafe {
                libc::recv(
                    self.fd.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    0,
                )
            };
            if length < 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                    _ => Err(error).context("overhearing"),
                };
            }
            let Some(packet) = udp_to(target, self.own_port, &buffer[..length as usize]) else {
                continue;
            };
            if kept.len() < KEPT {
                kept.push(packet);
            } else {
                kept[random.random_range(0..KEPT)] = packet;
            }
        }
        Ok(())
    }
}

/// The (first) metaroce packet of an IPv4 datagram to `target`; the rest of a train is left out.
fn udp_to(target: Ipv4Addr, own_port: u16, ip: &[u8]) -> Option<Overheard> {
    const UDP: u8 = 17;
    let header = usize::from(*ip.first()? & 0x0f) * 4;
    if ip[0] >> 4 != 4 || *ip.get(9)? != UDP || ip.get(16..20)? != target.octets() {
        return None;
    }
    let source = u16::from_be_bytes(ip.get(header..header + 2)?.try_into().ok()?);
    if source == own_port {
        return None;
    }
    let port = u16::from_be_bytes(ip.get(header + 2..header + 4)?.try_into().ok()?);
    let mut bytes = ip.get(header + 8..)?;
    if bytes.len() < BASE_BYTES {
        return None;
    }
    if let Ok(Packet::Data { header, .. }) = Packet::parse(bytes) {
        bytes = &bytes[..DATA_HEADER_BYTES + usize::from(header.payload_bytes)];
    }
    Some(Overheard {
        port,
        bytes: bytes.to_vec(),
    })
}
