//! Scale of one host, by programs of our own over stock libibverbs: a thousand queue pairs, many processes, threads, forks
//! and devices; the limits that the device reports, to the last object; that thousands of connects and disconnects leave
//! nothing behind; and what a process costs that does nothing.

use std::time::Duration;

use anyhow::Result;
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Program, c_program, tool};

use super::contract::says_ok;
use super::{Bench, Case, ON_DEVICE, in_full, next_port};

/// Devices of one host.
const DEVICES: u32 = 16;

/// UDP ports of a host that has few.
const PORTS: u32 = 3;

/// Time for a case in the full form.
const FULL_LIMIT: Duration = Duration::from_secs(600);

/// The median of connecting must be below it. It is some 0.2 ms on an idle machine, so no load makes it so slow; and a
/// handshake that loses a packet and waits for its timer each time would be, as would one that resolves names or sleeps.
const CONNECT_LIMIT_MS: &str = "250";

/// What users complain about: "writes over one MTU failed". The largest message lies in memory at both ends, 2 GiB each; and the machine must not swap meanwhile.
const LARGEST_MESSAGE_MIB: u64 = 6 << 10;

/// Twice 2 GiB are filled, sent and looked at: 10 s on an idle machine.
const LARGEST_MESSAGE_LIMIT: Duration = Duration::from_secs(300);

/// It is used for some seconds, and rests for twice as long as a connection stays awake.
const MANY_LIMIT: Duration = Duration::from_secs(150);

/// Addresses of either host, and processes of the one, between which there are as many connections as pairs: 1,024 and 4,096.
const MANY_ADDRESSES: u32 = 16;
const MANY_PROCESSES: [u32; 2] = [4, 16];

/// They all begin at once.
const MANY_AT_ONCE: u32 = 1 << 16;

/// What they are held to: a connection that sleeps with its one queue pair, the rings apart, as the allocator counts; and what
/// one more queue pair adds, with rings of the least size.
const IDLE_CONNECTION_BYTES: u32 = (8 << 10) + (2 << 10);
const QUEUE_PAIR_BYTES: u32 = (2 << 10) + 256;

/// What a case does.
type Run = Box<dyn Fn(&Bench) -> Result<()> + Send>;

/// A program, and its arguments in the ordinary and in the full form.
struct Scale {
    what: &'static str,
    program: &'static str,
    ordinary: &'static [&'static str],
    full: &'static [&'static str],
}

/// Programs of which one copy runs on either host.
///
/// What users complain about: "100 parallel ping-pongs lock up, 1,000 connects and the server stops answering", "connecting takes
/// 18 s".
const PAIRS: &[Scale] = &[
    Scale {
        what: "1,000 queue pairs, and one after the other",
        program: "scale_pairs",
        ordinary: &["-q", "1000", "-r", "2", "-n", "280", "-c", "70"],
        full: &["-q", "1000", "-r", "10", "-n", "10000", "-c", "200"],
    },
    Scale {
        what: "many queue pairs come and go",
        program: "scale_pairs",
        ordinary: &["-q", "40", "-r", "1", "-b", "40", "-n", "60", "-c", "20"],
        full: &[
            "-q", "100", "-r", "1", "-b", "100", "-n", "1000", "-c", "200",
        ],
    },
    Scale {
        what: "the time to connect",
        program: "connect_time",
        ordinary: &["-n", "100", "-l", CONNECT_LIMIT_MS],
        full: &["-n", "5000", "-l", CONNECT_LIMIT_MS],
    },
    Scale {
        what: "all pairs of processes",
        program: "scale_mesh",
        ordinary: &["-n", "8", "-r", "2"],
        full: &["-n", "16", "-r", "20"],
    },
];

/// Programs that talk to themselves.
///
/// What users complain about: "only 339 QPs a process; CQ creation fails at higher rank counts; breaks past 1,025 QPs".
const ALONE: &[Scale] = &[
    Scale {
        what: "threads and forks",
        program: "scale_threads",
        ordinary: &["-n", "20"],
        full: &["-n", "400"],
    },
    Scale {
        what: "limits",
        program: "scale_limits",
        ordinary: &[],
        full: &["-a"],
    },
    Scale {
        what: "an idle process",
        program: "scale_idle",
        ordinary: &["-t", "1.2"],
        full: &["-t", "10"],
    },
];

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let needs = [ON_DEVICE, &[Need::VerbsHeaders]].concat();
    let full = in_full();
    let arguments = move |scale: &Scale| if full { scale.full } else { scale.ordinary };
    let case = |what: &str, run: Run| {
        let case = Case::new(format!("scale::{what}"), &needs, run);
        if full { case.slow(FULL_LIMIT) } else { case }
    };
    let mut cases = Vec::new();
    for scale in PAIRS {
        let (program, arguments) = (scale.program, arguments(scale));
        let run = move |bench: &Bench| on_both(bench, program, arguments);
        cases.push(case(scale.what, Box::new(run)));
    }
    for scale in ALONE {
        let (program, arguments) = (scale.program, arguments(scale));
        let run = move |bench: &Bench| {
            let fabric = bench.direct()?;
            let program = Program::new(c_program::compile(program)?).args(arguments);
            alone(bench, &fabric, program)
        };
        cases.push(case(scale.what, Box::new(run)));
    }
    let largest = Case::new("scale::the largest message", &needs, |bench| {
        on_both(bench, "large_message", &[])
    });
    cases.push(
        largest
            .needing(Need::MemoryMib(LARGEST_MESSAGE_MIB))
            .slow(LARGEST_MESSAGE_LIMIT),
    );
    cases.push(case("ports of a host", Box::new(ports)));
    cases.push(case("16 devices", Box::new(devices)));
    let processes = MANY_PROCESSES[usize::from(full)];
    let run = move |bench: &Bench| many_connections(bench, processes);
    cases.push(case("thousands of connections", Box::new(run)).slow(MANY_LIMIT));
    cases
}

fn on_both(bench: &Bench, program: &str, arguments: &[&str]) -> Result<()> {
    pair_on(bench, &bench.direct()?, program, arguments)
}

fn pair_on(bench: &Bench, fabric: &Fabric, program: &str, arguments: &[&str]) -> Result<()> {
    let port = next_port();
    let server = Program::new(c_program::compile(program)?)
        .args(["-p", &port.to_string()])
        .args(arguments);
    let client = server
        .clone()
        .args(["-s".to_owned(), Host::A.ipv4().to_string()]);
    let outcome = bench.pair(fabric, server, client, port)?.success()?;
    for side in [&outcome.server, &outcome.client] {
        says_ok(side)?;
    }
    println!("{}", outcome.client.stdout.trim_end());
    Ok(())
}

fn alone(bench: &Bench, fabric: &Fabric, program: Program) -> Result<()> {
    let outcome = bench
        .on_device(fabric, Host::A, program)?
        .run()?
        .success()?;
    says_ok(&outcome)?;
    println!("{}", outcome.stdout.trim_end());
    Ok(())
}

fn many_connections(bench: &Bench, processes: u32) -> Result<()> {
    let fabric = bench.direct()?;
    for (host, net) in [(Host::A, 1), (Host::B, 2)] {
        let namespace = fabric.namespace(host);
        let own = host.ipv4();
        let mut script = format!("dev=$(ip -o -4 address | awk '/{own}\\//{{print $2}}') && ");
        for index in 0..MANY_ADDRESSES - 1 {
            script += &format!("ip address add 10.79.{net}.{index}/16 dev $dev && ");
        }
        script += "true";
        tool::run("ip", &["netns", "exec", &namespace, "sh", "-c", &script])?;
    }
    let arguments = [
        ("-g", MANY_ADDRESSES),
        ("-G", MANY_ADDRESSES),
        ("-n", processes),
        ("-a", MANY_AT_ONCE),
        ("-m", IDLE_CONNECTION_BYTES),
        ("-M", QUEUE_PAIR_BYTES),
    ];
    let arguments: Vec<String> = arguments
        .iter()
        .flat_map(|(option, value)| [(*option).to_owned(), value.to_string()])
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    pair_on(bench, &fabric, "scale_many", &arguments)
}

fn ports(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let program = Program::new(c_program::compile("scale_limits")?)
        .args(["-P", &PORTS.to_string()])
        .env("METAROCE_PORTS", PORTS.to_string());
    alone(bench, &fabric, program)
}

fn devices(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let namespace = fabric.namespace(Host::A);
    // Pairs of which only one end gets an address and so becomes a device; the other is there for the link to be up.
    let mut script = String::new();
    for index in 0..DEVICES {
        script += &format!(
            "ip link add many{index} type veth peer name far{index} && ip address add 10.78.{index}.1/24 dev many{index} && \
             ip link set far{index} up && ip link set many{index} up && "
        );
    }
    script += "true";
    tool::run("ip", &["netns", "exec", &namespace, "sh", "-c", &script])?;
    let names: Vec<String> = (0..DEVICES).map(|index| format!("many{index}")).collect();
    let program = Program::new(c_program::compile("scale_devices")?)
        .args(["-n", &DEVICES.to_string(), "-o", "4"])
        .env("METAROCE_DEVICES", names.join(","));
    alone(bench, &fabric, program)
}
