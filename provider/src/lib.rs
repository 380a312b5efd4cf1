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

/// Checks the `METAROCE_*` variables that an engine will read, and that the files that they name can be made.
///
/// # Errors
/// A message that names the variable, its value and what is allowed.
pub fn check_settings() -> Result<(), String> {
    let settings = Settings::from_environment().map_err(|error| error.to_string())?;
    settings.check_files()
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
