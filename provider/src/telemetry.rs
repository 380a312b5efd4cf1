//! How the engine of a process and `metaroce stat` find each other.
//!
//! Each engine listens on an abstract Unix socket (no file that could be left behind, no folder that a container would
//! have to share) whose name says whose it is. Such names belong to a network namespace, as the engine's UDP port does,
//! and `/proc/net/unix` lists them. Who connects gets one JSON object and the end of the stream; the engine answers its
//! own user and root. Read next: `engine/asked.rs` (who answers), `engine/report.rs` (what).

use std::fmt;
use std::str::FromStr;

/// Version of the JSON object. Counts up when a field changes its meaning or goes; new fields do not count.
pub const REPORT_VERSION: u64 = 1;

/// First part of every name.
const PREFIX: &str = "metaroce-stat";

/// Bytes of the device's name that are kept: the kernel takes names of 107 bytes.
const MAX_DEVICE_BYTES: usize = 63;

/// Name of an engine's socket, without the NUL (or `@`) in front.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketName {
    /// Process, as it sees itself; in another PID namespace it has another number.
    pub pid: u32,
    /// Device.
    pub device: String,
    /// UDP port of the engine: no other engine of the network namespace has it.
    pub udp_port: u16,
}

impl SocketName {
    /// The name of an engine of this process.
    pub fn of_engine(device: &str, udp_port: u16) -> Self {
        let plain = |character: char| match character {
            '/' => '_',
            other if other.is_ascii_graphic() => other,
            _ => '_',
        };
        Self {
            pid: std::process::id(),
            device: device.chars().map(plain).take(MAX_DEVICE_BYTES).collect(),
            udp_port,
        }
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}/{}/{}/{}", self.pid, self.device, self.udp_port)
    }
}

/// A name that is not one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignName;

impl FromStr for SocketName {
    type Err = ForeignName;

    fn from_str(text: &str) -> Result<Self, ForeignName> {
        let mut parts = text.split('/');
        let mut next = || parts.next().ok_or(ForeignName);
        let (prefix, pid, device, port) = (next()?, next()?, next()?, next()?);
        if prefix != PREFIX || parts.next().is_some() || device.is_empty() {
            return Err(ForeignName);
        }
        Ok(Self {
            pid: pid.parse().map_err(|_| ForeignName)?,
            device: device.to_owned(),
            udp_port: port.parse().map_err(|_| ForeignName)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_short_enough() {
        let name = SocketName::of_engine("metaroce0", 25000);
        assert_eq!(name.to_string().parse(), Ok(name));
        let odd = SocketName::of_engine(&"a/\u{7}ö ".repeat(40), u16::MAX);
        assert!(odd.to_string().len() <= 107, "{odd}");
        assert_eq!(odd.to_string().parse(), Ok(odd));
    }

    #[test]
    fn other_peoples_names_are_not_ours() {
        for name in [
            "",
            "metaroce-stat",
            "metaroce-stat/1/d",
            "metaroce-stat/x/d/1",
            "metaroce-stat/1/d/1/2",
        ] {
            assert_eq!(name.parse::<SocketName>(), Err(ForeignName), "{name}");
        }
    }
}
