//! The sysfs, device and configuration tree that the shim shows to libibverbs in place of the kernel's.
//!
//! [`contents`] says what belongs into it (pure, from the devices and from what real RDMA devices the host has);
//! [`publish`] puts it into a directory of the user's own, atomically. Trees are named after the network namespace and a
//! hash of their content, so that runs with the same devices share one, and different ones never disturb each other.
//! Called by `metaroce run`. Read `verbs-shim/` for the other side.

mod host;
mod runtime;

pub use host::HostDevices;
pub use runtime::{namespace_of, network_namespace, publish, runtime_directory};

use super::{Device, LinkRate, fnv1a};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Stands for the tree's own directory in the content of a file or in the target of a link.
const ROOT: &str = "{tree}";
/// What `/sys/class/infiniband_verbs/abi_version` says: the only one that libibverbs takes.
const VERBS_ABI_VERSION: &str = "6";
/// What `uverbsN/abi_version` says: any that the plugin takes.
const DRIVER_ABI_VERSION: &str = "1";
/// `/dev/null`, which stands in for a device node: libibverbs compares the number with that of what it opens.
const NULL_DEVICE: &str = "/dev/null";
const NULL_DEVICE_NUMBER: &str = "1:3";

/// A file or link of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A file with this text.
    File(String),
    /// A symbolic link to this.
    Link(PathBuf),
}

/// Paths below the tree's directory, and what is there. Directories follow from the paths.
pub type Contents = BTreeMap<PathBuf, Node>;

/// The two libraries that a tree leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Libraries {
    /// The provider plugin, `libmetaroce.so`.
    pub plugin: PathBuf,
    /// The shim, `libmetaroce_shim.so`.
    pub shim: PathBuf,
}

/// Path of the shim's link below the tree's directory.
pub const SHIM_LINK: &str = "lib/libmetaroce_shim.so";
/// Path below the tree's directory which, with `-rdmavNN.so` appended, leads to the plugin: the value of `IBV_DRIVERS`.
pub const PLUGIN_STEM: &str = "lib/libmetaroce";

/// What belongs into the tree of these devices.
pub fn contents(devices: &[Device], host: &HostDevices, libraries: &Libraries) -> Contents {
    let mut tree = host.contents();
    file(
        &mut tree,
        "sys/class/infiniband_verbs/abi_version",
        VERBS_ABI_VERSION,
    );
    file(
        &mut tree,
        "etc/libibverbs.d/metaroce.driver",
        format!("driver {ROOT}/{PLUGIN_STEM}"),
    );
    for abi in crate::plugin::private_abis() {
        link(
            &mut tree,
            format!("{PLUGIN_STEM}-rdmav{abi}.so"),
            &libraries.plugin,
        );
    }
    link(&mut tree, SHIM_LINK, &libraries.shim);
    for (device, number) in devices.iter().zip(host.first_free_uverbs()..) {
        add_device(&mut tree, device, number);
    }
    tree
}

fn file(tree: &mut Contents, path: impl Into<PathBuf>, line: impl Into<String>) {
    tree.insert(path.into(), Node::File(line.into() + "\n"));
}

fn link(tree: &mut Contents, path: impl Into<PathBuf>, target: impl Into<PathBuf>) {
    tree.insert(path.into(), Node::Link(target.into()));
}

fn add_device(tree: &mut Contents, device: &Device, uverbs_number: usize) {
    let verbs = format!("sys/class/infiniband_verbs/uverbs{uverbs_number}");
    // No `device` link here: libibverbs would offer the NIC's PCI identity to every provider, and theirs would claim it.
    file(tree, format!("{verbs}/abi_version"), DRIVER_ABI_VERSION);
    file(tree, format!("{verbs}/ibdev"), &device.name);
    file(tree, format!("{verbs}/dev"), NULL_DEVICE_NUMBER);
    link(
        tree,
        format!("dev/infiniband/uverbs{uverbs_number}"),
        NULL_DEVICE,
    );

    let class = format!("sys/class/infiniband/{}", device.name);
    let guid = guid_text(device.node_guid);
    file(tree, format!("{class}/node_type"), "1: CA");
    file(tree, format!("{class}/node_guid"), &guid);
    file(tree, format!("{class}/sys_image_guid"), guid);
    file(
        tree,
        format!("{class}/node_desc"),
        format!("metaroce on {}", device.interface),
    );
    file(
        tree,
        format!("{class}/{}", super::PLANES_FILE),
        &device.interface,
    );
    file(tree, format!("{class}/fw_ver"), env!("CARGO_PKG_VERSION"));
    if let Some(target) = host::device_directory(device) {
        link(tree, format!("{class}/device"), target);
    }
    add_port(tree, device, &format!("{class}/ports/1"));
}

fn add_port(tree: &mut Contents, device: &Device, port: &str) {
    let (state, physical) = if device.active {
        ("4: ACTIVE", "5: LinkUp")
    } else {
        ("1: DOWN", "3: Disabled")
    };
    file(tree, format!("{port}/state"), state);
    file(tree, format!("{port}/phys_state"), physical);
    file(tree, format!("{port}/link_layer"), "Ethernet");
    file(
        tree,
        format!("{port}/rate"),
        LinkRate::of(device.speed_mbps).text,
    );
    file(tree, format!("{port}/lid"), "0x0");
    file(tree, format!("{port}/lid_mask_count"), "0");
    file(tree, format!("{port}/sm_lid"), "0x0");
    file(tree, format!("{port}/sm_sl"), "0");
    file(tree, format!("{port}/cap_mask"), "0x04050000");
    file(tree, format!("{port}/pkeys/0"), "0xffff");
    for (index, gid) in device.gids.iter().enumerate() {
        file(tree, format!("{port}/gids/{index}"), gid.to_sysfs());
        file(tree, format!("{port}/gid_attrs/types/{index}"), "RoCE v2");
        file(
            tree,
            format!("{port}/gid_attrs/ndevs/{index}"),
            device.interface_of(index).0,
        );
    }
}

/// A GUID as sysfs has it: four groups of four hexadecimal digits.
fn guid_text(guid: u64) -> String {
    let group = |shift: u32| format!("{:04x}", (guid >> shift) & 0xffff);
    [group(48), group(32), group(16), group(0)].join(":")
}

/// The name of the tree with these contents, seen from this network namespace.
fn name_of(contents: &Contents, namespace: u64) -> String {
    let text = format!("{contents:?}");
    format!(
        "{}{namespace}-{:016x}",
        runtime::FINISHED,
        fnv1a(text.as_bytes())
    )
}

/// `text` with the tree's own directory filled in.
fn with_root(text: &str, root: &Path) -> String {
    text.replace(ROOT, &root.to_string_lossy())
}

#[cfg(test)]
mod tests;
