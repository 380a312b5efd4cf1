//! The devices of this host: which network interface each stands on, its GIDs, GUID, MTU and speed.
//!
//! One device per Ethernet interface that is up and has an IP address, or what `METAROCE_DEVICES` names. Safe code over
//! `getifaddrs` and `/sys/class/net`. [`discover`] serves the launcher, which writes the sysfs tree ([`tree`]) that
//! libibverbs reads; [`Device::from_sysfs`] serves the plugin, which must see the very GID table that the program sees.
//!
//! Read first: [`Device`]. Called by `plugin/context.rs`, `verbs/` and the command line.

mod gid;
mod gid_table;
mod interface;
mod selection;
mod speed;
pub mod tree;

pub use gid::Gid;
pub use gid_table::GidTable;
pub use interface::{Interface, interfaces};
pub(crate) use interface::{fnv1a, present_state};
pub use selection::{DEVICES_VARIABLE, Selection, SelectionError};
pub use speed::{LinkRate, active_mtu_code};

use metaroce_udp::explain;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// GIDs a device shows at most: the attribute that carries their number is small in some programs, and nobody has more
/// routable addresses on one interface.
pub const MAX_GIDS: usize = 128;

/// Start of every device name; `match_device` of the plugin goes by it.
pub const NAME_PREFIX: &str = "metaroce";

/// One device: an interface seen as an RDMA device. A snapshot; `verbs::port` has what is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name in the verbs world: `metaroce0`.
    pub name: String,
    /// Name of the network interface: `eth0`.
    pub interface: String,
    /// Index of the network interface: the scope of its link-local addresses.
    pub index: u32,
    /// MTU of the interface, IP header included.
    pub mtu_bytes: u32,
    /// Link speed.
    pub speed_mbps: u32,
    /// Whether the interface is up and has a carrier.
    pub active: bool,
    /// The address behind each GID, in the order of [`Device::gids`].
    pub addresses: Vec<IpAddr>,
    /// The GID table: IPv4-mapped first, global IPv6, link-local.
    pub gids: Vec<Gid>,
    /// Stable and not zero; host byte order, as it is read from left to right.
    pub node_guid: u64,
}

impl Device {
    /// The device `name` on `interface`, with all of its addresses as GIDs.
    pub fn new(name: &str, interface: &Interface) -> Self {
        let mut addresses = interface.addresses.clone();
        gid::sort_for_table(&mut addresses);
        addresses.truncate(MAX_GIDS);
        Self {
            name: name.to_owned(),
            interface: interface.name.clone(),
            index: interface.index,
            mtu_bytes: interface.mtu_bytes,
            speed_mbps: interface.speed_mbps,
            active: interface.up && interface.running,
            gids: addresses.iter().copied().map(Gid::from).collect(),
            addresses,
            node_guid: interface.guid(),
        }
    }

    /// The device whose sysfs directory is `directory` (`/sys/class/infiniband/metaroce0`), as the program sees it: the
    /// interface is the one named there, and the GID table is taken from there, so that a `sgid_index` means the same
    /// on both sides even when an address came or went since. MTU and speed are those of now.
    ///
    /// # Errors
    /// The directory is not one of ours, or the interface is gone.
    pub fn from_sysfs(name: &str, directory: &Path) -> io::Result<Self> {
        let port = directory.join("ports/1");
        let read = |path: &str| {
            std::fs::read_to_string(port.join(path))
                .map_err(|e| explain(&e, format!("{}: {e}", port.join(path).display())))
        };
        let wanted = read("gid_attrs/ndevs/0")?.trim().to_owned();
        let interface = interfaces()?
            .into_iter()
            .find(|interface| interface.name == wanted)
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::NotFound,
                    format!(
                        "device {name} stands on interface {wanted}, which is not there any more"
                    ),
                )
            })?;
        let mut device = Self::new(name, &interface);
        let mut gids = Vec::new();
        while gids.len() < MAX_GIDS {
            match read(&format!("gids/{}", gids.len())) {
                Ok(text) => gids.push(text.trim().parse::<Gid>()?),
                Err(_) => break,
            }
        }
        if !gids.is_empty() {
            device.addresses = gids.iter().map(Gid::address).collect();
            device.gids = gids;
        }
        Ok(device)
    }

    /// The GID at `index` of the table, if there is one.
    pub fn gid(&self, index: u32) -> Option<Gid> {
        self.gids.get(usize::try_from(index).ok()?).copied()
    }

    /// The device that is called `name` among those that the environment selects; for a host whose sysfs says nothing
    /// of the interface.
    ///
    /// # Errors
    /// As [`discover`], or no device of that name.
    pub fn by_name(name: &str) -> Result<Self, SelectionError> {
        let devices = discover(&Selection::from_environment()?)?;
        let known = devices.iter().map(|device| device.name.clone()).collect();
        let found = devices.into_iter().find(|device| device.name == name);
        found.ok_or_else(|| SelectionError::UnknownDevice {
            name: name.to_owned(),
            known,
        })
    }
}

/// The devices that `selection` makes of the interfaces of this host.
///
/// # Errors
/// No usable interface, an interface that does not exist, is down or has no address, or the list of interfaces cannot
/// be read.
pub fn discover(selection: &Selection) -> Result<Vec<Device>, SelectionError> {
    let present = interfaces().map_err(|error| SelectionError::System {
        message: error.to_string(),
    })?;
    selection.choose(&present)
}

#[cfg(test)]
mod tests;
