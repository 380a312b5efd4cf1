//! Chapter 4, the target as sender: probes, moves to other routes, and routes that are dead one way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metaroce_proto::wire::{BaseFlags, Opcode};

use super::requester::{post_write, sender, sender_with};
use crate::bench::Bench;
use crate::peer::{ConnectOptions, Got, QUIET};
use crate::script::Script;

/// Units of stamps in a microsecond, about.
const PER_US: u32 = 1_000 / 64;

/// All of this file.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "moves::probes, then another route",
        cites: &["4.14", "4.15", "4.16", "4.17", "1.7", "1.8"],
        run: probes,
    },
    Script {
        name: "moves::an answer in time, and nothing is sent twice",
        cites: &["4.15", "4.14", "4.5"],
        run: late_answer,
    },
    Script {
        name: "moves::a route that is dead forward",
        cites: &["4.15", "4.8", "1.8"],
        run: dead_forward,
    },
    Script {
        name: "moves::a copied route is given back",
        cites: &["1.7", "4.18", "4.19"],
        run: copied,
    },
    Script {
        name: "moves::the way back is dead",
        cites: &["5.4", "4.15"],
        run: dead_back,
    },
    Script {
        name: "moves::several routes are used",
        cites: &["4.22", "1.6", "1.16"],
        run: several_routes,
    },
    Script {
        name: "moves::silence has no flood",
        cites: &["4.16", "4.13"],
        run: no_flood,
    },
];

/// Time between two packets by the target's own stamps.
fn apart_us(first: &Got, second: &Got) -> u32 {
    second.base.stamp.0.wrapping_sub(first.base.stamp.0) / PER_US
}

fn probes(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, 1)?;
    bench.completes(1, 0)?;
    bench.peer.answers.data = false;
    bench.peer.answers.control = false;
    post_write(bench, at, 2, 1)?;
    let all = bench.peer.collect_for(Duration::from_millis(40))?;
    let first = all
        .iter()
        .find(|got| got.message().is_some())
        .context("nothing was sent")?;
    let path = first.base.path;
    let of_path: Vec<&Got> = all
        .iter()
        .filter(|got| got.data().is_some() && got.base.path == path)
        .collect();
    let probes: Vec<&&Got> = of_path
        .iter()
        .filter(|got| got.is_nop(BaseFlags::PROBE) && !got.base.flags.contains(BaseFlags::ANNOUNCE))
        .collect();
    ensure!(probes.len() >= 4, "{} probes in 40 ms", probes.len());
    let route = |got: &Got| (got.from.port(), got.base.epoch.0);
    let start = route(first);
    ensure!(
        route(probes[0]) == start && route(probes[1]) == start,
        "the first two probes leave by the packet's own route"
    );
    let moved = route(probes[2]);
    ensure!(
        moved.1 == start.1.wrapping_add(1) && moved.0 != start.0,
        "the third probe leaves by another route as the next epoch: {start:?}, {moved:?}"
    );
    for pair in probes.windows(2) {
        ensure!(
            apart_us(pair[0], pair[1]) >= 400,
            "probes {} µs apart",
            apart_us(pair[0], pair[1])
        );
    }
    // Nothing is retransmitted but by the timeout, of which there is at least 5 ms, doubling, one packet each.
    let again: Vec<&&Got> = of_path
        .iter()
        .filter(|got| got.is_again() && got.message().is_some())
        .collect();
    ensure!(
        again.iter().all(|got| apart_us(first, got) >= 4_900) && again.len() <= 4,
        "{} retransmissions, the first after {:?} µs",
        again.len(),
        again.first().map(|got| apart_us(first, got))
    );
    Ok(())
}

fn late_answer(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, 8)?;
    bench.completes(1, 0)?;
    bench.peer.record.clear();
    bench.peer.answers.data = false;
    post_write(bench, at, 2, 8)?;
    // All has arrived; nothing is said until the second probe comes.
    let mut probes = 0;
    let mut waiting = Vec::new();
    bench.peer.expect("two probes", |_, got| {
        got.data()?;
        let announces = got.base.flags.contains(BaseFlags::ANNOUNCE);
        probes += u32::from(got.is_nop(BaseFlags::PROBE) && !announces);
        waiting.push(got.clone());
        (probes == 2).then_some(())
    })?;
    bench.peer.answers.data = true;
    for got in &waiting {
        bench.peer.answer(got)?;
    }
    bench.completes(2, 0)?;
    let messages = bench
        .peer
        .record
        .iter()
        .filter(|got| got.message().is_some());
    let mut sent = BTreeMap::new();
    for got in messages {
        *sent.entry(got.place()).or_insert(0) += 1;
    }
    ensure!(
        sent.len() == 8 && sent.values().all(|copies| *copies <= 2),
        "8 packets arrived, and the target sent {sent:?}"
    );
    let twice = sent.values().filter(|copies| **copies > 1).count();
    ensure!(
        twice <= 1,
        "{twice} packets were sent again, all had arrived"
    );
    Ok(())
}

fn dead_forward(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, 64)?;
    bench.completes(1, 0)?;
    // Half of the source ports that were seen carry nothing any more.
    let ports: BTreeSet<u16> = bench
        .peer
        .record
        .iter()
        .map(|got| got.from.port())
        .collect();
    let dead: BTreeSet<u16> = ports.iter().copied().step_by(2).collect();
    ensure!(!dead.is_empty(), "no port was used");
    bench.peer.record.clear();
    bench.peer.lose = Box::new(move |got| dead.contains(&got.from.port()));
    post_write(bench, at, 2, 1_000)?;
    bench.completes(2, 0)?;
    // Whatever moved kept its number, and its path.
    let mut contents = BTreeMap::new();
    for got in &bench.peer.record {
        let Some((header, _)) = got.message() else {
            continue;
        };
        let first = contents.entry(got.place()).or_insert(*header);
        ensure!(
            *first == *header || header.opcode == Opcode::Fill,
            "another packet under the number {:?}",
            got.place()
        );
    }
    Ok(())
}

/// The source ports that a path was on, in order, and whether the first packet there was a probe.
fn routes_of(record: &[Got], path: u8) -> Vec<(u16, bool)> {
    let mut routes: Vec<(u16, bool)> = Vec::new();
    for got in record.iter().filter(|got| got.base.path.0 == path) {
        if routes
            .last()
            .is_none_or(|(port, _)| *port != got.from.port())
        {
            routes.push((got.from.port(), got.is_nop(BaseFlags::PROBE)));
        }
    }
    routes
}

fn copied(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    post_write(bench, at, 1, 1_000)?;
    bench.completes(1, 0)?;
    let last = bench.peer.record.last().context("nothing was sent")?;
    let dead = last.from.port();
    bench.peer.record.clear();
    bench.peer.lose = Box::new(move |got| got.from.port() == dead);
    // Whichever path is there leaves for the route of another, and from there for one of its own.
    let mut found = None;
    for id in 2..40 {
        post_write(bench, at, id, 500)?;
        bench.completes(id, 0)?;
        let record = &bench.peer.record;
        // A path may also leave because it fares badly, and then for a port of its own at once.
        let of_another = |path: u8, port: u16| {
            let mut others = record.iter().filter(|got| got.base.path.0 != path);
            others.any(|got| got.from.port() == port)
        };
        found = (0..64_u8)
            .map(|path| (path, routes_of(record, path)))
            .find(|(path, routes)| {
                routes.len() >= 3 && routes[0].0 == dead && of_another(*path, routes[1].0)
            });
        if found.is_some() {
            break;
        }
    }
    let (path, routes) =
        found.with_context(|| format!("no path left port {dead} for another's, and that one"))?;
    let (copy, own) = (routes[1], routes[2]);
    ensure!(
        own.0 != copy.0 && own.1,
        "the next port {} of path {path} is not proved by a probe first: {routes:?}",
        own.0
    );
    Ok(())
}

fn dead_back(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions {
        connect: "timeout=18",
        ..ConnectOptions::default()
    };
    let at = sender_with(bench, &options)?;
    post_write(bench, at, 1, 8)?;
    bench.completes(1, 0)?;
    // What the peer says is lost for 100 ms, then it comes.
    bench.peer.answers.data = false;
    post_write(bench, at, 2, 8)?;
    let all = bench.peer.collect_for(Duration::from_millis(100))?;
    bench.peer.answers.data = true;
    bench.peer.record.clear();
    for got in all.iter().filter(|got| got.data().is_some()) {
        bench.peer.take(got);
    }
    bench.stream(at).block.msn_executed.0 = 2;
    bench.peer.answers.execute = false;
    bench.peer.acknowledge()?;
    bench.completes(2, 0)?;
    bench.stream(at).block.msn_executed.0 = 3;
    post_write(bench, at, 3, 8)?;
    bench.completes(3, 0)?;
    Ok(())
}

fn several_routes(bench: &mut Bench) -> Result<()> {
    let at = sender(bench)?;
    for id in 1..=20 {
        post_write(bench, at, id, 64)?;
        bench.completes(id, 0)?;
    }
    let record = &bench.peer.record;
    let messages = record.iter().filter(|got| got.message().is_some());
    let paths: BTreeSet<u8> = messages.clone().map(|got| got.base.path.0).collect();
    let ports: BTreeSet<u16> = messages.map(|got| got.from.port()).collect();
    ensure!(
        paths.len() > 1 && ports.len() > 1,
        "paths {paths:?} and source ports {ports:?} carried it all"
    );
    let endpoint = bench.peer.target.port();
    ensure!(
        !ports.contains(&endpoint),
        "DATA leaves by the endpoint's own port"
    );
    Ok(())
}

fn no_flood(bench: &mut Bench) -> Result<()> {
    let options = ConnectOptions {
        connect: "timeout=0",
        ..ConnectOptions::default()
    };
    let at = sender_with(bench, &options)?;
    post_write(bench, at, 1, 8)?;
    bench.completes(1, 0)?;
    bench.peer.answers.data = false;
    bench.peer.answers.control = false;
    post_write(bench, at, 2, 1)?;
    bench.peer.collect_for(Duration::from_millis(300))?;
    let all = bench.peer.collect_for(Duration::from_secs(1))?;
    let probes = all
        .iter()
        .filter(|got| got.is_nop(BaseFlags::PROBE))
        .count();
    // At most every 20 ms a path, of which there are 16 at most by default that have something outstanding: one has.
    ensure!(
        (10..=450).contains(&probes),
        "{probes} probes in a second of silence"
    );
    let epochs: BTreeSet<(u8, u8)> = all
        .iter()
        .filter(|got| got.data().is_some())
        .map(|got| (got.base.path.0, got.base.epoch.0))
        .collect();
    let mut by_path: BTreeMap<u8, usize> = BTreeMap::new();
    for (path, _) in &epochs {
        *by_path.entry(*path).or_default() += 1;
    }
    ensure!(
        by_path.values().all(|epochs| *epochs <= 65),
        "a path is more than 64 epochs ahead: {by_path:?}"
    );
    bench.peer.answers.data = true;
    bench.peer.answers.control = true;
    bench.peer.answers.execute = false;
    bench.stream(at).block.msn_executed.0 = 2;
    bench.completes(2, 0)?;
    bench.peer.never_for(QUIET, "", |_| false)
}
