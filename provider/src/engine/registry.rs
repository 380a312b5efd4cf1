//! Which engines this process has: one for each device, shared by all of its contexts. And what becomes of them in a
//! child process: nothing. A child must not touch its parent's sockets and queue pairs; it may open engines of its own.

use super::Engine;
use crate::device::Device;
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Opening takes milliseconds. Longer means that the thread that held the lock did not survive a fork.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

struct Entry {
    generation: u32,
    device: String,
    engine: Weak<Engine>,
}

static ENGINES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
/// How many forks lie between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Must be called in the child after a fork (`pthread_atfork`): from then on the parent's engines do nothing here.
pub fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Tells processes on two sides of a fork apart.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The engine of `device`, opened if there is none.
pub(super) fn engine_for(device: &Arc<Device>) -> io::Result<Arc<Engine>> {
    let Some(mut engines) = ENGINES.try_lock_for(LOCK_TIMEOUT) else {
        return Err(io::Error::other(
            "this process was forked while its parent opened a device: open devices after the fork",
        ));
    };
    engines.retain(|entry| entry.generation == generation() && entry.engine.strong_count() > 0);
    let known = engines
        .iter()
        .find(|entry| entry.device == device.name)
        .and_then(|entry| entry.engine.upgrade());
    if let Some(engine) = known {
        return Ok(engine);
    }
    let engine = Engine::open(device)?;
    engines.push(Entry {
        generation: generation(),
        device: device.name.clone(),
        engine: Arc::downgrade(&engine),
    });
    Ok(engine)
}

/// Says goodbye to all peers: for the end of the process, which does not destroy its objects. Bounded to 100 ms for
/// each engine.
pub fn close_all() {
    let Some(engines) = ENGINES.try_lock_for(Duration::from_millis(100)) else {
        return;
    };
    let open: Vec<Arc<Engine>> = engines
        .iter()
        .filter_map(|entry| entry.engine.upgrade())
        .collect();
    drop(engines);
    for engine in open {
        engine.close();
    }
}
