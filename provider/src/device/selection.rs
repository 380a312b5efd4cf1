//! Which interfaces become devices, and under which names: `METAROCE_DEVICES`, or all that are usable.

use super::{Device, Interface, NAME_PREFIX, PLANE_SEPARATOR, is_our_name};
use std::collections::HashSet;
use std::fmt;

/// Environment variable with the list of devices: `metaroce0=eth0,metaroce1=eth1`, or just `eth0,eth1`; `eth0+eth1` is one
/// device with two planes.
pub const DEVICES_VARIABLE: &str = "METAROCE_DEVICES";

/// Longest device name: `IBV_SYSFS_NAME_MAX` of libibverbs is 64, with the NUL.
const MAX_NAME_BYTES: usize = 63;
/// Devices at most: libibverbs and NCCL keep small tables of them.
const MAX_DEVICES: usize = 64;
/// Planes of a device at most: a HELLO has no more addresses.
pub const MAX_PLANES: usize = 16;

/// What to make devices of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// Every usable interface but loopback; loopback only if there is no other.
    #[default]
    Automatic,
    /// These, in this order.
    Listed(Vec<Entry>),
}

/// One entry of the list: the interfaces, and the device's name if one was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the device, or `None` for the next `metaroceN` that no entry before has.
    pub name: Option<String>,
    /// Names of the interfaces, one for each plane, in the order of their numbers.
    pub interfaces: Vec<String>,
}

/// As in the list.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        f.write_str(&self.interfaces.join(&PLANE_SEPARATOR.to_string()))
    }
}

/// Why there are no devices to be had; `Display` names cause and cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectionError {
    /// An entry of the list is not `interface` or `name=interface`.
    BadEntry {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The list names an interface that does not exist.
    UnknownInterface {
        /// The name.
        name: String,
        /// The entry that it is in.
        entry: String,
        /// The interfaces there are.
        present: Vec<String>,
    },
    /// The list names an interface that cannot carry traffic.
    UnusableInterface {
        /// The name.
        name: String,
        /// The entry that it is in.
        entry: String,
        /// Why, and the cure.
        reason: String,
    },
    /// The loopback interface is listed as one plane of several.
    LoopbackPlane {
        /// Its name.
        name: String,
    },
    /// A device was asked for by a name that none has.
    UnknownDevice {
        /// The name.
        name: String,
        /// The devices there are.
        known: Vec<String>,
    },
    /// Nothing was listed and no interface is usable.
    NoUsableInterface {
        /// The interfaces there are.
        present: Vec<String>,
    },
    /// The system does not list its interfaces.
    System {
        /// Its message.
        message: String,
    },
}

impl fmt::Display for SelectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String]| {
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            }
        };
        let within = |name: &str, entry: &str| match entry == name {
            true => String::new(),
            false => format!(" (in \"{entry}\")"),
        };
        match self {
            Self::BadEntry { entry, reason } => write!(
                f,
                "bad entry \"{entry}\" in {DEVICES_VARIABLE}: {reason}. Write a list like \"eth0,eth1\" or \
                 \"metaroce0=eth0,metaroce1=eth1\", or \"mr0=eth0+eth1\" for one device of two planes"
            ),
            Self::UnknownInterface {
                name,
                entry,
                present,
            } => write!(
                f,
                "{DEVICES_VARIABLE} names the network interface \"{name}\"{}, which does not exist. Interfaces here: {}",
                within(name, entry),
                list(present)
            ),
            Self::UnusableInterface {
                name,
                entry,
                reason,
            } => {
                let within = within(name, entry);
                write!(
                    f,
                    "{DEVICES_VARIABLE} names the network interface \"{name}\"{within}, {reason}"
                )
            }
            Self::LoopbackPlane { name } => write!(
                f,
                "{DEVICES_VARIABLE} makes \"{name}\" one plane of several: each host reaches only itself over it, and never the \
                 other end. Leave it out; planes are interfaces that lead to the other hosts, and \"{name}\" can be a device of \
                 its own"
            ),
            Self::UnknownDevice { name, known } => {
                write!(
                    f,
                    "no metaroce device is called \"{name}\". Devices here: {}",
                    list(known)
                )
            }
            Self::NoUsableInterface { present } => write!(
                f,
                "no usable network interface: a device needs an Ethernet interface that is up and has an IP address \
                 (ip link set IFACE up; ip address add ADDRESS/PREFIX dev IFACE), or name one in {DEVICES_VARIABLE}. \
                 Interfaces here: {}",
                list(present)
            ),
            Self::System { message } => write!(f, "cannot list the network interfaces: {message}"),
        }
    }
}

impl std::error::Error for SelectionError {}

impl Selection {
    /// What `METAROCE_DEVICES` says; unset or empty means automatic.
    ///
    /// # Errors
    /// The value is not a list of entries.
    pub fn from_environment() -> Result<Self, SelectionError> {
        match std::env::var(DEVICES_VARIABLE) {
            Ok(text) => Self::parse(&text),
            Err(std::env::VarError::NotPresent) => Ok(Self::Automatic),
            Err(std::env::VarError::NotUnicode(raw)) => Err(SelectionError::BadEntry {
                entry: raw.to_string_lossy().into_owned(),
                reason: "it is not UTF-8".into(),
            }),
        }
    }

    /// Reads a list: entries `interface` or `name=interface`, separated by commas; several interfaces with `+` between
    /// them are the planes of one device.
    ///
    /// # Errors
    /// An entry is malformed, or an interface occurs twice, or two devices would have one name.
    pub fn parse(text: &str) -> Result<Self, SelectionError> {
        if text.trim().is_empty() {
            return Ok(Self::Automatic);
        }
        let entries: Vec<Entry> = text
            .split(',')
            .map(|entry| parse_entry(entry.trim()))
            .collect::<Result<_, _>>()?;
        let bad = |entry: &Entry, reason: &str| SelectionError::BadEntry {
            entry: entry.to_string(),
            reason: reason.into(),
        };
        let mut seen = HashSet::new();
        for entry in &entries {
            if let Some(twice) = entry.interfaces.iter().find(|name| !seen.insert(*name)) {
                return Err(bad(
                    entry,
                    &format!("the interface {twice} is listed twice"),
                ));
            }
        }
        device_names(&entries)?;
        if entries.len() > MAX_DEVICES {
            return Err(bad(
                &entries[MAX_DEVICES],
                &format!("there can be {MAX_DEVICES} devices at most"),
            ));
        }
        Ok(Self::Listed(entries))
    }

    /// Makes devices of the interfaces present.
    ///
    /// # Errors
    /// See [`SelectionError`].
    pub fn choose(&self, present: &[Interface]) -> Result<Vec<Device>, SelectionError> {
        match self {
            Self::Automatic => choose_usable(present),
            Self::Listed(entries) => choose_listed(entries, present),
        }
    }
}

fn parse_entry(entry: &str) -> Result<Entry, SelectionError> {
    let bad = |reason: String| {
        Err(SelectionError::BadEntry {
            entry: entry.to_owned(),
            reason,
        })
    };
    let (name, planes) = match entry.split_once('=') {
        Some((name, planes)) => (Some(name.trim()), planes.trim()),
        None => (None, entry),
    };
    let interfaces: Vec<&str> = planes.split(PLANE_SEPARATOR).map(str::trim).collect();
    if interfaces.contains(&"") {
        return bad("the interface is missing".into());
    }
    if planes.contains(['/', '='])
        || interfaces
            .iter()
            .any(|one| one.contains(char::is_whitespace))
    {
        return bad("this is no name of an interface".into());
    }
    if interfaces.len() > MAX_PLANES {
        return bad(format!("a device has {MAX_PLANES} planes at most"));
    }
    if let Some(name) = name {
        let plain = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_our_name(name) || !plain || name.len() > MAX_NAME_BYTES {
            return bad(format!(
                "a device name begins with \"{NAME_PREFIX}\", has letters, digits and underscores, and at most \
                 {MAX_NAME_BYTES} of them; or it is \"mr\" and a number"
            ));
        }
    }
    Ok(Entry {
        name: name.map(str::to_owned),
        interfaces: interfaces.into_iter().map(str::to_owned).collect(),
    })
}

/// The names of the devices: their own, or the next `metaroceN` that none before has.
fn device_names(entries: &[Entry]) -> Result<Vec<String>, SelectionError> {
    let mut names: Vec<String> = Vec::new();
    for entry in entries {
        let Some(own) = &entry.name else {
            let next = (0..=entries.len())
                .map(|number| format!("{NAME_PREFIX}{number}"))
                .find(|name| !names.contains(name));
            names.extend(next);
            continue;
        };
        if let Some(at) = names.iter().position(|name| name == own) {
            let earlier = &entries[at];
            let reason = match earlier.name {
                Some(_) => format!("\"{earlier}\" has this device name already"),
                None => format!(
                    "\"{earlier}\" before it is {own} already, as it gives no name of its own. Name that one, too"
                ),
            };
            return Err(SelectionError::BadEntry {
                entry: entry.to_string(),
                reason,
            });
        }
        names.push(own.clone());
    }
    Ok(names)
}

fn names(present: &[Interface]) -> Vec<String> {
    present
        .iter()
        .map(|interface| interface.name.clone())
        .collect()
}

fn choose_usable(present: &[Interface]) -> Result<Vec<Device>, SelectionError> {
    let mut chosen: Vec<&Interface> = present
        .iter()
        .filter(|i| !i.loopback && i.usable())
        .collect();
    if chosen.is_empty() {
        chosen = present
            .iter()
            .filter(|i| i.loopback && i.up && !i.addresses.is_empty())
            .collect();
    }
    if chosen.is_empty() {
        return Err(SelectionError::NoUsableInterface {
            present: names(present),
        });
    }
    chosen.truncate(MAX_DEVICES);
    Ok(chosen
        .iter()
        .enumerate()
        .map(|(n, interface)| Device::new(&format!("{NAME_PREFIX}{n}"), &[interface]))
        .collect())
}

fn choose_listed(entries: &[Entry], present: &[Interface]) -> Result<Vec<Device>, SelectionError> {
    let mut devices = Vec::new();
    for (entry, name) in entries.iter().zip(device_names(entries)?) {
        let mut planes = Vec::new();
        let mut first_error = None;
        for wanted in &entry.interfaces {
            let interface = present.iter().find(|one| one.name == *wanted);
            let interface = interface.ok_or_else(|| SelectionError::UnknownInterface {
                name: wanted.clone(),
                entry: entry.to_string(),
                present: names(present),
            })?;
            first_error = first_error.or_else(|| why_unusable(interface, entry));
            planes.push(interface);
        }
        if planes.len() > 1
            && let Some(loopback) = planes.iter().find(|one| one.loopback)
        {
            return Err(SelectionError::LoopbackPlane {
                name: loopback.name.clone(),
            });
        }
        // Of several planes one is enough to begin with.
        let all_unusable = planes.iter().all(|one| why_unusable(one, entry).is_some());
        if let Some(error) = first_error.filter(|_| all_unusable) {
            return Err(error);
        }
        devices.push(Device::new(&name, &planes));
    }
    Ok(devices)
}

/// Why a listed interface cannot carry traffic now, if it cannot.
fn why_unusable(interface: &Interface, entry: &Entry) -> Option<SelectionError> {
    let name = &interface.name;
    let reason = if !interface.up {
        format!("which is down. Bring it up: ip link set {name} up")
    } else if interface.addresses.is_empty() {
        format!("which has no IP address. Give it one: ip address add ADDRESS/PREFIX dev {name}")
    } else {
        return None;
    };
    Some(SelectionError::UnusableInterface {
        name: name.clone(),
        entry: entry.to_string(),
        reason,
    })
}
