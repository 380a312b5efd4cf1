//! `metaroce devices`: what `run` would show, as a table or as JSON.

use crate::{print, select};
use anyhow::Result;
use metaroce::device::Device;
use serde_json::json;

/// Prints the devices that the option, or else the environment, selects.
///
/// # Errors
/// There are none to be had.
pub(crate) fn list(option: Option<&str>, json: bool) -> Result<()> {
    let devices = select(option)?;
    print(&if json {
        as_json(&devices)
    } else {
        as_table(&devices)
    });
    Ok(())
}

/// A line for each device, and one for each further GID.
pub(crate) fn as_table(devices: &[Device]) -> String {
    let mut rows = vec![
        [
            "DEVICE",
            "INTERFACE",
            "STATE",
            "SPEED",
            "MTU",
            "GID",
            "ADDRESS",
        ]
        .map(String::from),
    ];
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
    let mut text = String::new();
    for row in &rows {
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

/// One object for each device.
pub(crate) fn as_json(devices: &[Device]) -> String {
    let object = |device: &Device| {
        let gids: Vec<String> = device.gids.iter().map(ToString::to_string).collect();
        json!({
            "name": device.name,
            "interface": device.interface,
            "index": device.index,
            "active": device.active,
            "speed_mbps": device.speed_mbps,
            "mtu_bytes": device.mtu_bytes,
            "node_guid": format!("{:016x}", device.node_guid),
            "gids": gids,
        })
    };
    let objects: Vec<_> = devices.iter().map(object).collect();
    json!(objects).to_string() + "\n"
}
