//! Opening an engine: from a device and the settings to sockets, core and thread. Called by `registry.rs` once for each
//! device; nothing here runs afterwards.

use super::asked::Door;
use super::background;
use super::changes::Changes;
use super::clock::Clock;
use super::config::Settings;
use super::core::Core;
use super::events::{Events, RING_RECORDS};
use super::gate::Gate;
use super::nap::Nap;
use super::neighbours::Service;
use super::planes::Planes;
use super::presence::Presence;
use super::reader::Reader;
use super::{Engine, Inner, registry};
use crate::device::Device;
use crate::verbs::Port;
use crate::verbs::mr_memory::MrTable;
use metaroce_proto::endpoint::Endpoint;
use metaroce_proto::types::{Driving, EndpointConfig, LocalAddress};
use metaroce_udp::{
    Config, MAX_LOCALS, MAX_TRAIN_BYTES, Poller, PortChoice, Sockets, Waker, can_bind, errno_of,
    explain,
};
use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Payload of a full packet where the MTU allows it: all measurements are with it.
const MAX_PAYLOAD: u32 = 4096;
/// Headers of IPv6 and UDP and the longest of ours: the same payload then serves both address families.
const HEADER_BYTES: u32 = 40 + 8 + 64;
/// An MTU below this leaves no useful payload (IPv4 guarantees 576).
const MIN_MTU: u32 = 576;
/// Payloads are a multiple of this: no aligned word of a message lies in two packets.
const PAYLOAD_STEP: u32 = 8;
/// Packets in a train. Kernels before 6.8 take no more; trains of full packets are limited by their bytes anyway.
const TRAIN_SEGMENTS: u16 = 64;
/// Source sockets of all addresses together: each costs a file descriptor, of which a process may have only 1,024 …
const SOURCES_TOTAL: usize = 64;
/// … so all engines together take half of them at most for it, and the first half of what is left of that: with many
/// devices, or a low limit, the later ones do with fewer.
const SOURCES_SHARE: usize = 2;
/// Source sockets of an address: twice the usual number of paths, for hashes are not even …
const SOURCES_EACH: usize = 32;
/// … and at least this many, unless descriptors are scarce.
const SOURCES_LEAST: usize = 8;
/// One in so many of the file descriptors that the process may have go to source sockets; the others are the program's.
const DESCRIPTOR_SHARE: usize = 4;
/// The most memory for packets that are held back for strict visibility, all connections together: what 100 Gb/s bring in
/// 5 ms. What of it may be used follows the need.
const HOLD_MAX_BYTES: u32 = 64 << 20;

impl Engine {
    /// Opens sockets, core and thread.
    pub(super) fn open(device: &Arc<Device>) -> io::Result<Arc<Engine>> {
        let settings = Settings::from_environment()?;
        let (locals, planes) = usable_addresses(device)?;
        let budget = SourceBudget::take(locals.len());
        let sockets = Sockets::open(&Config {
            locals: locals.clone(),
            interfaces: ways_out(device, &planes),
            port: PortChoice::Range {
                base: settings.port_base,
                count: settings.ports,
            },
            source_ports: budget.each,
            receive_buffer_bytes: settings.receive_buffer_bytes,
            segmentation_offload: settings.segmentation_offload,
            ..Config::default()
        })?;
        let clock = Clock::start();
        let own = local_addresses(device, &locals, &planes);
        let config = endpoint_config(device, &settings, own, &sockets)?;
        log::info!(
            "{}: UDP port {} on {locals:?}, payload {} B, receive buffer {} B",
            device.name,
            sockets.port(),
            config.payload_bytes,
            sockets.receive_buffer_bytes()
        );
        let events = Events::wanted(&settings, &clock);
        let mut endpoint = Endpoint::new(config, rand::random(), clock.now());
        if events.is_some() {
            endpoint.enable_log(RING_RECORDS);
        }
        let waker = Waker::new()?;
        let poller = Poller::new(&sockets, &waker)?;
        let door = Door::open(&device.name, sockets.port());
        if let Some(door) = &door {
            poller.watch(door.fd())?;
        }
        let changes = Changes::open(&device.name);
        if let Some(changes) = &changes {
            poller.watch(changes.fd())?;
        }
        let inner = Arc::new(Inner {
            device: device.clone(),
            planes: Planes::new(device, &locals, Port::of(device)),
            port: Port::of(device),
            memory: MrTable::of_process().clone(),
            settings,
            sockets,
            clock,
            waker,
            gate: Gate::new(Core::new(endpoint)),
            presence: Presence::default(),
            reader: Reader::default(),
            door,
            changes,
            events,
            nap: Nap::new(),
            stop: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            _budget: budget,
            generation: registry::generation(),
        });
        // Already here, so that an engine has all its descriptors when it is opened.
        let service = Service::default();
        service.look(&inner, &poller, inner.clock.now());
        let events_thread = super::events::start(&inner)?;
        let shared = inner.clone();
        let thread = std::thread::Builder::new()
            .name("metaroce".into())
            .spawn(move || background::run(&shared, &poller, service))
            .map_err(|error| {
                // The other thread must not stay alone.
                inner.stop.store(true, Ordering::Release);
                let cure = "cannot start the background thread: raise `ulimit -u` (processes and threads) or `ulimit -v` (memory)";
                explain(&error, format!("{cure} ({error})"))
            })?;
        Ok(Arc::new(Engine {
            inner,
            thread: Mutex::new(Some(thread)),
            events_thread: Mutex::new(events_thread),
        }))
    }
}

/// Source sockets that the engines of this process have.
static SOURCES_OPEN: AtomicUsize = AtomicUsize::new(0);

/// What one engine has of them, given back when it is dropped.
#[derive(Debug)]
pub(super) struct SourceBudget {
    each: usize,
    total: usize,
}

impl SourceBudget {
    fn take(addresses: usize) -> Self {
        // No answer is not expected; the kernel's usual limit then.
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        let each = sources_each(descriptors, SOURCES_OPEN.load(Ordering::Relaxed), addresses);
        if each < SOURCES_LEAST {
            log::warn!(
                "only {descriptors} files may be open: {each} source ports an address; raise `ulimit -n`"
            );
        }
        let total = each * addresses;
        SOURCES_OPEN.fetch_add(total, Ordering::Relaxed);
        Self { each, total }
    }
}

impl Drop for SourceBudget {
    fn drop(&mut self) {
        SOURCES_OPEN.fetch_sub(self.total, Ordering::Relaxed);
    }
}

/// Source sockets for each of `addresses`, where the process may have `descriptors` and `open` of them are sources. With
/// few of them the paths share source ports, and less is sprayed; that is better than no queue pair.
fn sources_each(descriptors: u64, open: usize, addresses: usize) -> usize {
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let total = ((descriptors / SOURCES_SHARE).saturating_sub(open) / 2).min(SOURCES_TOTAL);
    let least = (descriptors / DESCRIPTOR_SHARE / addresses).clamp(1, SOURCES_LEAST);
    (total / addresses).clamp(least, SOURCES_EACH)
}

/// The addresses of the device that can be bound now, with their planes, in the order of the GID table. An address that is
/// not usable (yet, or any more) only makes its GID unusable.
fn usable_addresses(device: &Device) -> io::Result<(Vec<IpAddr>, Vec<u8>)> {
    let mut usable = Vec::new();
    let mut planes = Vec::new();
    for (index, &ip) in device.addresses.iter().enumerate() {
        match can_bind(ip) {
            Ok(()) if usable.len() < MAX_LOCALS => {
                usable.push(ip);
                planes.push(device.plane_of(index));
            }
            Ok(()) => log::warn!(
                "{}: {ip} is left out: only {MAX_LOCALS} addresses can be used",
                device.name
            ),
            // Nothing is wrong with the address.
            Err(error)
                if matches!(
                    errno_of(&error),
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
                ) =>
            {
                return Err(error);
            }
            Err(error) => log::warn!("{}: {ip} cannot be used: {error}", device.name),
        }
    }
    if usable.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!(
                "interface {} has no usable address: see `ip address show dev {}`",
                device.interface, device.interface
            ),
        ));
    }
    for (number, plane) in device.planes.iter().enumerate() {
        if !planes.iter().any(|one| usize::from(*one) == number) {
            log::warn!(
                "{}: plane {number} is left out: {} has no usable address",
                device.name,
                plane.interface
            );
        }
    }
    Ok((usable, planes))
}

/// Where packets of each address leave: with several planes by its own, even where all are on one network.
fn ways_out(device: &Device, planes: &[u8]) -> Vec<u32> {
    if device.planes.len() < 2 {
        return Vec::new();
    }
    let index = |plane: &u8| device.planes.get(usize::from(*plane)).map(|one| one.index);
    planes
        .iter()
        .map(|plane| index(plane).unwrap_or(0))
        .collect()
}

fn local_addresses(device: &Device, locals: &[IpAddr], planes: &[u8]) -> Vec<LocalAddress> {
    let of_plane = |(&ip, &plane): (&IpAddr, &u8)| {
        let interface = device.planes.get(usize::from(plane));
        let index = interface.map_or(device.index, |one| one.index);
        LocalAddress {
            ip,
            scope_id: match ip {
                IpAddr::V6(v6) if v6.is_unicast_link_local() => index,
                _ => 0,
            },
            plane,
            speed_mbps: interface.map_or(device.speed_mbps, |one| one.speed_mbps),
        }
    };
    locals.iter().zip(planes).map(of_plane).collect()
}

fn endpoint_config(
    device: &Device,
    settings: &Settings,
    locals: Vec<LocalAddress>,
    sockets: &Sockets,
) -> io::Result<EndpointConfig> {
    Ok(EndpointConfig {
        index: sockets.port_index(),
        port_base: settings.port_base,
        locals,
        source_slots: sockets.source_count() as u8,
        payload_bytes: payload_bytes(device)?,
        train_segments: TRAIN_SEGMENTS.min(sockets.max_train_segments() as u16),
        train_bytes: MAX_TRAIN_BYTES as u32,
        // A window of half the buffer is safe: the kernel's own structures take as much again.
        receive_window_bytes: (sockets.receive_buffer_bytes() / 2) as u32,
        paths: settings.paths,
        driving: Driving::Sockets,
        congestion: settings.congestion,
        force_strict: settings.force_strict,
        hold_bytes: HOLD_MAX_BYTES,
        reroll_ns: settings.reroll.as_nanos() as u64,
    })
}

fn payload_bytes(device: &Device) -> io::Result<u16> {
    if device.mtu_bytes < MIN_MTU {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "the MTU of {} is {} bytes: set it to {MIN_MTU} at least, better to 9000",
                device.interface, device.mtu_bytes
            ),
        ));
    }
    let payload = (device.mtu_bytes - HEADER_BYTES).min(MAX_PAYLOAD);
    Ok((payload - payload % PAYLOAD_STEP) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// What engines of `addresses` each get one after the other under a limit of descriptors.
    fn in_turn(descriptors: u64, addresses: usize, engines: usize) -> Vec<usize> {
        let mut open = 0;
        (0..engines)
            .map(|_| {
                let each = sources_each(descriptors, open, addresses);
                open += each * addresses;
                each
            })
            .collect()
    }

    #[test]
    fn many_engines_fit_into_the_usual_limit_and_few_lack_nothing() {
        assert_eq!(in_turn(1024, 2, 4), [32; 4]);
        assert_eq!(in_turn(1 << 20, 1, 16), [32; 16]);
        let sixteen = in_turn(1024, 2, 16);
        // Two addresses, so two receive sockets, a waker, an epoll set and the socket of `metaroce stat` besides.
        let descriptors: usize = sixteen.iter().map(|each| 2 * each + 5).sum();
        assert!(descriptors < 700, "{descriptors}");
        assert!(sixteen.iter().all(|each| *each >= SOURCES_LEAST));
        assert_eq!(in_turn(256, 2, 3), [32, 16, 8]);
    }

    #[rstest]
    #[case(1, 1024, 32)]
    #[case(1, u64::MAX, 32)]
    #[case(3, 1024, 21)]
    #[case(16, 1024, 8)]
    #[case(3, 64, 5)]
    #[case(1, 64, 16)]
    #[case(3, 20, 1)]
    #[case(16, 16, 1)]
    #[case(2, 0, 1)]
    fn sources_leave_most_descriptors_to_the_program(
        #[case] addresses: usize,
        #[case] descriptors: u64,
        #[case] expected: usize,
    ) {
        assert_eq!(sources_each(descriptors, 0, addresses), expected);
    }
}
