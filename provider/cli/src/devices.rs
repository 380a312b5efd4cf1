//! `metaroce devices`: what `run` would show, and which processes use it, as a table or as JSON.

use crate::stat::find;
use crate::{print, select};
use anyhow::Result;
use metaroce::device::{Device, Plane, PlaneState};
use metaroce::telemetry::SocketName;
use serde_json::json;

/// Prints the devices that the option, or else the environment, selects.
///
/// # Errors
/// No device can be made of what was selected.
pub(crate) fn list(option: Option<&str>, json: bool) -> Result<()> {
    let devices = select(option)?;
    // Without /proc nobody is seen; the devices are there all the same.
    let users = find::own_namespace().map_or_else(|_| Vec::new(), |namespace| namespace.names);
    print(&if json {
        as_json(&devices, &users)
    } else {
        as_table(&devices, &users)
    })?;
    Ok(())
}

/// The engines of a device.
fn users_of<'a>(device: &Device, users: &'a [SocketName]) -> Vec<&'a SocketName> {
    let name = SocketName::of_engine(&device.name, 0).device;
    users.iter().filter(|user| user.device == name).collect()
}

/// A line for each device, one for each further GID, one for each process.
pub(crate) fn as_table(devices: &[Device], users: &[SocketName]) -> String {
    let heads = [
        "DEVICE",
        "INTERFACE",
        "STATE",
        "SPEED",
        "MTU",
        "GID",
        "ADDRESS",
    ];
    let mut rows = vec![heads.map(String::from)];
    for device in devices {
        for (index, address) in device.addresses.iter().enumerate() {
            let about = if index == 0 {
                [
                    device.name.clone(),
                    device.interface.clone(),
                    if device.active { "active" } else { "down" }.into(),
                    format!("{} Gb/s", f64::from(device.speed_mbps) / 1000.0),
                    device.mtu_bytes.to_string(),
                ]
            } else {
                Default::default()
            };
            let [name, interface, state, speed, mtu] = about;
            rows.push([
                name,
                interface,
                state,
                speed,
                mtu,
                index.to_string(),
                address.to_string(),
            ]);
        }
    }
    let mut text = columns(&rows) + &planes_table(devices);
    let heads = ["DEVICE", "USED BY", "UDP PORT"];
    let mut rows = vec![heads.map(String::from)];
    for device in devices {
        for user in users_of(device, users) {
            rows.push([
                device.name.clone(),
                format!("{} {}", user.pid, program_of(user.pid))
                    .trim_end()
                    .to_owned(),
                user.udp_port.to_string(),
            ]);
        }
    }
    if rows.len() > 1 {
        text.push('\n');
        text += &columns(&rows);
    }
    text
}

fn plane_as_json(plane: &Plane, state: PlaneState) -> serde_json::Value {
    json!({
        "interface": plane.interface,
        "index": plane.index,
        "active": state == PlaneState::Active,
        "state": state.name(),
        "speed_mbps": plane.speed_mbps,
        "mtu_bytes": plane.mtu_bytes,
    })
}

/// A line for each plane of devices with several, and the cure for those without an address; empty if there is none.
fn planes_table(devices: &[Device]) -> String {
    let mut cures = String::new();
    let heads = ["DEVICE", "PLANE", "INTERFACE", "STATE", "SPEED", "MTU"];
    let mut rows = vec![heads.map(String::from)];
    for device in devices.iter().filter(|device| device.planes.len() > 1) {
        for (number, plane) in device.planes.iter().enumerate() {
            let state = device.plane_state(number);
            if state == PlaneState::NoAddress {
                let interface = &plane.interface;
                cures += &format!(
                    "{interface} carries nothing without an address: ip address add ADDRESS/PREFIX dev {interface}\n"
                );
            }
            rows.push([
                device.name.clone(),
                number.to_string(),
                plane.interface.clone(),
                state.name().into(),
                format!("{} Gb/s", f64::from(plane.speed_mbps) / 1000.0),
                plane.mtu_bytes.to_string(),
            ]);
        }
    }
    match rows.len() {
        1 => String::new(),
        _ => format!("\n{}{cures}", columns(&rows)),
    }
}

fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
            line += &format!("{cell:width$}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// The name of a process; empty if it is in a PID namespace that we do not see.
fn program_of(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let printable = |character: char| {
        if character.is_control() {
            '?'
        } else {
            character
        }
    };
    String::from_utf8_lossy(&name)
        .trim_end()
        .chars()
        .map(printable)
        .collect()
}

/// One object for each device.
pub(crate) fn as_json(devices: &[Device], users: &[SocketName]) -> String {
    let object = |device: &Device| {
        let gids: Vec<String> = device.gids.iter().map(ToString::to_string).collect();
        let addresses: Vec<String> = device.addresses.iter().map(ToString::to_string).collect();
        let numbered = device.planes.iter().enumerate();
        let planes =
            numbered.map(|(number, plane)| plane_as_json(plane, device.plane_state(number)));
        let users = users_of(device, users);
        let users = users.iter().map(|user| {
            json!({"pid": user.pid, "program": program_of(user.pid), "udp_port": user.udp_port})
        });
        json!({
            "name": device.name,
            "interface": device.interface,
            "index": device.index,
            "active": device.active,
            "speed_mbps": device.speed_mbps,
            "mtu_bytes": device.mtu_bytes,
            "planes": planes.collect::<Vec<_>>(),
            "gid_planes": device.gid_planes,
            "node_guid": format!("{:016x}", device.node_guid),
            "gids": gids,
            "addresses": addresses,
            "used_by": users.collect::<Vec<_>>(),
        })
    };
    let objects: Vec<_> = devices.iter().map(object).collect();
    json!(objects).to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use metaroce::device::Gid;
    use std::net::IpAddr;

    fn device() -> Device {
        let addresses: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        Device {
            name: "metaroce0".into(),
            interface: "eth0".into(),
            index: 2,
            mtu_bytes: 9000,
            speed_mbps: 25_000,
            active: true,
            gids: addresses.iter().copied().map(Gid::from).collect(),
            addresses,
            node_guid: 0xabc,
            ..Device::default()
        }
    }

    fn users() -> Vec<SocketName> {
        let own = std::process::id();
        ["metaroce0/25001", "metaroce0/25002", "metaroce1/25001"]
            .map(|rest| format!("metaroce-stat/{own}/{rest}").parse().unwrap())
            .to_vec()
    }

    #[test]
    fn the_table_has_a_line_for_each_gid_and_each_process() {
        let text = as_table(&[device()], &users());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "metaroce0  eth0       active  25 Gb/s  9000  0    10.0.0.1"
        );
        assert!(lines[2].trim_start().starts_with("1    fd00::1"), "{text}");
        assert_eq!(lines.len(), 7, "{text}");
        assert!(
            lines[5].starts_with("metaroce0") && lines[5].ends_with("25001"),
            "{text}"
        );
        assert!(lines[6].ends_with("25002"), "{text}");
        assert_eq!(as_table(&[device()], &[]).lines().count(), 3);
    }

    #[test]
    fn planes_are_shown_where_there_are_several() {
        let mut device = device();
        let plane = |interface: &str, active| Plane {
            interface: interface.into(),
            index: 2,
            mtu_bytes: 9000,
            speed_mbps: 1_000,
            active,
        };
        device.planes = vec![plane("eth0", true)];
        assert_eq!(planes_table(&[device.clone()]), "");
        device.planes.push(plane("eth1", false));
        let text = as_table(&[device.clone()], &[]);
        assert!(
            text.contains("\nmetaroce0  1      eth1       down    1 Gb/s  9000\n"),
            "{text}"
        );
        let value: serde_json::Value = serde_json::from_str(&as_json(&[device], &[])).unwrap();
        assert_eq!(value[0]["planes"][1]["interface"], "eth1");
        assert_eq!(value[0]["planes"][1]["active"], false);
    }

    #[test]
    fn a_plane_without_an_address_is_not_active_and_says_how_it_gets_one() {
        let mut device = device();
        device.planes = ["eth0", "eth1"]
            .map(|name| Plane {
                interface: name.into(),
                index: 2,
                mtu_bytes: 9000,
                speed_mbps: 10_000,
                active: true,
            })
            .to_vec();
        device.gid_planes = vec![0, 0];
        let text = as_table(&[device.clone()], &[]);
        assert!(
            text.contains("0      eth0       active      10 Gb/s"),
            "{text}"
        );
        assert!(
            text.contains("1      eth1       no address  10 Gb/s"),
            "{text}"
        );
        assert!(
            text.contains("ip address add ADDRESS/PREFIX dev eth1\n"),
            "{text}"
        );
        assert!(!text.contains("dev eth0"), "{text}");
        let value: serde_json::Value =
            serde_json::from_str(&as_json(&[device.clone()], &[])).unwrap();
        assert_eq!(value[0]["planes"][1]["active"], false);
        assert_eq!(value[0]["planes"][1]["state"], "no address");
        assert_eq!(value[0]["planes"][0]["state"], "active");
        device.gid_planes = vec![0, 1];
        assert!(!as_table(&[device], &[]).contains("address add"));
    }

    #[test]
    fn json_has_everything() {
        let value: serde_json::Value =
            serde_json::from_str(&as_json(&[device()], &users())).unwrap();
        let device = &value[0];
        assert_eq!(device["name"], "metaroce0");
        assert_eq!(device["gids"][0], "::ffff:10.0.0.1");
        assert_eq!(device["addresses"][1], "fd00::1");
        assert_eq!(device["used_by"].as_array().unwrap().len(), 2);
        assert_eq!(device["used_by"][1]["udp_port"], 25002);
        assert_eq!(device["used_by"][0]["pid"], std::process::id());
        assert_ne!(device["used_by"][0]["program"], "");
    }
}
