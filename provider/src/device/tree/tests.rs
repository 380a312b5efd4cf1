//! Tests of the tree's content and of its publication.

use super::runtime::own_directory;
use super::*;
use crate::device::Interface;
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, umask};
use nix::unistd::Uid;
use rstest::rstest;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A directory below the system's temporary one that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("metaroce-test-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn device(name: &str, addresses: &[&str]) -> Device {
    let interface = Interface {
        name: "nosuch0".into(),
        index: 7,
        up: true,
        running: true,
        ethernet: true,
        mac: [2, 0, 0, 0, 0, 9],
        mtu_bytes: 9000,
        speed_mbps: 100_000,
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        ..Interface::default()
    };
    Device::new(name, &[&interface])
}

fn libraries() -> Libraries {
    Libraries {
        plugin: "/opt/m/libmetaroce.so".into(),
        shim: "/opt/m/libmetaroce_shim.so".into(),
    }
}

fn text<'a>(tree: &'a Contents, path: &str) -> &'a str {
    match tree.get(Path::new(path)) {
        Some(Node::File(text)) => text.strip_suffix('\n').expect("a line"),
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn has_what_libibverbs_and_nccl_read() {
    let tree = contents(
        &[device("metaroce0", &["10.0.0.1", "fe80::1"])],
        &HostDevices::default(),
        &libraries(),
    );
    assert_eq!(text(&tree, "sys/class/infiniband_verbs/abi_version"), "6");
    assert_eq!(
        text(&tree, "sys/class/infiniband_verbs/uverbs0/ibdev"),
        "metaroce0"
    );
    assert_eq!(text(&tree, "sys/class/infiniband_verbs/uverbs0/dev"), "1:3");
    assert_eq!(
        tree[Path::new("dev/infiniband/uverbs0")],
        Node::Link("/dev/null".into())
    );
    let port = "sys/class/infiniband/metaroce0/ports/1";
    assert_eq!(text(&tree, &format!("{port}/state")), "4: ACTIVE");
    assert_eq!(text(&tree, &format!("{port}/link_layer")), "Ethernet");
    assert_eq!(text(&tree, &format!("{port}/rate")), "100 Gb/sec (4X EDR)");
    assert_eq!(
        text(&tree, &format!("{port}/gids/0")),
        "0000:0000:0000:0000:0000:ffff:0a00:0001"
    );
    assert_eq!(
        text(&tree, &format!("{port}/gids/1")),
        "fe80:0000:0000:0000:0000:0000:0000:0001"
    );
    assert_eq!(text(&tree, &format!("{port}/gid_attrs/types/1")), "RoCE v2");
    assert_eq!(text(&tree, &format!("{port}/gid_attrs/ndevs/0")), "nosuch0");
    assert!(!tree.contains_key(Path::new(&format!("{port}/gids/2"))));
    let guid = text(&tree, "sys/class/infiniband/metaroce0/node_guid");
    assert!(
        guid.starts_with("0000:00") && guid.ends_with("00:0009") && guid.len() == 19,
        "{guid}"
    );
    for abi in [34, 57, 59, 64, 65] {
        let path = format!("lib/libmetaroce-rdmav{abi}.so");
        assert_eq!(
            tree[Path::new(&path)],
            Node::Link("/opt/m/libmetaroce.so".into())
        );
    }
}

/// What users complain about: "one odd device hides the others".
#[test]
fn real_devices_stay_visible_beside_ours() {
    let root = Scratch::new("host");
    let make = |path: &str, text: &str| {
        let path = root.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    make("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
    make("sys/class/infiniband_verbs/abi_version", "6\n");
    make("sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_0\n");
    make("dev/infiniband/uverbs3", "");
    make("etc/libibverbs.d/mlx5.driver", "driver mlx5\n");
    // What an outer launcher shows, when launchers are nested.
    make("sys/class/infiniband/metaroce0/node_type", "1: CA\n");
    make("sys/class/infiniband_verbs/uverbs4/ibdev", "metaroce0\n");
    std::os::unix::fs::symlink("/dev/null", root.0.join("dev/infiniband/uverbs4")).unwrap();

    let host = HostDevices::below(&root.0);
    let tree = contents(&[device("metaroce0", &["10.0.0.1"])], &host, &libraries());
    let target = |path: &str| match &tree[Path::new(path)] {
        Node::Link(target) => target.clone(),
        other => panic!("{path}: {other:?}"),
    };
    let real = fs::canonicalize(&root.0).unwrap();
    assert_eq!(
        target("sys/class/infiniband/mlx5_0"),
        real.join("sys/class/infiniband/mlx5_0")
    );
    assert_eq!(
        target("dev/infiniband/uverbs3"),
        real.join("dev/infiniband/uverbs3")
    );
    assert_eq!(
        target("etc/libibverbs.d/mlx5.driver"),
        real.join("etc/libibverbs.d/mlx5.driver")
    );
    assert_eq!(
        text(&tree, "sys/class/infiniband_verbs/uverbs4/ibdev"),
        "metaroce0"
    );
    assert_eq!(target("dev/infiniband/uverbs4"), Path::new("/dev/null"));
}

#[test]
fn equal_trees_are_shared_different_ones_apart_and_damaged_ones_mended() {
    let scratch = Scratch::new("publish");
    let one = contents(
        &[device("metaroce0", &["10.0.0.1"])],
        &HostDevices::default(),
        &libraries(),
    );
    let two = contents(
        &[device("metaroce0", &["10.0.0.2"])],
        &HostDevices::default(),
        &libraries(),
    );
    let first = publish(&one, &scratch.0, 42).unwrap();
    assert_eq!(publish(&one, &scratch.0, 42).unwrap(), first);
    assert_ne!(publish(&two, &scratch.0, 42).unwrap(), first);
    assert_ne!(
        publish(&one, &scratch.0, 43).unwrap(),
        first,
        "another network namespace"
    );

    let driver = fs::read_to_string(first.join("etc/libibverbs.d/metaroce.driver")).unwrap();
    assert_eq!(
        driver,
        format!("driver {}/lib/libmetaroce\n", first.display())
    );

    fs::remove_file(first.join("sys/class/infiniband/metaroce0/node_guid")).unwrap();
    assert_eq!(publish(&one, &scratch.0, 42).unwrap(), first);
    assert!(
        first
            .join("sys/class/infiniband/metaroce0/node_guid")
            .exists()
    );
    assert_eq!(
        fs::read_dir(&scratch.0).unwrap().count(),
        3,
        "nothing unfinished is left behind"
    );
}

/// Whether the owner can use all of `root`, and nobody else can write to it.
fn is_the_owners(root: &Path) -> bool {
    let found = fs::symlink_metadata(root).unwrap();
    let mode = found.permissions().mode();
    let below = |path: &Path| fs::read_dir(path).unwrap().map(|one| one.unwrap().path());
    match () {
        () if found.is_symlink() => true,
        () if found.is_dir() => {
            mode & 0o722 == 0o700 && below(root).all(|path| is_the_owners(&path))
        }
        () => mode & 0o422 == 0o400,
    }
}

#[rstest]
#[case::everything_is_allowed(0o000)]
#[case::what_is_the_groups(0o002)]
#[case::nothing_is_allowed(0o777)]
#[case::the_owner_may_not_write(0o277)]
fn whatever_the_umask_nobody_else_can_write_and_the_owner_can(#[case] mask: u32) {
    let scratch = Scratch::new(&format!("umask-{mask:o}"));
    let directory = scratch.0.join("metaroce-x");
    let tree = contents(
        &[device("metaroce0", &["10.0.0.1"])],
        &HostDevices::default(),
        &libraries(),
    );
    let make = || {
        // A umask of its own, for this thread.
        unshare(CloneFlags::CLONE_FS).unwrap();
        umask(Mode::from_bits_truncate(mask));
        own_directory(&directory, Uid::effective()).unwrap();
        publish(&tree, &directory, 1).unwrap()
    };
    let root = std::thread::scope(|scope| scope.spawn(make).join().unwrap());
    assert!(is_the_owners(&directory));
    // One that others could write to is replaced: they may have done it.
    for path in ["", "lib", "etc/libibverbs.d/metaroce.driver"] {
        let path = root.join(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(publish(&tree, &directory, 1).unwrap(), root);
        assert!(is_the_owners(&directory), "{}", path.display());
    }
}

#[test]
fn launchers_at_the_same_time_agree() {
    let scratch = Scratch::new("concurrent");
    let tree = contents(
        &[device("metaroce0", &["10.0.0.1"])],
        &HostDevices::default(),
        &libraries(),
    );
    let paths: Vec<_> = std::thread::scope(|scope| {
        let publishers: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| publish(&tree, &scratch.0, 1).unwrap()))
            .collect();
        publishers
            .into_iter()
            .map(|publisher| publisher.join().unwrap())
            .collect()
    });
    assert!(paths.iter().all(|path| *path == paths[0]));
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}

#[test]
fn directories_of_others_are_refused() {
    let scratch = Scratch::new("owner");
    let path = scratch.0.join("metaroce-x");
    let user = Uid::effective();
    own_directory(&path, user).unwrap();
    own_directory(&path, user).unwrap();
    // Programs that give up their rights still read what is in it.
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o755,
        0o755
    );
    let error = own_directory(&path, Uid::from_raw(user.as_raw() + 1))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("belongs to user") && error.contains("XDG_RUNTIME_DIR"),
        "{error}"
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(
        own_directory(&path, user)
            .unwrap_err()
            .to_string()
            .contains("mode 770")
    );
    let link = scratch.0.join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(
        own_directory(&link, user)
            .unwrap_err()
            .to_string()
            .contains("not a directory")
    );
}

#[test]
fn the_oldest_of_too_many_trees_go_unless_a_process_uses_them() {
    let scratch = Scratch::new("stale");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    let make = |name: &str| {
        let path = scratch.0.join(name);
        fs::create_dir(&path).unwrap();
        fs::File::open(&path).unwrap().set_modified(old).unwrap();
        path
    };
    let used = make("tree-0-used");
    let abandoned = make(".new-1-0");
    let fresh = scratch.0.join(".new-2-0");
    fs::create_dir(&fresh).unwrap();
    let other = make("something else");
    for number in 0..99 {
        make(&format!("tree-1-{number}"));
    }
    let mut user = std::process::Command::new("sleep")
        .arg("20")
        .env("METAROCE_TREE", &used)
        .spawn()
        .unwrap();
    let tree = contents(
        &[device("metaroce0", &["10.0.0.1"])],
        &HostDevices::default(),
        &libraries(),
    );
    let published = publish(&tree, &scratch.0, 1).unwrap();
    user.kill().unwrap();
    user.wait().unwrap();
    assert!(published.exists() && used.exists() && fresh.exists() && other.exists());
    assert!(!abandoned.exists());
    let left = fs::read_dir(&scratch.0).unwrap().count();
    let expected = runtime::MAX_UNUSED_TREES - 4..=runtime::MAX_UNUSED_TREES + 6;
    assert!(expected.contains(&left), "{left} entries are left");
}
