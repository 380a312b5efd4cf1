//! The lives that use a connection, in lists that are as long as the work that they stand for: with a thousand queue
//! pairs nothing may look at all of them because one of them does something. Each life knows its place in each list, so
//! that entering and leaving cost the same however many there are. Used by everything in `conn/`.

use crate::endpoint::qp::QpTable;
use crate::types::QpId;

/// Which lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum List {
    /// All of them.
    All,
    /// Those whose OPEN is not answered.
    Opening,
    /// At least those with work requests or answers that are not finished. Who has finished leaves when somebody looks
    /// ([`Streams::leave_idle`]).
    Active,
}

/// Number of lists.
pub(crate) const LISTS: usize = 3;

/// Places of a life in the lists.
pub(crate) type Places = [Option<u32>; LISTS];

/// The lists of a connection.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    lists: [Vec<QpId>; LISTS],
}

impl Streams {
    /// The lives in `list`.
    #[inline]
    pub(crate) fn of(&self, list: List) -> &[QpId] {
        &self.lists[list as usize]
    }

    /// Whether `list` is empty.
    #[inline]
    pub(crate) fn is_empty(&self, list: List) -> bool {
        self.of(list).is_empty()
    }

    /// Enters the life of `id` into `list`, unless it is there.
    #[inline]
    pub(crate) fn enter(&mut self, qps: &mut QpTable, id: QpId, list: List) {
        let members = &mut self.lists[list as usize];
        if let Some(life) = qps.life_mut(id)
            && life.places[list as usize].is_none()
        {
            life.places[list as usize] = Some(members.len() as u32);
            members.push(id);
        }
    }

    /// Takes the life of `id` out of `list`, if it is there.
    pub(crate) fn leave(&mut self, qps: &mut QpTable, id: QpId, list: List) {
        let place = qps
            .life_mut(id)
            .and_then(|life| life.places[list as usize].take());
        let Some(at) = place else { return };
        let members = &mut self.lists[list as usize];
        debug_assert_eq!(members.get(at as usize), Some(&id), "a life lost its place");
        members.swap_remove(at as usize);
        if let Some(moved) = members.get(at as usize)
            && let Some(life) = qps.life_mut(*moved)
        {
            life.places[list as usize] = Some(at);
        }
    }

    /// Takes the life of `id` out of all lists.
    pub(crate) fn leave_all(&mut self, qps: &mut QpTable, id: QpId) {
        for list in [List::All, List::Opening, List::Active] {
            self.leave(qps, id, list);
        }
    }

    /// Sends away the last active lives that are idle. True if one is left that is not.
    pub(crate) fn leave_idle(&mut self, qps: &mut QpTable) -> bool {
        while let Some(id) = self.of(List::Active).last().copied() {
            let works = qps
                .life_mut(id)
                .is_some_and(|life| !life.requester.is_idle() || life.responder.has_responses());
            if works {
                return true;
            }
            self.lists[List::Active as usize].pop();
            if let Some(life) = qps.life_mut(id) {
                life.places[List::Active as usize] = None;
            }
        }
        false
    }

    /// Empties the lists; returns who was there.
    pub(crate) fn take_all(&mut self, qps: &mut QpTable) -> Vec<QpId> {
        let lists = std::mem::take(&mut self.lists);
        let [all, ..] = lists;
        for id in &all {
            if let Some(life) = qps.life_mut(*id) {
                life.places = Places::default();
            }
        }
        all
    }
}
