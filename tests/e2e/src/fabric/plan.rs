//! Commands for `ip -batch`, collected namespace by namespace: a fabric of many hosts is made in a few calls.
//!
//! Used by `topology` only.

use anyhow::Result;

use super::topology::Port;
use crate::tool;

/// Commands in the order of their execution.
#[derive(Debug)]
pub struct Plan {
    mtu_bytes: u32,
    ipv6: bool,
    /// Makes the links, before anything else.
    links: Vec<(String, String)>,
    /// Addresses, routes and the like.
    batches: Vec<(String, String)>,
}

impl Plan {
    /// An empty plan for links of that MTU.
    pub fn new(mtu_bytes: u32, ipv6: bool) -> Self {
        Self {
            mtu_bytes,
            ipv6,
            links: Vec::new(),
            batches: Vec::new(),
        }
    }

    /// A command once all links are there.
    pub fn add(&mut self, namespace: &str, line: &str) {
        push(&mut self.batches, namespace, line);
    }

    /// A veth between two ports.
    pub fn link(&mut self, near: &Port, far: &Port) {
        let mtu = self.mtu_bytes;
        let line = format!(
            "link add {} mtu {mtu} type veth peer name {} mtu {mtu} netns {}",
            near.device, far.device, far.namespace
        );
        push(&mut self.links, &near.namespace, &line);
    }

    /// A bridge that only switches.
    pub fn bridge(&mut self, namespace: &str, device: &str) {
        // Without a querier, snooping would forget who listens to neighbour discovery.
        let line = format!("link add {device} type bridge stp_state 0 mcast_snooping 0");
        push(&mut self.links, namespace, &line);
        self.add(namespace, &format!("link set {device} up"));
    }

    /// A port with an address of each family, up.
    pub fn port(&mut self, namespace: &str, device: &str, addresses: &[String; 2]) {
        let [ipv4, ipv6] = addresses;
        self.add(namespace, &format!("addr add {ipv4} dev {device}"));
        if self.ipv6 {
            self.add(namespace, &format!("addr add {ipv6} dev {device} nodad"));
        }
        self.add(namespace, &format!("link set {device} up"));
    }

    /// A route of each family; `route` is given the family's place in the pairs (0 is IPv4).
    pub fn route(&mut self, namespace: &str, route: impl Fn(usize) -> String) {
        self.routes(namespace, "add", route);
    }

    /// Like [`Plan::route`], in place of the one to the same network.
    pub fn replace_route(&mut self, namespace: &str, route: impl Fn(usize) -> String) {
        self.routes(namespace, "replace", route);
    }

    fn routes(&mut self, namespace: &str, verb: &str, route: impl Fn(usize) -> String) {
        self.add(namespace, &format!("route {verb} {}", route(0)));
        if self.ipv6 {
            self.add(namespace, &format!("route {verb} {}", route(1)));
        }
    }

    /// Makes the links.
    ///
    /// # Errors
    /// `ip` refused one.
    pub fn make_links(&mut self) -> Result<()> {
        execute(&std::mem::take(&mut self.links))
    }

    /// Runs everything else.
    ///
    /// # Errors
    /// `ip` refused a step.
    pub fn configure(&mut self) -> Result<()> {
        execute(&std::mem::take(&mut self.batches))
    }
}

/// Appends a line to the batch of its namespace. Batches may be merged although others lie between: what is
/// done in one namespace waits for nothing but the links, which come first.
fn push(batches: &mut Vec<(String, String)>, namespace: &str, line: &str) {
    let lines = match batches.iter().position(|(name, _)| name == namespace) {
        Some(at) => &mut batches[at].1,
        None => {
            batches.push((namespace.to_owned(), String::new()));
            &mut batches.last_mut().expect("just pushed").1
        }
    };
    lines.push_str(line);
    lines.push('\n');
}

fn execute(batches: &[(String, String)]) -> Result<()> {
    for (namespace, lines) in batches {
        tool::run_with_input("ip", &["-n", namespace, "-batch", "-"], lines)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_ipv6_nothing_of_it_is_planned() {
        let mut plan = Plan::new(1500, false);
        plan.port("x", "eth0", &["10.0.0.1/24".into(), "fd77::1/64".into()]);
        plan.add("y", "link set lo up");
        plan.route("x", |family| ["1.0.0.0/8", "::/0"][family].to_owned());
        assert_eq!(
            plan.batches,
            [
                (
                    "x".to_owned(),
                    "addr add 10.0.0.1/24 dev eth0\nlink set eth0 up\nroute add 1.0.0.0/8\n"
                        .to_owned()
                ),
                ("y".to_owned(), "link set lo up\n".to_owned())
            ]
        );
    }
}
