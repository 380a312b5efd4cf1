//! Rulesets as the tools print them, and what is found in them.

use super::*;
use crate::doctor::Grade;
use metaroce::device::Plane;

const PORTS: (u16, u16) = (24791, 1024);

/// A device with the planes `eth0` and `eth1`.
fn device() -> Device {
    let plane = |interface: &str| Plane {
        interface: interface.into(),
        active: true,
        ..Plane::default()
    };
    Device {
        name: "mr0".into(),
        interface: "eth0+eth1".into(),
        active: true,
        planes: vec![plane("eth0"), plane("eth1")],
        addresses: vec!["10.0.0.1".parse().unwrap(), "10.0.1.1".parse().unwrap()],
        gid_planes: vec![0, 1],
        ..Device::default()
    }
}

fn findings(listings: &[(&'static str, &str)]) -> Vec<Finding> {
    let mut firewall = Firewall::default();
    for (tool, text) in listings {
        firewall.take(tool, Ok((*text).to_owned()));
    }
    check_firewall(&firewall, &[device()], PORTS)
}

#[track_caller]
fn expect(findings: &[Finding], grade: Grade, text: &str, cure: &str) {
    let [finding] = findings else {
        panic!("{findings:?}")
    };
    assert_eq!(finding.grade, grade, "{finding}");
    assert!(finding.text.contains(text), "{text:?} is not in {finding}");
    assert!(finding.cure.contains(cure), "{cure:?} is not in {finding}");
}

/// An input chain with these expressions as rules, handles from 10, as nft 1.0.6 prints them.
fn nft(policy: &str, rules: &[&str]) -> String {
    let chain = format!(
        r#"{{"chain":{{"family":"inet","table":"filter","name":"input","handle":2,"type":"filter","hook":"input","prio":0,"policy":"{policy}"}}}}"#
    );
    let other = r#"{"chain":{"family":"inet","table":"filter","name":"other","handle":1}}"#;
    let set = r#"{"set":{"family":"inet","name":"ours","table":"filter","type":"inet_service","handle":3,"flags":["interval"],"elem":[53,{"range":[24791,25900]}]}}"#;
    let in_other = r#"{"rule":{"family":"inet","table":"filter","chain":"other","handle":4,"expr":[{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":{"range":[25000,25100]}}},{"reject":{"type":"icmpx","expr":"port-unreachable"}}]}}"#;
    let rules = rules.iter().enumerate().map(|(at, expr)| {
        format!(
            r#",{{"rule":{{"family":"inet","table":"filter","chain":"input","handle":{},"expr":[{expr}]}}}}"#,
            10 + at
        )
    });
    format!(
        "# Warning: table ip x is managed by iptables-nft, do not touch!\n{{\"nftables\":[{{\"metainfo\":{{\"version\":\"1.0.6\"}}}},\
         {set},{chain},{other},{in_other}{}]}}\n",
        rules.collect::<String>()
    )
}

/// A rule about these ports.
fn dport(right: &str, verdict: &str) -> String {
    format!(
        r#"{{"match":{{"op":"==","left":{{"payload":{{"protocol":"udp","field":"dport"}}}},"right":{right}}}}},{{"counter":{{"packets":0,"bytes":0}}}},{{"{verdict}":null}}"#
    )
}

const ESTABLISHED: &str = r#"{"vmap":{"key":{"ct":{"key":"state"}},"data":{"set":[["invalid",{"drop":null}],["established",{"accept":null}]]}}}"#;
const ON_ETH1: &str = r#"{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"eth1"}}"#;
const FROM_SOMEBODY: &str = r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"prefix":{"addr":"10.9.0.0","len":16}}}}"#;
const ALL_UDP: &str = r#"{"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"udp"}}"#;
const DROP: &str = r#"{"drop":null}"#;

fn of_nft(policy: &str, rules: &[&str]) -> Vec<Finding> {
    findings(&[("nft", &nft(policy, rules))])
}

#[test]
fn rules_that_drop_our_ports_are_named_with_how_to_remove_them() {
    let drop = |right: &str, verdict: &str| of_nft("accept", &[&dport(right, verdict)]);
    expect(
        &drop("24791", "drop"),
        Grade::Bad,
        "drops UDP to port 24791 that comes in by eth0, eth1: rule 10 of nftables chain inet filter input",
        "nft delete rule inet filter input handle 10",
    );
    expect(
        &drop(r#"{"range":[24000,24800]}"#, "reject"),
        Grade::Bad,
        "10 ports from 24791 to 24800",
        "handle 10",
    );
    expect(
        &drop(r#"{"set":[53,25000,{"range":[25814,25900]}]}"#, "drop"),
        Grade::Bad,
        "2 ports from 25000 to 25814",
        "",
    );
    expect(
        &drop("\"@ours\"", "drop"),
        Grade::Bad,
        "1024 ports from 24791",
        "",
    );
    // The ports of others are no trouble.
    for others in ["4791", r#"{"range":[25815,30000]}"#, r#"{"set":[53,123]}"#] {
        expect(&drop(others, "drop"), Grade::Good, "no rule", "");
    }
    let negated = dport("24791", "drop").replace("\"==\"", "\"!=\"");
    expect(
        &of_nft("accept", &[&negated]),
        Grade::Bad,
        "1023 ports from 24792",
        "",
    );
    let above = dport("25814", "drop").replace("\"==\"", "\">=\"");
    expect(&of_nft("accept", &[&above]), Grade::Bad, "port 25814", "");
    let of_tcp = dport("24791", "drop").replace("udp", "tcp");
    expect(&of_nft("accept", &[&of_tcp]), Grade::Good, "no rule", "");
}

#[test]
fn a_rule_about_one_plane_is_told_with_its_interface() {
    let rule = format!("{ON_ETH1},{}", dport("24791", "drop"));
    expect(
        &of_nft("accept", &[&rule]),
        Grade::Bad,
        "comes in by eth1: rule 10",
        "",
    );
    let elsewhere = rule.replace("eth1", "eth2");
    expect(&of_nft("accept", &[&elsewhere]), Grade::Good, "no rule", "");
    let any = rule.replace("eth1", "eth*");
    expect(&of_nft("accept", &[&any]), Grade::Bad, "eth0, eth1", "");
    let rest = rule.replacen("\"==\"", "\"!=\"", 1);
    expect(
        &of_nft("accept", &[&rest]),
        Grade::Bad,
        "comes in by eth0:",
        "",
    );
    let of_ipv6 = nft("accept", &[&dport("24791", "drop")]).replace("\"inet\"", "\"ip6\"");
    expect(&findings(&[("nft", &of_ipv6)]), Grade::Good, "no rule", "");
}

#[test]
fn the_order_of_rules_and_chains_that_are_called_count() {
    let ours = dport("\"@ours\"", "accept");
    let drop = dport("24791", "drop");
    expect(
        &of_nft("accept", &[&ours, &drop]),
        Grade::Good,
        "no rule",
        "",
    );
    expect(&of_nft("accept", &[&drop, &ours]), Grade::Bad, "24791", "");
    let jump = r#"{"jump":{"target":"other"}}"#;
    expect(
        &of_nft("accept", &[jump]),
        Grade::Bad,
        "101 ports from 25000 to 25100 that comes in by eth0, eth1: rule 4 of nftables chain inet filter other",
        "nft delete rule inet filter other handle 4",
    );
    let by_map = r#"{"vmap":{"key":{"payload":{"protocol":"udp","field":"dport"}},"data":{"set":[[24791,{"drop":null}],[7,{"jump":{"target":"other"}}]]}}}"#;
    expect(&of_nft("accept", &[by_map]), Grade::Bad, "port 24791", "");
    // A chain that calls itself ends.
    let forever = nft("accept", &[jump]).replace(
        r#"{"reject":{"type":"icmpx","expr":"port-unreachable"}}"#,
        jump,
    );
    expect(&findings(&[("nft", &forever)]), Grade::Good, "no rule", "");
}

#[test]
fn conditions_that_are_not_known_make_a_warning_at_most() {
    let some = format!("{FROM_SOMEBODY},{}", dport("24791", "drop"));
    expect(
        &of_nft("accept", &[&some]),
        Grade::Warning,
        "may drop UDP to port 24791",
        "handle 10",
    );
    // One bad sender is no trouble, nor is what is out of order.
    let somebody = format!("{FROM_SOMEBODY},{DROP}");
    expect(
        &of_nft("accept", &[&somebody, ESTABLISHED]),
        Grade::Good,
        "no rule",
        "",
    );
    // Who lets some in and nobody else has thought of it.
    let let_in = format!("{FROM_SOMEBODY},{}", dport("\"@ours\"", "accept"));
    let rest = format!("{ALL_UDP},{DROP}");
    expect(
        &of_nft("drop", &[&let_in, &rest]),
        Grade::Good,
        "no rule",
        "",
    );
    expect(
        &of_nft("drop", &[&rest]),
        Grade::Bad,
        "1024 ports",
        "handle 10",
    );
}

#[test]
fn a_chain_that_drops_what_no_rule_allows() {
    let policy = "drops what no rule allows of what comes in by eth0, eth1 (the policy of nftables chain inet filter \
        input), and no rule names UDP ports 24791 to 25814";
    for rules in [
        &[ESTABLISHED, &dport("22", "accept").replace("udp", "tcp")][..],
        &[&dport(r#"{"range":[24791,24800]}"#, "accept")],
    ] {
        expect(
            &of_nft("drop", rules),
            Grade::Warning,
            policy,
            "nft add rule",
        );
    }
    for rules in [
        &[ESTABLISHED, &dport("\"@ours\"", "accept")][..],
        &[&format!("{ALL_UDP},{{\"accept\":null}}")],
    ] {
        expect(&of_nft("drop", rules), Grade::Good, "no rule", "");
    }
    let at_the_end = of_nft("accept", &[ESTABLISHED, r#"{"reject":null}"#]);
    expect(&at_the_end, Grade::Warning, "(rule 11 of", "nft add rule");
    let one_plane = format!("{ON_ETH1},{{\"accept\":null}}");
    expect(
        &of_nft("drop", &[&one_plane]),
        Grade::Warning,
        "comes in by eth0 (",
        "",
    );
}

#[test]
fn rules_of_iptables() {
    let of = |rules: &str| findings(&[("iptables", rules)]);
    expect(
        &of("-P INPUT DROP\n-A INPUT -p udp -m udp --dport 20000:30000 -j ACCEPT"),
        Grade::Good,
        "",
        "",
    );
    expect(
        &of("-P INPUT DROP\n-A INPUT -p udp -m udp --dport 53 -j ACCEPT"),
        Grade::Warning,
        "the policy of iptables chain INPUT",
        "",
    );
    expect(&of("-P INPUT ACCEPT"), Grade::Good, "", "");
    expect(
        &of(
            "-P INPUT ACCEPT\n-A INPUT -i eth1 -p udp -m multiport --dports 53,24791:24792 -m comment --comment \"a -j b\" -j REJECT --reject-with icmp-port-unreachable",
        ),
        Grade::Bad,
        "2 ports from 24791 to 24792 that comes in by eth1: iptables -A INPUT",
        "iptables -D INPUT -i eth1",
    );
    expect(
        &of(
            "-P OUTPUT ACCEPT\n-N X\n-A OUTPUT ! -o lo -p udp -j X\n-A OUTPUT -p udp -j LOG\n-A X -p udp --dport 24791 -j DROP",
        ),
        Grade::Bad,
        "port 24791 that goes out by eth0, eth1: iptables -A X",
        "iptables -D X",
    );
    expect(
        &of("-P INPUT ACCEPT\n-A INPUT -s 10.1.2.3/32 -j DROP\n-A INPUT ! -p udp -j DROP"),
        Grade::Good,
        "",
        "",
    );
}

#[test]
fn what_could_not_be_looked_at_is_told() {
    let mut firewall = Firewall::default();
    firewall.take("nft", Err("rules are listed for root only".into()));
    firewall.take("iptables", Err("not installed".into()));
    let check = |firewall: &Firewall| check_firewall(firewall, &[device()], PORTS);
    expect(
        &check(&firewall),
        Grade::Good,
        "no firewall is known to be on; not looked at: nft: rules are listed for root only; iptables: not installed",
        "",
    );
    for (manager, cure) in [
        ("ufw", "ufw allow 24791:25814/udp"),
        (
            "firewalld",
            "firewall-cmd --permanent --add-port=24791-25814/udp",
        ),
    ] {
        firewall.managers = vec![manager];
        expect(&check(&firewall), Grade::Warning, manager, cure);
    }
    firewall.take("nft", Ok("JSON support not compiled-in".into()));
    let text = check(&firewall)[0].text.clone();
    assert!(text.contains("nft: it lists no JSON"), "{text}");
    firewall.take("nft", Ok(nft("accept", &[])));
    expect(&check(&firewall), Grade::Good, "(nft; not looked at: ", "");
    // A manager puts its rules back: the cure goes by it.
    let mut firewall = Firewall {
        managers: vec!["ufw"],
        ..Firewall::default()
    };
    firewall.take("nft", Ok(nft("accept", &[&dport("24791", "drop")])));
    expect(&check(&firewall), Grade::Bad, "24791", "ufw allow");
}
