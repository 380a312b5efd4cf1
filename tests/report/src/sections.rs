//! What is run and what is drawn of it, section by section. Called by `lib.rs`; a new section is a function here.

use anyhow::Result;
use metaroce_sim::performance::{Kind, Surroundings, Transport};
use metaroce_sim::report::Sample;
use plotters::prelude::{RGBColor, SeriesLabelPosition};

use crate::Extent;
use crate::page::{Section, Table};
use crate::plots::{
    BLUE, BLUES, Bars, GREEN, GREY, Line, Lines, ORANGE, PALE, RED, REDS, THIN, WIDE, figure, plain,
};
use crate::runs::Run;

/// Points of a line over time at most: more are not seen.
const POINTS_MAX: usize = 600;

/// All of them.
pub(crate) fn all(extent: &Extent, tell: &mut dyn FnMut(&str)) -> Result<Vec<Section>> {
    let mut sections = Vec::new();
    tell("throughput against loss");
    sections.push(loss(extent)?);
    for senders in extent.senders {
        tell(&format!("incast of {senders}"));
        sections.push(incast(extent, *senders)?);
    }
    tell("a plane dies");
    sections.push(plane_death(extent)?);
    tell("planes");
    sections.push(planes(extent)?);
    for kind in [Kind::Allreduce, Kind::Alltoall] {
        for bytes in extent.collective_bytes {
            let section = Collective {
                kind,
                bytes: *bytes,
            };
            tell(&section.title());
            sections.push(section.section(extent)?);
        }
    }
    Ok(sections)
}

// ---- Loss ----

fn loss(extent: &Extent) -> Result<Section> {
    let mut runs = Vec::new();
    let mut lines = Vec::new();
    let mut rows: Vec<Vec<String>> = extent.losses.iter().map(|p| vec![percent(*p)]).collect();
    let mut head = vec!["lost".to_owned()];
    // What the others run along: drawn first, and wide.
    let bound = |p: &f64| (p.log10(), (1.0 - p) * 100.0);
    lines.push(Line {
        width: WIDE,
        ..line(
            "bound: what is not lost",
            PALE,
            extent.losses.iter().map(bound).collect(),
        )
    });
    for (transport, name, colors) in [
        (Transport::Metaroce, "metaroce", BLUES),
        (Transport::Rocev2, "RoCEv2", REDS),
    ] {
        for (rtt_us, color) in extent.rtts_us.iter().zip(colors) {
            let label = format!("{name}, {rtt_us} µs");
            let mut points = Vec::new();
            for (row, part) in rows.iter_mut().zip(extent.losses) {
                let run = Run::new("loss", extent.seed, |options| {
                    options.loss = *part;
                    options.rtt_us = *rtt_us;
                    options.transport = transport;
                })?;
                let kept = run.value("kept") * 100.0;
                points.push((part.log10(), kept));
                row.push(format!("{kept:.2} %"));
                runs.push(run);
            }
            head.push(label.clone());
            lines.push(Line {
                dashed: matches!(transport, Transport::Rocev2),
                dotted: true,
                ..line(&label, color, points)
            });
        }
    }
    let ends = |part: Option<&f64>| part.copied().unwrap_or(0.01).log10();
    let plot = Lines {
        x: "packets lost, data and acknowledgements alike",
        y: "goodput kept, % of that without loss",
        x_range: ends(extent.losses.first()) - 0.05..ends(extent.losses.last()) + 0.05,
        y_range: 0.0..104.0,
        x_label: &|log| percent(10f64.powf(*log)),
        x_ticks: 4,
        legend: SeriesLabelPosition::LowerLeft,
        lines,
    };
    Ok(Section {
        title: "Throughput against loss".into(),
        text: "One connection between two hosts, messages of 256 KiB, 16 of them outstanding, on one switch; packets are lost \
               one by one on the last link, in both directions. The times are round trips."
            .into(),
        plots: vec![(String::new(), plot.svg()?)],
        table: Table { head, rows },
        runs,
    })
}

// ---- Incast ----

/// What is shown of an incast: from the start of the first sender on.
const INCAST_SHOWN_US: f64 = 600.0;

fn incast(extent: &Extent, senders: usize) -> Result<Section> {
    let run = Run::new("incast", extent.seed, |options| options.senders = senders)?;
    let samples = &run.figures.samples;
    let sends = |sample: &&Sample| sample.placed_bytes > 0;
    let began_ns = samples.iter().find(sends).map_or(0, |sample| sample.at_ns);
    let shown: Vec<(f64, &Sample)> = samples
        .iter()
        .filter(|sample| sample.at_ns >= began_ns)
        .map(|sample| ((sample.at_ns - began_ns) as f64 / 1e3, sample))
        .take_while(|(at_us, _)| *at_us <= INCAST_SHOWN_US)
        .collect();
    let shown = thinned(&shown);
    let gbit = |bytes_per_s: u64| bytes_per_s as f64 * 8.0 / 1e9;
    let rate = |sender: usize| Line {
        // One entry of the legend tells of all senders.
        label: (sender == 0).then(|| "one line for each sender".to_owned()),
        ..line(
            "",
            [BLUE, GREEN, ORANGE, RED][sender % 4],
            shown
                .iter()
                .map(|(at_us, sample)| {
                    (*at_us, gbit(sample.rate_bytes_per_s[sender + 1]).min(100.0))
                })
                .collect(),
        )
    };
    let share = 100.0 / senders as f64;
    let equal = dashed_level("equal share", share, INCAST_SHOWN_US);
    let rates = over_time(
        "rate in force, Gb/s",
        INCAST_SHOWN_US,
        104.0,
        (0..senders).map(rate).chain([equal]).collect(),
    )?;
    let queued = |sample: &Sample| sample.into_first.queued_bytes as f64 / 1024.0;
    let points: Vec<(f64, f64)> = shown.iter().map(|(at, one)| (*at, queued(one))).collect();
    let longest = points.iter().map(|(_, queued)| *queued).fold(0.0, f64::max);
    let mark = 130_000.0 / 1024.0;
    let lines = vec![
        line("queue", BLUE, points),
        dashed_level("packets are marked above", mark, INCAST_SHOWN_US),
    ];
    let queue = over_time(
        "queue of the receiver's port, KiB",
        INCAST_SHOWN_US,
        (longest * 1.35).max(200.0),
        lines,
    )?;
    let table = table_of(
        &run,
        &[
            (
                "jain_time_us",
                "last start until all rates are equal (Jain 0.99), µs",
            ),
            ("link_use", "of the receiver's link used"),
            ("drop_fraction", "dropped"),
            ("longest_queue_bytes", "longest queue, bytes"),
        ],
    );
    Ok(Section {
        title: format!("Incast of {senders}"),
        text: format!(
            "{senders} hosts begin to send to one within 200 µs, 4 messages of 64 KiB outstanding each, a round trip of 10 µs. \
             The rate of a sender is what its windows and its grant allow together, one line each, shown up to the rate of its \
             link; the equal share is {share:.2} Gb/s. Time 0 is the first byte that arrives."
        ),
        plots: vec![
            ("What each sender may send".into(), rates),
            ("What waits for the receiver's link".into(), queue),
        ],
        table,
        runs: vec![run],
    })
}

// ---- A plane dies ----

/// Goodput is taken over so many samples of 10 µs.
const GOODPUT_SAMPLES: usize = 5;

/// What is shown around the death.
const DEATH_BEFORE_US: f64 = 500.0;
const DEATH_AFTER_US: f64 = 2_500.0;

/// When the scenario has its plane die.
const DIES_US: f64 = 3_000.0;

fn plane_death(extent: &Extent) -> Result<Section> {
    let run = Run::new("plane-death", extent.seed, |_| {})?;
    let samples = &run.figures.samples;
    let goodput = |pair: (&Sample, &Sample)| {
        let (first, last) = pair;
        let bytes = last.placed_bytes - first.placed_bytes;
        let at_us = (first.at_ns + last.at_ns) as f64 / 2e3 - DIES_US;
        (
            at_us,
            bytes as f64 * 8.0 / (last.at_ns - first.at_ns) as f64,
        )
    };
    let points = samples.iter().zip(samples.iter().skip(GOODPUT_SAMPLES));
    let shown = -DEATH_BEFORE_US..DEATH_AFTER_US;
    let points = points
        .map(goodput)
        .filter(|(at_us, _)| shown.contains(at_us));
    let share = 4096.0 / 4226.0 * 100.0;
    let level = |label: &str, planes: f64, color| Line {
        dashed: true,
        ..line(
            label,
            color,
            vec![(shown.start, planes * share), (shown.end, planes * share)],
        )
    };
    let plot = Lines {
        x: "µs after the death",
        y: "goodput, Gb/s",
        x_range: shown.clone(),
        y_range: 0.0..880.0,
        x_label: &plain,
        x_ticks: 7,
        legend: SeriesLabelPosition::LowerRight,
        lines: vec![
            level("8 planes", 8.0, GREY),
            level("7 planes", 7.0, ORANGE),
            line("metaroce", BLUE, points.collect()),
        ],
    };
    let table = table_of(
        &run,
        &[
            ("recover_us", "until 97 % of what 7 planes carry, µs"),
            ("errors", "queue pairs and connections that failed"),
            ("lost_packets", "packets lost"),
            ("of_the_rest_later", "of what 7 planes carry, later"),
        ],
    );
    Ok(Section {
        title: "A plane dies".into(),
        text: "One connection over eight planes of 100 Gb/s, 32 MiB outstanding, a round trip of 10 µs. All links of one plane \
               go dark, and nothing tells so. Goodput is what arrives in 50 µs."
            .into(),
        plots: vec![(String::new(), plot.svg()?)],
        table,
        runs: vec![run],
    })
}

// ---- Planes ----

fn planes(extent: &Extent) -> Result<Section> {
    let nodes = extent.plane_nodes;
    let mut runs = Vec::new();
    for planes in extent.planes {
        runs.push(Run::new("planes", extent.seed, |options| {
            options.planes = *planes;
            options.nodes = nodes;
            options.connections = nodes * (nodes - 1);
        })?);
    }
    let most = f64::from(extent.planes.iter().copied().max().unwrap_or(1));
    let per_plane = nodes as f64 * 4096.0 / 4226.0 * 0.1;
    let reached = |(planes, run): (&u8, &Run)| {
        let planes = f64::from(*planes);
        (planes, run.value("of_linear") * planes * per_plane)
    };
    let points: Vec<(f64, f64)> = extent.planes.iter().zip(&runs).map(reached).collect();
    let row = |((planes, run), point): ((&u8, &Run), &(f64, f64))| {
        vec![
            planes.to_string(),
            figure(point.1),
            format!("{:.2} %", run.value("of_linear") * 100.0),
        ]
    };
    let rows = extent
        .planes
        .iter()
        .zip(&runs)
        .zip(&points)
        .map(row)
        .collect();
    let plot = Lines {
        x: "planes",
        y: "goodput of all hosts, Tb/s",
        x_range: 0.0..most + 0.3,
        y_range: 0.0..(most + 0.3) * per_plane,
        x_label: &plain,
        x_ticks: most as usize + 1,
        legend: SeriesLabelPosition::UpperLeft,
        lines: vec![
            line(
                "what the links carry",
                GREY,
                vec![(0.0, 0.0), (most, most * per_plane)],
            ),
            Line {
                dotted: true,
                ..line("metaroce", BLUE, points)
            },
        ],
    };
    Ok(Section {
        title: "Planes".into(),
        text: format!(
            "{nodes} hosts, each with a link on each plane, and a connection from every host to every other: {} at once, a \
             round trip of 10 µs.",
            nodes * (nodes - 1)
        ),
        plots: vec![(String::new(), plot.svg()?)],
        table: Table {
            head: vec![
                "planes".into(),
                "Tb/s".into(),
                "of what the links carry".into(),
            ],
            rows,
        },
        runs,
    })
}

// ---- Collectives ----

const WORLDS: [(Surroundings, &str); 5] = [
    (Surroundings::Clean, "clean"),
    (Surroundings::Collide, "collisions"),
    (Surroundings::Loss01, "0.1 % loss"),
    (Surroundings::Loss1, "1 % loss"),
    (Surroundings::Deadlink, "dead link"),
];

const CARRIERS: [(Transport, bool, &str, RGBColor); 3] = [
    (Transport::Metaroce, false, "metaroce", BLUE),
    (Transport::Rocev2, false, "RoCEv2", RED),
    (Transport::Rocev2, true, "RoCEv2, endless queues", ORANGE),
];

struct Collective {
    kind: Kind,
    bytes: u32,
}

impl Collective {
    fn title(&self) -> String {
        let kind = match self.kind {
            Kind::Allreduce => "Ring all-reduce",
            Kind::Alltoall => "All-to-all",
        };
        format!("{kind}, {} MiB", self.bytes >> 20)
    }

    fn section(&self, extent: &Extent) -> Result<Section> {
        let nodes = extent.collective_nodes;
        let (mut runs, mut values, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for (world, name) in WORLDS {
            let (mut times, mut row) = (Vec::new(), vec![name.to_owned()]);
            for (transport, pfc, _, _) in CARRIERS {
                let run = Run::new("collective", extent.seed, |options| {
                    options.kind = self.kind;
                    options.bytes = self.bytes;
                    options.nodes = nodes;
                    options.world = world;
                    options.transport = transport;
                    options.pfc = pfc;
                })?;
                times.push(run.value("time_us"));
                row.push(figure(run.value("time_us")));
                row.push(figure(run.value("p99_us")));
                runs.push(run);
            }
            values.push(times);
            rows.push(row);
        }
        let plot = Bars {
            y: "time, µs",
            groups: WORLDS.iter().map(|(_, name)| *name).collect(),
            kinds: CARRIERS
                .iter()
                .map(|(_, _, name, color)| (*name, *color))
                .collect(),
            values,
        };
        let heads = CARRIERS
            .iter()
            .flat_map(|(_, _, name, _)| [format!("{name}, µs"), "p99, µs".to_owned()]);
        let head = std::iter::once(String::new()).chain(heads).collect();
        Ok(Section {
            title: self.title(),
            text: self.text(nodes),
            plots: vec![(String::new(), plot.svg()?)],
            table: Table { head, rows },
            runs,
        })
    }

    fn text(&self, nodes: usize) -> String {
        let each = self.bytes as usize / nodes;
        let what = match self.kind {
            Kind::Allreduce => format!(
                "{nodes} hosts in a ring, {} steps: in each every host sends {each} bytes to the next one, as soon as what the \
                 last step brought has arrived.",
                2 * (nodes - 1)
            ),
            Kind::Alltoall => format!(
                "{nodes} hosts, each of which sends {each} bytes to every other, all submitted at once on connections that have \
                 rested."
            ),
        };
        format!(
            "{what} The round trip is 5 µs. Clean is one switch; the other worlds have 8 hosts to a leaf and 8 spines, nothing \
             oversubscribed, and neighbours of the ring on different leaves, so that the hash (ECMP) leads flows over the same \
             links. A dead link is one between a leaf and a spine that fails silently 20 µs after the begin; a RoCEv2 flow over \
             it gives up in the end, and the collective never ends. p99 is the 99th percentile of the times of single messages, \
             from submission to arrival."
        )
    }
}

// ---- Helpers ----

fn line(label: &str, color: RGBColor, points: Vec<(f64, f64)>) -> Line {
    Line {
        label: Some(label.into()),
        color,
        width: THIN,
        dashed: false,
        dotted: false,
        points,
    }
}

fn dashed_level(label: &str, level: f64, until_us: f64) -> Line {
    Line {
        dashed: true,
        ..line(label, GREY, vec![(0.0, level), (until_us, level)])
    }
}

fn over_time(y: &str, until_us: f64, highest: f64, lines: Vec<Line>) -> Result<String> {
    let plot = Lines {
        x: "time, µs",
        y,
        x_range: 0.0..until_us,
        y_range: 0.0..highest,
        x_label: &plain,
        x_ticks: 7,
        legend: SeriesLabelPosition::UpperRight,
        lines,
    };
    plot.svg()
}

/// As many of `all` as are seen, evenly.
fn thinned<T: Copy>(all: &[T]) -> Vec<T> {
    let step = all.len().div_ceil(POINTS_MAX).max(1);
    all.iter().copied().step_by(step).collect()
}

fn table_of(run: &Run, named: &[(&str, &str)]) -> Table {
    let row = |(key, name): &(&str, &str)| vec![(*name).to_owned(), figure(run.value(key))];
    Table {
        head: vec![String::new(), "value".into()],
        rows: named.iter().map(row).collect(),
    }
}

fn percent(part: f64) -> String {
    // Logarithms leave a trace of themselves, and marks between two losses have no end.
    let percent = (part * 1e5).round() / 1e3;
    format!("{percent} %")
}
