//! The table of regions of a process, and what becomes of it in a forked child.
//!
//! A child may go on with what its parent made before it forked: domains, regions, queues (though not with queue pairs).
//! But its copy of the table's lock may be held by threads of the parent, which do not exist there: a thread that was
//! placing a packet holds it shared, for ever. So the thread that forks holds the lock shared over the fork, which keeps
//! changes away, and the child copies what it finds into a table of its own when it asks for one.
//!
//! Called by [`MrTable::of_process`] and by the handlers of `pthread_atfork` (`plugin/mod.rs`). Part of `mr_memory.rs`, whose
//! rules for unsafe code hold here.

use super::MrTable;
use crate::engine;
use parking_lot::lock_api::RwLockReadGuard;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

/// How long a fork waits for a registration in another thread: it takes microseconds, unless its thread does not run.
const FORK_WAIT: Duration = Duration::from_secs(1);

/// A table and the process that it belongs to, counted in forks.
struct OfProcess {
    generation: u32,
    table: Arc<MrTable>,
}

/// The newest; one more each time that a child of a child asks. Leaked: whoever has the address may use it.
static NEWEST: AtomicPtr<OfProcess> = AtomicPtr::new(null_mut());
/// In a child: nobody was changing the newest table when the process was forked.
static WHOLE: AtomicBool = AtomicBool::new(true);

thread_local! {
    /// The table whose lock this thread holds while it forks.
    static HELD: Cell<Option<&'static OfProcess>> = const { Cell::new(None) };
}

fn newest() -> Option<&'static OfProcess> {
    // SAFETY: null, or a box that was leaked. Acquire: pairs with the release in `table`.
    unsafe { NEWEST.load(Ordering::Acquire).as_ref() }
}

/// The table of this process.
pub(super) fn table() -> &'static Arc<MrTable> {
    let generation = engine::generation();
    loop {
        let known = newest();
        if let Some(known) = known.filter(|known| known.generation == generation) {
            return &known.table;
        }
        let table = match known {
            // SAFETY: the table is of the process that forked this one, and its lock was held shared over the fork. No
            // thread of this process has used it before, and from now on none will.
            Some(parent) if WHOLE.load(Ordering::Acquire) => unsafe { parent.table.copy() },
            Some(_) => {
                log::warn!(
                    "forked while memory was registered, for longer than {FORK_WAIT:?}: the parent's memory regions are not known here"
                );
                MrTable::default()
            }
            None => MrTable::default(),
        };
        let fresh = Box::into_raw(Box::new(OfProcess {
            generation,
            table: Arc::new(table),
        }));
        let known = known.map_or(null_mut(), |known| std::ptr::from_ref(known).cast_mut());
        // Release: publishes the box.
        let exchanged = NEWEST.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire);
        if exchanged.is_err() {
            // SAFETY: not published, so still ours alone. Another thread was faster: once more.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// In the thread that is about to fork.
pub fn before_fork() {
    if newest().is_none() {
        return;
    }
    // In a child of a child the newest table may still be the grandparent's.
    table();
    let held = newest().filter(|of_process| {
        let guard = of_process.table.inner.try_read_recursive_for(FORK_WAIT);
        guard
            .map(std::mem::forget::<RwLockReadGuard<'_, _, _>>)
            .is_some()
    });
    HELD.set(held);
}

/// In the same thread of the parent, after the fork.
pub fn after_fork_in_parent() {
    if let Some(of_process) = HELD.take() {
        // SAFETY: this thread has locked it and forgotten the guard, in `before_fork`.
        unsafe { of_process.table.inner.force_unlock_read() };
    }
}

/// In the child, whose only thread is the one that forked. The lock stays held: nobody will ask for it here.
pub fn after_fork_in_child() {
    WHOLE.store(
        HELD.take().is_some() || newest().is_none(),
        Ordering::Release,
    );
}

impl MrTable {
    /// A table with the same regions, under the same keys, and a free lock.
    ///
    /// # Safety
    /// Nobody changes this one.
    unsafe fn copy(&self) -> Self {
        // SAFETY: the caller's promise; the address is that of a live table.
        let slots = unsafe { (*self.inner.data_ptr()).clone() };
        Self {
            inner: parking_lot::RwLock::new(slots),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::mr_memory::Region;
    use metaroce_proto::types::{Access, PdId};

    #[test]
    fn a_copy_has_the_same_keys_and_a_lock_of_its_own() {
        let table = MrTable::default();
        let region = Region {
            pd: PdId(1),
            iova: 0x1000,
            length: 64,
            host_addr: 0x1000,
            access: Access::LOCAL_WRITE,
        };
        let (first, second) = (table.register(region), table.register(region));
        table.deregister(first.unwrap()).unwrap();
        // As if a thread that is gone had it.
        let _held = table.inner.read();
        // SAFETY: no other thread knows the table.
        let copy = unsafe { table.copy() };
        assert_eq!(copy.get(first.unwrap()), None);
        assert_eq!(copy.get(second.unwrap()), Some(region));
        let third = copy.register(region).unwrap();
        assert!(Some(third) != first && Some(third) != second);
        assert_eq!(copy.deregister(second.unwrap()), Some(region));
    }

    #[test]
    fn forking_is_held_up_by_registrations_only_and_holds_them_up() {
        let of_process = MrTable::of_process();
        let reading = of_process.inner.read_recursive();
        before_fork();
        assert!(HELD.get().is_some());
        assert!(of_process.inner.try_write().is_none());
        drop(reading);
        assert!(of_process.inner.try_write().is_none());
        after_fork_in_parent();
        assert!(HELD.get().is_none());
        assert!(of_process.inner.try_write_for(FORK_WAIT).is_some());
    }
}
