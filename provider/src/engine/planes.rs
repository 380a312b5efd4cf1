//! Which addresses of the device packets can leave from: those that are there, on planes that are up. The background thread
//! looks when it heard of a change (`changes.rs`); the next turn tells the core, which has paths leave the others.

use crate::device::{Device, Gid};
use crate::verbs::Port;
use metaroce_proto::types::{LocalIndex, LocalSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

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
