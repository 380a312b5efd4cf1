//! The GID table of an open device: live, and with indexes that do not move.
//!
//! An address has its index for as long as the process lives. While it is not there the entry is empty, as in the kernel's
//! tables, and when it comes back it is where it was. New addresses are put behind the others. Called by `verbs/port.rs`.

use super::{Device, Gid, MAX_GIDS};
use std::net::IpAddr;

/// The table. What programs ask by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidTable {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    gid: Gid,
    plane: u8,
    present: bool,
}

impl GidTable {
    /// The table that the program sees in sysfs; all of it counts as there until [`GidTable::update`].
    pub fn new(device: &Device) -> Self {
        let entry = |(index, &gid)| Entry {
            gid,
            plane: device.plane_of(index),
            present: true,
        };
        let entries = device.gids.iter().enumerate().map(entry);
        Self {
            entries: entries.collect(),
        }
    }

    /// Length of the table, empty entries included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has no entries, not even empty ones.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The GID at `index`, if its address is there.
    pub fn present(&self, index: usize) -> Option<Gid> {
        let entry = self.entries.get(index)?;
        entry.present.then_some(entry.gid)
    }

    /// The GID that belongs to `index`, whether its address is there or not.
    pub fn known(&self, index: usize) -> Option<Gid> {
        Some(self.entries.get(index)?.gid)
    }

    /// The plane of the GID at `index`, whether its address is there or not.
    pub fn plane(&self, index: usize) -> Option<u8> {
        Some(self.entries.get(index)?.plane)
    }

    /// Whether `gid` is there.
    pub fn has(&self, gid: Gid) -> bool {
        let present = |entry: &Entry| entry.gid == gid && entry.present;
        self.entries.iter().any(present)
    }

    /// The GIDs that are there, with their indexes.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Gid)> + '_ {
        let present = self.entries.iter().enumerate();
        present.filter_map(|(index, entry)| entry.present.then_some((index, entry.gid)))
    }

    /// Takes over the addresses (with their planes) that the interfaces have now, in the order of a new table; new ones only if it `may_grow`.
    /// True if anything changed.
    pub fn update(&mut self, addresses: &[(IpAddr, u8)], may_grow: bool) -> bool {
        let now = addresses.iter().map(|(ip, plane)| (Gid::from(*ip), *plane));
        let now: Vec<(Gid, u8)> = now.collect();
        let mut changed = false;
        for entry in &mut self.entries {
            let present = now.contains(&(entry.gid, entry.plane));
            changed |= present != entry.present;
            entry.present = present;
        }
        if !may_grow {
            return changed;
        }
        for (gid, plane) in now {
            let known = self.entries.iter().any(|entry| entry.gid == gid);
            if !known && self.entries.len() < MAX_GIDS {
                self.entries.push(Entry {
                    gid,
                    plane,
                    present: true,
                });
                changed = true;
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(list: &[&str]) -> Vec<(IpAddr, u8)> {
        let ip = |text: &&str| (text.parse().unwrap(), 0);
        list.iter().map(ip).collect()
    }

    fn table(list: &[&str]) -> GidTable {
        GidTable::new(&Device {
            gids: ips(list).iter().map(|(ip, _)| Gid::from(*ip)).collect(),
            ..Device::default()
        })
    }

    fn shown(table: &GidTable) -> Vec<String> {
        let text = |index| table.present(index).map(|gid| gid.address().to_string());
        (0..table.len())
            .map(|index| text(index).unwrap_or_default())
            .collect()
    }

    /// What users complain about: "GID 0 stale or gone, index moves after a flap".
    #[test]
    fn an_index_is_its_addresses_for_ever() {
        let mut table = table(&["10.0.0.1", "10.0.0.2", "fe80::1"]);
        assert!(!table.update(&ips(&["10.0.0.1", "10.0.0.2", "fe80::1"]), true));
        // GID 0 goes, and another address comes.
        assert!(table.update(&ips(&["10.0.0.2", "10.0.0.3", "fe80::1"]), true));
        assert_eq!(shown(&table), ["", "10.0.0.2", "fe80::1", "10.0.0.3"]);
        assert_eq!(
            table.known(0).unwrap().address().to_string(),
            "10.0.0.1",
            "who has its index may wait for it"
        );
        assert_eq!(
            table.iter().map(|(index, _)| index).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        // All go, as on an interface that goes down for good, and come back in another order.
        assert!(table.update(&[], true));
        assert_eq!(shown(&table), ["", "", "", ""]);
        let back = ips(&["fe80::1", "10.0.0.3", "10.0.0.1", "10.0.0.2"]);
        assert!(table.update(&back, true));
        assert_eq!(
            shown(&table),
            ["10.0.0.1", "10.0.0.2", "fe80::1", "10.0.0.3"]
        );
    }

    #[test]
    fn it_grows_only_while_it_may_and_only_so_far() {
        let mut table = table(&["10.0.0.1"]);
        assert!(!table.update(&ips(&["10.0.0.1", "10.0.0.2"]), false));
        assert_eq!(shown(&table), ["10.0.0.1"]);
        let many: Vec<(IpAddr, u8)> = (0..=255)
            .map(|last| (IpAddr::from([10, 1, 0, last]), 0))
            .collect();
        assert!(table.update(&many, true));
        assert_eq!(table.len(), MAX_GIDS);
        assert_eq!(table.present(0), None);
        assert_eq!(table.known(MAX_GIDS), None);
    }

    #[test]
    fn an_address_counts_on_its_own_plane_only() {
        let mut table = table(&["10.0.0.1"]);
        assert!(table.update(&[("10.0.0.1".parse().unwrap(), 1)], true));
        assert_eq!((table.present(0), table.plane(0)), (None, Some(0)));
        assert!(!table.has(table.known(0).unwrap()));
    }
}
