//! The devices of this host: which network interfaces each stands on (its planes), its GIDs, GUID, MTU and speed.
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
pub(crate) use interface::{Present, fnv1a, present_state};
pub use selection::{DEVICES_VARIABLE, MAX_PLANES, Selection, SelectionError};
pub use speed::{LinkRate, active_mtu_code};

use metaroce_udp::explain;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// GIDs a device shows at most: the attribute that carries their number is small in some programs, and nobody has more
/// routable addresses on one interface.
pub const MAX_GIDS: usize = 128;

/// Start of every device name that we give …
pub const NAME_PREFIX: &str = "metaroce";
/// … and of shorter ones that a user may give, with nothing but digits behind it.
const SHORT_PREFIX: &str = "mr";

/// Between the interfaces of a device, in `METAROCE_DEVICES` and wherever they are shown.
pub const PLANE_SEPARATOR: char = '+';

/// File of the device's directory in sysfs that names the interfaces of its planes, in their order.
const PLANES_FILE: &str = "metaroce_planes";

/// Whether a device of that name is one of ours; `match_device` of the plugin goes by it.
pub fn is_our_name(name: &str) -> bool {
    let number = name.strip_prefix(SHORT_PREFIX);
    let is_short = number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    is_short || name.starts_with(NAME_PREFIX)
}

/// One plane of a device: an interface. Its number is its place in [`Device::planes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plane {
    /// Name of the network interface: `eth0`.
    pub interface: String,
    /// Its index, the scope of its link-local addresses; 0 if it is not there.
    pub index: u32,
    /// Its MTU, IP header included.
    pub mtu_bytes: u32,
    /// Its speed.
    pub speed_mbps: u32,
    /// Whether it is up and has a carrier.
    pub active: bool,
}

impl From<&Interface> for Plane {
    fn from(interface: &Interface) -> Self {
        Self {
            interface: interface.name.clone(),
            index: interface.index,
            mtu_bytes: interface.mtu_bytes,
            speed_mbps: interface.speed_mbps,
            active: interface.up && interface.running,
        }
    }
}

/// Whether a plane can carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneState {
    /// Up, with a carrier and an address.
    Active,
    /// Its interface has no address.
    NoAddress,
    /// Down, without a carrier, or gone.
    Down,
}

impl PlaneState {
    /// In words, for people and for JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::NoAddress => "no address",
            Self::Down => "down",
        }
    }
}

/// One device: an interface, or several as its planes, seen as an RDMA device. A snapshot; `verbs::port` has what is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Name in the verbs world: `metaroce0`.
    pub name: String,
    /// Names of the network interfaces, as `METAROCE_DEVICES` has them: `eth0`, `eth0+eth1`.
    pub interface: String,
    /// Index of the first network interface.
    pub index: u32,
    /// The smallest MTU of the planes, IP header included.
    pub mtu_bytes: u32,
    /// The speed of all planes together.
    pub speed_mbps: u32,
    /// Whether any plane is up and has a carrier.
    pub active: bool,
    /// The planes, by their number.
    pub planes: Vec<Plane>,
    /// The address behind each GID, in the order of [`Device::gids`].
    pub addresses: Vec<IpAddr>,
    /// The GID table: IPv4-mapped first, global IPv6, link-local; each kind plane by plane.
    pub gids: Vec<Gid>,
    /// The plane of each GID; 0 of those that are missing here.
    pub gid_planes: Vec<u8>,
    /// Stable and not zero; host byte order, as it is read from left to right.
    pub node_guid: u64,
}

impl Device {
    /// The device `name` with a plane on each of `interfaces`, and all of their addresses as GIDs.
    pub fn new(name: &str, interfaces: &[&Interface]) -> Self {
        let planes: Vec<Plane> = interfaces.iter().copied().map(Plane::from).collect();
        let names: Vec<&str> = planes.iter().map(|plane| &*plane.interface).collect();
        let mut addresses: Vec<(IpAddr, u8)> = Vec::new();
        for (plane, interface) in (0..).zip(interfaces) {
            addresses.extend(interface.addresses.iter().map(|ip| (*ip, plane)));
        }
        gid::sort_for_table(&mut addresses);
        addresses.truncate(MAX_GIDS);
        let there = planes.iter().filter(|plane| plane.index != 0);
        Self {
            name: name.to_owned(),
            interface: names.join(&PLANE_SEPARATOR.to_string()),
            index: planes.first().map_or(0, |plane| plane.index),
            mtu_bytes: there.map(|plane| plane.mtu_bytes).min().unwrap_or(0),
            speed_mbps: planes.iter().map(|plane| plane.speed_mbps).sum(),
            active: planes.iter().any(|plane| plane.active),
            planes,
            gids: addresses.iter().map(|(ip, _)| Gid::from(*ip)).collect(),
            gid_planes: addresses.iter().map(|(_, plane)| *plane).collect(),
            addresses: addresses.into_iter().map(|(ip, _)| ip).collect(),
            node_guid: interfaces.first().map_or(0, |interface| interface.guid()),
        }
    }

    /// How the plane `number` is; one that the device has not is down.
    pub fn plane_state(&self, number: usize) -> PlaneState {
        let has_address =
            (0..self.addresses.len()).any(|index| usize::from(self.plane_of(index)) == number);
        match self.planes.get(number) {
            Some(plane) if plane.active && has_address => PlaneState::Active,
            Some(plane) if plane.active => PlaneState::NoAddress,
            _ => PlaneState::Down,
        }
    }

    /// The plane of the GID at `index`.
    pub fn plane_of(&self, index: usize) -> u8 {
        self.gid_planes.get(index).copied().unwrap_or(0)
    }

    /// Name and index of the interface of the GID at `index`.
    pub fn interface_of(&self, index: usize) -> (&str, u32) {
        let plane = self.planes.get(usize::from(self.plane_of(index)));
        plane.map_or((&self.interface, self.index), |plane| {
            (&plane.interface, plane.index)
        })
    }

    /// The device whose sysfs directory is `directory` (`/sys/class/infiniband/metaroce0`), as the program sees it: the
    /// interfaces are those named there, and the GID table is taken from there, so that a `sgid_index` means the same
    /// on both sides even when an address came or went since. MTU and speed are those of now.
    ///
    /// # Errors
    /// The directory is not one of ours, or all interfaces are gone.
    pub fn from_sysfs(name: &str, directory: &Path) -> io::Result<Self> {
        let port = directory.join("ports/1");
        let read = |path: &str| {
            std::fs::read_to_string(port.join(path))
                .map_err(|e| explain(&e, format!("{}: {e}", port.join(path).display())))
        };
        let wanted = match std::fs::read_to_string(directory.join(PLANES_FILE)) {
            Ok(names) => names,
            Err(_) => read("gid_attrs/ndevs/0")?,
        };
        let mut device = Self::on_named(name, wanted.trim())?;
        let mut gids = Vec::new();
        let mut planes = Vec::new();
        while gids.len() < MAX_GIDS {
            let Ok(text) = read(&format!("gids/{}", gids.len())) else {
                break;
            };
            let interface = read(&format!("gid_attrs/ndevs/{}", gids.len()))?;
            let is_it = |plane: &Plane| plane.interface == interface.trim();
            planes.push(device.planes.iter().position(is_it).unwrap_or(0) as u8);
            gids.push(text.trim().parse::<Gid>()?);
        }
        if !gids.is_empty() {
            device.addresses = gids.iter().map(Gid::address).collect();
            device.gids = gids;
            device.gid_planes = planes;
        }
        Ok(device)
    }

    /// The device `name` on the interfaces `wanted`, of which all but one may be gone: their planes are down then.
    fn on_named(name: &str, wanted: &str) -> io::Result<Self> {
        let mut present = interfaces()?;
        let names: Vec<&str> = wanted.split(PLANE_SEPARATOR).collect();
        if !present.iter().any(|one| names.contains(&&*one.name)) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("device {name} stands on interface {wanted}, which is not there any more"),
            ));
        }
        for name in &names {
            if !present.iter().any(|one| one.name == **name) {
                present.push(Interface {
                    name: (*name).to_owned(),
                    ..Interface::default()
                });
            }
        }
        let find = |name: &&str| present.iter().find(|one| one.name == **name);
        let planes: Vec<&Interface> = names.iter().filter_map(find).collect();
        Ok(Self::new(name, &planes))
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
