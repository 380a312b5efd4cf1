//! What the transport reaches in the fabric, with one seed each: bounds that it keeps today, a little below what is measured.

use metaroce_sim::performance::{Constants, Figures, Options, SCENARIOS, What, find};
use rstest::rstest;

fn measure(name: &str, options: Options) -> Figures {
    let figures = find(name).expect("it exists").run(&options);
    figures.unwrap_or_else(|problem| panic!("{problem}"))
}

/// The bound is 1 − p.
#[rstest]
#[case(0.001, 1, 10, 0.99)]
#[case(0.01, 1, 10, 0.97)]
#[case(0.1, 1, 20, 0.85)]
// Bursts that are longer than a path's share of the window.
#[case(0.01, 50, 10, 0.85)]
fn loss_costs_little_more_than_what_is_lost(
    #[case] loss: f64,
    #[case] burst: u32,
    #[case] rtt_us: u64,
    #[case] least_kept: f64,
) {
    let options = Options {
        loss,
        burst,
        rtt_us,
        ..Options::default()
    };
    let kept = measure("loss", options).value("kept");
    assert!(kept > least_kept && kept <= 1.001, "{kept} at {loss}");
}

/// 4096 of 4226 bytes are payload: what headers, Ethernet, IP and UDP included, leave of the link.
#[test]
fn without_loss_the_link_is_full() {
    let options = Options {
        loss: 0.0,
        ..Options::default()
    };
    let figures = measure("loss", options);
    let share = figures.value("link_share");
    assert!((0.96..0.9693).contains(&share), "{figures}");
    assert_eq!(figures.value("kept"), 1.0);
}

#[test]
fn a_message_without_loss_takes_a_round_trip_and_its_length() {
    let options = Options {
        loss: 0.0,
        rtt_us: 20,
        ..Options::default()
    };
    let figures = measure("tail", options);
    let (median, p999) = (figures.value("median_us"), figures.value("p999_us"));
    // 16 packets of 4226 bytes, one of them once more in the switch, and an acknowledgement twice.
    let least = 20.0 + 17.0 * 0.338;
    assert!((least..least + 1.0).contains(&median), "{figures}");
    assert!(p999 < median + 1.0, "{figures}");
}

#[test]
fn a_lost_packet_costs_a_message_a_round_trip_or_a_probe() {
    let options = Options {
        loss: 0.001,
        ..Options::default()
    };
    let figures = measure("tail", options);
    let above_us = figures.value("p999_us") - figures.value("median_us");
    // About every thousandth message loses its end or the last acknowledgement, and waits 50 µs for a probe.
    assert!((5.0..75.0).contains(&above_us), "{figures}");
}

/// Nothing grants the senders their parts of the link yet, so that it is full and drops; how much is a figure and no bound.
#[rstest]
#[case(2, 0.0, 0.999)]
#[case(8, 0.05, 0.9)]
fn many_senders_fill_the_link(
    #[case] senders: usize,
    #[case] most_dropped: f64,
    #[case] least_jain: f64,
) {
    let options = Options {
        senders,
        ..Options::default()
    };
    let figures = measure("incast", options);
    let share = figures.value("link_use");
    assert!((0.96..=1.0001).contains(&share), "{figures}");
    assert!(figures.value("drop_fraction") <= most_dropped, "{figures}");
    assert!(figures.value("best_jain") > least_jain, "{figures}");
}

/// Two planes carry nearly twice what one does, with one connection between two hosts and with one between all.
#[rstest]
#[case(1, 8, 0.97)]
#[case(2, 8, 0.93)]
#[case(2, 56, 0.85)]
fn planes_add_up(#[case] planes: u8, #[case] connections: usize, #[case] least: f64) {
    let options = Options {
        planes,
        nodes: 8,
        connections,
        ..Options::default()
    };
    let figures = measure("planes", options);
    let reached = figures.value("of_linear");
    assert!((least..=1.001).contains(&reached), "{figures}");
}

#[test]
fn connections_that_do_not_fit_the_hosts_are_refused() {
    for connections in [0, 9, 64] {
        let options = Options {
            nodes: 8,
            connections,
            ..Options::default()
        };
        let refused = find("planes")
            .expect("it exists")
            .run(&options)
            .unwrap_err();
        assert!(refused.contains("8 to 56"), "{refused}");
    }
}

fn options_of(name: &str) -> Options {
    find(name).expect("it exists").default_options()
}

/// What it does not share it must not lose.
#[test]
fn a_flow_beside_an_incast_loses_nothing() {
    let options = Options {
        senders: 4,
        ..options_of("victim")
    };
    let figures = measure("victim", options);
    assert!(figures.value("lost_fraction").abs() < 0.02, "{figures}");
    assert!(figures.value("link_share") > 0.95, "{figures}");
}

// WIRE 8.17
#[test]
fn what_one_sender_cannot_use_the_others_do() {
    let figures = measure("demand", options_of("demand"));
    let reached = figures.value("of_maxmin");
    assert!((0.9..=1.001).contains(&reached), "{figures}");
    assert!(figures.value("slow_one_of_its_own") > 0.9, "{figures}");
}

/// Slow software is kept busy, whatever is dropped on the way; how much that is depends on the grants.
#[rstest]
#[case(2, 0.0)]
#[case(8, 0.3)]
#[case(32, 0.3)]
fn slow_software_is_kept_busy(#[case] senders: usize, #[case] estimate_error: f64) {
    let options = Options {
        senders,
        estimate_error,
        ..options_of("drain")
    };
    let figures = measure("drain", options);
    let reached = figures.value("of_drain");
    assert!((0.9..=1.001).contains(&reached), "{figures}");
    assert!(figures.value("drop_fraction") < 0.1, "{figures}");
}

// WIRE 4.18
/// Of four planes three are left; nobody is told of an error. What is lost is found by two probes without an answer.
#[rstest]
fn what_a_dead_plane_carried_moves(
    #[values(What::Plane, What::Return, What::Spine)] what: What,
    #[values((Constants::Busy, 500.0), (Constants::Sockets, 3_000.0))] within: (Constants, f64),
) {
    let (constants, most_us) = within;
    let options = Options {
        planes: 4,
        what,
        constants,
        ..options_of("plane-death")
    };
    let figures = measure("plane-death", options);
    assert_eq!(figures.value("errors"), 0.0, "{figures}");
    assert!(figures.value("recover_us") <= most_us, "{figures}");
    assert!(figures.value("of_all_before") > 0.97, "{figures}");
    if what == What::Plane {
        // Its packets do not arrive before somebody has found out.
        assert!(figures.value("recover_us") > 50.0, "{figures}");
    }
}

// WIRE 8.9
/// Paths that once met a queue of their own making are used again when it has drained.
#[rstest]
fn one_connection_fills_all_planes(#[values(2, 8)] planes: u8, #[values(5, 20)] rtt_us: u64) {
    let options = Options {
        planes,
        nodes: 2,
        connections: 2,
        rtt_us,
        ..Options::default()
    };
    let figures = measure("planes", options);
    let reached = figures.value("of_linear");
    assert!((0.97..=1.001).contains(&reached), "{figures}");
}

// WIRE 4.21
// WIRE 7.7
#[rstest]
fn order_in_memory_costs_little(#[values(5, 20)] rtt_us: u64) {
    let options = Options {
        rtt_us,
        ..options_of("visibility")
    };
    let figures = measure("visibility", options);
    let of_relaxed = figures.value("of_relaxed");
    assert!(of_relaxed > 0.95 && of_relaxed < 1.05, "{figures}");
    let (most, limit) = (
        figures.value("held_most_bytes"),
        figures.value("hold_limit_bytes"),
    );
    assert!(most > 0.0 && limit < 33e6, "{figures}");
}

#[test]
fn a_plane_that_returns_is_used_again() {
    let options = Options {
        planes: 2,
        ..options_of("plane-return")
    };
    let figures = measure("plane-return", options);
    let used_us = figures.value("used_again_us");
    // It was dead: nothing can have been on it before it came back, and somebody must have asked it.
    assert!((1.0..25_000.0).contains(&used_us), "{figures}");
}

// WIRE 8.10
#[test]
fn a_slow_plane_does_not_hold_up_the_others() {
    let figures = measure("slow-plane", options_of("slow-plane"));
    let reached = figures.value("of_sum");
    assert!((0.95..=1.001).contains(&reached), "{figures}");
}

/// Nothing is lost in these: hardly anything is sent twice, and every path is used again.
#[rstest]
#[case("moves", 0.001)]
#[case("reordering", 0.01)]
#[case("pause", 0.003)]
fn what_is_only_late_is_hardly_ever_sent_again(#[case] name: &str, #[case] most: f64) {
    let figures = measure(name, options_of(name));
    assert!(figures.value("spurious") <= most, "{figures}");
    assert_eq!(figures.value("paths_given_up"), 0.0, "{figures}");
    assert!(figures.value("gbit_per_s") > 80.0, "{figures}");
    if name == "moves" {
        assert!(figures.value("moves") > 50.0, "{figures}");
    }
}

#[test]
fn connections_with_few_and_many_paths_share_a_link() {
    let figures = measure("paths-fairness", options_of("paths-fairness"));
    let shares = &figures.lists[0].1;
    assert!(
        shares.len() == 2 && shares[0] > 0.25 && shares[1] > 0.25,
        "{figures}"
    );
    assert!((shares[0] + shares[1] - 1.0).abs() < 1e-9, "{figures}");
    assert!(figures.value("link_share") > 0.95, "{figures}");
    assert!(
        figures
            .json()
            .contains(r#""paths":[4,32],"rtt_us":10,"shares":["#)
    );
}

/// Switches spread flows by their ports: with 16 paths hardly anything collides.
#[test]
fn a_permutation_fills_the_links() {
    let options = Options {
        nodes: 16,
        ..options_of("permutation")
    };
    let figures = measure("permutation", options);
    assert!(figures.value("of_linear") > 0.9, "{figures}");
    assert!(figures.value("least_of_line") > 0.8, "{figures}");
}

#[test]
fn the_seed_decides_and_json_has_the_options_and_the_figures() {
    let seeded = |seed| {
        let options = Options {
            seed,
            bytes: 4_096,
            ..Options::default()
        };
        measure("tail", options)
    };
    assert_eq!(seeded(7), seeded(7));
    assert_ne!(seeded(7).packets, seeded(8).packets);
    let first = seeded(7).json();
    let keys = [
        r#"{"seed":7,"bytes":4096,"loss":0.01,"rtt_us":10,"median_us":"#,
        r#","p999_us":"#,
    ];
    assert!(keys.iter().all(|key| first.contains(key)), "{first}");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for (name, option, value, told) in [
        ("loss", "--loss", "1.0", "0 to 0.9"),
        ("loss", "--burst", "0", "1..=10000"),
        ("incast", "--senders", "1", "2..=254"),
        ("planes", "--planes", "17", "1..=16"),
        ("tail", "--bytes", "many", "invalid digit"),
        ("drain", "--estimate-error", "-1.5", "-0.9 to 9"),
        ("paths-fairness", "--paths", "4,65", "1..=64"),
        ("plane-death", "--what", "leaf", "plane, return, spine"),
    ] {
        let scenario = find(name).expect("it exists");
        let parsed = scenario
            .command()
            .try_get_matches_from([name, option, value]);
        let refused = parsed.expect_err(value).to_string();
        assert!(refused.contains(told), "{refused}");
    }
    assert!(find("no-such-scenario").is_none());
}

#[test]
fn options_of_other_scenarios_are_refused() {
    let loss = find("loss").expect("it exists");
    let matches = loss.command().get_matches_from(["loss", "--senders", "4"]);
    let refused = loss.options(&matches).unwrap_err();
    assert!(refused.contains("no option --senders"), "{refused}");
}

/// Each of them has a name of its own, and only options that there are, each with a default that is allowed.
#[test]
fn the_table_of_scenarios_is_right() {
    for scenario in SCENARIOS {
        assert!(std::ptr::eq(
            find(scenario.name).expect("it exists"),
            scenario
        ));
        scenario.command().debug_assert();
        scenario.default_options();
        let command = scenario.command();
        let known: Vec<&str> = command
            .get_arguments()
            .map(|arg| arg.get_id().as_str())
            .collect();
        let named = scenario.defaults.iter().map(|(name, _)| name);
        for name in scenario.options.iter().chain(named) {
            assert!(known.contains(name), "{}: {name}", scenario.name);
        }
    }
}
