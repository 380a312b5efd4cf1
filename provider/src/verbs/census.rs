//! Counts of objects, against the limits that the device reports: one place in the count for each object, given back
//! when the object is dropped.

use std::sync::atomic::{AtomicU32, Ordering};

use super::errno::Errno;

/// How many objects of a kind this process has, and may have.
#[derive(Debug)]
pub struct Census {
    count: AtomicU32,
    limit: u32,
    /// What they are, for the log.
    what: &'static str,
}

/// A place in a count.
#[derive(Debug)]
pub struct Place(&'static Census);

impl Census {
    /// Nothing counted yet of `what`.
    pub const fn new(limit: u32, what: &'static str) -> Self {
        Self {
            count: AtomicU32::new(0),
            limit,
            what,
        }
    }

    /// Counts one more; ENOMEM, and a line in the log, when the limit is reached.
    pub fn enter(&'static self) -> Result<Place, Errno> {
        let place = Place(self);
        // Counted first, so that two threads cannot both take the last place; dropping `place` takes it back.
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.limit {
            log::warn!(
                "this process has {} {}, which is the limit: destroy some first",
                self.limit,
                self.what
            );
            Err(Errno::NO_MEMORY)
        } else {
            Ok(place)
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exact_and_places_come_back() {
        static CENSUS: Census = Census::new(2, "things");
        let first = CENSUS.enter().expect("room");
        let _second = CENSUS.enter().expect("room");
        assert_eq!(CENSUS.enter().map(drop), Err(Errno::NO_MEMORY));
        assert_eq!(CENSUS.enter().map(drop), Err(Errno::NO_MEMORY));
        drop(first);
        assert!(CENSUS.enter().is_ok());
    }
}
