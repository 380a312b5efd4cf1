//! Two readers of the same packets: `cargo xtask dissect` over the codec, and tshark with the dissector generated from
//! the table of fields. They have to agree on every field of every packet, of real traffic as of damaged packets. And
//! what the summary counts has to be what the sending engine counted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use metaroce_dissect::wireshark;
use metaroce_e2e::fabric::{LossRates, NIC};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Proc, Program, artefacts};
use metaroce_proto::wire::fields::{Kind, LAYOUTS, flag_name};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use super::{Bench, Case, ON_DEVICE, next_port};

/// Capture buffer in the kernel: all that a case sends, so that nothing is dropped however busy the machine is.
const BUFFER_MIB: &str = "256";

/// Damaged copies of each golden packet.
const DAMAGED: usize = 40;

/// SIGINT, at which dumpcap writes what it has and ends.
const SIGINT: i32 = 2;

/// What the last datagram of a capture holds, and where it goes: nobody listens there.
const LAST: &[u8] = b"the last packet of this capture";
const DISCARD_PORT: u16 = 9;

/// What runs while packets are captured: all opcodes that perftest can make.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ib_write_bw", &["-s", "65536", "-n", "20"]),
    ("ib_read_bw", &["-s", "65536", "-n", "20"]),
    ("ib_send_bw", &["-s", "5000", "-n", "50"]),
    // Answers with an ACK in front of them.
    ("ib_send_lat", &["-n", "50"]),
    ("ib_atomic_bw", &["-A", "FETCH_AND_ADD", "-n", "20"]),
    ("ib_atomic_bw", &["-A", "CMP_AND_SWAP", "-n", "20"]),
];

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let tshark = Need::Program("tshark");
    let on_device = |name: &str, run: fn(&Bench) -> Result<()>| {
        Case::new(name, ON_DEVICE, run)
            .needing(tshark)
            .needing(Need::Program("dumpcap"))
            .needing(Need::Program("ib_write_bw"))
    };
    vec![
        Case::new(
            "dissect::tshark reads golden and damaged packets alike",
            &[tshark],
            golden_and_damaged,
        ),
        on_device("dissect::tshark reads real traffic alike", real_traffic)
            .slow(Duration::from_secs(120)),
        on_device("dissect::the summary is what the engine counted", counted)
            .needing(Need::Loss)
            .slow(Duration::from_secs(90)),
    ]
}

// ---- captures ----

/// A file that goes when the case ends.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Temporary {
    fn new(suffix: &str) -> Self {
        let name = format!("metaroce-{}-{}{suffix}", std::process::id(), next_port());
        Self(std::env::temp_dir().join(name))
    }

    fn write(suffix: &str, bytes: &[u8]) -> Result<Self> {
        let file = Self::new(suffix);
        std::fs::write(&file.0, bytes)
            .with_context(|| format!("cannot write {}", file.0.display()))?;
        Ok(file)
    }
}

/// A running capture on a host's NIC.
struct Capture {
    dumpcap: Proc,
    file: Temporary,
}

impl Capture {
    fn start(bench: &Bench, fabric: &Fabric, host: Host) -> Result<Self> {
        let file = Temporary::new(".pcapng");
        // dumpcap gives up its rights before it opens the file, so the file is there already.
        std::fs::write(&file.0, [])?;
        let mut dumpcap = Program::new("dumpcap")
            .args(["-q", "-B", BUFFER_MIB, "-i", NIC, "-f", "udp", "-w"])
            .args([&file.0])
            .on(fabric, host)
            .limit(bench.time_left())
            .spawn()?;
        // It says so when it has opened the interface and the file.
        dumpcap.wait_output("File:", Duration::from_secs(15))?;
        Ok(Self { dumpcap, file })
    }

    /// Ends it; nothing may be missing in it. What is still in the kernel when dumpcap is told to end is lost, so a
    /// last datagram is sent, and awaited in the file.
    fn stop(mut self, fabric: &Fabric, host: Host) -> Result<Temporary> {
        fabric.inside(host, || -> Result<()> {
            let socket = UdpSocket::bind((host.ipv4(), 0))?;
            socket.send_to(LAST, (host.other().ipv4(), DISCARD_PORT))?;
            Ok(())
        })??;
        let path = self.file.0.clone();
        self.dumpcap
            .wait_until("writing the last packet", Duration::from_secs(15), |_| {
                ends_with_last(&path)
            })?;
        self.dumpcap.signal(SIGINT);
        let outcome = self.dumpcap.wait()?.success()?;
        let complete = outcome.stderr.lines().any(|line| {
            line.starts_with("Packets received/dropped") && line.contains("/0 (pcap:0/")
        });
        ensure!(complete, "the capture has gaps:\n{}", outcome.describe());
        Ok(self.file)
    }
}

/// Whether the last block of a capture file holds the last datagram.
fn ends_with_last(path: &Path) -> bool {
    const TAIL_BYTES: u64 = 512;
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        Ok(tail)
    };
    read().is_ok_and(|tail| tail.windows(LAST.len()).any(|window| window == LAST))
}

fn pair(bench: &Bench, fabric: &Fabric, program: &str, options: &[&str]) -> Result<()> {
    let port = next_port();
    let server = Program::new(program)
        .args(["-F", "-d", "metaroce0", "-p"])
        .args([port.to_string()])
        .args(options);
    let client = server.clone().args([Host::A.ipv4().to_string()]);
    bench
        .pair(fabric, server, client, port)?
        .success()
        .map(drop)
}

// ---- the two readers ----

/// A field's values in one frame, in the order of the wire, as text.
type Fields = BTreeMap<String, Vec<String>>;

/// What `cargo xtask dissect --json` says, by frame.
fn by_codec(capture: &Path) -> Result<BTreeMap<u64, Fields>> {
    let mut frames: BTreeMap<u64, Fields> = BTreeMap::new();
    for line in dissect(capture, &["--json"])?.lines() {
        let packet: Value = serde_json::from_str(line).context("a line is not JSON")?;
        let frame = packet["frame"].as_u64().context("a line without a frame")?;
        let fields = frames.entry(frame).or_default();
        for (name, value) in packet["fields"].as_object().context("no fields")? {
            let values = fields.entry(name.clone()).or_default();
            match value {
                Value::Array(several) => values.extend(several.iter().map(plain)),
                single => values.push(plain(single)),
            }
        }
    }
    Ok(frames)
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn dissect(capture: &Path, options: &[&str]) -> Result<String> {
    let mut output = Vec::new();
    let options = options.iter().map(std::ffi::OsString::from);
    metaroce_dissect::run(options.chain([capture.as_os_str().to_owned()]), &mut output)?;
    Ok(String::from_utf8(output)?)
}

/// A column of tshark's output.
struct Column {
    name: String,
    /// Raw bytes: only their number is compared.
    raw: bool,
    /// A flag of another field, by its mask.
    flag_of: Option<(String, u64)>,
}

fn columns() -> Vec<Column> {
    let column = |name, raw, flag_of| Column { name, raw, flag_of };
    let mut columns = Vec::new();
    for layout in LAYOUTS {
        for field in layout.fields {
            let name = layout.full_name(field.name);
            if let Kind::Flags(flags) = field.kind {
                columns.extend(flags.iter().map(|(mask, flag)| {
                    let flag = format!("{name}.{}", flag_name(flag));
                    column(flag, false, Some((name.clone(), u64::from(*mask))))
                }));
            }
            columns.push(column(name, false, None));
        }
        let raws = layout.raws().map(|raw| layout.full_name(raw.name));
        columns.extend(raws.map(|name| column(name, true, None)));
    }
    columns
}

/// What tshark says, by frame.
fn by_tshark(bench: &Bench, capture: &Path, columns: &[Column]) -> Result<BTreeMap<u64, Fields>> {
    let script = artefacts::workspace_folder().join("tests/dissect/metaroce.lua");
    let output = Temporary::new(".txt");
    let mut words: Vec<String> = ["-n", "-Y", "metaroce", "-T", "fields", "-E", "occurrence=a"]
        .map(str::to_owned)
        .to_vec();
    words.push("-X".to_owned());
    words.push(format!("lua_script:{}", script.display()));
    words.extend(["-r".to_owned(), capture.display().to_string()]);
    words.extend(["-e".to_owned(), "frame.number".to_owned()]);
    for column in columns {
        words.extend(["-e".to_owned(), column.name.clone()]);
    }
    // Into a file: what a program prints is kept only in part.
    let command = r#"out=$1; shift; exec tshark "$@" > "$out""#;
    let outcome = Program::new("sh")
        .args(["-c", command, "sh"])
        .args([&output.0])
        .args(&words)
        .limit(bench.time_left())
        .run()?
        .success()?;
    ensure!(
        !outcome.stderr.contains("Lua"),
        "the dissector complains:\n{}",
        outcome.stderr
    );
    let text = std::fs::read_to_string(&output.0)?;
    text.lines().map(|line| row(line, columns)).collect()
}

fn row(line: &str, columns: &[Column]) -> Result<(u64, Fields)> {
    let mut cells = line.split('\t');
    let frame = cells.next().and_then(|cell| cell.parse().ok());
    let frame = frame.with_context(|| format!("no frame number: {line}"))?;
    let mut fields = Fields::new();
    for (column, cell) in columns.iter().zip(cells) {
        if !cell.is_empty() {
            let values = cell
                .split(',')
                .map(|value| number_as_text(value, column.raw));
            fields.insert(column.name.clone(), values.collect());
        }
    }
    Ok((frame, fields))
}

/// tshark's `0x0c`, `True` and hexadecimal bytes, as the JSON has them.
fn number_as_text(value: &str, raw: bool) -> String {
    if raw {
        return (value.len() / 2).to_string();
    }
    match value {
        "True" => return "1".to_owned(),
        "False" => return "0".to_owned(),
        _ => {}
    }
    let digits = value.strip_prefix("0x");
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.map_or_else(|| value.to_owned(), |number| number.to_string())
}

/// Compares both readers, field by field; returns the number of frames and of values.
fn compare(bench: &Bench, capture: &Path) -> Result<(usize, usize)> {
    let columns = columns();
    let mut by_codec = by_codec(capture)?;
    for fields in by_codec.values_mut() {
        for column in &columns {
            let Some((of, mask)) = &column.flag_of else {
                continue;
            };
            if let Some(flags) = fields.get(of) {
                let set = |text: &String| text.parse::<u64>().is_ok_and(|bits| bits & mask != 0);
                let values = flags.iter().map(|text| u8::from(set(text)).to_string());
                let values = values.collect();
                fields.insert(column.name.clone(), values);
            }
        }
    }
    let by_tshark = by_tshark(bench, capture, &columns)?;
    let mut values = 0;
    for (frame, expected) in &by_codec {
        let found = by_tshark.get(frame);
        let found = found.with_context(|| format!("tshark sees no metaroce in frame {frame}"))?;
        for column in &columns {
            let (codec, tshark) = (expected.get(&column.name), found.get(&column.name));
            if codec != tshark {
                bail!(
                    "frame {frame}, {}: dissect has {codec:?}, tshark {tshark:?}",
                    column.name
                );
            }
            values += codec.map_or(0, Vec::len);
        }
        // All that the JSON has is in a column, so nothing was left uncompared.
        let named = |name: &&String| columns.iter().any(|column| column.name == **name);
        ensure!(expected.keys().all(|name| named(&name)), "{expected:?}");
    }
    ensure!(
        by_codec.len() == by_tshark.len(),
        "dissect has {} frames, tshark {}",
        by_codec.len(),
        by_tshark.len()
    );
    Ok((by_codec.len(), values))
}

// ---- the cases ----

fn real_traffic(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let capture = Capture::start(bench, &fabric, Host::B)?;
    for (program, options) in PROGRAMS {
        pair(bench, &fabric, program, options)?;
    }
    let file = capture.stop(&fabric, Host::B)?;
    let (frames, values) = compare(bench, &file.0)?;
    println!("{frames} frames, {values} values");
    let text = dissect(&file.0, &[])?;
    for kind in [
        "WRITE",
        "READ_REQ",
        "READ_RESP",
        "SEND",
        "FETCH_ADD",
        "CMP_SWAP",
        "ATOMIC_RESP",
        "NOP",
        "ACK",
        "[HELLO",
        "[OPEN",
        "[SHUT",
        "[CLOSE",
    ] {
        ensure!(
            text.contains(&format!(" {kind} ")),
            "no {kind} was captured"
        );
    }
    ensure!(!text.contains("no packet"), "damaged packets:\n{text}");
    ensure!(
        dissect(&file.0, &["--json"])?.lines().count() > frames,
        "no train was captured, so none was cut"
    );
    Ok(())
}

/// Under loss, so that there is something to count beside plain packets.
fn counted(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    fabric.set_loss(&[Host::A], LossRates::udp(10_000))?;
    let statistics = Temporary::new(".json");
    let capture = Capture::start(bench, &fabric, Host::B)?;
    let port = next_port();
    let server = Program::new("ib_write_bw")
        .args(["-F", "-d", "metaroce0", "-s", "65536", "-n", "200", "-p"])
        .args([port.to_string()]);
    let client = server
        .clone()
        .args([Host::A.ipv4().to_string()])
        .env("METAROCE_STATS", &statistics.0);
    bench.pair(&fabric, server, client, port)?.success()?;
    let file = capture.stop(&fabric, Host::B)?;
    let counters = std::fs::read_to_string(&statistics.0).context("no statistics")?;
    let counters: Value = serde_json::from_str(&counters)?;
    let summary: Value = serde_json::from_str(&dissect(&file.0, &["--summary", "--json"])?)?;
    let client = Host::B.ipv4().to_string();
    let paths: Vec<&Value> = summary["connections"]
        .as_array()
        .context("no connections")?
        .iter()
        .filter(|connection| connection["source"] == client.as_str())
        .flat_map(|connection| connection["paths"].as_array().into_iter().flatten())
        .collect();
    let sum = |name: &str| {
        paths
            .iter()
            .filter_map(|path| path[name].as_u64())
            .sum::<u64>()
    };
    for (counter, field) in [
        ("data_packets_sent", "packets"),
        ("data_bytes_sent", "payload_bytes"),
        ("retransmissions", "retransmitted"),
    ] {
        let (engine, captured) = (counters["counters"][counter].as_u64(), sum(field));
        // The engine counts bytes once, the capture whenever they are sent.
        let agrees = match counter {
            "data_bytes_sent" => engine.is_some_and(|engine| engine <= captured),
            _ => engine == Some(captured),
        };
        ensure!(
            agrees,
            "{counter}: the engine counted {engine:?}, the capture {captured}"
        );
    }
    ensure!(sum("retransmitted") > 0, "nothing was sent again");
    let sampled = paths.iter().filter(|path| path["round_trips"].is_object());
    ensure!(sampled.count() > 0, "no round trip was measured");
    println!("{}", dissect(&file.0, &["--summary"])?);
    Ok(())
}

/// Damage that real traffic does not have, in a capture made here.
fn golden_and_damaged(bench: &Bench) -> Result<()> {
    let rng = &mut SmallRng::seed_from_u64(1);
    let mut datagrams = Vec::new();
    let folder = artefacts::workspace_folder().join("tests/golden");
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "hex") {
            continue;
        }
        let golden = hexadecimal(&std::fs::read_to_string(&path)?)?;
        for _ in 0..DAMAGED {
            datagrams.push(damage(rng, golden.clone()));
        }
        // As trains appear in captures: equal packets, and a shorter one.
        let mut train = golden.repeat(3);
        train.truncate(train.len() - golden.len() / 2);
        datagrams.extend([golden, train]);
    }
    let file = Temporary::write(".pcap", &pcap(&datagrams))?;
    let (frames, values) = compare(bench, &file.0)?;
    println!("{frames} frames, {values} values");
    ensure!(frames == datagrams.len(), "{} were made", datagrams.len());
    Ok(())
}

fn damage(rng: &mut SmallRng, mut packet: Vec<u8>) -> Vec<u8> {
    match rng.random_range(0..4) {
        0 => packet.truncate(rng.random_range(1..packet.len())),
        1 => packet.extend(vec![0x5a; rng.random_range(1..50)]),
        _ => {
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..packet.len());
                packet[at] ^= 1 << rng.random_range(0..8);
            }
        }
    }
    packet
}

fn hexadecimal(text: &str) -> Result<Vec<u8>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).context("no hexadecimal byte"))
        .collect()
}

/// A capture file of raw IPv4 packets to the first endpoint port.
fn pcap(datagrams: &[Vec<u8>]) -> Vec<u8> {
    const RAW_IPV4: u32 = 228;
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, RAW_IPV4] {
        file.extend(u32::to_le_bytes(word));
    }
    for payload in datagrams {
        let udp_bytes = 8 + payload.len() as u16;
        let mut frame = vec![0x45, 2];
        frame.extend((20 + udp_bytes).to_be_bytes());
        // Number, don't fragment, TTL, UDP, no checksum.
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend(Ipv4Addr::new(10, 0, 0, 2).octets());
        frame.extend(Ipv4Addr::new(10, 0, 0, 1).octets());
        for word in [40_000, wireshark::PORT_BASE, udp_bytes, 0] {
            frame.extend(u16::to_be_bytes(word));
        }
        frame.extend(payload);
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(u32::to_le_bytes(word));
        }
        file.extend(frame);
    }
    file
}
