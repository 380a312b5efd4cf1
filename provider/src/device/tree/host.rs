//! What the host itself has: real RDMA devices, which stay visible, and the sysfs directories of network interfaces.

use super::{Contents, Node};
use crate::device::{Device, is_our_name};
use std::fs;
use std::path::{Path, PathBuf};

/// Directories of the host that have entries for each RDMA device, and in which ours must not hide them.
const CLASSES: [&str; 3] = [
    "sys/class/infiniband",
    "sys/class/infiniband_verbs",
    "dev/infiniband",
];
/// Configuration of libibverbs: which providers to load for the host's own devices.
const PROVIDERS: &str = "etc/libibverbs.d";
/// uverbs devices that Linux can have.
const MAX_UVERBS: usize = 1024;

/// The real RDMA devices of the host, as links into its own `/sys` and `/dev`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDevices {
    links: Vec<(PathBuf, PathBuf)>,
}

impl HostDevices {
    /// Those of this host; none without kernel RDMA.
    pub fn find() -> Self {
        Self::below(Path::new("/"))
    }

    /// Those of the host whose file system starts at `root`.
    pub fn below(root: &Path) -> Self {
        let mut links: Vec<_> = CLASSES
            .iter()
            .flat_map(|class| real_entries(root, class))
            .collect();
        if links
            .iter()
            .any(|(path, _)| path.starts_with("sys/class/infiniband"))
        {
            links.extend(real_entries(root, PROVIDERS));
        }
        links.sort();
        Self { links }
    }

    /// Their part of the tree.
    pub(super) fn contents(&self) -> Contents {
        self.links
            .iter()
            .map(|(path, target)| (path.clone(), Node::Link(target.clone())))
            .collect()
    }

    /// The first N such that neither `uverbsN` nor a later one is taken.
    pub(super) fn first_free_uverbs(&self) -> usize {
        let number = |path: &Path| {
            path.file_name()?
                .to_str()?
                .strip_prefix("uverbs")?
                .parse::<usize>()
                .ok()
        };
        let taken = self.links.iter().filter_map(|(path, _)| number(path)).max();
        taken.map_or(0, |number| (number + 1).min(MAX_UVERBS))
    }
}

/// The entries of `class` that belong to the host. When the launcher itself runs under the shim, it sees the tree of an
/// outer launcher, in which ours are directories, plain files or links to `/dev/null`.
fn real_entries(root: &Path, class: &str) -> Vec<(PathBuf, PathBuf)> {
    let Ok(entries) = fs::read_dir(root.join(class)) else {
        return Vec::new();
    };
    let real = |entry: fs::DirEntry| {
        let name = entry.file_name();
        if is_our_name(&name.to_string_lossy()) || name == "abi_version" {
            return None;
        }
        let ibdev = fs::read_to_string(entry.path().join("ibdev")).unwrap_or_default();
        let target = entry.path().canonicalize().ok()?;
        let ours = is_our_name(ibdev.trim()) || target == Path::new(super::NULL_DEVICE);
        (!ours).then(|| (Path::new(class).join(name), target))
    };
    entries.flatten().filter_map(real).collect()
}

/// Where the `device` link of a device leads: the hardware below its interface, or for a virtual one the interface
/// itself; of several planes the first. NCCL looks for it to place the NIC, and complains without. None if `/sys` shows another network namespace.
pub(super) fn device_directory(device: &Device) -> Option<PathBuf> {
    let interface = Path::new("/sys/class/net").join(device.planes.first()?.interface.as_str());
    let index = fs::read_to_string(interface.join("ifindex")).ok()?;
    if index.trim() != device.index.to_string() {
        return None;
    }
    interface
        .join("device")
        .canonicalize()
        .or_else(|_| interface.canonicalize())
        .ok()
}
