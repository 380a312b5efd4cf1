//! Doing things inside a network namespace: from this process (sockets) or by settings of /proc/sys.

use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, anyhow};

use crate::tool;

/// Where `ip netns` keeps its namespaces.
const FOLDER: &str = "/run/netns";

/// Whether a namespace of this name exists.
pub fn exists(namespace: &str) -> bool {
    std::path::Path::new(FOLDER).join(namespace).exists()
}

/// Runs `work` on a thread of its own inside `namespace`; sockets that it makes stay there.
///
/// # Errors
/// The namespace cannot be entered (there is none, or this is not root).
pub fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let path = format!("{FOLDER}/{namespace}");
    let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    std::thread::scope(|scope| {
        scope
            .spawn(move || {
                // SAFETY: setns gets an open descriptor and changes only the calling thread, which
                // ends with this closure and so cannot run anything else in the wrong namespace.
                let status = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
                if status != 0 {
                    let error = std::io::Error::last_os_error();
                    return Err(error).with_context(|| format!("cannot enter {path} (needs root)"));
                }
                Ok(work())
            })
            .join()
            .map_err(|_| anyhow!("the work inside {namespace} panicked"))?
    })
}

/// Writes values to files below /proc/sys/net of `namespace`.
///
/// # Errors
/// A setting does not exist or is refused.
pub fn set(namespace: &str, settings: &[(&str, &str)]) -> Result<()> {
    // /proc/sys/net shows the namespace of the process that reads it, and it does so by process, not
    // by thread: hence a shell inside rather than `inside`.
    let script: String = settings
        .iter()
        .map(|(key, value)| format!("echo {value} > /proc/sys/net/{key} && "))
        .collect::<String>()
        + "true";
    tool::run("ip", &["netns", "exec", namespace, "sh", "-c", &script]).map(drop)
}
