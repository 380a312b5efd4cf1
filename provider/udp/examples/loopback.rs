//! How fast the sockets are on this machine, over loopback: one thread sends trains, one receives.
//! `cargo run --release -p metaroce-udp --example loopback -- [segments a train] [bytes a packet] [off: no offload]`

use metaroce_udp::{
    Config, IoVec, LocalIndex, PortChoice, RecvBatch, SendError, Sockets, SourceSlot,
};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Trains that may be on the way: 2 MiB of 60 KiB trains.
const WINDOW_TRAINS: u64 = 32;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| {
        arguments
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (segments, segment_len) = (number(15), number(4160));
    let offload = std::env::args().all(|argument| argument != "off");
    let open = || {
        Sockets::open(&Config {
            locals: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            port: PortChoice::Range {
                base: 28400,
                count: 64,
            },
            source_ports: 1,
            segmentation_offload: offload,
            ..Config::default()
        })
    };
    let (sender, receiver) = (open()?, open()?);
    let local = LocalIndex(0);
    let destination = receiver.locals().next().expect("one local address").1;
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let memory = vec![7u8; segments * segment_len];
    let iov: Vec<IoVec> = memory.chunks(segment_len).map(IoVec::from_slice).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut batch = RecvBatch::new(4);
            while !stop.load(Ordering::Relaxed) {
                if receiver.recv(local, &mut batch).is_err() {
                    break;
                }
                let packets: usize = batch.iter().map(|message| message.packets().len()).sum();
                received.fetch_add(packets as u64, Ordering::Release);
            }
        });
        let start = Instant::now();
        let mut sent = 0u64;
        while start.elapsed() < Duration::from_secs(2) {
            if sent - received.load(Ordering::Acquire) - u64::from(receiver.drops(local))
                >= WINDOW_TRAINS * segments as u64
            {
                std::hint::spin_loop();
                continue;
            }
            match sender.send_train(
                SourceSlot { local, index: 0 },
                &destination,
                &iov,
                segment_len as u16,
            ) {
                Ok(()) => sent += segments as u64,
                Err(failure) if failure.error == SendError::WouldBlock => {
                    sent += failure.segments_sent as u64
                }
                Err(failure) => panic!("send: {}", failure.error),
            }
        }
        stop.store(true, Ordering::Relaxed);
        let bits = received.load(Ordering::Acquire) as f64 * segment_len as f64 * 8.0;
        println!(
            "{segments} x {segment_len} B: {:.2} Gb/s, {} packets dropped",
            bits / start.elapsed().as_nanos() as f64,
            receiver.drops(local)
        );
    });
    Ok(())
}
