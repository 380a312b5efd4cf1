//! The test bed itself: planes, loss of single packets, counting, and leaving nothing behind.
//!
//! A test bed that does not do what it says makes every figure measured on it worthless.

mod faults;
mod impair;
mod shapes;
mod traffic;

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::{self, LossRates, State};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Topology};

use super::{Bench, Case};
use traffic::{Family, Flows, drain, send_in_trains_of};

const ROOT: &[Need] = &[Need::Root];
const WITH_LOSS: &[Need] = &[Need::Root, Need::Loss];

/// Source ports that a spraying sender would use.
const SOURCE_PORTS: usize = 32;

/// Datagrams per source port.
const DATAGRAMS: u64 = 50;

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("fabric::leaves nothing behind", ROOT, leaves_nothing),
        Case::new("fabric::a taken name is refused", ROOT, taken_name),
        Case::new("fabric::commands end as in a shell", ROOT, commands_end),
        Case::new(
            "fabric::source ports spread over all planes (IPv4)",
            ROOT,
            |bench| spreads(bench, Family::V4),
        ),
        Case::new(
            "fabric::source ports spread over all planes (IPv6)",
            ROOT,
            |bench| spreads(bench, Family::V6),
        )
        .needing(Need::Ipv6),
    ];
    for mtu_bytes in [9000, 1500] {
        cases.push(Case::new(
            format!("fabric::loss is per packet at MTU {mtu_bytes}"),
            WITH_LOSS,
            move |_| loss(mtu_bytes),
        ));
    }
    cases.extend(shapes::cases());
    cases.extend(faults::cases());
    cases.extend(impair::cases());
    cases
}

fn commands_end(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    for (command, status) in [
        (&["sh", "-c", "exit 3"][..], 3),
        (&["test", "-n", "two words"], 0),
        (&["metaroce-no-such-program"], 127),
        (&["/metaroce-no-such-program"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let output = fabric.shell_command(Host::A, &words)?.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(status) && (status < 126 || said.contains(command[0])),
            "{command:?}: {}, {said}",
            output.status
        );
    }
    Ok(())
}

fn leaves_nothing(bench: &Bench) -> Result<()> {
    let fabric = bench.planes(2)?;
    let state = fabric.state().clone();
    ensure!(state.namespaces.len() == 4 && State::load(&state.name)?.is_some());
    drop(fabric);
    ensure!(
        !state
            .namespaces
            .iter()
            .any(|name| fabric::namespace::exists(name)),
        "a namespace is left"
    );
    ensure!(State::load(&state.name)?.is_none(), "the record is left");
    Ok(())
}

fn taken_name(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let name = fabric.state().name.clone();
    let error = Fabric::up(&name, Topology::Direct, 1500)
        .err()
        .context("a second one was made")?;
    ensure!(error.to_string().contains("up already"), "{error:#}");
    ensure!(
        fabric::namespace::exists(&fabric.namespace(Host::A)),
        "the first one is gone"
    );
    Ok(())
}

fn spreads(bench: &Bench, family: Family) -> Result<()> {
    let fabric = bench.planes(4)?;
    let flows = Flows::new(&fabric, Host::BOTH, 0, family, SOURCE_PORTS)?;
    let before = fabric.counters()?;
    for sender in &flows.senders {
        for _ in 0..DATAGRAMS {
            sender.send(&[0; 1000])?;
        }
    }
    let run = fabric.counters()?.since(&before);
    let packets: Vec<u64> = run
        .planes
        .iter()
        .map(|plane| plane.a_to_b().packets)
        .collect();
    let total: u64 = packets.iter().sum();
    // Neighbour discovery may add a few packets of its own.
    let sent = SOURCE_PORTS as u64 * DATAGRAMS;
    ensure!(
        (sent..sent + 50).contains(&total),
        "{sent} packets were sent, {total} counted: {packets:?}"
    );
    // All 32 ports on 3 of 4 planes has a chance of one in 2500 with a good hash.
    ensure!(
        packets.iter().all(|&count| count >= DATAGRAMS),
        "a plane was left out: {packets:?}"
    );
    Ok(())
}

/// A tenth of the packets vanishes in both directions, singly although they leave in trains.
fn loss(mtu_bytes: u32) -> Result<()> {
    /// Packets in a train: what fits 64 KiB at MTU 9000.
    const TRAIN: u64 = 7;
    const TRAINS: u64 = 300;
    let fabric = Fabric::temporary(Topology::Direct, mtu_bytes)?;
    fabric.set_loss(&Host::BOTH, LossRates::udp(100_000))?;
    for from in Host::BOTH {
        let pair = [from, from.other()];
        let Flows { senders, receiver } = Flows::new(&fabric, pair, 0, Family::V4, 1)?;
        let packet_bytes = mtu_bytes - 28;
        send_in_trains_of(&senders[0], packet_bytes)?;
        let train = vec![0; (u64::from(packet_bytes) * TRAIN) as usize];
        let mut arrived = 0;
        for _ in 0..TRAINS {
            senders[0].send(&train)?;
            arrived += drain(&receiver, None)?;
        }
        arrived += drain(&receiver, Some(traffic::SETTLE))?;
        let counts = fabric
            .loss_counts(from.other())?
            .context("the loss program is not attached")?;
        let (judged, sent) = (counts.udp_passed + counts.udp_dropped, TRAIN * TRAINS);
        ensure!(
            judged == sent,
            "{sent} packets were sent, {judged} judged: {counts:?}"
        );
        // Six standard deviations (13.7) around a tenth of them.
        ensure!(
            (128..=292).contains(&counts.udp_dropped),
            "a tenth was to be lost: {counts:?}"
        );
        ensure!(
            arrived == counts.udp_passed,
            "{arrived} arrived: {counts:?}"
        );
    }
    fabric.clear_loss(&Host::BOTH)?;
    ensure!(
        fabric.loss_counts(Host::A)?.is_none(),
        "the loss program is still attached"
    );
    Ok(())
}
