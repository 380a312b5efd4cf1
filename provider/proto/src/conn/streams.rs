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

    /// Gives memory back that the lists do not need.
    pub(crate) fn let_go(&mut self) {
        self.lists.iter_mut().for_each(Vec::shrink_to_fit);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::qp::Life;
    use crate::endpoint::table::Key;
    use crate::types::{Access, ConnectParams, PdId, QpConfig, RqId, Time};
    use crate::wire::{Gid, Qpn, Token};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const LISTS_ALL: [List; LISTS] = [List::All, List::Opening, List::Active];

    /// A queue pair with a life that has no work.
    fn with_life(qps: &mut QpTable) -> QpId {
        let config = QpConfig {
            pd: PdId(1),
            receive_queue: RqId(1),
            shared_receive_queue: false,
        };
        let gid = Gid([0; 16]);
        let params = ConnectParams {
            source_gid: gid,
            dest_gid: gid,
            dest_qpn: Qpn::truncate(77),
            rq_psn: 0,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 0,
            access: Access(0),
        };
        let key = Key {
            source: gid,
            dest: gid,
            peer_port: 1,
        };
        let id = qps.insert(config).unwrap().id;
        let qp = qps.get_mut(id).unwrap();
        let life = Life::new(qp, key, &params, Token::truncate(5), Time::ZERO);
        qp.life = Some(Box::new(life));
        id
    }

    #[test]
    fn everybody_knows_his_place() {
        let mut qps = QpTable::new(3, 0);
        let ids: Vec<QpId> = (0..50).map(|_| with_life(&mut qps)).collect();
        let mut streams = Streams::default();
        let mut rng = SmallRng::seed_from_u64(1);
        let mut model = [[false; 50]; LISTS];
        for _ in 0..20_000 {
            let (at, list) = (rng.random_range(0..50), rng.random_range(0..LISTS));
            match rng.random_range(0..5) {
                0 | 1 => {
                    streams.enter(&mut qps, ids[at], LISTS_ALL[list]);
                    model[list][at] = true;
                }
                2 | 3 => {
                    streams.leave(&mut qps, ids[at], LISTS_ALL[list]);
                    model[list][at] = false;
                }
                _ => {
                    streams.leave_all(&mut qps, ids[at]);
                    model.iter_mut().for_each(|members| members[at] = false);
                }
            }
            for list in LISTS_ALL {
                let members = streams.of(list);
                let wanted = model[list as usize]
                    .iter()
                    .filter(|member| **member)
                    .count();
                assert_eq!(members.len(), wanted);
                for (place, id) in members.iter().enumerate() {
                    let life = qps.life_mut(*id).unwrap();
                    assert_eq!(life.places[list as usize], Some(place as u32));
                }
            }
        }
        // None has work: whoever looks sends all away.
        for id in &ids {
            streams.enter(&mut qps, *id, List::Active);
        }
        assert!(!streams.leave_idle(&mut qps));
        assert!(streams.is_empty(List::Active));
        assert!(qps.life_mut(ids[0]).unwrap().places[List::Active as usize].is_none());
    }
}
