//! The least that a container gives: a user of the host without rights, in namespaces of his own (users, network, mounts,
//! processes), no capability, nothing to be locked in memory, a root file system that cannot be written, of all devices only
//! `null`, `zero` and `urandom`, and no sysfs. Two of them, on two hosts, each behind a bridge of its host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::{DEFAULT_MTU_BYTES, NIC};
use metaroce_e2e::needs::Need;
use metaroce_e2e::process::Proc;
use metaroce_e2e::{Fabric, Host, PairOutcome, Program, c_program};

use super::contract::says_ok;
use super::{Bench, Case, ON_DEVICE, next_port};

/// Making namespaces takes milliseconds.
const STARTS_WITHIN: Duration = Duration::from_secs(15);

/// What a container says when it waits for its network.
const WAITS: &str = "waits for its network";

/// Seconds of the byte checker.
const SECONDS: &str = "2";

/// Becomes the container: `$1` is the folder that becomes its root, `$2` the product, `$3` its address, and the rest is run. What
/// needs rights comes first, and then all rights are given up. `/proc` is a new one where the outer one hides nothing.
const CONTAINER: &str = r#"
set -e
root=$1; product=$2; address=$3; shift 3
mount -t tmpfs -o mode=755 tmpfs "$root"
cd "$root"
mkdir usr etc dev proc sys tmp product
mount --rbind /usr usr
mount --rbind /etc etc
mount --bind "$product" product
mount -t proc proc proc 2>/dev/null || mount --rbind /proc proc
for link in bin lib lib32 lib64 libx32 sbin; do
    if [ -L "/$link" ]; then ln -s "$(readlink "/$link")" "$link"
    elif [ -d "/$link" ]; then mkdir "$link"; mount --rbind "/$link" "$link"; fi
done
for node in null zero urandom; do : > "dev/$node"; mount --bind "/dev/$node" "dev/$node"; done
mount -t tmpfs tmpfs tmp
mount -o remount,ro,bind "$root"
echo "$WAITS"
tries=0
until ip link show dev eth0 > /dev/null 2>&1; do
    tries=$((tries + 1)); [ $tries -lt 1500 ]
    sleep 0.01
done
ip address add "$address/24" dev eth0
ip link set dev eth0 up
ulimit -l 0
exec chroot "$root" setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"#;

/// What runs in it: first it looks around.
const INSIDE: &str = r#"
grep -q '^CapEff:.0*$' /proc/self/status || { echo "it has capabilities"; exit 1; }
if touch /etc/x /usr/x /x 2> /dev/null; then echo "it can write"; exit 1; fi
echo "devices: $(echo /dev/*)"
/product/metaroce run -- ibv_devinfo -d metaroce0
exec /product/metaroce run -- /product/byte_check "$@"
"#;

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let case = Case::new(
        "container::two users without rights, each in namespaces of his own",
        ON_DEVICE,
        two_containers,
    );
    vec![
        case.needing(Need::UserNamespaces)
            .needing(Need::LinkKind("bridge"))
            .needing(Need::VerbsHeaders)
            .needing(Need::Program("ibv_devinfo")),
    ]
}

/// What users complain about: "no rdma_rxe, no root to load it", "invisible in docker; needs privileged, IPC_LOCK, /dev nodes, host network".
fn two_containers(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let folder =
        std::env::temp_dir().join(format!("metaroce-e2e-container-{}", std::process::id()));
    let outcome = prepare(bench, &folder).and_then(|()| transfer(bench, &fabric, &folder));
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

/// A copy of the product and of the byte checker, and an empty folder, where user nobody can enter.
fn prepare(bench: &Bench, folder: &Path) -> Result<()> {
    let product = product(folder);
    bench.artefacts()?.readable_copy(&product)?;
    std::fs::copy(
        c_program::compile("byte_check")?,
        product.join("byte_check"),
    )?;
    std::fs::create_dir(folder.join("root")).context("cannot make a folder")
}

fn product(folder: &Path) -> PathBuf {
    folder.join("product")
}

fn address(host: Host) -> &'static str {
    match host {
        Host::A => "10.79.0.1",
        _ => "10.79.0.2",
    }
}

fn transfer(bench: &Bench, fabric: &Fabric, folder: &Path) -> Result<()> {
    let port = next_port();
    let arguments = ["-p", &port.to_string(), "-t", SECONDS];
    let mut server = start(bench, fabric, folder, Host::A, &arguments)?;
    server.wait_listening(port, STARTS_WITHIN)?;
    let arguments = [&arguments[..], &["-s", address(Host::A)]].concat();
    let client = start(bench, fabric, folder, Host::B, &arguments)?;
    let client = client.wait()?;
    let server = server.wait_at_most(STARTS_WITHIN)?;
    let outcome = PairOutcome { server, client }.success()?;
    for outcome in [outcome.client, outcome.server] {
        says_ok(&outcome)?;
        let text = &outcome.stdout;
        ensure!(
            text.contains("PORT_ACTIVE")
                && text.contains("devices: /dev/null /dev/urandom /dev/zero\n"),
            "not the device, or not the container, that was to be:\n{text}"
        );
    }
    Ok(())
}

/// Starts a container on a host and joins it to the fabric.
fn start(
    bench: &Bench,
    fabric: &Fabric,
    folder: &Path,
    host: Host,
    arguments: &[&str],
) -> Result<Proc> {
    let (root, product) = (folder.join("root"), product(folder));
    let mut container = Program::new("unshare")
        .args([
            "-U",
            "-r",
            "-n",
            "-m",
            "-p",
            "-f",
            "--kill-child",
            "sh",
            "-c",
            CONTAINER,
            "sh",
        ])
        .args([&root, &product])
        .args([address(host), "sh", "-c", INSIDE, "sh"])
        .args(arguments)
        .env("WAITS", WAITS)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .on(fabric, host)
        .as_nobody()
        .limit(bench.time_left())
        .spawn()?;
    container.wait_output(WAITS, STARTS_WITHIN)?;
    // What makes the container go on comes last: its link is whole when it takes it up.
    let script = "ip link add dev bridge type bridge && \
                  ip link add dev inside mtu $MTU type veth peer name outside mtu $MTU && \
                  ip address flush dev $NIC && \
                  ip link set dev $NIC master bridge && ip link set dev outside master bridge && \
                  ip link set dev outside up && ip link set dev bridge up && \
                  ip link set dev inside netns $CONTAINER name eth0";
    Program::new("sh")
        .args(["-c", script])
        .env("NIC", NIC)
        .env("MTU", DEFAULT_MTU_BYTES.to_string())
        .env("CONTAINER", container.pid().to_string())
        .on(fabric, host)
        .limit(bench.time_left())
        .run()?
        .success()
        .context("cannot join the container to the fabric")?;
    Ok(container)
}
