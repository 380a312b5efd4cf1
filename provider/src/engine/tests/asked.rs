//! What `metaroce stat` is told, and that asking never stops an engine.

use super::*;
use crate::telemetry::{REPORT_VERSION, SocketName};
use serde_json::Value;
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::AtomicBool as Flag;

fn knock(engine: &Engine) -> UnixStream {
    let name = SocketName::of_engine(&engine.inner.device.name, engine.inner.sockets.port());
    let address = SocketAddr::from_abstract_name(name.to_string()).unwrap();
    let stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(engine: &Engine) -> Value {
    let mut text = String::new();
    knock(engine).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A counter summed over the paths of all connections, with those that are over.
fn sum(report: &Value, paths: &str, counter: &str) -> u64 {
    let connections = report["connections"].as_array().unwrap();
    let alive = connections
        .iter()
        .flat_map(|connection| connection[paths].as_array().unwrap());
    let ended = report["ended"][counter].as_u64().unwrap();
    ended
        + alive
            .map(|path| path[counter].as_u64().unwrap())
            .sum::<u64>()
}

#[test]
fn an_idle_engine_tells_what_was_transferred() {
    const LENGTH: usize = 1 << 20;
    let (a, b) = pair(LENGTH);
    a.write_to(&b, 1, LENGTH);
    a.wait(1, pause);
    let (sender, receiver) = (ask(a.engine()), ask(b.engine()));
    assert_eq!(sender["version"], REPORT_VERSION);
    assert_eq!(sender["pid"], std::process::id());
    assert_eq!(sender["device"], a.engine().inner.device.name);
    assert_eq!(
        (&sender["queue_pairs"], &sender["connections_left_out"]),
        (&1.into(), &0.into())
    );
    let connection = &sender["connections"][0];
    assert_eq!(
        (&connection["state"], &connection["streams"]),
        (&"open".into(), &1.into())
    );
    assert_eq!(connection["id"], receiver["connections"][0]["peer_id"]);
    assert_eq!(connection["grant_bytes_per_s"], Value::Null);
    for counter in [
        "data_packets_sent",
        "data_bytes_sent",
        "retransmissions",
        "probes_sent",
        "moves",
    ] {
        assert_eq!(
            sum(&sender, "paths", counter),
            sender["counters"][counter].as_u64().unwrap(),
            "{counter}"
        );
    }
    for counter in [
        "data_packets_received",
        "data_bytes_received",
        "ce_received",
    ] {
        let total = receiver["counters"][counter].as_u64().unwrap();
        assert_eq!(
            sum(&receiver, "receiving_paths", counter),
            total,
            "{counter}"
        );
    }
    assert_eq!(sender["counters"]["data_bytes_sent"], LENGTH);
    assert_eq!(receiver["counters"]["data_bytes_received"], LENGTH);
    let used = connection["paths"]
        .as_array()
        .unwrap()
        .iter()
        .find(|path| path["srtt_ns"] != 0)
        .unwrap();
    assert_eq!(
        used["local"],
        a.engine().inner.device.addresses[0].to_string()
    );
    assert!(used["source_port"].as_u64().unwrap() > 0);
}

#[test]
fn an_engine_that_is_polled_all_the_time_answers() {
    let (a, b) = pair(1 << 16);
    let stop = Flag::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                a.write_to(&b, number, 1 << 16);
                a.wait(1, || {
                    a.engine().progress();
                    b.engine().progress();
                });
                number += 1;
            }
        });
        let mut before = 0;
        for _ in 0..20 {
            let report = ask(a.engine());
            let bytes = report["counters"]["data_bytes_sent"].as_u64().unwrap();
            assert!(bytes >= before);
            before = bytes;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(before > 0);
    });
}

#[test]
fn callers_who_do_not_read_or_go_away_stop_nobody() {
    let (a, b) = pair(1 << 16);
    let silent: Vec<_> = (0..2).map(|_| knock(a.engine())).collect();
    for _ in 0..20 {
        drop(knock(a.engine()));
    }
    a.write_to(&b, 1, 1 << 16);
    a.wait(1, pause);
    // Who comes while too many are being answered finds the connection closed and comes again.
    let end = Instant::now() + PATIENCE;
    loop {
        let mut text = String::new();
        knock(a.engine()).read_to_string(&mut text).unwrap();
        if !text.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "no answer");
    }
    drop(silent);
}

#[test]
fn the_socket_goes_with_the_engine() {
    let (a, b) = pair(64);
    let name = SocketName::of_engine(
        &a.engine().inner.device.name,
        a.engine().inner.sockets.port(),
    );
    let address = SocketAddr::from_abstract_name(name.to_string()).unwrap();
    ask(a.engine());
    drop((a, b));
    let end = Instant::now() + PATIENCE;
    while UnixStream::connect_addr(&address).is_ok() {
        assert!(
            Instant::now() < end,
            "the socket of an engine that ended is open"
        );
        pause();
    }
}
