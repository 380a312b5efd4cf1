//! Protection domains: which memory which queue pairs may use. Only their identity matters.

use std::sync::atomic::{AtomicU32, Ordering};

use metaroce_proto::types::PdId;

use super::census::{Census, Place};
use super::errno::Errno;
use super::limits::MAX_PD;

static CENSUS: Census = Census::new(MAX_PD, "protection domains");

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    id: PdId,
    users: AtomicU32,
    _place: Place,
}

impl Pd {
    /// A new one; ENOMEM when there are as many as the device has.
    pub fn new() -> Result<Self, Errno> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let place = CENSUS.enter()?;
        Ok(Self {
            id: PdId(NEXT.fetch_add(1, Ordering::Relaxed)),
            users: AtomicU32::new(0),
            _place: place,
        })
    }

    /// Its identity; never used twice within 2^32 domains.
    pub fn id(&self) -> PdId {
        self.id
    }

    /// A region, queue pair or address handle belongs to it from now on.
    pub fn attach(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// One of those is gone.
    pub fn detach(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether something belongs to it: then it may not be deallocated.
    pub fn is_used(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_differ_and_know_whether_they_are_used() {
        let (a, b) = (Pd::new().expect("room"), Pd::new().expect("room"));
        assert_ne!(a.id(), b.id());
        a.attach();
        assert!(a.is_used() && !b.is_used());
        a.detach();
        assert!(!a.is_used());
    }
}
