//! The port of a device as it is now: which planes are up, and the GID table. One for each device of the process, shared by its
//! contexts, so that all of them give an address the same index. The port is up while any plane is.
//!
//! It looks when it is asked (`plugin/gid_query.rs`, `plugin/ops_device.rs`), and when the engine's background thread heard
//! of a change (`engine/changes.rs`); then the contexts get asynchronous events, those of this device only.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::context::{AsyncEvent, AsyncEvents, EventKind};
use crate::device::{Device, Gid, GidTable, PLANE_SEPARATOR, Present, present_state};

/// The only port of a device.
pub const PORT: u8 = 1;

/// A look takes microseconds. Longer means that the thread that held the lock did not survive a fork.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The ports of this process. Never removed: a device that is closed and opened again has the same indexes.
static PORTS: Mutex<Vec<&'static Port>> = Mutex::new(Vec::new());

/// The port of a device of this process.
#[derive(Debug)]
pub struct Port {
    device: String,
    /// Of each plane: name and index of its interface.
    interfaces: Vec<String>,
    indexes: Vec<u32>,
    /// The table that sysfs shows, with which that of a sealed device begins.
    first: Vec<Gid>,
    now: Mutex<Looked>,
    listeners: Mutex<Vec<Weak<AsyncEvents>>>,
}

/// What a look found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Of each plane: whether its interface is up and has a carrier.
    pub planes: Vec<bool>,
    /// The GIDs.
    pub gids: GidTable,
}

impl State {
    /// The port is up.
    pub fn is_active(&self) -> bool {
        self.planes.contains(&true)
    }

    /// Whether packets can leave from `gid`: its address is there, and its plane is up.
    pub fn is_usable(&self, gid: Gid) -> bool {
        let mut there = self.gids.iter().filter(|(_, one)| *one == gid);
        let plane = there.next().and_then(|(index, _)| self.gids.plane(index));
        plane.is_some_and(|plane| self.planes.get(usize::from(plane)) == Some(&true))
    }
}

#[derive(Debug)]
struct Looked {
    state: State,
    /// What the contexts have been told of.
    told: State,
    /// New addresses cannot be used any more: the sockets are open.
    sealed: bool,
}

impl Port {
    /// The port of `device`.
    pub fn of(device: &Device) -> &'static Port {
        let interfaces: Vec<String> = device
            .interface
            .split(PLANE_SEPARATOR)
            .map(str::to_owned)
            .collect();
        let is_it = |port: &&&Port| {
            port.device == device.name
                && port.interfaces == interfaces
                && device.gids.starts_with(&port.first)
        };
        // Without the lock (a child process whose parent was just here) this context has a port of its own.
        let mut ports = PORTS.try_lock_for(LOCK_TIMEOUT);
        if let Some(known) = ports.as_ref().and_then(|ports| ports.iter().find(is_it)) {
            return known;
        }
        let (planes, indexes) = match &device.planes[..] {
            [] => (vec![device.active], vec![device.index]),
            planes => planes.iter().map(|one| (one.active, one.index)).unzip(),
        };
        let gids = GidTable::new(device);
        let state = State { planes, gids };
        let port: &'static Port = Box::leak(Box::new(Port {
            device: device.name.clone(),
            interfaces,
            indexes,
            first: device.gids.clone(),
            now: Mutex::new(Looked {
                told: state.clone(),
                state,
                sealed: false,
            }),
            listeners: Mutex::default(),
        }));
        if let Some(ports) = &mut ports {
            ports.push(port);
        }
        port
    }

    /// Index of the network interface of a plane.
    pub fn interface_index(&self, plane: u8) -> u32 {
        self.indexes.get(usize::from(plane)).copied().unwrap_or(0)
    }

    /// How it was when somebody last looked; never looks itself.
    pub fn last_seen(&self) -> Option<State> {
        let now = self.now.try_lock_for(LOCK_TIMEOUT)?;
        Some(now.state.clone())
    }

    /// A context gets the events from now on.
    pub fn listen(&self, events: &Arc<AsyncEvents>) {
        if let Some(mut listeners) = self.listeners.try_lock_for(LOCK_TIMEOUT) {
            listeners.retain(|listener| listener.strong_count() > 0);
            listeners.push(Arc::downgrade(events));
        }
    }

    /// How it is now; how it was last where the system does not say. None in a child process that cannot look.
    pub fn look(&self) -> Option<State> {
        let mut now = self.now.try_lock_for(LOCK_TIMEOUT)?;
        self.refresh(&mut now);
        Some(now.state.clone())
    }

    /// The sockets are about to be opened: `device` with the addresses that the table has, in its order. Addresses that come
    /// later have no sockets, so the table does not show them in this process.
    pub fn seal(&self, device: &Device) -> Arc<Device> {
        let mut device = device.clone();
        if let Some(mut now) = self.now.try_lock_for(LOCK_TIMEOUT) {
            self.refresh(&mut now);
            if !std::mem::replace(&mut now.sealed, true) {
                // What is there when the engine begins to listen for changes is no change.
                now.told = now.state.clone();
            }
            let gids = &now.state.gids;
            device.gids = (0..gids.len())
                .filter_map(|index| gids.known(index))
                .collect();
            device.addresses = device.gids.iter().map(Gid::address).collect();
            device.gid_planes = (0..gids.len())
                .filter_map(|index| gids.plane(index))
                .collect();
        }
        Arc::new(device)
    }

    /// The GID that a queue pair means by `index`: also one whose address is not there at the moment, for it may come back
    /// before the queue pair loses patience.
    pub fn source_gid(&self, index: usize) -> Option<Gid> {
        let mut now = self.now.try_lock_for(LOCK_TIMEOUT)?;
        if now.state.gids.known(index).is_none() {
            self.refresh(&mut now);
        }
        now.state.gids.known(index)
    }

    /// Something may have changed: looks, and tells the contexts what did.
    pub fn look_for_changes(&self) {
        let Some(mut now) = self.now.try_lock_for(LOCK_TIMEOUT) else {
            return;
        };
        self.refresh(&mut now);
        let state = now.state.clone();
        let told = std::mem::replace(&mut now.told, state.clone());
        drop(now);
        if state.is_active() != told.is_active() {
            self.raise(if state.is_active() {
                EventKind::PortActive
            } else {
                EventKind::PortError
            });
        }
        if state.gids != told.gids {
            self.raise(EventKind::GidChange);
        }
    }

    fn raise(&self, kind: EventKind) {
        log::info!("{}: {kind:?}", self.device);
        let Some(listeners) = self.listeners.try_lock_for(LOCK_TIMEOUT) else {
            return;
        };
        for events in listeners.iter().filter_map(Weak::upgrade) {
            events.raise(AsyncEvent {
                element: u64::from(PORT),
                kind,
            });
        }
    }

    fn refresh(&self, now: &mut Looked) {
        match present_state(&self.interfaces) {
            Ok(Present { active, addresses }) => {
                now.state.planes = active;
                now.state.gids.update(&addresses, !now.sealed);
            }
            Err(error) => log::debug!("{}: {error}", self.device),
        }
    }
}
