//! Tests of devices: selection, names, GID order, GUIDs, rates.

use super::*;
use rstest::rstest;

fn interface(name: &str, index: u32, addresses: &[&str]) -> Interface {
    Interface {
        name: name.into(),
        index,
        up: true,
        running: true,
        loopback: name == "lo",
        ethernet: name != "lo",
        mac: [2, 0, 0, 0, 0, u8::try_from(index).unwrap()],
        mtu_bytes: 1500,
        speed_mbps: 10_000,
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
    }
}

fn names_of(devices: &[Device]) -> Vec<(&str, &str)> {
    devices
        .iter()
        .map(|d| (d.name.as_str(), d.interface.as_str()))
        .collect()
}

#[test]
fn automatic_takes_all_usable_interfaces_but_loopback() {
    let mut down = interface("eth2", 4, &["10.0.2.1"]);
    down.up = false;
    let present = [
        interface("lo", 1, &["127.0.0.1", "::1"]),
        interface("eth0", 2, &["10.0.0.1"]),
        interface("veth1", 3, &["fe80::1"]),
        down,
        interface("docker0", 5, &["172.17.0.1"]),
        interface("eth3", 6, &[]),
    ];
    let devices = Selection::Automatic.choose(&present).unwrap();
    assert_eq!(
        names_of(&devices),
        [("metaroce0", "eth0"), ("metaroce1", "docker0")]
    );
}

#[test]
fn automatic_falls_back_to_loopback_and_then_fails_with_the_cure() {
    let lo = interface("lo", 1, &["127.0.0.1"]);
    let devices = Selection::Automatic
        .choose(std::slice::from_ref(&lo))
        .unwrap();
    assert_eq!(names_of(&devices), [("metaroce0", "lo")]);
    let error = Selection::Automatic
        .choose(&[interface("eth0", 2, &[])])
        .unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, SelectionError::NoUsableInterface { .. }));
    assert!(
        text.contains("ip address add") && text.contains("Interfaces here: eth0"),
        "{text}"
    );
}

#[test]
fn listed_interfaces_keep_their_order_and_names() {
    let present = [
        interface("a", 1, &["10.0.0.1"]),
        interface("b", 2, &["10.0.0.2"]),
        interface("c", 3, &["10.0.0.3"]),
    ];
    let devices = |list| Selection::parse(list).unwrap().choose(&present).unwrap();
    assert_eq!(
        names_of(&devices("metaroce0=c, b ,mr3=a")),
        [("metaroce0", "c"), ("metaroce1", "b"), ("mr3", "a")]
    );
    assert_eq!(
        names_of(&devices("c,metaroce7=b,a")),
        [("metaroce0", "c"), ("metaroce7", "b"), ("metaroce1", "a")]
    );
}

#[rstest]
#[case("eth0,,eth1", "the interface is missing")]
#[case("metaroce0=", "the interface is missing")]
#[case("mlx5_0=eth0", "begins with \"metaroce\"")]
#[case("metaroce/..=eth0", "begins with \"metaroce\"")]
#[case("../eth0", "no name of an interface")]
#[case(
    "eth0,mr1=eth1+eth0",
    "bad entry \"mr1=eth1+eth0\" in METAROCE_DEVICES: the interface eth0 is listed twice"
)]
#[case(
    "metaroce1=a,metaroce1=b",
    "bad entry \"metaroce1=b\" in METAROCE_DEVICES: \"metaroce1=a\" has this device name already"
)]
#[case(
    "eth0,metaroce0=lo",
    "bad entry \"metaroce0=lo\" in METAROCE_DEVICES: \"eth0\" before it is metaroce0 already"
)]
#[case("mr0=eth0+a/b", "bad entry \"mr0=eth0+a/b\" in")]
#[case(
    "mr0=eth0+",
    "bad entry \"mr0=eth0+\" in METAROCE_DEVICES: the interface is missing. Write a list like"
)]
#[case("mr0=", "or \"mr0=eth0+eth1\" for one device of two planes")]
fn bad_lists_are_refused_with_the_reason(#[case] list: &str, #[case] reason: &str) {
    let text = Selection::parse(list).unwrap_err().to_string();
    assert!(
        text.contains(reason) && text.contains("METAROCE_DEVICES"),
        "{text}"
    );
}

#[test]
fn an_unknown_interface_is_named_with_those_that_exist() {
    let present = [interface("eth0", 2, &["10.0.0.1"])];
    let text = Selection::parse("eht0")
        .unwrap()
        .choose(&present)
        .unwrap_err()
        .to_string();
    assert!(text.contains("\"eht0\"") && text.contains("eth0"), "{text}");
    let mut down = interface("eth0", 2, &["10.0.0.1"]);
    down.up = false;
    let text = Selection::parse("eth0")
        .unwrap()
        .choose(&[down])
        .unwrap_err()
        .to_string();
    assert!(text.contains("ip link set eth0 up"), "{text}");
}

#[test]
fn an_interface_that_cannot_be_had_is_named_with_its_entry() {
    let mut down = interface("eth0", 2, &["10.0.0.1"]);
    down.up = false;
    let text_of = |list: &str| {
        let chosen = Selection::parse(list)
            .unwrap()
            .choose(std::slice::from_ref(&down));
        chosen.unwrap_err().to_string()
    };
    let text = text_of("mr0=eth0+eth9");
    assert!(
        text.contains("\"eth9\" (in \"mr0=eth0+eth9\"), which does not exist"),
        "{text}"
    );
    let text = text_of("mr0=eth0");
    assert!(
        text.contains("\"eth0\" (in \"mr0=eth0\"), which is down"),
        "{text}"
    );
}

/// What users complain about: "GID 0 stale or gone, link-local picked and then unreachable".
#[test]
fn gids_are_ipv4_first_then_global_then_link_local() {
    let device = Device::new(
        "metaroce0",
        &[&interface(
            "e",
            2,
            &["fe80::5", "2001:db8::1", "10.1.2.3", "10.1.2.4", "10.1.2.3"],
        )],
    );
    let expected = [
        "::ffff:10.1.2.3",
        "::ffff:10.1.2.4",
        "2001:db8::1",
        "fe80::5",
    ];
    assert_eq!(
        device
            .gids
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        expected
    );
    assert_eq!(
        device.gids.iter().map(Gid::address).collect::<Vec<_>>(),
        device.addresses
    );
    assert_eq!(
        device.gids[0].to_sysfs(),
        "0000:0000:0000:0000:0000:ffff:0a01:0203"
    );
    assert_eq!(
        "0000:0000:0000:0000:0000:ffff:0a01:0203"
            .parse::<Gid>()
            .unwrap(),
        device.gids[0]
    );
    assert!("0000:0000".parse::<Gid>().is_err());
    assert_eq!(device.gid(3), Some(device.gids[3]));
    assert_eq!(device.gid(4), None);
}

/// What users complain about: "GUID 0".
#[test]
fn guids_are_stable_distinct_and_never_zero() {
    let one = interface("eth0", 2, &[]);
    let mut vlan = one.clone();
    vlan.name = "eth0.7".into();
    let mut bare = interface("lo", 1, &[]);
    bare.mac = [0; 6];
    assert_eq!(one.guid(), one.clone().guid());
    assert_ne!(one.guid(), vlan.guid(), "a VLAN has the MAC of its parent");
    for guid in [one.guid(), vlan.guid(), bare.guid()] {
        assert_ne!(guid, 0);
    }
    assert_eq!(one.guid() >> 40, 0, "2 ^ 2, 0, 0: the MAC's first half");
}

/// What users complain about: "speed reported as 0.3 GB/s skews NCCL's tuning".
#[rstest]
#[case(0, 1, 1)]
#[case(1_000, 1, 1)]
#[case(10_000, 1, 4)]
#[case(25_000, 1, 32)]
#[case(99_999, 2, 16)]
#[case(100_000, 2, 32)]
#[case(800_000, 2, 128)]
fn rates(#[case] mbps: u32, #[case] width: u8, #[case] speed: u8) {
    let rate = LinkRate::of(mbps);
    assert_eq!((rate.width, rate.speed), (width, speed));
}

#[rstest]
#[case(68, 1)]
#[case(1_280, 3)]
#[case(1_500, 3)]
#[case(4_200, 4)]
#[case(4_208, 5)]
#[case(9_000, 5)]
#[case(65_536, 5)]
fn mtu_codes(#[case] mtu_bytes: u32, #[case] code: u32) {
    assert_eq!(active_mtu_code(mtu_bytes), code);
}

#[test]
fn this_host_has_interfaces() {
    let list = interfaces().unwrap();
    let lo = list
        .iter()
        .find(|i| i.loopback)
        .expect("a loopback interface");
    assert_eq!((lo.name.as_str(), lo.index, lo.ethernet), ("lo", 1, false));
    assert!(lo.mtu_bytes >= 1500);
}

fn two_planes() -> [Interface; 2] {
    let mut second = interface("eth1", 3, &["fe80::3", "10.0.1.1"]);
    second.mtu_bytes = 9000;
    second.speed_mbps = 1_000;
    [interface("eth0", 2, &["fe80::2", "10.0.0.1"]), second]
}

#[test]
fn a_device_of_two_planes_has_the_addresses_of_both_and_knows_whose_they_are() {
    let present = two_planes();
    let devices = Selection::parse("mr0=eth0+eth1").unwrap();
    let devices = devices.choose(&present).unwrap();
    assert_eq!(names_of(&devices), [("mr0", "eth0+eth1")]);
    let device = &devices[0];
    let shown = |index: usize| (device.addresses[index].to_string(), device.plane_of(index));
    assert_eq!(
        [0, 1, 2, 3].map(shown),
        [
            ("10.0.0.1".into(), 0),
            ("10.0.1.1".into(), 1),
            ("fe80::2".into(), 0),
            ("fe80::3".into(), 1)
        ]
    );
    assert_eq!(device.interface_of(3), ("eth1", 3));
    assert_eq!((device.mtu_bytes, device.speed_mbps), (1500, 11_000));
    assert_eq!(device.node_guid, present[0].guid());
}

#[test]
fn of_several_planes_one_must_be_usable_and_all_must_exist() {
    let mut present = two_planes();
    let choose =
        |present: &[Interface], text: &str| Selection::parse(text).unwrap().choose(present);
    present[0].up = false;
    present[0].running = false;
    let device = choose(&present, "eth0+eth1").unwrap().remove(0);
    assert!(device.active && !device.planes[0].active && device.planes[1].active);
    present[1].addresses.clear();
    let error = choose(&present, "eth0+eth1").unwrap_err().to_string();
    assert!(error.contains("ip link set eth0 up"), "{error}");
    let error = choose(&present, "eth0+eth7").unwrap_err();
    assert!(matches!(error, SelectionError::UnknownInterface { .. }));
}

#[rstest]
#[case("eth0+")]
#[case("+eth0")]
#[case("metaroce0=eth0++eth1")]
#[case("eth0+eth0")]
#[case("eth0+eth1,eth1")]
#[case("mr=eth0")]
#[case("mr0x=eth0")]
#[case("mlx5_0=eth0")]
#[case("0+1+2+3+4+5+6+7+8+9+a+b+c+d+e+f+g")]
fn bad_lists_of_planes_are_refused(#[case] text: &str) {
    let error = Selection::parse(text).unwrap_err();
    assert!(matches!(error, SelectionError::BadEntry { .. }), "{error}");
}

/// What users complain about: "eth0 and lo in one device: connects, and dies at once".
#[rstest]
#[case("mr0=eth0+lo")]
#[case("lo+eth0")]
fn loopback_is_no_plane_beside_others(#[case] text: &str) {
    let present = [
        interface("lo", 1, &["127.0.0.1"]),
        interface("eth0", 2, &["10.0.0.1"]),
    ];
    let choose = |text: &str| Selection::parse(text).unwrap().choose(&present);
    let error = choose(text).unwrap_err();
    assert!(matches!(error, SelectionError::LoopbackPlane { .. }));
    let said = error.to_string();
    assert!(
        said.contains("\"lo\"") && said.contains("Leave it out"),
        "{said}"
    );
    // Alone it is a device.
    assert_eq!(choose("eth0,lo").unwrap().len(), 2);
}
