//! Models of the concurrent corners: the code itself under loom, which runs a test once for every order of its threads.
//! `cargo xtask loom`; see `sync.rs`. What blocks on a system call elsewhere (the waker) is a flag here: a wake-up stays
//! until it is taken, as in an eventfd.

use super::gate::{Gate, Left};
use super::nap::{Nap, SERVE_AT_MOST_NS};
use super::presence::{FEWEST_POLLS, Presence, Streak};
use crate::sync::{AtomicBool, Ordering};
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use metaroce_proto::types::Time;

/// Switches of thread that were not asked for, in one run: bugs that need more than three are hardly known.
const PREEMPTIONS: usize = 3;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

#[derive(Default)]
struct Work {
    done: u64,
    taken: Vec<u64>,
}

fn serve(gate: &Gate<Work, u64>, work: &mut Work) {
    gate.take(&mut work.taken);
    work.done += work.taken.drain(..).sum::<u64>();
}

/// What `Engine::doorbell` does.
fn ring(gate: &Gate<Work, u64>, amount: u64) -> Left {
    match gate.try_enter() {
        Some(mut work) => {
            work.done += amount;
            gate.exit(work, |work| serve(gate, work))
        }
        None => gate.leave(amount, |work| serve(gate, work)),
    }
}

/// The holder looks once more after unlocking: nothing that was left at the door stays there.
#[test]
fn loom_no_work_is_stranded_at_the_gate() {
    check(|| {
        let gate = Arc::new(Gate::new(Work::default()));
        let threads: Vec<_> = [1, 10]
            .map(|amount| {
                let gate = gate.clone();
                thread::spawn(move || ring(&gate, amount))
            })
            .into();
        let mut left = vec![ring(&gate, 100)];
        left.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        assert!(left.iter().all(|left| *left == Left::Served));
        assert!(!gate.has_left(), "work at the door of an empty room");
        assert_eq!(gate.enter().done, 111);
    });
}

/// A thread that waits for the lock (a change of a queue pair) and one that leaves its work.
#[test]
fn loom_who_enters_by_waiting_serves_too() {
    check(|| {
        let gate = Arc::new(Gate::new(Work::default()));
        let other = gate.clone();
        let changes = thread::spawn(move || {
            let mut work = other.enter();
            work.done += 1;
            other.exit(work, |work| serve(&other, work))
        });
        let rings = [ring(&gate, 10), ring(&gate, 100)];
        assert_eq!(changes.join().unwrap(), Left::Served);
        assert_eq!(rings, [Left::Served; 2]);
        assert_eq!(gate.enter().done, 111);
    });
}

/// The background thread plans its sleep and releases the lock while another brings the next timeout forward: either the
/// plan knows that timeout, or the thread is woken.
#[test]
fn loom_the_background_thread_does_not_sleep_past_a_timeout() {
    const DUE: Time = Time::from_ns(5);
    const LATER: Time = Time::from_ns(100 * SERVE_AT_MOST_NS);
    for before in [None, Some(LATER)] {
        check(move || {
            let gate = Arc::new(Gate::<Option<Time>, ()>::new(before));
            let (nap, woken) = (Arc::new(Nap::new()), Arc::new(AtomicBool::new(false)));
            let (its_gate, its_nap) = (gate.clone(), nap.clone());
            let background = thread::spawn(move || {
                let timeout = its_gate.try_enter()?;
                let until = *timeout;
                its_nap.plan(until);
                let _ = its_gate.exit(timeout, |_| ());
                Some(until)
            });
            let mut timeout = gate.enter();
            *timeout = Some(DUE);
            if nap.is_too_long_for(*timeout) {
                woken.store(true, Ordering::Release);
            }
            let _ = gate.exit(timeout, |_| ());
            // `None`: it found the lock taken, and looks again in a moment.
            if let Some(until) = background.join().unwrap() {
                let woken = woken.load(Ordering::Acquire);
                assert!(woken || until == Some(DUE), "it sleeps until {until:?}");
            }
        });
    }
}

/// One thread polls so steadily that the background thread is told to watch, another arms a completion queue and goes to
/// sleep: then the background thread serves, or it is woken and sees that it must.
#[test]
fn loom_arming_is_not_missed_by_who_hands_over() {
    check(|| {
        let presence = Arc::new(Presence::default());
        let its = presence.clone();
        let arms = thread::spawn(move || its.arm());
        let mut streak = Streak::default();
        for poll in 0..u64::from(FEWEST_POLLS) {
            let now = Time::from_ns(100 * (poll + 1));
            streak.begin_call(&presence, now);
            let _told = streak.end_poll(&presence, now);
        }
        let woke = arms.join().unwrap();
        // The background thread looks again when it is woken, and serves if a queue was armed.
        let serves = !presence.is_watching() || (woke && presence.was_armed());
        // A queue that was armed before the last polls began is polled for: the streak began anew after it.
        let polled_after = streak.arms_seen() > 0;
        assert!(serves || polled_after, "armed, and nobody serves");
    });
}
