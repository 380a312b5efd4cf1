//! Which addresses of the device packets can leave from: those that are there, on planes that are up. The background thread
//! looks when it heard of a change (`changes.rs`); the next turn tells the core, which has paths leave the others. And what the
//! extension asks and wants of the planes of a connection.

use super::Engine;
use super::report::source_of;
use crate::device::{Device, Gid};
use crate::verbs::{Errno, Port, Qp};
use metaroce_proto::endpoint::SteerError;
use metaroce_proto::telemetry::ConnectionInfo;
use metaroce_proto::types::{LocalIndex, LocalSet, Route, Time};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

impl Engine {
    /// The open connection of a queue pair.
    ///
    /// # Errors
    /// ENOTCONN if it has none; EIO in a child process that inherited the engine.
    pub fn connection_of(&self, qp: &Qp) -> Result<ConnectionInfo, Errno> {
        let connection = self.change(|core, _| core.endpoint.connection_of(qp.id()))?;
        connection.ok_or(Errno::NOT_CONNECTED)
    }

    /// Switches a plane of the connection of a queue pair on or off.
    ///
    /// # Errors
    /// ENOTCONN and EIO as above, ENOENT if there is no such plane, EBUSY if no other is left.
    pub fn set_plane(&self, qp: &Qp, plane: u32, enabled: bool) -> Result<(), Errno> {
        let plane = u8::try_from(plane).map_err(|_| Errno::NO_SUCH);
        let steered = self.change(|core, inner| {
            let now = inner.clock.now();
            let connected = core.endpoint.connection_of(qp.id()).is_some();
            match plane {
                Err(error) if connected => Err(error),
                Err(_) => Err(Errno::NOT_CONNECTED),
                Ok(plane) => {
                    let steered = core.endpoint.steer(now, qp.id(), plane, enabled);
                    steered.map_err(|error| match error {
                        SteerError::NotConnected => Errno::NOT_CONNECTED,
                        SteerError::UnknownPlane => Errno::NO_SUCH,
                        SteerError::LastPlane => Errno::BUSY,
                    })
                }
            }
        })?;
        if steered.is_ok() {
            self.inner.waker.wake();
        }
        steered
    }

    /// An address that packets leave from, and the name of its interface.
    pub fn local_of(&self, local: LocalIndex) -> (Option<IpAddr>, String) {
        let device = &self.inner.device;
        let mut addresses = self.inner.sockets.locals();
        let own = addresses.find(|(index, _)| index.0 == local.0);
        let ip = own.map(|(_, address)| address.ip());
        let index = device.addresses.iter().position(|one| Some(*one) == ip);
        let interface = index.map_or("", |index| device.interface_of(index).0);
        (ip, interface.to_owned())
    }

    /// The source port of a route.
    pub fn source_port(&self, route: Route) -> u16 {
        source_of(&self.inner, route.local, route.source).1
    }
}

/// What is there again is left alone for so long. A link comes up on this side first: a packet that leaves before the switch
/// forwards makes the kernel ask for the peer's link address, and it repeats a question that nobody heard only after 1 s.
const SETTLE_NS: u64 = 100_000_000;

/// What the threads know of it.
#[derive(Debug)]
pub(super) struct Planes {
    /// The addresses that have sockets, in their order; none with a single plane, which there is nothing to leave for.
    gids: Vec<Gid>,
    usable: Usable,
}

impl Planes {
    /// How they are when the engine is opened.
    pub(super) fn new(device: &Device, locals: &[IpAddr], port: &Port) -> Planes {
        let several = device.planes.len() > 1;
        let locals = locals.iter().filter(|_| several);
        let gids: Vec<Gid> = locals.copied().map(Gid::from).collect();
        let usable = Usable::new(found(&gids, port).unwrap_or(LocalSet::ALL));
        Planes { gids, usable }
    }

    /// Whether there is only one.
    pub(super) fn is_one(&self) -> bool {
        self.gids.is_empty()
    }

    /// Takes over what the port knows.
    pub(super) fn look(&self, port: &Port, now: Time) {
        if let Some(found) = found(&self.gids, port) {
            self.usable.found(found, now);
        }
    }

    /// Takes over what the port has known for long enough. Called now and then while anything is under way.
    pub(super) fn settle(&self, now: Time) {
        self.usable.settle(now);
    }

    /// The addresses that can be used.
    pub(super) fn usable(&self) -> LocalSet {
        LocalSet::from_bits(self.usable.told.load(Ordering::Relaxed))
    }
}

/// Those of `gids` that the port found usable; `None` with a single plane, or if it cannot be asked.
fn found(gids: &[Gid], port: &Port) -> Option<LocalSet> {
    if gids.is_empty() {
        return None;
    }
    let state = port.last_seen()?;
    let numbered = (0..).zip(gids);
    let usable = numbered.filter(|(_, gid)| state.is_usable(**gid));
    Some(usable.fold(LocalSet::NONE, |set, (at, _)| set.with(LocalIndex(at))))
}

/// What can be used, and what is there again since a short time. Written by the background thread alone; nothing else is
/// published by it.
#[derive(Debug)]
struct Usable {
    told: AtomicU64,
    found: AtomicU64,
    /// When the last of `found` came back, in nanoseconds.
    since_ns: AtomicU64,
}

impl Usable {
    fn new(all: LocalSet) -> Usable {
        Usable {
            told: AtomicU64::new(all.bits()),
            found: AtomicU64::new(all.bits()),
            since_ns: AtomicU64::new(0),
        }
    }

    /// What is gone is so at once.
    fn found(&self, found: LocalSet, now: Time) {
        let found = found.bits();
        let before = self.found.swap(found, Ordering::Relaxed);
        if found & !before != 0 {
            self.since_ns.store(now.as_ns(), Ordering::Relaxed);
        }
        let told = self.told.load(Ordering::Relaxed);
        self.told.store(told & found, Ordering::Relaxed);
    }

    fn settle(&self, now: Time) {
        let found = self.found.load(Ordering::Relaxed);
        if found == self.told.load(Ordering::Relaxed) {
            return;
        }
        let since = Time::from_ns(self.since_ns.load(Ordering::Relaxed));
        if now.since_ns(since) >= SETTLE_NS {
            self.told.store(found, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_is_gone_at_once_and_what_comes_back_settles_first() {
        let set = |bits| LocalSet::from_bits(bits);
        let ms = |ms: u64| Time::from_ns(1_000_000_000 + ms * 1_000_000);
        let usable = Usable::new(set(0b1111));
        let told = |usable: &Usable| usable.told.load(Ordering::Relaxed);
        usable.found(set(0b1011), ms(0));
        assert_eq!(told(&usable), 0b1011, "without settling");
        usable.found(set(0b1111), ms(10));
        usable.settle(ms(109));
        assert_eq!(told(&usable), 0b1011, "too early");
        // It flaps, and another one goes for good.
        usable.found(set(0b1011), ms(109));
        usable.found(set(0b0111), ms(110));
        usable.settle(ms(209));
        assert_eq!(told(&usable), 0b0011);
        usable.settle(ms(210));
        assert_eq!(told(&usable), 0b0111);
    }
}
