//! The two questions about GIDs that libibverbs asks the kernel by `ioctl`: one entry of the table (`ibv_query_gid`,
//! `ibv_query_gid_ex`) and all of it (`ibv_query_gid_table`). The answers are those of the addresses that the interface has at
//! this moment, where sysfs has those of when the program was started.
//!
//! The layouts are of `<rdma/rdma_user_ioctl_cmds.h>` and `<rdma/ib_user_ioctl_verbs.h>`, which the kernel never changes. Called by
//! [`super::hooks`].

use crate::device::Gid;
use crate::verbs::Port;
use crate::verbs::port::{PORT, State};
use std::ffi::{c_int, c_ulong, c_void};

/// `RDMA_VERBS_IOCTL`: reads and writes a header, 24 bytes long, magic 0x1b, number 1.
const VERBS_IOCTL: c_ulong = 3 << 30 | (size_of::<Header>() as c_ulong) << 16 | 0x1b << 8 | 1;
/// `UVERBS_OBJECT_DEVICE`.
const OBJECT_DEVICE: u16 = 0;
/// `UVERBS_METHOD_QUERY_GID_TABLE`.
const QUERY_TABLE: u16 = 5;
/// `UVERBS_METHOD_QUERY_GID_ENTRY`.
const QUERY_ENTRY: u16 = 6;
/// Attributes of `QUERY_TABLE`: `…_ENTRY_SIZE`, `…_FLAGS`, `…_RESP_ENTRIES`, `…_RESP_NUM_ENTRIES`.
const TABLE: [u16; 4] = [0, 1, 2, 3];
/// Attributes of `QUERY_ENTRY`: `…_PORT`, `…_GID_INDEX`, `…_FLAGS`, `…_RESP_ENTRY`.
const ENTRY: [u16; 4] = [0, 1, 2, 3];
/// `IB_UVERBS_GID_TYPE_ROCE_V2`.
const ROCE_V2: u32 = 2;
/// Attributes of a request at most: these have four, and a driver's own may be added.
const MAX_ATTRIBUTES: usize = 16;

/// `struct ib_uverbs_ioctl_hdr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    length: u16,
    object: u16,
    method: u16,
    attributes: u16,
    reserved: u64,
    driver: u32,
    reserved_too: u32,
}

/// `struct ib_uverbs_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    id: u16,
    /// Of what `data` points at, or of `data` itself.
    length: u16,
    flags: u16,
    reserved: u16,
    /// A pointer; or the value, if it fits.
    data: u64,
}

/// `struct ib_uverbs_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GidEntry {
    gid: [u8; 16],
    index: u32,
    port: u32,
    kind: u32,
    interface: u32,
}

const _: () = assert!(
    size_of::<Header>() == 24 && size_of::<Attribute>() == 16 && size_of::<GidEntry>() == 32
);

/// Answers an `ioctl`; `Err` is an errno, EPROTONOSUPPORT for what is not served here: libibverbs then takes another way.
///
/// # Safety
/// If `request` is [`VERBS_IOCTL`], `argument` points at a header and as many attributes as it says, and those of answers at as much
/// memory as they say, as libibverbs promises the kernel.
pub(super) unsafe fn answer(
    port: &Port,
    request: c_ulong,
    argument: *const c_void,
) -> Result<(), c_int> {
    if request != VERBS_IOCTL || argument.is_null() {
        return Err(libc::ENOTTY);
    }
    // SAFETY: by the contract.
    let header = unsafe { argument.cast::<Header>().read_unaligned() };
    let count = usize::from(header.attributes);
    if header.object != OBJECT_DEVICE
        || !matches!(header.method, QUERY_TABLE | QUERY_ENTRY)
        || count > MAX_ATTRIBUTES
    {
        return Err(libc::EPROTONOSUPPORT);
    }
    let first = argument
        .wrapping_byte_add(size_of::<Header>())
        .cast::<Attribute>();
    let attributes: Vec<Attribute> = (0..count)
        // SAFETY: by the contract.
        .map(|index| unsafe { first.add(index).read_unaligned() })
        .collect();
    // Without an answer of ours libibverbs reads sysfs.
    let state = port.look().ok_or(libc::EPROTONOSUPPORT)?;
    let plane_of = |index: usize| state.gids.plane(index).unwrap_or(0);
    let interface_of = |index: usize| port.interface_index(plane_of(index));
    // SAFETY: by the contract.
    unsafe {
        if header.method == QUERY_ENTRY {
            one(&attributes, &state, &interface_of)
        } else {
            all(&attributes, &state, &interface_of)
        }
    }
}

/// Those of `attributes` that have these ids.
fn named<const N: usize>(attributes: &[Attribute], ids: [u16; N]) -> Result<[Attribute; N], c_int> {
    let of = |id: u16| attributes.iter().find(|attribute| attribute.id == id);
    let mut found = [None; N];
    for (place, id) in found.iter_mut().zip(ids) {
        *place = of(id).copied();
    }
    let missing = found.iter().any(Option::is_none);
    if missing {
        return Err(libc::EINVAL);
    }
    Ok(found.map(|attribute| attribute.expect("none is missing")))
}

fn entry(index: usize, gid: Gid, interface: u32) -> GidEntry {
    GidEntry {
        gid: *gid.as_bytes(),
        index: index as u32,
        port: u32::from(PORT),
        kind: ROCE_V2,
        interface,
    }
}

/// # Safety
/// As [`answer`].
unsafe fn one(
    attributes: &[Attribute],
    state: &State,
    interface_of: &dyn Fn(usize) -> u32,
) -> Result<(), c_int> {
    let [port, index, flags, response] = named(attributes, ENTRY)?;
    let index = usize::try_from(index.data).unwrap_or(usize::MAX);
    if flags.data != 0 || port.data != u64::from(PORT) || index >= state.gids.len() {
        return Err(libc::EINVAL);
    }
    // What the kernel says of an empty entry; `ibv_query_gid` makes zeros of it.
    let gid = state.gids.present(index).ok_or(libc::ENODATA)?;
    if usize::from(response.length) < size_of::<GidEntry>() || response.data == 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the contract of `answer`; the memory is long enough.
    unsafe {
        (response.data as *mut GidEntry).write_unaligned(entry(index, gid, interface_of(index)))
    };
    Ok(())
}

/// # Safety
/// As [`answer`].
unsafe fn all(
    attributes: &[Attribute],
    state: &State,
    interface_of: &dyn Fn(usize) -> u32,
) -> Result<(), c_int> {
    let [size, flags, response, number] = named(attributes, TABLE)?;
    // Programs that know more fields of an entry than we do find zeros in them.
    let step = usize::try_from(size.data).unwrap_or(usize::MAX);
    if flags.data != 0 || step < size_of::<GidEntry>() || number.data == 0 {
        return Err(libc::EINVAL);
    }
    let room = usize::from(response.length) / step;
    let present: Vec<_> = state.gids.iter().collect();
    if present.len() > room || response.data == 0 {
        return Err(libc::EINVAL);
    }
    for (place, (index, gid)) in present.iter().enumerate() {
        let at = (response.data as *mut u8).wrapping_add(place * step);
        // SAFETY: by the contract of `answer`; there is room for it.
        unsafe {
            at.write_bytes(0, step);
            at.cast::<GidEntry>()
                .write_unaligned(entry(*index, *gid, interface_of(*index)));
        }
    }
    // SAFETY: by the contract of `answer`: this attribute is a u64.
    unsafe { (number.data as *mut u64).write_unaligned(present.len() as u64) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use rstest::rstest;
    use std::net::{IpAddr, Ipv4Addr};

    /// A port on the loopback interface, with its one address that every system has and one that none has.
    fn port() -> &'static Port {
        let addresses = vec![
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V4(Ipv4Addr::new(192, 0, 2, 77)),
        ];
        Port::of(&Device {
            name: "metaroce_asked".into(),
            interface: "lo".into(),
            index: 1,
            mtu_bytes: 1500,
            speed_mbps: 10_000,
            active: true,
            gids: addresses.iter().copied().map(Gid::from).collect(),
            addresses,
            node_guid: 1,
            ..Device::default()
        })
    }

    fn ask(method: u16, attributes: &[(u16, u16, u64)]) -> Result<(), c_int> {
        let header = Header {
            length: 0,
            object: OBJECT_DEVICE,
            method,
            attributes: attributes.len() as u16,
            reserved: 0,
            driver: 0,
            reserved_too: 0,
        };
        let mut request = [0_u64; 3 + 2 * MAX_ATTRIBUTES];
        let start = request.as_mut_ptr();
        // SAFETY: the array has room for a header and as many attributes as there may be.
        unsafe {
            start.cast::<Header>().write(header);
            for (place, &(id, length, data)) in attributes.iter().enumerate() {
                start
                    .add(3)
                    .cast::<Attribute>()
                    .add(place)
                    .write(Attribute {
                        id,
                        length,
                        flags: 1,
                        reserved: 0,
                        data,
                    });
            }
            answer(port(), VERBS_IOCTL, start.cast())
        }
    }

    fn ask_entry(port: u64, index: u64, flags: u64, response: &mut GidEntry) -> Result<(), c_int> {
        let at = std::ptr::from_mut(response).expose_provenance() as u64;
        ask(
            QUERY_ENTRY,
            &[(0, 4, port), (1, 4, index), (2, 4, flags), (3, 32, at)],
        )
    }

    const NOTHING: GidEntry = GidEntry {
        gid: [0; 16],
        index: 9,
        port: 9,
        kind: 9,
        interface: 9,
    };

    #[test]
    fn an_entry_is_what_the_interface_has_now() {
        let mut found = NOTHING;
        assert_eq!(ask_entry(1, 0, 0, &mut found), Ok(()));
        assert_eq!(
            (found.gid[12..].to_vec(), found.index),
            (vec![127, 0, 0, 1], 0)
        );
        assert_eq!((found.port, found.kind, found.interface), (1, ROCE_V2, 1));
        assert_eq!(ask_entry(1, 1, 0, &mut NOTHING.clone()), Err(libc::ENODATA));
    }

    #[rstest]
    #[case(1, 4000, 0)]
    #[case(1, u64::MAX, 0)]
    #[case(2, 0, 0)]
    #[case(0, 0, 0)]
    #[case(1, 0, 1)]
    fn wrong_questions_are_refused(#[case] port: u64, #[case] index: u64, #[case] flags: u64) {
        let mut untouched = NOTHING;
        assert_eq!(
            ask_entry(port, index, flags, &mut untouched),
            Err(libc::EINVAL)
        );
        assert_eq!((untouched.index, untouched.interface), (9, 9));
    }

    #[test]
    fn a_table_has_the_entries_that_are_there_at_the_callers_distance() {
        let mut entries = [0xff_u8; 40 * 8];
        let mut number = 0_u64;
        let at = entries.as_mut_ptr().expose_provenance() as u64;
        let count_at = (&raw mut number).expose_provenance() as u64;
        let table = |size, length| {
            ask(
                QUERY_TABLE,
                &[(0, 8, size), (1, 4, 0), (2, length, at), (3, 8, count_at)],
            )
        };
        assert_eq!(table(40, 320), Ok(()));
        assert!((1..=8).contains(&number), "{number}");
        assert_eq!(entries[12..16], [127, 0, 0, 1]);
        assert_eq!(entries[32..40], [0; 8], "fields that we do not know");
        assert_eq!(table(40, 39), Err(libc::EINVAL), "no room");
        assert_eq!(table(31, 320), Err(libc::EINVAL), "entries too short");
        assert_eq!(table(0, 320), Err(libc::EINVAL));
    }

    #[test]
    fn what_is_not_served_is_told_so_that_libibverbs_looks_elsewhere() {
        assert_eq!(ask(QUERY_ENTRY, &[(0, 4, 1), (1, 4, 0)]), Err(libc::EINVAL));
        assert_eq!(ask(2, &[]), Err(libc::EPROTONOSUPPORT));
        // SAFETY: none of these is read from.
        unsafe {
            let null = std::ptr::null();
            assert_eq!(answer(port(), VERBS_IOCTL, null), Err(libc::ENOTTY));
            assert_eq!(answer(port(), 0x5401, null), Err(libc::ENOTTY));
        }
    }
}
