//! Marks, reordering and speed limits: each by itself, all together, and what is counted of them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::{
    DEFAULT_LATE_BY, DEFAULT_MTU_BYTES, Direction, LossRates, Place, Rate, Shape,
};
use metaroce_e2e::{Fabric, Host, Topology};

use super::super::{Bench, Case};
use super::traffic::{
    Family, Flows, SETTLE, buffer_much, drain, families, receive_ecn, send_in_trains_of,
    send_markable, tell_ecn,
};
use super::{ROOT, WITH_LOSS};

/// A train: what fits 64 KiB at MTU 9000.
const TRAIN: u64 = 7;

/// Payload of a packet that fills MTU 9000.
const PAYLOAD_BYTES: u32 = 9000 - 48;

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("fabric::CE marks single packets", WITH_LOSS, |_| marks()),
        Case::new(
            "fabric::reordering makes single packets late and loses none",
            WITH_LOSS,
            |_| reorders(),
        ),
        Case::new("fabric::a rate is for one plane, one way", ROOT, |_| {
            one_plane_is_slow()
        }),
        Case::new("fabric::loss on one plane, one way", WITH_LOSS, |_| {
            loss_on_a_plane()
        }),
        Case::new("fabric::impairments together", WITH_LOSS, together),
        Case::new(
            "fabric::counts survive the end of what they count",
            WITH_LOSS,
            |_| counts_survive(),
        ),
    ];
    let shapes: [(&str, Shape); 3] = [
        ("direct link", Topology::Direct.into()),
        ("plane", Topology::Planes(1).into()),
        ("switch", Topology::Nics(1).with_hosts(3)),
    ];
    for (name, shape) in shapes {
        cases.push(Case::new(
            format!("fabric::a rate holds within 20 % ({name})"),
            ROOT,
            move |bench| rate_holds(bench, shape),
        ));
    }
    cases
}

/// Half of the packets that can be marked, of single trains, and none of those that cannot.
fn marks() -> Result<()> {
    const TRAINS: u64 = 150;
    let fabric = Fabric::temporary(Topology::Direct, DEFAULT_MTU_BYTES)?;
    fabric.set_ce(Place::direction(Direction::To(Host::B)), 500_000)?;
    for &family in families(&fabric) {
        for markable in [true, false] {
            let Flows { senders, receiver } = Flows::new(&fabric, Host::BOTH, 0, family, 1)?;
            send_in_trains_of(&senders[0], PAYLOAD_BYTES)?;
            if markable {
                send_markable(&senders[0], family)?;
            }
            tell_ecn(&receiver, family)?;
            buffer_much(&receiver)?;
            receiver.set_read_timeout(Some(SETTLE))?;
            let train = vec![0; PAYLOAD_BYTES as usize * TRAIN as usize];
            let (mut marked, mut arrived, mut mixed_trains) = (0, 0, 0);
            for _ in 0..TRAINS {
                senders[0].send(&train)?;
                let mut marked_here = 0;
                for _ in 0..TRAIN {
                    let Some(ecn) = receive_ecn(&receiver)? else {
                        break;
                    };
                    arrived += 1;
                    marked_here += u64::from(ecn == 3);
                }
                marked += marked_here;
                mixed_trains += u64::from((1..TRAIN).contains(&marked_here));
            }
            let sent = TRAIN * TRAINS;
            ensure!(arrived == sent, "{arrived} of {sent} arrived, {family:?}");
            if !markable {
                ensure!(marked == 0, "{marked} marked that cannot be, {family:?}");
                continue;
            }
            // Six standard deviations (16.2) around a half of 1,050; all trains mixed but 1 in 64.
            ensure!(
                (428..=622).contains(&marked) && mixed_trains > TRAINS * 8 / 10,
                "{marked} of {sent} marked, {mixed_trains} trains mixed, {family:?}"
            );
        }
    }
    let (marked, markable) = fabric.mark_counts(Host::B)?;
    let expected = families(&fabric).len() as u64 * TRAIN * TRAINS;
    ensure!(
        markable == expected,
        "{marked} of {markable} counted as markable"
    );
    ensure!(fabric.counters()?.total_to(Host::B).marked == marked);
    ensure!(
        fabric.mark_counts(Host::A)? == (0, 0),
        "the other direction is marked"
    );
    Ok(())
}

/// What numbered packets went through.
#[derive(Debug, Default)]
struct Order {
    arrived: u64,
    /// Packets that a later one had passed.
    late: u64,
    /// By how many numbers they were late.
    distances: Vec<u64>,
    /// Packets that came again.
    again: u64,
}

/// Sends numbered packets in trains, in bursts that a receiver can buffer.
fn numbered(flows: &Flows, trains: u64) -> Result<Order> {
    let [sender] = &flows.senders[..] else {
        anyhow::bail!("one flow is wanted")
    };
    send_in_trains_of(sender, PAYLOAD_BYTES)?;
    buffer_much(&flows.receiver)?;
    flows.receiver.set_read_timeout(Some(SETTLE))?;
    let mut seen = vec![false; usize::try_from(trains * TRAIN)?];
    let mut highest = 0;
    let mut order = Order::default();
    let mut take = |patient: bool| -> Result<()> {
        flows.receiver.set_nonblocking(!patient)?;
        let mut buffer = [0; 8];
        // The rest of a longer datagram is cut off.
        while flows.receiver.recv(&mut buffer).is_ok() {
            let number = u64::from_le_bytes(buffer);
            let place = seen
                .get_mut(usize::try_from(number)?)
                .context("a packet that nobody sent")?;
            order.again += u64::from(std::mem::replace(place, true));
            order.arrived += 1;
            if number < highest {
                order.late += 1;
                order.distances.push(highest - number);
            }
            highest = highest.max(number);
        }
        Ok(())
    };
    for train in 0..trains {
        let mut payload = vec![0; PAYLOAD_BYTES as usize * TRAIN as usize];
        for (number, packet) in (train * TRAIN..).zip(payload.chunks_mut(PAYLOAD_BYTES as usize)) {
            packet[..8].copy_from_slice(&number.to_le_bytes());
        }
        sender.send(&payload)?;
        take(false)?;
    }
    take(true)?;
    order.distances.sort_unstable();
    Ok(order)
}

fn reorders() -> Result<()> {
    const TRAINS: u64 = 600;
    for shape in [
        Topology::Direct.into(),
        Topology::Planes(2).into(),
        Topology::Nics(1).with_hosts(3),
    ] {
        let shape: Shape = shape;
        let fabric = Fabric::temporary(shape, DEFAULT_MTU_BYTES)?;
        for &family in families(&fabric) {
            let flows = || Flows::new(&fabric, Host::BOTH, 0, family, 1);
            let sent = TRAIN * TRAINS;
            fabric.set_reorder(Place::ALL, 50_000, DEFAULT_LATE_BY)?;
            let before = fabric.counters()?;
            let order = numbered(&flows()?, TRAINS)?;
            let counted = fabric.counters()?.since(&before).total_to(Host::B).late;
            let told = format!(
                "{shape}, {family:?}: {} of {sent} arrived, {} again, {counted} were made late, {} were, \
                 half of them by {:?} or more",
                order.arrived,
                order.again,
                order.late,
                order.distances.get(order.distances.len() / 2)
            );
            ensure!(order.arrived == sent && order.again == 0, "{told}");
            // Six standard deviations (14.1) around a twentieth of 4,200.
            ensure!((125..=295).contains(&counted), "{told}");
            // A sender that was held up sends nothing that could pass; no other packet may be late.
            ensure!(order.late >= counted / 2, "{told}");
            ensure!(order.late <= counted, "{told}");
            fabric.set_reorder(Place::ALL, 0, DEFAULT_LATE_BY)?;
            let order = numbered(&flows()?, TRAINS)?;
            ensure!(order.late == 0, "{} late after the end of it", order.late);
        }
    }
    Ok(())
}

/// Bits per second that get through from a to b during `window`, from a sender that never rests.
fn throughput(flows: &Flows, window: Duration) -> Result<f64> {
    let [sender] = &flows.senders[..] else {
        anyhow::bail!("one flow is wanted")
    };
    send_in_trains_of(sender, 1400)?;
    buffer_much(&flows.receiver)?;
    let train = [0_u8; 1400 * 40];
    let started = Instant::now();
    let end = started + window;
    let arrived = std::thread::scope(|scope| -> Result<u64> {
        let receiver = scope.spawn(|| -> Result<u64> {
            flows
                .receiver
                .set_read_timeout(Some(Duration::from_millis(20)))?;
            let mut arrived = 0;
            while Instant::now() < end {
                arrived += u64::from(flows.receiver.recv(&mut [0; 16]).is_ok());
            }
            Ok(arrived)
        });
        while Instant::now() < end {
            // A full queue is no error of the test's.
            let _ = sender.send(&train);
        }
        receiver
            .join()
            .map_err(|_| anyhow::anyhow!("the receiver panicked"))?
    })?;
    // Ethernet, IP and UDP headers count, as on a wire.
    Ok((arrived * (1400 + 42) * 8) as f64 / started.elapsed().as_secs_f64())
}

fn rate_holds(bench: &Bench, shape: Shape) -> Result<()> {
    let fabric = Fabric::temporary(shape, DEFAULT_MTU_BYTES)?;
    for megabits in [200, 1000] {
        let rate = Rate::mbit(megabits).map_err(anyhow::Error::msg)?;
        fabric.set_rate(Place::ALL, rate)?;
        let wanted = rate.bits_per_second() as f64;
        // Never faster; and as fast as it should be once the sender gets the processor time that it needs.
        let mut best = 0.0_f64;
        for _ in 0..10 {
            let flows = Flows::new(&fabric, Host::BOTH, 0, Family::V4, 1)?;
            let got = throughput(&flows, Duration::from_millis(400))?;
            ensure!(
                got < wanted * 1.2,
                "{:.0} Mb/s at a rate of {rate}",
                got / 1e6
            );
            best = best.max(got);
            if best > wanted * 0.9 || bench.time_left() < Duration::from_secs(5) {
                break;
            }
        }
        ensure!(
            best > wanted * 0.8,
            "{:.0} Mb/s at a rate of {rate}",
            best / 1e6
        );
    }
    let limited = |fabric: &Fabric| -> Result<Vec<Option<u64>>> {
        let ways = fabric.ways()?;
        Ok(ways
            .iter()
            .map(|way| way.impairment.rate_bits_per_second)
            .collect())
    };
    ensure!(
        limited(&fabric)?
            .iter()
            .all(|&rate| rate == Some(1_000_000_000))
    );
    fabric.clear_rate(Place::ALL)?;
    ensure!(limited(&fabric)?.iter().all(Option::is_none));
    Ok(())
}

/// A slow plane overflows; the other one does not.
fn one_plane_is_slow() -> Result<()> {
    const FLOWS: usize = 32;
    const DATAGRAMS: u64 = 40;
    let fabric = Fabric::temporary(Topology::Planes(2), DEFAULT_MTU_BYTES)?;
    let slow = Rate::mbit(10).map_err(anyhow::Error::msg)?;
    fabric.set_rate(Place::plane(2).towards(Direction::To(Host::B)), slow)?;
    let flows = Flows::new(&fabric, Host::BOTH, 0, Family::V4, FLOWS)?;
    buffer_much(&flows.receiver)?;
    let before = fabric.counters()?;
    flows.exchange(DATAGRAMS, 8000)?;
    let run = fabric.counters()?.since(&before);
    let [fast, slow] = [0, 1].map(|plane| run.planes[plane].a_to_b());
    ensure!(
        fast.overflowed == 0 && slow.overflowed > 0,
        "{fast:?} {slow:?}"
    );
    let back = Flows::new(&fabric, [Host::B, Host::A], 0, Family::V4, FLOWS)?;
    buffer_much(&back.receiver)?;
    let arrived = back.exchange(DATAGRAMS, 8000)?;
    ensure!(
        arrived == FLOWS as u64 * DATAGRAMS,
        "the other direction is slow, too: {arrived} arrived"
    );
    Ok(())
}

fn loss_on_a_plane() -> Result<()> {
    const FLOWS: usize = 32;
    const DATAGRAMS: u64 = 100;
    let fabric = Fabric::temporary(Topology::Planes(3), DEFAULT_MTU_BYTES)?;
    let place = Place::plane(3).towards(Direction::From(Host::A));
    fabric.set_loss_at(place, LossRates::udp(300_000))?;
    for pair in [[Host::A, Host::B], [Host::B, Host::A]] {
        let flows = Flows::new(&fabric, pair, 0, Family::V4, FLOWS)?;
        let before = fabric.counters()?;
        let arrived = flows.exchange(DATAGRAMS, 1000)?;
        let run = fabric.counters()?.since(&before);
        let lost: Vec<u64> = run
            .planes
            .iter()
            .map(|plane| plane.to(pair[1]).lost)
            .collect();
        let sent = run.planes[2].to(pair[1]).packets;
        ensure!(
            arrived + lost.iter().sum::<u64>() == FLOWS as u64 * DATAGRAMS,
            "{arrived} arrived, {lost:?} lost"
        );
        ensure!(lost[0] == 0 && lost[1] == 0, "{lost:?}");
        let expected = if pair[0] == Host::A {
            sent * 2 / 10..=sent * 4 / 10
        } else {
            0..=0
        };
        ensure!(expected.contains(&lost[2]), "{lost:?}, {sent} sent");
    }
    Ok(())
}

/// Everything at once, against a TCP transfer: slower, but whole.
fn together(bench: &Bench) -> Result<()> {
    const BYTES: usize = 8 << 20;
    let fabric = bench.planes(2)?;
    fabric.set_rate(Place::ALL, Rate::mbit(500).map_err(anyhow::Error::msg)?)?;
    fabric.set_loss_at(Place::ALL, LossRates::all(2_000))?;
    fabric.set_ce(Place::ALL, 10_000)?;
    fabric.set_reorder(Place::ALL, 10_000, DEFAULT_LATE_BY)?;
    fabric.blackhole(Place::plane(1).towards(Direction::To(Host::A)))?;
    fabric.end_blackhole(Place::plane(1))?;
    for &family in families(&fabric) {
        let started = Instant::now();
        transfer(&fabric, family, BYTES, bench.time_left())?;
        let bits = (BYTES * 8) as f64 / started.elapsed().as_secs_f64();
        ensure!(bits < 500e6 * 1.2, "{:.0} Mb/s at 500", bits / 1e6);
    }
    let total = fabric.counters()?.total_to(Host::B);
    ensure!(total.lost > 0 && total.late > 0, "{total:?}");
    fabric.clear_impairments()?;
    ensure!(
        fabric
            .ways()?
            .iter()
            .all(|way| way.impairment == Default::default()),
        "something is still in force"
    );
    transfer(&fabric, Family::V4, BYTES, bench.time_left())
}

/// Sends so many bytes from a to b over TCP, and checks them.
fn transfer(fabric: &Fabric, family: Family, bytes: usize, patience: Duration) -> Result<()> {
    let address = |host| super::traffic::address(host, 0, family);
    let listener = fabric.inside(Host::B, || TcpListener::bind((address(Host::B), 0)))??;
    let target: SocketAddr = listener.local_addr()?;
    let mut sender = fabric.inside(Host::A, || TcpStream::connect_timeout(&target, patience))??;
    let (mut receiver, _) = listener.accept()?;
    sender.set_write_timeout(Some(patience))?;
    receiver.set_read_timeout(Some(patience))?;
    let sent: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
    let received = std::thread::scope(|scope| -> Result<Vec<u8>> {
        let reader = scope.spawn(move || -> std::io::Result<Vec<u8>> {
            let mut received = Vec::new();
            receiver.read_to_end(&mut received)?;
            Ok(received)
        });
        sender.write_all(&sent)?;
        drop(sender);
        Ok(reader
            .join()
            .map_err(|_| anyhow::anyhow!("the receiver panicked"))??)
    })?;
    ensure!(
        received == sent,
        "{} of {bytes} bytes, or wrong ones",
        received.len()
    );
    Ok(())
}

fn counts_survive() -> Result<()> {
    let fabric = Fabric::temporary(Topology::Direct, DEFAULT_MTU_BYTES)?;
    let to_b = Place::direction(Direction::To(Host::B));
    let before = fabric.counters()?.total_to(Host::B);
    let send = || -> Result<u64> {
        let flows = Flows::new(&fabric, Host::BOTH, 0, Family::V4, 1)?;
        let arrived = flows.exchange(100, 1000)?;
        ensure!(drain(&flows.receiver, None)? == 0);
        Ok(arrived)
    };
    fabric.set_loss_at(to_b, LossRates::all(500_000))?;
    let lost = 100 - send()?;
    fabric.clear_loss_at(to_b)?;
    ensure!(
        fabric.loss_counts(Host::B)?.is_none(),
        "the program is still there"
    );
    fabric.blackhole(to_b)?;
    ensure!(send()? == 0);
    fabric.set_rate(to_b, Rate::mbit(100).map_err(anyhow::Error::msg)?)?;
    fabric.clear_impairments()?;
    ensure!(send()? == 100);
    let run = fabric.counters()?.total_to(Host::B) - before;
    ensure!(
        run.lost == lost && run.swallowed == 100 && run.dropped() == lost + 100,
        "{lost} were lost, and 100 swallowed: {run:?}"
    );
    // Neighbour discovery may add a few of its own.
    ensure!((300..320).contains(&run.packets), "300 were sent: {run:?}");
    Ok(())
}
