//! rdma-core provider that carries RDMA over UDP with multipath spraying and selective retransmission
//!
//! A shared library that stock libibverbs loads (`plugin`), with the verbs objects (`verbs`) over the engine
//! (`engine`), which drives the transport of `metaroce-proto` over the sockets of `metaroce-udp`. What is public here
//! serves the command line: [`device`], [`telemetry`], and the questions at the end.

pub(crate) mod abi;
pub mod device;
pub(crate) mod engine;
mod plugin;
mod sync;
pub mod telemetry;
pub(crate) mod verbs;

#[cfg(feature = "entry-points")]
pub use plugin::entry;

use engine::config::Settings;

/// How all our variables begin.
const PREFIX: &str = "METAROCE_";

/// Where the shim finds the device tree; set by `metaroce run`.
pub const TREE_VARIABLE: &str = "METAROCE_TREE";

/// Checks the `METAROCE_*` variables that an engine will read, and that the files that they name can be made.
///
/// # Errors
/// A message that names the variable, its value and what is allowed.
pub fn check_settings() -> Result<(), String> {
    let settings = Settings::from_environment().map_err(|error| error.to_string())?;
    settings.check_files()?;
    check_log(&std::env::var(plugin::LOG_VARIABLE).unwrap_or_default())
}

/// What is no level is taken for the name of a module, of which nothing would ever be seen.
fn check_log(value: &str) -> Result<(), String> {
    let directives = value.split('/').next().unwrap_or_default();
    let wrong = directives.split(',').map(str::trim).find(|directive| {
        let (module, level) = match directive.split_once('=') {
            Some((module, level)) => (module, level),
            None if directive.parse::<log::LevelFilter>().is_ok() => ("", *directive),
            None => (*directive, ""),
        };
        let known = module.is_empty() || module.starts_with("metaroce");
        let valid = level.is_empty() || level.parse::<log::LevelFilter>().is_ok();
        !(known && valid)
    });
    match wrong {
        None => Ok(()),
        Some(wrong) => Err(format!(
            "{}={value}: `{wrong}` is no level (off, error, warn, info, debug, trace) and no module of metaroce with one \
             (metaroce::engine=debug)",
            plugin::LOG_VARIABLE
        )),
    }
}

/// Variables of this environment that begin like ours and are none: most likely typing errors, which would have no effect.
pub fn unknown_settings() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    unknown_of(names)
}

fn unknown_of(names: impl Iterator<Item = String>) -> Vec<String> {
    // What this repository's own tests are told by.
    let ours = |name: &String| name.starts_with(PREFIX) && !name.starts_with("METAROCE_E2E_");
    let elsewhere = [
        device::DEVICES_VARIABLE,
        plugin::LOG_VARIABLE,
        TREE_VARIABLE,
    ];
    names
        .filter(ours)
        .filter(|name| {
            !engine::config::VARIABLES
                .iter()
                .chain(&elsewhere)
                .any(|known| name == known)
        })
        .collect()
}

/// The UDP ports in which engines receive: first and number. The environment's, or the defaults if it is not valid.
pub fn port_range() -> (u16, u16) {
    let settings = Settings::from_environment().unwrap_or_default();
    (settings.port_base, settings.ports)
}

/// The releases of rdma-core whose libibverbs has the version definitions `IBVERBS_PRIVATE_<private_abi>` and, as the
/// highest, `IBVERBS_1.<public_minor>`; `None` if this plugin does not know its layout.
pub fn supported_release(private_abi: u32, public_minor: u32) -> Option<&'static str> {
    plugin::supported_release(private_abi, public_minor)
}

/// All releases of rdma-core that are served, for people.
pub fn served_releases() -> &'static str {
    plugin::SERVED
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", true)]
    #[case("warn", true)]
    #[case("DEBUG", true)]
    #[case("warn,metaroce::engine=debug", true)]
    #[case("metaroce_proto", true)]
    #[case("info/path", true)]
    #[case("infoo", false)]
    #[case("a=b=c", false)]
    #[case("metaroce=loud", false)]
    #[case("debug,other=trace", false)]
    fn levels_and_modules_of_the_log(#[case] value: &str, #[case] valid: bool) {
        assert_eq!(check_log(value).is_ok(), valid);
    }

    #[test]
    fn typing_errors_are_found() {
        let names = [
            "METAROCE_RCVBUF",
            "METAROCE_RCVBUFF",
            "METAROCE_LOG",
            "METAROCE_DEVICES",
            "METAROCE_TREE",
            "METAROCE_E2E_QUICK",
            "PATH",
            "METAROCE_PATH",
        ];
        let unknown = unknown_of(names.into_iter().map(str::to_owned));
        assert_eq!(unknown, ["METAROCE_RCVBUFF", "METAROCE_PATH"]);
    }
}
