//! Collectives, over the transport and over the model of RoCEv2 NICs. The model must be a fair opponent: where nothing is in
//! the way it has no time to lose.

use metaroce_sim::performance::{Figures, Kind, Options, Surroundings, Transport, find};
use rstest::rstest;

/// Most tests have few hosts and bytes: messages of 64 KiB.
const NODES: usize = 16;
const BYTES: u32 = 1 << 20;

fn small(kind: Kind, world: Surroundings, transport: Transport) -> Options {
    Options {
        kind,
        world,
        transport,
        nodes: NODES,
        bytes: BYTES,
        seed: 3,
        ..Options::default()
    }
}

fn measure(options: &Options) -> Figures {
    let figures = find("collective").expect("it exists").run(options);
    figures.unwrap_or_else(|problem| panic!("{problem}"))
}

fn time_us(options: &Options) -> f64 {
    measure(options).value("time_us")
}

/// Times of another simulation of RoCEv2 NICs: 64 hosts, 16 MiB.
#[rstest]
#[case(Kind::Allreduce, Surroundings::Clean, 3_143.0, 0.1)]
// Not a clean cell: here the model must not be much slower than that one, or collisions would prove nothing.
#[case(Kind::Alltoall, Surroundings::Collide, 2_327.0, 0.25)]
#[case(Kind::Allreduce, Surroundings::Collide, 11_478.0, 0.25)]
fn rocev2_is_as_fast_as_it_is_elsewhere(
    #[case] kind: Kind,
    #[case] world: Surroundings,
    #[case] elsewhere_us: f64,
    #[case] off: f64,
) {
    let options = Options {
        nodes: 64,
        bytes: 16 << 20,
        seed: 11,
        ..small(kind, world, Transport::Rocev2)
    };
    let time_us = time_us(&options);
    assert!((time_us / elsewhere_us - 1.0).abs() < off, "{time_us}");
}

/// On one switch nothing but the line and the round trips takes time. Where all send to all, grants take some more: what a flow
/// that is done leaves to the others is told to them late.
#[rstest]
#[case(Transport::Rocev2, 4_178.0, 1.1)]
#[case(Transport::Metaroce, 4_226.0, 1.35)]
fn clean_times_are_those_of_the_line(
    #[case] transport: Transport,
    #[case] packet_bytes: f64,
    #[case] most_all_to_all: f64,
) {
    let message_us = 16.0 * packet_bytes * 8.0 / 100e3;
    // A ring waits in each step for the way and for the last packet in the switch.
    let step_us = message_us + 2.5 + packet_bytes * 8.0 / 100e3;
    let ring = small(Kind::Allreduce, Surroundings::Clean, transport);
    let least_us = 30.0 * step_us;
    let ring_us = time_us(&ring);
    assert!(
        (0.999..1.06).contains(&(ring_us / least_us)),
        "{ring_us} of {least_us}"
    );
    let all_to_all = small(Kind::Alltoall, Surroundings::Clean, transport);
    let least_us = 14.0 * message_us + step_us;
    let all_us = time_us(&all_to_all);
    assert!(
        (0.999..most_all_to_all).contains(&(all_us / least_us)),
        "{all_us} of {least_us}"
    );
}

#[rstest]
#[case(Kind::Allreduce, Surroundings::Collide, 1.3)]
#[case(Kind::Allreduce, Surroundings::Loss1, 1.3)]
#[case(Kind::Alltoall, Surroundings::Loss1, 1.3)]
fn what_is_in_the_way_costs_rocev2_more(
    #[case] kind: Kind,
    #[case] world: Surroundings,
    #[case] least: f64,
) {
    let of = |transport| Options {
        bytes: 4 * BYTES,
        ..small(kind, world, transport)
    };
    let (ours, theirs) = (
        time_us(&of(Transport::Metaroce)),
        time_us(&of(Transport::Rocev2)),
    );
    assert!(theirs / ours > least, "{theirs} against {ours}");
    // Queues that never drop help, but not enough.
    let endless = Options {
        pfc: true,
        ..of(Transport::Rocev2)
    };
    assert!(time_us(&endless) / ours > least * 0.9);
}

#[rstest]
#[case(Kind::Allreduce)]
#[case(Kind::Alltoall)]
fn over_a_dead_link_it_ends_and_rocev2_never_does(#[case] kind: Kind) {
    let ours = measure(&small(kind, Surroundings::Deadlink, Transport::Metaroce));
    assert!(ours.value("time_us") < 5_000.0, "{ours}");
    let theirs = measure(&small(kind, Surroundings::Deadlink, Transport::Rocev2));
    assert!(theirs.value("time_us").is_nan(), "{theirs}");
    assert!(theirs.json().contains(r#""time_us":null,"p99_us":null"#));
}

#[test]
fn messages_that_are_too_long_are_refused() {
    let options = Options {
        bytes: 17 << 20,
        ..small(Kind::Alltoall, Surroundings::Clean, Transport::Rocev2)
    };
    let refused = find("collective").expect("it exists").run(&options);
    assert!(
        refused
            .unwrap_err()
            .contains("at most 16777216 with 16 nodes")
    );
}
