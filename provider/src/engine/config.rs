//! The settings that the environment gives to an engine. Read when a device is opened, by `plugin/`, so that a wrong
//! value fails the open and not the first queue pair; read again by `Engine::for_device`.

use metaroce_proto::cc::{ALGORITHMS, Algorithm};
use nix::unistd::{AccessFlags, access};
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

/// First UDP port of the range in which engines receive.
pub const PORT_BASE_VARIABLE: &str = "METAROCE_PORT_BASE";
/// Number of ports in that range.
pub const PORTS_VARIABLE: &str = "METAROCE_PORTS";
/// Paths of a connection.
pub const PATHS_VARIABLE: &str = "METAROCE_PATHS";
/// Congestion control of the paths.
pub const CONGESTION_VARIABLE: &str = "METAROCE_CONGESTION";
/// How long the background thread looks for packets before it sleeps.
pub const SPIN_VARIABLE: &str = "METAROCE_SPIN_US";
/// Overrides the visibility that memory regions ask for.
pub const VISIBILITY_VARIABLE: &str = "METAROCE_VISIBILITY";
/// File for the counters at exit.
pub const STATISTICS_VARIABLE: &str = "METAROCE_STATS";
/// File for the event log.
pub const EVENTS_VARIABLE: &str = "METAROCE_EVENTS";
/// Receive buffer of a socket.
pub const RECEIVE_BUFFER_VARIABLE: &str = "METAROCE_RCVBUF";
/// Switches segmentation offload off.
pub const SEGMENTATION_VARIABLE: &str = "METAROCE_GSO";

/// Diagnostic: moves paths to other routes for no reason.
pub const REROLL_VARIABLE: &str = "METAROCE_REROLL_US";
/// All of them.
pub const VARIABLES: &[&str] = &[
    PORT_BASE_VARIABLE,
    PORTS_VARIABLE,
    PATHS_VARIABLE,
    CONGESTION_VARIABLE,
    SPIN_VARIABLE,
    VISIBILITY_VARIABLE,
    STATISTICS_VARIABLE,
    EVENTS_VARIABLE,
    RECEIVE_BUFFER_VARIABLE,
    SEGMENTATION_VARIABLE,
    REROLL_VARIABLE,
];

/// The index of the port is ten bits of the QPN (WIRE.md, "Endpoints").
const MAX_PORTS: u64 = 1024;
/// Sequence spaces that the core keeps for a connection at most.
const MAX_PATHS: u64 = 64;
/// A spin longer than this is a thread that never sleeps.
const MAX_SPIN_US: u64 = 10_000;
/// A path that moves less often than once a minute is not worth a switch.
const MAX_REROLL_US: u64 = 60_000_000;
/// Less than this does not hold two trains.
const MIN_RECEIVE_BUFFER: u64 = 128 << 10;
/// The kernel counts in a signed int and doubles it.
const MAX_RECEIVE_BUFFER: u64 = 1 << 30;

/// Settings of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// First UDP port of the range; the same on all hosts.
    pub port_base: u16,
    /// Ports in the range.
    pub ports: u16,
    /// Paths of a connection.
    pub paths: u8,
    /// Congestion control of the paths.
    pub congestion: &'static Algorithm,
    /// How long the background thread looks for packets before it sleeps.
    pub spin: Duration,
    /// `Some(true)`: strict visibility for every region, `Some(false)`: relaxed for every region.
    pub force_strict: Option<bool>,
    /// File for the counters at exit, `%p` already replaced.
    pub statistics: Option<String>,
    /// File for the event log, `%p` already replaced.
    pub events: Option<String>,
    /// Receive buffer of a socket, bytes.
    pub receive_buffer_bytes: usize,
    /// Send trains with one system call where the kernel can.
    pub segmentation_offload: bool,
    /// Diagnostic: on average so often a path of each busy connection takes another route; zero is never.
    pub reroll: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            port_base: 24791,
            ports: 1024,
            paths: 16,
            congestion: Default::default(),
            spin: Duration::ZERO,
            force_strict: None,
            statistics: None,
            events: None,
            receive_buffer_bytes: 8 << 20,
            segmentation_offload: true,
            reroll: Duration::ZERO,
        }
    }
}

/// A variable with a value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    variable: &'static str,
    value: String,
    allowed: String,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}={} is not possible: it must be {}",
            self.variable, self.value, self.allowed
        )
    }
}

impl std::error::Error for SettingError {}

impl From<SettingError> for io::Error {
    fn from(error: SettingError) -> Self {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

impl Settings {
    /// Checks that the files can be made, which an engine would find out when it is too late to say so.
    ///
    /// # Errors
    /// The folder of a file does not exist or must not be written; the message names the variable.
    pub fn check_files(&self) -> Result<(), String> {
        for (variable, file) in [
            (STATISTICS_VARIABLE, &self.statistics),
            (EVENTS_VARIABLE, &self.events),
        ] {
            let Some(file) = file else { continue };
            let folder = match Path::new(file).parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            let writable = access(folder, AccessFlags::W_OK | AccessFlags::X_OK);
            if let Err(error) = writable.map_err(io::Error::from) {
                return Err(format!(
                    "{variable}={file}: nothing can be written in the folder {}: {error}",
                    folder.display()
                ));
            }
        }
        Ok(())
    }

    /// Reads the environment.
    ///
    /// # Errors
    /// The first variable whose value is not allowed; the message names it, the value and what is allowed.
    pub fn from_environment() -> Result<Settings, SettingError> {
        // Files whose names are not text would come to lie under other names.
        for variable in [STATISTICS_VARIABLE, EVENTS_VARIABLE] {
            if let Some(value) = std::env::var_os(variable).filter(|value| value.to_str().is_none())
            {
                return Err(SettingError {
                    variable,
                    value: value.to_string_lossy().into_owned(),
                    allowed: "UTF-8".to_owned(),
                });
            }
        }
        Settings::read(|variable| {
            std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned())
        })
    }

    /// As [`Settings::from_environment`], from anything that knows variables. An empty value is one that is not set.
    fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, SettingError> {
        let get = |variable: &'static str| lookup(variable).filter(|value| !value.is_empty());
        let number = |variable, default: u64, low: u64, high: u64| match get(variable) {
            None => Ok(default),
            Some(value) => match value.parse() {
                Ok(number) if (low..=high).contains(&number) => Ok(number),
                _ => Err(SettingError {
                    variable,
                    value,
                    allowed: format!("a number from {low} to {high}"),
                }),
            },
        };
        let choice = |variable, choices: [(&str, bool); 2]| match get(variable) {
            None => Ok(None),
            Some(value) => match choices.iter().find(|(name, _)| *name == value) {
                Some((_, meaning)) => Ok(Some(*meaning)),
                None => {
                    let allowed = format!("{} or {}", choices[0].0, choices[1].0);
                    Err(SettingError {
                        variable,
                        value,
                        allowed,
                    })
                }
            },
        };
        let file = |variable| {
            let name = get(variable)?;
            Some(name.replace("%p", &std::process::id().to_string()))
        };
        let default = Settings::default();
        let port_base = number(PORT_BASE_VARIABLE, default.port_base.into(), 1024, 65535)?;
        let room = (65536 - port_base).min(MAX_PORTS);
        let ports = number(PORTS_VARIABLE, u64::from(default.ports).min(room), 1, room)?;
        Ok(Settings {
            port_base: port_base as u16,
            ports: ports as u16,
            paths: number(PATHS_VARIABLE, default.paths.into(), 1, MAX_PATHS)? as u8,
            congestion: match get(CONGESTION_VARIABLE) {
                None => Default::default(),
                Some(value) => Algorithm::by_name(&value).ok_or_else(|| {
                    let names: Vec<&str> = ALGORITHMS.iter().map(|one| one.name).collect();
                    SettingError {
                        variable: CONGESTION_VARIABLE,
                        value,
                        allowed: format!("one of {}", names.join(", ")),
                    }
                })?,
            },
            spin: Duration::from_micros(number(SPIN_VARIABLE, 0, 0, MAX_SPIN_US)?),
            force_strict: choice(VISIBILITY_VARIABLE, [("strict", true), ("relaxed", false)])?,
            statistics: file(STATISTICS_VARIABLE),
            events: file(EVENTS_VARIABLE),
            receive_buffer_bytes: number(
                RECEIVE_BUFFER_VARIABLE,
                default.receive_buffer_bytes as u64,
                MIN_RECEIVE_BUFFER,
                MAX_RECEIVE_BUFFER,
            )? as usize,
            segmentation_offload: choice(SEGMENTATION_VARIABLE, [("on", true), ("off", false)])?
                .unwrap_or(true),
            reroll: Duration::from_micros(number(REROLL_VARIABLE, 0, 0, MAX_REROLL_US)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, SettingError> {
        let find = |wanted: &str| {
            variables
                .iter()
                .find(|(name, _)| *name == wanted)
                .map(|(_, v)| (*v).to_owned())
        };
        Settings::read(find)
    }

    #[test]
    fn nothing_set_and_empty_values_are_the_defaults() {
        assert_eq!(read(&[]).unwrap(), Settings::default());
        assert_eq!(read(&[(PATHS_VARIABLE, "")]).unwrap(), Settings::default());
    }

    // WIRE 7.9
    #[test]
    fn all_values_are_taken() {
        let settings = read(&[
            (PORT_BASE_VARIABLE, "65000"),
            (PATHS_VARIABLE, "4"),
            (CONGESTION_VARIABLE, "delay"),
            (SPIN_VARIABLE, "20"),
            (VISIBILITY_VARIABLE, "strict"),
            (STATISTICS_VARIABLE, "/x/s-%p.json"),
            (EVENTS_VARIABLE, "events.jsonl"),
            (RECEIVE_BUFFER_VARIABLE, "1000000"),
            (SEGMENTATION_VARIABLE, "off"),
            (REROLL_VARIABLE, "250"),
        ])
        .unwrap();
        let expected = Settings {
            port_base: 65000,
            ports: 536,
            paths: 4,
            congestion: Algorithm::by_name("delay").unwrap(),
            spin: Duration::from_micros(20),
            force_strict: Some(true),
            statistics: Some(format!("/x/s-{}.json", std::process::id())),
            events: Some("events.jsonl".to_owned()),
            receive_buffer_bytes: 1_000_000,
            segmentation_offload: false,
            reroll: Duration::from_micros(250),
        };
        assert_eq!(settings, expected);
    }

    #[rstest]
    #[case(
        PATHS_VARIABLE,
        "0",
        "METAROCE_PATHS=0 is not possible: it must be a number from 1 to 64"
    )]
    #[case(
        CONGESTION_VARIABLE,
        "cubic",
        "METAROCE_CONGESTION=cubic is not possible: it must be one of dctcp"
    )]
    #[case(
        PORT_BASE_VARIABLE,
        "80",
        "METAROCE_PORT_BASE=80 is not possible: it must be a number from 1024 to 65535"
    )]
    #[case(
        PORTS_VARIABLE,
        "4k",
        "METAROCE_PORTS=4k is not possible: it must be a number from 1 to 1024"
    )]
    #[case(
        REROLL_VARIABLE,
        "often",
        "METAROCE_REROLL_US=often is not possible: it must be a number from 0 to 60000000"
    )]
    #[case(
        VISIBILITY_VARIABLE,
        "lax",
        "METAROCE_VISIBILITY=lax is not possible: it must be strict or relaxed"
    )]
    fn wrong_values_are_explained(
        #[case] variable: &str,
        #[case] value: &str,
        #[case] message: &str,
    ) {
        let told = read(&[(variable, value)]).unwrap_err().to_string();
        assert!(told.starts_with(message), "{told}");
    }

    #[test]
    fn a_file_in_a_folder_that_cannot_be_written_is_told_before() {
        let with = |events: &str| Settings {
            events: Some(events.to_owned()),
            ..Settings::default()
        };
        let text = with("/nonexistent/e.jsonl").check_files().unwrap_err();
        assert!(
            text.starts_with("METAROCE_EVENTS=/nonexistent/e.jsonl: nothing can be written"),
            "{text}"
        );
        let here = std::env::temp_dir().join("events.txt");
        assert_eq!(with(here.to_str().unwrap()).check_files(), Ok(()));
        assert_eq!(with("events.txt").check_files(), Ok(()));
        assert_eq!(Settings::default().check_files(), Ok(()));
    }
}
