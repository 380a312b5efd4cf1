//! Lives of ours that ended and whose end the peer may not know yet, in the order in which they ended, found by their
//! number and token. A program that makes and destroys queue pairs fast has thousands of them at a time: nothing here
//! looks at all of them. Used by `life.rs`, which sends the SHUTs, and by `ack.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::endpoint::qp::Retry;
use crate::types::Time;
use crate::wire::{Qpn, Shut, StreamBlock, Token};

/// What is known of an ended life is kept this long after the peer has answered (WIRE 3.14), or after it was given up.
const ENDED_KEPT_NS: u64 = 1_000_000_000;

/// A SHUT that is not answered is repeated this long: as long as a peer may be descheduled, and no connection for ever.
const SHUT_GIVEN_UP_NS: u64 = 10_000_000_000;

/// Ended lives that are remembered; more can only come from a program that makes and destroys queue pairs faster than
/// the peer answers. The oldest are forgotten then, and the peer learns it by probing.
const ENDED_MAX: usize = 16_384;

/// Forgetting is not urgent: one look for all that came due in so long a time.
const FORGET_STEP_NS: u64 = 100_000_000;

/// A life of ours that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// How the peer is told.
    pub shut: Shut,
    /// The last word about the peer's stream; with the reason if a message of the peer was refused for good.
    pub block: StreamBlock,
    retry: Retry,
    forget_at: Time,
}

/// All of a connection.
#[derive(Debug, Default)]
pub(crate) struct EndedLives {
    /// In the order of ending. An entry has the number `first` + its index.
    entries: VecDeque<Ended>,
    first: u64,
    by_name: BTreeMap<(u32, u32), u64>,
    /// Numbers of those that the peer has not answered.
    unanswered: BTreeSet<u64>,
    /// ACKs that a block still goes into, by number.
    repeats: BTreeMap<u64, u8>,
    forget_look_at: Option<Time>,
}

fn name(qpn: Qpn, token: Token) -> (u32, u32) {
    (qpn.get(), token.get())
}

impl EndedLives {
    /// Remembers a life that ends now; its block goes into `repeats` ACKs. Returns when [`Self::repeat`] has to be
    /// called.
    pub(crate) fn add(&mut self, now: Time, shut: Shut, block: StreamBlock, repeats: u8) -> Time {
        if self.entries.len() >= ENDED_MAX {
            self.forget_first();
        }
        let number = self.first + self.entries.len() as u64;
        let retry = Retry::new(now);
        self.entries.push_back(Ended {
            shut,
            block,
            retry,
            forget_at: now + SHUT_GIVEN_UP_NS,
        });
        self.by_name
            .insert(name(shut.from_qpn, shut.from_token), number);
        self.unanswered.insert(number);
        if repeats > 0 {
            self.repeats.insert(number, repeats);
        }
        retry.at
    }

    fn forget_first(&mut self) {
        let Some(ended) = self.entries.pop_front() else {
            return;
        };
        let number = self.first;
        self.first += 1;
        let key = name(ended.shut.from_qpn, ended.shut.from_token);
        if self.by_name.get(&key) == Some(&number) {
            self.by_name.remove(&key);
        }
        self.unanswered.remove(&number);
        self.repeats.remove(&number);
    }

    fn number(&self, qpn: Qpn, token: Token) -> Option<u64> {
        self.by_name.get(&name(qpn, token)).copied()
    }

    fn get(&self, number: u64) -> Option<&Ended> {
        self.entries.get(number.checked_sub(self.first)? as usize)
    }

    /// The life that `token` names.
    pub(crate) fn find(&self, qpn: Qpn, token: Token) -> Option<&Ended> {
        self.get(self.number(qpn, token)?)
    }

    /// The block of that life goes into one more ACK, if it tells why a message was refused. True if one is due.
    pub(crate) fn tell_again(&mut self, qpn: Qpn, token: Token) -> bool {
        let Some(number) = self.number(qpn, token) else {
            return false;
        };
        let fatal = self
            .get(number)
            .is_some_and(|ended| ended.block.code.is_fatal());
        if fatal {
            self.repeats.entry(number).or_insert(1);
        }
        self.repeats.contains_key(&number)
    }

    /// Offers the blocks that still go into ACKs to `push`, until it says that one did not fit.
    pub(crate) fn push_blocks(&mut self, mut push: impl FnMut(&StreamBlock) -> bool) {
        let Self {
            entries,
            first,
            repeats,
            ..
        } = self;
        let mut fits = true;
        repeats.retain(|number, left| {
            let ended = number
                .checked_sub(*first)
                .and_then(|at| entries.get(at as usize));
            fits = fits && ended.is_none_or(|ended| push(&ended.block));
            *left -= u8::from(fits);
            *left > 0 && ended.is_some()
        });
    }

    /// The peer has answered the SHUT of a life. False if there is none of that name.
    pub(crate) fn answered(&mut self, now: Time, qpn: Qpn, token: Token) -> bool {
        let Some(number) = self.number(qpn, token) else {
            return false;
        };
        if self.unanswered.remove(&number)
            && let Some(ended) = self.entries.get_mut((number - self.first) as usize)
        {
            ended.forget_at = now + ENDED_KEPT_NS;
            self.forget_look_at = self.forget_look_at.map(|at| at.min(ended.forget_at));
        }
        true
    }

    /// Hands out the SHUTs that were not answered in time, and forgets what is old. Returns when to look again.
    pub(crate) fn repeat(&mut self, now: Time, mut push: impl FnMut(Shut)) -> Option<Time> {
        let mut next: Option<Time> = None;
        let Self {
            entries,
            first,
            unanswered,
            ..
        } = self;
        unanswered.retain(|number| {
            let ended = entries.get_mut((number - *first) as usize);
            let Some(ended) = ended.filter(|ended| ended.forget_at > now) else {
                return false;
            };
            if ended.retry.is_due(now) {
                ended.retry.again(now);
                push(ended.shut);
            }
            let at = ended.retry.at.min(ended.forget_at);
            next = Some(next.map_or(at, |next| next.min(at)));
            true
        });
        if self.forget_look_at.is_none_or(|at| at <= now) {
            // In the order of ending: one that is not answered keeps those behind it, which the limit bounds.
            while self
                .entries
                .front()
                .is_some_and(|ended| ended.forget_at <= now)
            {
                self.forget_first();
            }
            let oldest = self.entries.front().map(|ended| ended.forget_at);
            self.forget_look_at = oldest.map(|at| at.max(now + FORGET_STEP_NS));
        }
        match (next, self.forget_look_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The peer may not know of some.
    pub(crate) fn is_any_unanswered(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// How many the peer may not know of.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// None is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The last words about the peer's streams.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = StreamBlock> + '_ {
        self.entries.iter().map(|ended| ended.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::qp::RETRY_MAX_NS;
    use crate::wire::{NakCode, ShutReason};

    const SECOND_NS: u64 = 1_000_000_000;

    fn shut(number: u32) -> Shut {
        Shut {
            from_qpn: Qpn::truncate(number),
            reason: ShutReason::Destroyed,
            from_token: Token::truncate(number ^ 0x5a5a5a),
            ..Shut::default()
        }
    }

    fn add(lives: &mut EndedLives, now: Time, number: u32, code: NakCode) {
        let block = StreamBlock {
            code,
            ..StreamBlock::default()
        };
        lives.add(now, shut(number), block, u8::from(code.is_fatal()) * 3);
    }

    fn is_known(lives: &EndedLives, number: u32) -> bool {
        let shut = shut(number);
        lives.find(shut.from_qpn, shut.from_token).is_some()
    }

    /// Calls [`EndedLives::repeat`] whenever it wants, up to `end`. Returns the SHUTs, and how often it was called.
    fn run(lives: &mut EndedLives, mut now: Time, end: Time) -> (Vec<Shut>, usize) {
        let (mut shuts, mut calls) = (Vec::new(), 0);
        while let Some(next) = lives.repeat(now, |shut| shuts.push(shut)) {
            calls += 1;
            assert!(next > now, "a timer that is never served");
            if next > end {
                break;
            }
            now = next;
        }
        (shuts, calls)
    }

    #[test]
    fn an_answer_ends_the_repetitions_and_the_memory_a_second_later() {
        let mut lives = EndedLives::default();
        for number in 10..1_010 {
            let now = Time::from_ns(u64::from(number) * 1_000);
            add(&mut lives, now, number, NakCode::None);
        }
        let now = Time::from_ns(2_000_000);
        assert_eq!(lives.unanswered(), 1_000);
        for number in 10..1_010 {
            let shut = shut(number);
            assert!(lives.answered(now, shut.from_qpn, shut.from_token));
            assert!(is_known(&lives, number));
        }
        assert!(!lives.answered(now, Qpn::truncate(5), Token::truncate(5)));
        assert!(!lives.is_any_unanswered());
        let (shuts, calls) = run(&mut lives, now, now + 3 * SECOND_NS);
        assert!(shuts.is_empty() && lives.is_empty());
        assert!(calls < 20, "{calls} calls to forget what ended together");
    }

    #[test]
    fn what_is_never_answered_is_given_up() {
        let mut lives = EndedLives::default();
        let now = Time::from_ns(SECOND_NS);
        add(&mut lives, now, 10, NakCode::None);
        add(&mut lives, now + 1, 11, NakCode::None);
        let eleven = shut(11);
        let (shuts, _) = run(&mut lives, now, now + SECOND_NS);
        assert!(shuts.len() > 100, "{} repetitions", shuts.len());
        // The one that is answered waits behind the one that is not, and is known all the while.
        assert!(lives.answered(now + SECOND_NS, eleven.from_qpn, eleven.from_token));
        let (shuts, _) = run(&mut lives, now + SECOND_NS, now + 9 * SECOND_NS);
        let most = 8 * SECOND_NS / RETRY_MAX_NS + 8;
        assert!(shuts.iter().all(|shut| shut.from_qpn.get() == 10));
        assert!(shuts.len() as u64 <= most, "{} repetitions", shuts.len());
        run(&mut lives, now + 9 * SECOND_NS, now + 30 * SECOND_NS);
        assert!(lives.is_empty() && !lives.is_any_unanswered());
    }

    #[test]
    fn the_oldest_are_forgotten_when_there_are_too_many() {
        let mut lives = EndedLives::default();
        let now = Time::from_ns(SECOND_NS);
        for number in 0..ENDED_MAX as u32 + 5 {
            add(&mut lives, now, number + 100, NakCode::None);
        }
        assert_eq!(lives.unanswered(), ENDED_MAX);
        assert!(!is_known(&lives, 104) && is_known(&lives, 105));
        let last = ENDED_MAX as u32 + 104;
        assert!(is_known(&lives, last));
    }

    #[test]
    fn a_fatal_block_goes_into_some_acknowledgements_and_into_more_when_asked_for() {
        let mut lives = EndedLives::default();
        let now = Time::from_ns(SECOND_NS);
        add(&mut lives, now, 10, NakCode::None);
        add(&mut lives, now, 11, NakCode::RemoteAccess);
        let told = |lives: &mut EndedLives, room: usize| {
            let mut count = 0;
            lives.push_blocks(|block| {
                assert!(block.code.is_fatal());
                count += usize::from(count < room);
                room > 0
            });
            count
        };
        assert_eq!(told(&mut lives, 0), 0);
        assert_eq!((0..5).map(|_| told(&mut lives, 1)).sum::<usize>(), 3);
        let (ten, eleven) = (shut(10), shut(11));
        assert!(!lives.tell_again(ten.from_qpn, ten.from_token));
        assert!(lives.tell_again(eleven.from_qpn, eleven.from_token));
        assert_eq!((0..5).map(|_| told(&mut lives, 1)).sum::<usize>(), 1);
    }
}
