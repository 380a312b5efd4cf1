//! Which addresses of the device packets can leave from: those that are there, on planes that are up. The background thread
//! looks when it heard of a change (`changes.rs`); the next turn tells the core, which has paths leave the others. And what the
//! extension asks and wants of the planes of a connection.

use super::Engine;
use super::report::source_of;
use crate::device::{Device, Gid};
use crate::verbs::{Errno, Port, Qp};
use metaroce_proto::endpoint::SteerError;
use metaroce_proto::telemetry::ConnectionInfo;
use metaroce_proto::types::{LocalIndex, LocalSet, Route};
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

/// What the threads know of it.
#[derive(Debug)]
pub(super) struct Planes {
    /// The addresses that have sockets, in their order; none with a single plane, which there is nothing to leave for.
    gids: Vec<Gid>,
    usable: AtomicU64,
}

impl Planes {
    /// How they are when the engine is opened.
    pub(super) fn new(device: &Device, locals: &[IpAddr], port: &Port) -> Planes {
        let several = device.planes.len() > 1;
        let locals = locals.iter().filter(|_| several);
        let planes = Planes {
            gids: locals.copied().map(Gid::from).collect(),
            usable: AtomicU64::new(LocalSet::ALL.bits()),
        };
        planes.look(port);
        planes
    }

    /// Whether there is only one.
    pub(super) fn is_one(&self) -> bool {
        self.gids.is_empty()
    }

    /// Takes over what the port knows.
    pub(super) fn look(&self, port: &Port) {
        if self.is_one() {
            return;
        }
        let Some(state) = port.last_seen() else {
            return;
        };
        let numbered = (0..).zip(&self.gids);
        let usable = numbered.filter(|(_, gid)| state.is_usable(**gid));
        let usable = usable.fold(LocalSet::NONE, |set, (at, _)| set.with(LocalIndex(at)));
        // Nothing else is published by it.
        self.usable.store(usable.bits(), Ordering::Relaxed);
    }

    /// The addresses that can be used.
    pub(super) fn usable(&self) -> LocalSet {
        LocalSet::from_bits(self.usable.load(Ordering::Relaxed))
    }
}
