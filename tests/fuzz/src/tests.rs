//! The seeds of every target, and every input that once failed, by name.

use super::*;

#[test]
fn seeds_are_right() {
    for target in TARGETS {
        let seeds = seeds::of(target.name);
        assert!(seeds.len() >= 30, "{} has no seeds", target.name);
        for (_, seed) in seeds {
            (target.run)(&seed);
        }
    }
}

/// A HELLO as the second item of its packet was taken, though no sender may write it so.
#[test]
fn packets_hello_not_first() {
    packets::run(include_bytes!("../regressions/packets-hello-not-first"));
}

/// The model took a block for a lie that was so old that its epoch looked like one to come.
#[test]
fn acks_block_of_an_epoch_long_ago() {
    acks::run(include_bytes!(
        "../regressions/acks-block-of-an-epoch-long-ago"
    ));
}

/// After a round trip of half a minute, packets of a route that was left waited a minute for their verdict.
#[test]
fn acks_round_trip_with_a_pause_in_it() {
    acks::run(include_bytes!(
        "../regressions/acks-round-trip-with-a-pause-in-it"
    ));
}

/// A late HELLO of a process that had been replaced made a connection take the new process for the old one: streams that
/// the new one had opened lost their peer, without a word to it.
#[test]
fn connections_late_hello_of_a_process_that_is_gone() {
    connections::run(include_bytes!(
        "../regressions/connections-late-hello-of-a-process-that-is-gone"
    ));
}

/// What a queue pair had to answer when it failed before its peer's OPEN had come was kept, and kept its process busy.
#[test]
fn connections_answer_of_a_life_that_failed_before_it_was_open() {
    connections::run(include_bytes!(
        "../regressions/connections-answer-of-a-life-that-failed-before-it-was-open"
    ));
}

/// The checker expected a quiet end while the script still lost every packet.
#[test]
fn connections_dark_after_everything_was_done() {
    connections::run(include_bytes!(
        "../regressions/connections-dark-after-everything-was-done"
    ));
}

/// A peer whose request was wrong still gets the answers to its earlier ones, also if they waited for its OPEN.
#[test]
fn connections_answer_before_a_request_that_is_refused() {
    connections::run(include_bytes!(
        "../regressions/connections-answer-before-a-request-that-is-refused"
    ));
}
