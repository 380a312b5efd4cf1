//! The functions of `include/metaroce.h`: planes and paths of a queue pair, and switching planes. Exported symbols of the
//! plugin; programs find them there (`metaroce_open` of the header) and call them directly.

use super::boundary::{os_error, status};
use super::context::context_of;
use super::ops_data::post_send;
use super::ops_qp::{QpObject, qp_of};
use crate::abi::{ibv_context, ibv_qp};
use crate::device::Gid;
use crate::verbs::{Context, Errno};
use metaroce_proto::telemetry::{LaneInfo, PathInfo, PathState};
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::sync::Arc;

const PLANE_UP: u32 = 1;
const PLANE_ENABLED: u32 = 1 << 1;
const PLANE_JOINED: u32 = 1 << 2;
const PLANE_PROVED: u32 = 1 << 3;

/// `IFNAMSIZ`, with the NUL.
const INTERFACE_NAME_BYTES: usize = 16;

/// `struct metaroce_plane`
#[repr(C)]
#[derive(Clone, Copy)]
struct Plane {
    plane: u32,
    flags: u32,
    speed_mbps: u32,
    peer_speed_mbps: u32,
    paths: u32,
    resting_paths: u32,
    bytes_sent: u64,
    interface_name: [c_char; INTERFACE_NAME_BYTES],
    gid: [u8; 16],
    peer_gid: [u8; 16],
}

/// `struct metaroce_path`
#[repr(C)]
#[derive(Clone, Copy)]
struct Path {
    path: u32,
    plane: u32,
    state: u32,
    source_port: u32,
    window_packets: u32,
    in_flight_packets: u32,
    round_trip_ns: u64,
    least_round_trip_ns: u64,
    bytes_sent: u64,
    packets_sent: u64,
    packets_lost: u64,
    retransmissions: u64,
    moves: u64,
}

// As the C compiler lays them out; the C test of the extension uses the header.
const _: () = assert!(size_of::<Plane>() == 80 && size_of::<Path>() == 80);

/// A queue pair of ours and its context.
///
/// # Safety
/// `qp` is NULL or a queue pair of any provider that is not destroyed meanwhile.
unsafe fn find<'a>(qp: *mut ibv_qp) -> io::Result<(&'a QpObject, &'a Arc<Context>)> {
    let invalid = || os_error(libc::EINVAL);
    // SAFETY: by the contract; every provider's queue pair begins with an `ibv_qp` that names an open context.
    let context = unsafe { qp.as_ref() }.ok_or_else(invalid)?.context;
    // SAFETY: as above.
    let slots = unsafe { context.cast::<ibv_context>().as_ref() }
        .ok_or_else(invalid)?
        .ops
        .slots;
    let ours = post_send as *const c_void;
    if !slots.iter().any(|slot| slot.cast_const() == ours) {
        return Err(invalid());
    }
    // SAFETY: who posts by our function is ours.
    let (object, context) = unsafe { (qp_of(qp)?, context_of(context)?) };
    context.check_process()?;
    Ok((object, context))
}

/// Gives `found` to a program that has room for `*count` structures of `size` bytes at `out`; their number only, if `out` is
/// NULL and `*count` is 0.
///
/// # Safety
/// `count` and `out` are NULL or point at that.
unsafe fn give<T: Copy>(
    out: *mut c_void,
    count: *mut u32,
    size: usize,
    found: &[T],
) -> io::Result<()> {
    // SAFETY: by the contract.
    let count = unsafe { count.as_mut() }.ok_or_else(|| os_error(libc::EINVAL))?;
    if out.is_null() && *count > 0 {
        return Err(os_error(libc::EINVAL));
    }
    let room = std::mem::replace(count, found.len() as u32);
    if out.is_null() {
        return Ok(());
    }
    if (room as usize) < found.len() {
        return Err(os_error(libc::ENOSPC));
    }
    for (at, one) in found.iter().enumerate() {
        let place = out.cast::<u8>().wrapping_add(at * size);
        // SAFETY: by the contract there is room for `size` bytes each, which is not less than the structure has.
        unsafe {
            place.write_bytes(0, size);
            place.cast::<T>().write_unaligned(*one);
        }
    }
    Ok(())
}

fn check<T>(count: *mut u32, size: usize) -> io::Result<()> {
    match count.is_null() || size < size_of::<T>() {
        true => Err(os_error(libc::EINVAL)),
        false => Ok(()),
    }
}

/// See `metaroce.h`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn metaroce_query_planes(
    qp: *mut c_void,
    planes: *mut c_void,
    count: *mut u32,
    size: usize,
) -> c_int {
    status(|| {
        check::<Plane>(count, size)?;
        // SAFETY: the program's promise.
        let (object, context) = unsafe { find(qp.cast())? };
        let connection = context.connection_of(&object.qp)?;
        let mut lanes: Vec<&LaneInfo> = connection.lanes.iter().collect();
        lanes.sort_by_key(|lane| lane.plane);
        let found: Vec<Plane> = lanes.iter().map(|lane| plane(context, lane)).collect();
        // SAFETY: the program's promise.
        unsafe { give(planes, count, size, &found) }
    })
}

/// See `metaroce.h`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn metaroce_query_paths(
    qp: *mut c_void,
    paths: *mut c_void,
    count: *mut u32,
    size: usize,
) -> c_int {
    status(|| {
        check::<Path>(count, size)?;
        // SAFETY: the program's promise.
        let (object, context) = unsafe { find(qp.cast())? };
        let connection = context.connection_of(&object.qp)?;
        let paths_of = connection.paths.iter();
        let found: Vec<Path> = paths_of.map(|one| path(context, one)).collect();
        // SAFETY: the program's promise.
        unsafe { give(paths, count, size, &found) }
    })
}

/// See `metaroce.h`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn metaroce_set_plane(qp: *mut c_void, plane: u32, enabled: c_int) -> c_int {
    status(|| {
        // SAFETY: the program's promise.
        let (object, context) = unsafe { find(qp.cast())? };
        let enabled = match enabled {
            0 => false,
            1 => true,
            _ => return Err(Errno::INVALID.into()),
        };
        Ok(context.set_plane(&object.qp, plane, enabled)?)
    })
}

fn plane(context: &Context, lane: &LaneInfo) -> Plane {
    let (address, interface) = context.local_of(lane.local);
    let mut interface_name = [0; INTERFACE_NAME_BYTES];
    let bytes = interface.bytes().take(INTERFACE_NAME_BYTES - 1);
    for (place, byte) in interface_name.iter_mut().zip(bytes) {
        *place = byte as c_char;
    }
    let flag = |is: bool, flag: u32| if is { flag } else { 0 };
    Plane {
        plane: u32::from(lane.plane),
        flags: flag(lane.up, PLANE_UP)
            | flag(lane.enabled, PLANE_ENABLED)
            | flag(lane.joined, PLANE_JOINED)
            | flag(lane.proved, PLANE_PROVED),
        speed_mbps: lane.speed_mbps,
        peer_speed_mbps: lane.peer_speed_mbps,
        paths: lane.paths,
        resting_paths: lane.resting_paths,
        bytes_sent: lane.data_bytes_sent,
        interface_name,
        gid: address.map_or([0; 16], |ip| *Gid::from(ip).as_bytes()),
        peer_gid: *Gid::from(lane.destination.ip()).as_bytes(),
    }
}

fn path(context: &Context, path: &PathInfo) -> Path {
    Path {
        path: u32::from(path.id.0),
        plane: u32::from(path.plane),
        state: match path.state {
            PathState::Idle => 0,
            PathState::Busy => 1,
            PathState::Probing => 2,
            PathState::Resting => 3,
        },
        source_port: u32::from(context.source_port(path.route)),
        window_packets: path.window_packets as u32,
        in_flight_packets: path.in_flight_packets,
        round_trip_ns: path.srtt_ns,
        least_round_trip_ns: path.min_rtt_ns,
        bytes_sent: path.counters.data_bytes_sent,
        packets_sent: path.counters.data_packets_sent,
        packets_lost: path.counters.packets_lost,
        retransmissions: path.counters.retransmissions,
        moves: path.counters.moves,
    }
}
