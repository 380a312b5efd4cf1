//! Models of a completion queue under loom: the engine pushes while the program polls, arms and goes to sleep. See
//! `sync.rs`. The channel is a real one; its system calls never block, and take no part in the order of the threads.

use super::super::channel;
use super::*;
use crate::plugin::descriptors;
use loom::sync::Arc as ModelArc;
use loom::thread;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

fn completion(wr_id: u64) -> Cqe {
    Cqe {
        wr_id,
        ..Cqe::default()
    }
}

/// A queue with a channel, and the descriptor that a program would sleep on.
fn armed_queue() -> (ModelArc<Cq>, OwnedFd, Arc<AsyncEvents>) {
    let descriptor = channel::create_owned().expect("a channel");
    let channel = channel::find(descriptor.as_raw_fd()).expect("it is known");
    let events = Arc::new(AsyncEvents::new().expect("a pipe"));
    let cq = Cq::new(7, Some(channel), &events).expect("a queue");
    (ModelArc::new(cq), descriptor, events)
}

fn events_there(descriptor: &OwnedFd) -> usize {
    let mut record = [0; 8];
    std::iter::from_fn(|| descriptors::receive_now(descriptor.as_fd(), &mut record).ok()).count()
}

/// The program polls, arms and sleeps if it found nothing: an event wakes it, also if the completion came in between.
#[test]
fn loom_a_completion_that_comes_while_the_program_arms_raises_an_event() {
    loom::model(|| {
        let (cq, descriptor, _events) = armed_queue();
        let engine = cq.clone();
        let pushes = thread::spawn(move || {
            assert_ne!(engine.push(completion(1)), Pushed::Overflow);
        });
        let found = cq.poll(8, |_, _| ());
        cq.arm(false);
        pushes.join().unwrap();
        let events = events_there(&descriptor);
        assert!(found == 1 || events == 1, "it sleeps beside a completion");
        assert!(events <= 1, "{events} events of one arming");
    });
}

/// Two completions, one of them solicited: a queue armed for solicited ones tells of that one.
#[test]
fn loom_a_solicited_completion_is_not_missed() {
    loom::model(|| {
        let (cq, descriptor, _events) = armed_queue();
        let engine = cq.clone();
        let pushes = thread::spawn(move || {
            let _ = engine.push(completion(1));
            let _ = engine.push(Cqe {
                solicited: true,
                ..completion(2)
            });
        });
        cq.arm(true);
        let mut last = 0;
        let _ = cq.poll(8, |_, cqe| last = cqe.wr_id);
        pushes.join().unwrap();
        let events = events_there(&descriptor);
        assert!(last == 2 || events == 1, "it sleeps beside a solicited one");
        assert!(events <= 1, "{events} events of one arming");
    });
}

/// Whoever sees that a completion was polled also sees what the program did before it polled: a slot of a work queue is
/// not used again too early.
#[test]
fn loom_polled_says_no_more_than_was_polled() {
    loom::model(|| {
        let (cq, _descriptor, _events) = armed_queue();
        let engine = cq.clone();
        let pushes = thread::spawn(move || {
            let Pushed::At(number) = engine.push(completion(1)) else {
                panic!("there is room");
            };
            (number, engine.polled())
        });
        let polled = cq.poll(8, |_, _| ());
        let (number, seen) = pushes.join().unwrap();
        assert_eq!(cq.polled().0, polled as u64);
        assert!(seen.0 <= number.0 + 1);
    });
}
