//! Trouble that passes: a link, an address or an MTU that goes and comes back in mid-transfer, a side that is stopped for a
//! while. Shorter than the queue pairs' own patience (8.6 s with the byte checker's attributes), it must cost time only:
//! every byte and completion is checked, on both sides.

use std::time::Duration;

use anyhow::Result;
use metaroce_e2e::fabric::{DEFAULT_MTU_BYTES, Fabric, NIC};
use metaroce_e2e::needs::Need;
use metaroce_e2e::process::Proc;
use metaroce_e2e::{Host, tool};

use super::contract::byte_check;
use super::{Bench, Case, ON_DEVICE};

/// The byte checker transfers for so long …
const SECONDS: u64 = 5;
/// … the trouble begins so long after its start …
const BEFORE: Duration = Duration::from_millis(1500);
/// … and lasts so long: an ARP entry that fails to be renewed takes a second more.
const LASTS: Duration = Duration::from_millis(1500);

/// What is done to a host, and how it is taken back: arguments of `ip`.
const LINKS: &[(&str, Host, &[&str], &[&str])] = &[
    (
        "link",
        Host::A,
        &["link", "set", NIC, "down"],
        &["link", "set", NIC, "up"],
    ),
    (
        "address",
        Host::B,
        &["address", "flush", "dev", NIC, "scope", "global"],
        &["address", "add", "ADDRESS", "dev", NIC],
    ),
    (
        "MTU",
        Host::A,
        &["link", "set", NIC, "mtu", "1500"],
        &["link", "set", NIC, "mtu", "MTU"],
    ),
];

/// The cases of this file. The byte checker transfers both ways: which host has the trouble makes no difference.
pub fn cases() -> Vec<Case> {
    let needs = [ON_DEVICE, &[Need::VerbsHeaders]].concat();
    let mut cases = Vec::new();
    for &(what, host, break_it, mend_it) in LINKS {
        let name = format!("trouble::{what} goes and comes back");
        cases.push(Case::new(name, &needs, move |bench| {
            transfer(bench, |fabric, _, _| {
                ip(fabric, host, break_it)?;
                std::thread::sleep(LASTS);
                ip(fabric, host, mend_it)
            })
        }));
    }
    cases.push(Case::new(
        "trouble::a process stops and goes on",
        &needs,
        |bench| {
            transfer(bench, |_, _, client| {
                client.signal(libc::SIGSTOP);
                std::thread::sleep(LASTS);
                client.signal(libc::SIGCONT);
                Ok(())
            })
        },
    ));
    cases
}

fn ip(fabric: &Fabric, host: Host, arguments: &[&str]) -> Result<()> {
    let namespace = fabric.namespace(host);
    let (address, mtu) = (format!("{}/24", host.ipv4()), DEFAULT_MTU_BYTES.to_string());
    let mut words = vec!["-n", &namespace];
    words.extend(arguments.iter().map(|word| match *word {
        "ADDRESS" => address.as_str(),
        "MTU" => mtu.as_str(),
        other => other,
    }));
    tool::run("ip", &words).map(drop)
}

/// What users complain about: "link flaps kill jobs". The byte checker between the two hosts, with `trouble` in the midst of it.
fn transfer(
    bench: &Bench,
    trouble: impl FnOnce(&Fabric, &Proc, &Proc) -> Result<()>,
) -> Result<()> {
    let fabric = bench.direct()?;
    let arguments = ["-t".to_owned(), SECONDS.to_string()];
    let unchanged = |program, _| program;
    byte_check(bench, &fabric, &arguments, unchanged, |server, client| {
        std::thread::sleep(BEFORE);
        trouble(&fabric, server, client)
    })
    .map(drop)
}
