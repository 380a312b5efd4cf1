//! `metaroce doctor` and `metaroce devices` on hosts that lack something.

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::DEFAULT_MTU_BYTES;
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Outcome, Program, Topology};
use serde_json::Value;

use super::{Bench, Case, ON_DEVICE};

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&Bench) -> Result<()>| {
        Case::new(format!("doctor::{name}"), ON_DEVICE, run)
    };
    vec![
        case("sees what a firewall drops", firewall).needing(Need::Program("nft")),
        case("looks at every plane", every_plane).needing(Need::Program("nft")),
        case("names the right cure for few descriptors", few_descriptors),
    ]
}

/// A host to look at.
struct Patient<'a> {
    bench: &'a Bench,
    fabric: Fabric,
    /// `METAROCE_DEVICES`.
    devices: &'static str,
}

impl Patient<'_> {
    fn run(&self, program: Program) -> Result<Outcome> {
        let program = program.env("METAROCE_DEVICES", self.devices);
        let program = program.on(&self.fabric, Host::A);
        program.limit(self.bench.time_left()).run()
    }

    fn tool(&self, line: &str) -> Result<()> {
        let mut words = line.split(' ');
        let program = Program::new(words.next().context("no tool")?);
        self.run(program.args(words))?.success().map(drop)
    }

    fn metaroce(&self, arguments: &[&str]) -> Result<Outcome> {
        self.run(Program::new(self.bench.artefacts()?.launcher()).args(arguments))
    }

    /// Whether all is well, and the findings.
    fn doctor(&self) -> Result<(bool, Vec<Value>)> {
        let outcome = self.metaroce(&["doctor", "--json"])?;
        let report: Value =
            serde_json::from_str(&outcome.stdout).context("the report is not JSON")?;
        ensure!(
            report["ok"] == outcome.succeeded(),
            "status and report differ: {}",
            outcome.describe()
        );
        let findings = report["findings"].as_array().cloned();
        Ok((outcome.succeeded(), findings.unwrap_or_default()))
    }

    /// There is such a finding with these words.
    fn expect(&self, check: &str, grade: &str, words: &str) -> Result<Value> {
        let (_, findings) = self.doctor()?;
        let is_it = |finding: &&Value| {
            let text = finding["text"].as_str().unwrap_or_default();
            finding["check"] == check && finding["grade"] == grade && text.contains(words)
        };
        let found = findings.iter().find(is_it).cloned();
        found.with_context(|| format!("no {check}, {grade}, {words:?} in {findings:?}"))
    }
}

fn firewall(bench: &Bench) -> Result<()> {
    let host = Patient {
        bench,
        fabric: bench.direct()?,
        devices: "",
    };
    // Exit status and grades of the checks.
    let expect = |ok: bool, passes: &str, rules: &str| -> Result<()> {
        let (succeeded, findings) = host.doctor()?;
        let grade = |check: &str| {
            let found = findings.iter().find(|finding| finding["check"] == check);
            found.and_then(|finding| finding["grade"].as_str())
        };
        ensure!(
            succeeded == ok
                && (grade("udp_passes"), grade("firewall")) == (Some(passes), Some(rules)),
            "wanted {ok}, {passes}, {rules}: {findings:?}"
        );
        Ok(())
    };
    expect(true, "ok", "ok")?;
    host.tool("nft add table inet doctor")?;
    host.tool(
        "nft add chain inet doctor input { type filter hook input priority 0 ; policy drop ; }",
    )?;
    expect(false, "problem", "warning")?;
    host.tool("nft add rule inet doctor input iif lo accept")?;
    expect(true, "ok", "warning")?;
    host.tool("nft add rule inet doctor input udp dport 24791-25814 accept")?;
    expect(true, "ok", "ok")
}

fn every_plane(bench: &Bench) -> Result<()> {
    let host = Patient {
        bench,
        fabric: Fabric::temporary(Topology::Nics(3), DEFAULT_MTU_BYTES)?,
        devices: "mr0=eth0+eth1+eth2",
    };
    for address in ["10.77.0.1", "10.77.1.1", "10.77.2.1"] {
        host.expect("udp_passes", "ok", &format!("sockets of {address} "))?;
    }
    host.expect("firewall", "ok", "(nft")?;
    // Packets to this host's own address come by lo, so only the rules tell of a plane's interface.
    host.tool("nft add table inet doctor")?;
    host.tool("nft add chain inet doctor input { type filter hook input priority 0 ; }")?;
    host.tool("nft add rule inet doctor input iifname eth2 udp dport 24791-25814 drop")?;
    let rule = "1024 ports from 24791 to 25814 that comes in by eth2: ";
    let finding = host.expect("firewall", "problem", rule)?;
    // The cure is one: `nft delete rule … handle N (as root)`.
    let cure = finding["cure"].as_str().unwrap_or_default();
    host.tool(cure.trim_end_matches(" (as root)"))?;
    host.expect("firewall", "ok", "(nft")?;
    // What a test packet to the second plane meets.
    host.tool("nft add rule inet doctor input ip daddr 10.77.1.1 meta l4proto udp drop")?;
    host.expect("udp_passes", "problem", "from 10.77.1.1 to itself")?;
    host.expect("firewall", "warning", "may drop UDP")?;
    host.tool("nft delete table inet doctor")?;

    host.tool("ip addr flush dev eth1")?;
    let words = "without 1 of its 3 planes: plane 1, eth1 has no IP address";
    host.expect("device", "warning", words)?;
    let listed = host.metaroce(&["devices"])?.success()?.stdout;
    let line = listed.lines().find(|line| line.contains(" 1      eth1 "));
    ensure!(
        line.is_some_and(|line| line.contains("no address") && !line.contains(" active")),
        "eth1 is not without an address:\n{listed}"
    );
    ensure!(
        listed.contains("ip address add ADDRESS/PREFIX dev eth1"),
        "{listed}"
    );
    Ok(())
}

fn few_descriptors(bench: &Bench) -> Result<()> {
    let host = Patient {
        bench,
        fabric: bench.direct()?,
        devices: "",
    };
    let launcher = bench.artefacts()?.launcher();
    let shell = Program::new("sh").args(["-c", "ulimit -n 5 && exec \"$0\" doctor"]);
    let text = host.run(shell.args([launcher]))?.stdout;
    let problems: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("PROBLEM"))
        .collect();
    ensure!(
        problems.len() == 1 && problems[0].contains("5 files") && text.contains("ulimit -n 4096"),
        "not one problem, the descriptors:\n{text}"
    );
    Ok(())
}
