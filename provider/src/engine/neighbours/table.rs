//! The table in which the engines of a host that share a NIC tell each other what the senders to them want: a slot each, in
//! memory that all of them have mapped ([`SharedMemory`]).
//!
//! Nobody locks it, nobody waits, and nobody is trusted: a process may be killed or stopped at any moment, or write anything
//! anywhere. A slot counts as long as its owner says now and then that it lives; what is read is numbers, any of
//! which are allowed, and all that a wrong one can do is to make grants wrong. Used by `mod.rs` (slots) and `service.rs`
//! (making it and handing it on).
//!
//! ```text
//! words 0…7    mark, one that is not used, slots in use from the first one on
//! words 8i…    owner (0: free), heartbeat, unlimited senders << 32 | connections, bytes/s that the limited senders want
//! ```

use metaroce_proto::cc::Others;
use metaroce_udp::SharedMemory;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// 64 KiB, of which what is not used takes no memory.
const WORDS: usize = 8192;
/// A cache line.
const SLOT_WORDS: usize = 8;
/// A host has no more than 1,024 engines: so many ports there are for them. The first slot's place is the head's.
pub(super) const SLOTS: usize = WORDS / SLOT_WORDS - 1;

/// First word: "mrshare" and the version of all that is said above.
const MARK: u64 = u64::from_be_bytes(*b"mrshare\x01");
const MARK_AT: usize = 0;
const IN_USE_AT: usize = 2;
/// Words of a slot.
const OWNER: usize = 0;
const HEARTBEAT: usize = 1;
const COUNTS: usize = 2;
const LIMITED: usize = 3;

/// What the senders to a process want counts for so long after it last said so: many times what lies between two words of
/// a process that runs, and yet so short that one that was killed is missed by nobody.
pub(super) const ALIVE_NS: u64 = 50_000_000;
/// The connections of a process count for so long: one that receives nothing says nothing, but all its peers may begin
/// at any time. After that its slot is free for others; a process that still lives takes another one when it next
/// receives something.
pub(super) const LISTED_NS: u64 = 10_000_000_000;

/// See the file's head.
#[derive(Debug)]
pub(in crate::engine) struct Table {
    memory: SharedMemory,
}

/// Who has a slot: drawn by chance, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u64);

impl Owner {
    pub(super) fn random() -> Owner {
        Owner(rand::random::<u64>() | 1)
    }
}

impl Table {
    /// An empty one.
    pub(super) fn create() -> io::Result<Table> {
        let memory = SharedMemory::create(c"metaroce-share", WORDS)?;
        memory.words()[MARK_AT].store(MARK, Ordering::Relaxed);
        Ok(Table { memory })
    }

    /// One that another process made.
    pub(super) fn adopt(descriptor: OwnedFd) -> io::Result<Table> {
        let memory = SharedMemory::adopt(descriptor, WORDS)?;
        if memory.words()[MARK_AT].load(Ordering::Relaxed) != MARK {
            let error = "the memory is no table of this version";
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(Table { memory })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    pub(super) fn is_same(&self, other: &Table) -> bool {
        self.memory.is_same(&other.memory)
    }

    fn slot(&self, index: usize) -> &[AtomicU64] {
        &self.memory.words()[(index + 1) * SLOT_WORDS..][..SLOT_WORDS]
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[index]
    }

    /// Takes the first slot that is free, or whose owner has said nothing for [`LISTED_NS`]; none if all are taken.
    pub(super) fn claim(&self, owner: Owner, now_ns: u64) -> Option<usize> {
        let index = (0..SLOTS).find(|index| {
            let slot = self.slot(*index);
            let before = slot[OWNER].load(Ordering::Relaxed);
            let silent_ns = now_ns.abs_diff(slot[HEARTBEAT].load(Ordering::Relaxed));
            // Two may want the same one. Nothing else hangs on it: the numbers that are there count only with a
            // heartbeat, and that comes after new ones.
            (before == 0 || silent_ns > LISTED_NS)
                && slot[OWNER]
                    .compare_exchange(before, owner.0, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        })?;
        Some(index)
    }

    /// Makes the slots in use reach to this one.
    fn reach(&self, index: usize) {
        let end = index as u64 + 1;
        if self.word(IN_USE_AT).load(Ordering::Relaxed) < end {
            self.word(IN_USE_AT).fetch_max(end, Ordering::Relaxed);
        }
    }

    /// Writes what `owner` has to say into its slot; false if that is not its slot any more.
    pub(super) fn publish(&self, index: usize, owner: Owner, now_ns: u64, own: &Others) -> bool {
        let slot = self.slot(index);
        if slot[OWNER].load(Ordering::Relaxed) != owner.0 {
            return false;
        }
        let counts = u64::from(own.unlimited) << 32 | u64::from(own.connections);
        slot[COUNTS].store(counts, Ordering::Relaxed);
        slot[LIMITED].store(own.limited_bytes_per_s, Ordering::Relaxed);
        // Release, for `others`: who sees this heartbeat sees no older numbers.
        slot[HEARTBEAT].store(now_ns, Ordering::Release);
        self.reach(index);
        true
    }

    /// Gives the slot back.
    pub(super) fn release(&self, index: usize, owner: Owner) {
        let freed = self.slot(index)[OWNER].compare_exchange(
            owner.0,
            0,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if freed.is_ok() {
            // The last one makes the table shorter. Another who takes it at this moment makes it longer again when it next
            // says something.
            let last = index as u64 + 1;
            let _ = self.word(IN_USE_AT).compare_exchange(
                last,
                index as u64,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// What all but the owner of slot `own` say, as far as they live.
    pub(super) fn others(&self, own: Option<usize>, now_ns: u64) -> Others {
        let mut all = Others::default();
        let in_use = self.word(IN_USE_AT).load(Ordering::Relaxed);
        let in_use = usize::try_from(in_use).map_or(SLOTS, |count| count.min(SLOTS));
        for index in (0..in_use).filter(|index| Some(*index) != own) {
            let slot = self.slot(index);
            if slot[OWNER].load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire, for `publish`. A heartbeat ahead of our clock by much is as wrong as one behind.
            let silent_ns = now_ns.abs_diff(slot[HEARTBEAT].load(Ordering::Acquire));
            if silent_ns > LISTED_NS {
                continue;
            }
            let counts = slot[COUNTS].load(Ordering::Relaxed);
            all.connections = all.connections.saturating_add(counts as u32);
            if silent_ns <= ALIVE_NS {
                all.unlimited = all.unlimited.saturating_add((counts >> 32) as u32);
                let limited = slot[LIMITED].load(Ordering::Relaxed);
                all.limited_bytes_per_s = all.limited_bytes_per_s.saturating_add(limited);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1 << 50;

    fn says(unlimited: u32, limited_bytes_per_s: u64, connections: u32) -> Others {
        Others {
            unlimited,
            limited_bytes_per_s,
            connections,
        }
    }

    /// The table with an owner for each of `words`.
    fn table(words: &[Others]) -> (Table, Vec<(usize, Owner)>) {
        let table = Table::create().unwrap();
        let owners = words
            .iter()
            .map(|own| {
                let owner = Owner::random();
                let index = table.claim(owner, NOW).unwrap();
                assert!(table.publish(index, owner, NOW, own));
                (index, owner)
            })
            .collect();
        (table, owners)
    }

    #[test]
    fn each_sees_the_others_and_not_itself() {
        let (table, owners) = table(&[says(1, 10, 2), says(3, 40, 8), says(0, 0, 16)]);
        let seen = |who: usize| table.others(Some(owners[who].0), NOW);
        assert_eq!(seen(0), says(3, 40, 24));
        assert_eq!(seen(1), says(1, 10, 18));
        assert_eq!(seen(2), says(4, 50, 10));
        table.release(owners[1].0, owners[1].1);
        assert_eq!(seen(2), says(1, 10, 2));
        assert_eq!(table.claim(Owner::random(), NOW), Some(1));
    }

    #[test]
    fn who_is_silent_wants_nothing_soon_and_is_forgotten_later() {
        let (table, owners) = table(&[says(1, 10, 2), says(3, 40, 8)]);
        let [first, second] = owners[..] else {
            unreachable!()
        };
        let seen = |after_ns: u64| table.others(Some(first.0), NOW + after_ns);
        assert_eq!(seen(ALIVE_NS), says(3, 40, 8));
        assert_eq!(seen(ALIVE_NS + 1), says(0, 0, 8));
        assert_eq!(seen(LISTED_NS + 1), says(0, 0, 0));
        // Its place is taken then, which it sees when it comes back.
        let later = NOW + LISTED_NS + 1;
        assert!(table.publish(first.0, first.1, later, &says(0, 0, 1)));
        assert_eq!(table.claim(Owner::random(), later - 1), Some(2));
        let newcomer = Owner::random();
        assert_eq!(table.claim(newcomer, later), Some(second.0));
        assert_eq!(
            seen(LISTED_NS + 1),
            says(0, 0, 0),
            "no number of the one before"
        );
        assert!(!table.publish(second.0, second.1, later, &says(9, 9, 9)));
        table.release(second.0, second.1);
        assert!(table.publish(second.0, newcomer, later, &says(1, 1, 1)));
    }

    #[test]
    fn garbage_is_only_wrong_numbers() {
        let (table, owners) = table(&[says(1, 1, 1), says(1, 1, 1)]);
        for word in &table.memory.words()[2..] {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(table.others(None, NOW), Others::default());
        let slot = table.slot(owners[1].0);
        for index in [owners[1].0, 500, SLOTS - 1] {
            table.slot(index)[HEARTBEAT].store(NOW, Ordering::Relaxed);
        }
        assert_eq!(
            table.others(Some(owners[0].0), NOW),
            says(u32::MAX, u64::MAX, u32::MAX)
        );
        slot[OWNER].store(0, Ordering::Relaxed);
        // The end of the table is what they say it is, within it.
        table.word(IN_USE_AT).store(0, Ordering::Relaxed);
        assert_eq!(table.others(None, NOW), Others::default());
        assert!(!table.publish(owners[0].0, owners[0].1, NOW, &says(1, 1, 1)));
        assert!(table.claim(owners[0].1, NOW).is_some());
    }

    #[test]
    fn a_full_table_has_no_slot() {
        let (table, _) = table(&[says(1, 1, 1); SLOTS]);
        assert_eq!(table.claim(Owner::random(), NOW), None);
        assert_eq!(table.others(None, NOW).unlimited, SLOTS as u32);
    }

    #[test]
    fn memory_without_the_mark_is_no_table() {
        let memory = SharedMemory::create(c"metaroce-test", WORDS).unwrap();
        let descriptor = memory.as_fd().try_clone_to_owned().unwrap();
        assert!(Table::adopt(descriptor).is_err());
        let (table, _) = table(&[says(1, 2, 3)]);
        let again = Table::adopt(table.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert!(again.is_same(&table));
        assert_eq!(again.others(None, NOW), says(1, 2, 3));
    }
}
