//! What a case needs of the machine. A need that is not met skips the case, with a reason that says what
//! to do about it.

use std::path::Path;

use crate::artefacts::Artefacts;
use crate::debian::{Suite, Unpacked};
use crate::tool;

/// Something without which a case cannot run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Root, for network namespaces.
    Root,
    /// The built product.
    Product,
    /// A program of the system.
    Program(&'static str),
    /// What is needed to lose, mark and swallow packets by BPF.
    Loss,
    /// A C compiler and the headers of libibverbs.
    VerbsHeaders,
    /// IPv6 in the kernel.
    Ipv6,
    /// The libibverbs of a release of Debian; looking for it downloads it.
    Debian(Suite),
}

impl Need {
    /// Why the case cannot run here; none if it can.
    pub fn unmet(self) -> Option<String> {
        let program = |name: &str| tool::require(name).err().map(|error| error.to_string());
        match self {
            Self::Root if !tool::is_root() => Some("needs root (network namespaces)".to_owned()),
            Self::Root => program("ip").or_else(|| program("tc")),
            Self::Product => Artefacts::find().err().map(|error| format!("{error:#}")),
            Self::Program(name) => program(name),
            Self::Loss => ["clang", "bpftool", "ethtool"]
                .into_iter()
                .find_map(program)
                .or_else(|| {
                    absent(
                        "/usr/include/bpf/bpf_helpers.h",
                        "apt-get install libbpf-dev",
                    )
                }),
            Self::VerbsHeaders => program("cc").or_else(|| {
                absent(
                    "/usr/include/infiniband/verbs.h",
                    "apt-get install libibverbs-dev",
                )
            }),
            Self::Debian(suite) => Unpacked::of(suite).err().map(|error| format!("{error:#}")),
            Self::Ipv6 => absent("/proc/sys/net/ipv6", "boot a kernel with IPv6"),
        }
    }
}

fn absent(path: &str, cure: &str) -> Option<String> {
    (!Path::new(path).exists()).then(|| format!("{path} is missing: {cure}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_a_reason() {
        assert_eq!(Need::Program("sh").unmet(), None);
        assert!(
            Need::Program("ib_no_such")
                .unmet()
                .unwrap()
                .contains("perftest")
        );
    }
}
