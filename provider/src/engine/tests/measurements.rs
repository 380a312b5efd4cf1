//! Measurements, not tests: `cargo test --release -p metaroce --lib measure -- --ignored --nocapture --test-threads=1` on a
//! machine that does nothing else.

use super::*;

const TIME: Duration = Duration::from_secs(2);

/// Keeps `depth` writes of `length` bytes on the way from `a` to `b`; `progress` of `b` is called if `b_polls`.
fn stream(length: usize, depth: usize, b_polls: bool) -> f64 {
    let (a, b) = pair(length);
    let stop = AtomicBool::new(false);
    let mut bytes = 0u64;
    let mut elapsed = Duration::ZERO;
    std::thread::scope(|scope| {
        if b_polls {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    b.engine().progress();
                }
            });
        }
        let start = Instant::now();
        let mut posted = 0;
        let mut done = 0;
        while start.elapsed() < TIME {
            while posted - done < depth {
                a.write_to(&b, posted as u64, length);
                posted += 1;
            }
            a.engine().progress();
            let found = a.completions();
            assert!(found.iter().all(|cqe| cqe.status == 0));
            done += found.len();
            bytes += (found.len() * length) as u64;
        }
        elapsed = start.elapsed();
        stop.store(true, Ordering::Relaxed);
    });
    report(&a, &b);
    bytes as f64 * 8.0 / elapsed.as_nanos() as f64
}

fn report(a: &End, b: &End) {
    for (name, end) in [("sender", a), ("receiver", b)] {
        let core = end.engine().inner.gate.enter();
        println!("  {name}: {:?}", core.counters);
        let counters: Vec<String> = core
            .endpoint
            .counters()
            .iter()
            .filter(|(_, value)| *value > 0)
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        println!("  {name}: {}", counters.join(", "));
    }
}

#[test]
#[ignore = "a measurement"]
fn measure_streams() {
    for (length, depth) in [(1 << 20, 16), (64 << 10, 64), (4096, 128), (64, 128)] {
        for b_polls in [false, true] {
            let gbps = stream(length, depth, b_polls);
            let who = if b_polls { "polls" } else { "never calls" };
            println!(
                "{length} B writes, {depth} deep, target {who}: {gbps:.2} Gb/s, {:.3} M/s",
                gbps / 8.0 / length as f64 * 1e3
            );
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn measure_half_round_trip() {
    let (a, b) = pair(4096);
    let stop = AtomicBool::new(false);
    for wr_id in 0..64 {
        a.post_receive(wr_id, a.sge(0, 64));
        b.post_receive(wr_id, b.sge(0, 64));
    }
    let mut samples = Vec::new();
    // Answers each message that came with one of its own; true if one came.
    let turn = |end: &End| {
        end.engine().progress();
        let mut came = false;
        end.cq.poll(16, |_, cqe| came |= cqe.opcode == 128);
        if came {
            end.post_receive(1, end.sge(0, 64));
        }
        came
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if turn(&b) {
                    b.post(1, Operation::Send, &[b.sge(0, 8)]);
                }
            }
        });
        let start = Instant::now();
        while start.elapsed() < TIME {
            let sent = Instant::now();
            a.post(1, Operation::Send, &[a.sge(0, 8)]);
            while !turn(&a) {
                assert!(sent.elapsed() < PATIENCE);
            }
            samples.push(sent.elapsed().as_nanos() as u64 / 2);
        }
        stop.store(true, Ordering::Relaxed);
    });
    samples.sort_unstable();
    let at = |part: f64| samples[(samples.len() as f64 * part) as usize] as f64 / 1000.0;
    println!(
        "half round trip: p10 {:.2} p50 {:.2} p99 {:.2} us, {} samples",
        at(0.1),
        at(0.5),
        at(0.99),
        samples.len()
    );
    report(&a, &b);
}
