//! The counters of an engine, and the file that `METAROCE_STATS` asks for: one line of JSON for each engine, written when
//! the engine ends. What is in it says `report.rs`. Numbers only; nothing decides by them.

use super::config::STATISTICS_VARIABLE;
use super::output;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::time::Duration;

/// What the engine counts beside the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EngineCounters {
    /// Send system calls.
    pub(super) send_calls: u64,
    /// Packets that the kernel took.
    pub(super) packets_sent: u64,
    /// Trains that waited for room in the socket.
    pub(super) trains_blocked: u64,
    /// Sends that failed for good.
    pub(super) send_errors: u64,
    /// Packets whose memory could not be read.
    pub(super) bad_memory: u64,
    /// Messages received: packets, or packets that the kernel had merged.
    pub(super) messages_received: u64,
    /// Packets received.
    pub(super) packets_received: u64,
    /// ICMP errors read.
    pub(super) icmp_errors: u64,
    /// Turns of the background thread.
    pub(super) background_turns: u64,
    /// Turns of application threads that found something to do.
    pub(super) inline_turns: u64,
}

impl EngineCounters {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("send_calls", self.send_calls),
            ("packets_sent", self.packets_sent),
            ("trains_blocked", self.trains_blocked),
            ("send_errors", self.send_errors),
            ("bad_memory", self.bad_memory),
            ("messages_received", self.messages_received),
            ("packets_received", self.packets_received),
            ("icmp_errors", self.icmp_errors),
            ("background_turns", self.background_turns),
            ("inline_turns", self.inline_turns),
        ]
        .into_iter()
    }
}

/// Longer means that the thread that held the lock did not survive a fork.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// The files that this process has begun: the next engine appends.
static BEGUN: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Writes the line of one engine to `file`. A failure is told on the log, for the program is ending.
pub(super) fn write(file: &str, line: &str) {
    let Some(mut files) = BEGUN.try_lock_for(LOCK_TIMEOUT) else {
        return;
    };
    let begun = !files
        .get_or_insert_with(HashSet::new)
        .insert(file.to_owned());
    drop(files);
    let open = output::open(file, begun);
    let result = open.and_then(|mut file| output::write(&mut file, line.as_bytes()));
    if let Err(error) = result {
        log::error!("{STATISTICS_VARIABLE}: cannot write {file}: {error}");
    }
}
