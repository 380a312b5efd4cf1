//! Registering memory: the checks of `ibv_reg_mr` and `ibv_rereg_mr`. The table and the bytes are in `mr_memory.rs`.
//!
//! Nothing is pinned and nothing counts against RLIMIT_MEMLOCK; whatever is mapped and readable registers, also files and
//! read-only memory (then without local write).

use metaroce_proto::types::{Access, PdId};

use super::errno::Errno;
use super::limits::MAX_MR;
use super::mr_memory::{MrTable, Region, probe};
use super::qp_attributes::KNOWN_ACCESS;

/// IBV_ACCESS_ZERO_BASED: peers name offsets.
const ZERO_BASED: Access = Access(1 << 5);
/// IBV_ACCESS_ON_DEMAND: regions are never pinned here, but the paging capabilities that go with the flag are not there.
const ON_DEMAND: Access = Access(1 << 6);

/// What is to be registered.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// Address in this process.
    pub host_addr: u64,
    /// Bytes; 0 is allowed.
    pub length: u64,
    /// Address by which work requests and peers name it.
    pub iova: u64,
    /// Rights.
    pub access: u32,
}

impl Registration {
    fn check(&self, pd: PdId) -> Result<Region, Errno> {
        let access = Access(self.access);
        check_access(access)?;
        let iova = if access.allows(ZERO_BASED) {
            0
        } else {
            self.iova
        };
        let wraps = |addr: u64| addr.checked_add(self.length).is_none();
        if wraps(self.host_addr) || wraps(iova) {
            return Err(Errno::INVALID);
        }
        if !probe(
            self.host_addr,
            self.length,
            access.allows(Access::LOCAL_WRITE),
        ) {
            return Err(Errno::BAD_ADDRESS);
        }
        Ok(Region {
            pd,
            iova,
            length: self.length,
            host_addr: self.host_addr,
            access,
        })
    }
}

/// EINVAL for unknown flags and for remote writes or atomics without local write; EOPNOTSUPP for on-demand paging.
fn check_access(access: Access) -> Result<(), Errno> {
    if access.0 & !KNOWN_ACCESS != 0 {
        return Err(Errno::INVALID);
    }
    let remote_change = Access(Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0);
    if access.0 & remote_change.0 != 0 && !access.allows(Access::LOCAL_WRITE) {
        return Err(Errno::INVALID);
    }
    if access.allows(ON_DEMAND) {
        Err(Errno::NOT_SUPPORTED)
    } else {
        Ok(())
    }
}

/// Registers memory; the key is lkey and rkey. EINVAL, EOPNOTSUPP (above), EFAULT for memory that is not mapped, or not
/// writable though it is to be written; ENOMEM when the table is full.
pub fn register(memory: &MrTable, pd: PdId, wanted: &Registration) -> Result<u32, Errno> {
    memory.register(wanted.check(pd)?).ok_or_else(|| {
        log::warn!(
            "this process has {MAX_MR} memory regions, which is the limit: deregister some first"
        );
        Errno::NO_MEMORY
    })
}

/// What `ibv_rereg_mr` changes; `None` leaves it as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Address and length; the iova becomes the address.
    pub translation: Option<(u64, u64)>,
    /// Protection domain.
    pub pd: Option<PdId>,
    /// Rights.
    pub access: Option<u32>,
}

/// Changes a region. The key stays; on an error the region stays as it was.
pub fn reregister(memory: &MrTable, key: u32, change: &Change) -> Result<(), Errno> {
    let changes = change.translation.is_some() || change.pd.is_some() || change.access.is_some();
    let old = memory.get(key).filter(|_| changes).ok_or(Errno::INVALID)?;
    let (host_addr, length) = change.translation.unwrap_or((old.host_addr, old.length));
    let iova = if change.translation.is_some() {
        host_addr
    } else {
        old.iova
    };
    let access = change.access.unwrap_or(old.access.0);
    let region = Registration {
        host_addr,
        length,
        iova,
        access,
    }
    .check(change.pd.unwrap_or(old.pd))?;
    if memory.replace(key, region) {
        Ok(())
    } else {
        Err(Errno::INVALID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metaroce_proto::host::Visibility;
    use rstest::rstest;

    const PD: PdId = PdId(5);

    fn of(buffer: &[u8], access: u32) -> Registration {
        let host_addr = buffer.as_ptr() as u64;
        Registration {
            host_addr,
            length: buffer.len() as u64,
            iova: host_addr,
            access,
        }
    }

    #[rstest]
    #[case(0, Ok(()))]
    #[case(1, Ok(()))]
    #[case(0xf, Ok(()))]
    #[case(4, Ok(()))]
    #[case(0x10_000f, Ok(()))]
    #[case(0x20_0001, Ok(()))]
    #[case(0x81, Ok(()))]
    #[case(2, Err(Errno::INVALID))]
    #[case(8, Err(Errno::INVALID))]
    #[case(0xe, Err(Errno::INVALID))]
    #[case(1 << 8, Err(Errno::INVALID))]
    #[case(1 << 30, Err(Errno::INVALID))]
    #[case(1 << 31, Err(Errno::INVALID))]
    #[case(0x41, Err(Errno::NOT_SUPPORTED))]
    fn access_flags(#[case] access: u32, #[case] expected: Result<(), Errno>) {
        let table = MrTable::default();
        let buffer = vec![0; 100];
        assert_eq!(
            register(&table, PD, &of(&buffer, access)).map(drop),
            expected
        );
        assert_eq!(table.count(), usize::from(expected.is_ok()));
    }

    #[test]
    fn ranges_that_wrap_are_refused() {
        let table = MrTable::default();
        let buffer = vec![0; 100];
        let valid = of(&buffer, 1);
        for wrong in [
            Registration {
                host_addr: u64::MAX - 10,
                length: 11,
                ..valid
            },
            Registration {
                iova: u64::MAX - 10,
                ..valid
            },
            Registration {
                length: u64::MAX,
                ..valid
            },
        ] {
            assert_eq!(
                register(&table, PD, &wrong),
                Err(Errno::INVALID),
                "{wrong:?}"
            );
        }
        let at_the_end = Registration {
            iova: u64::MAX - 100,
            ..valid
        };
        assert!(register(&table, PD, &at_the_end).is_ok());
    }

    #[test]
    fn memory_that_is_not_mapped_is_refused_and_zero_length_is_not() {
        let table = MrTable::default();
        let hole = Registration {
            host_addr: 4096,
            length: 4096,
            iova: 4096,
            access: 1,
        };
        assert_eq!(register(&table, PD, &hole), Err(Errno::BAD_ADDRESS));
        assert!(register(&table, PD, &Registration { length: 0, ..hole }).is_ok());
    }

    #[test]
    fn read_only_memory_registers_without_local_write_only() {
        static CONSTANT: [u8; 64] = [7; 64];
        let table = MrTable::default();
        assert_eq!(
            register(&table, PD, &of(&CONSTANT, 1)),
            Err(Errno::BAD_ADDRESS)
        );
        assert!(register(&table, PD, &of(&CONSTANT, 4)).is_ok());
    }

    #[test]
    fn zero_based_regions_are_named_by_offsets() {
        let table = MrTable::default();
        let buffer = vec![0; 100];
        let key = register(&table, PD, &of(&buffer, 0x21)).expect("valid");
        assert_eq!(
            table.resolve(key, 40, 60),
            Some(buffer.as_ptr().wrapping_add(40))
        );
        assert_eq!(table.resolve(key, 40, 61), None);
    }

    #[test]
    fn reregistering_changes_what_it_names_and_keeps_the_key() {
        let table = MrTable::default();
        let (first, second) = (vec![1; 64], vec![2; 32]);
        let key = register(&table, PD, &of(&first, 1)).expect("valid");

        let access = Change {
            access: Some(0x10_0007),
            ..Change::default()
        };
        reregister(&table, key, &access).expect("valid");
        let addr = first.as_ptr() as u64;
        assert_eq!(
            table.check_remote(PD, key, addr, 64, Access::REMOTE_READ),
            Ok(Visibility::Relaxed)
        );

        let pd = Change {
            pd: Some(PdId(6)),
            ..Change::default()
        };
        reregister(&table, key, &pd).expect("valid");
        assert!(
            table
                .check_remote(PD, key, addr, 64, Access::REMOTE_READ)
                .is_err()
        );

        let translation = Change {
            translation: Some((second.as_ptr() as u64, 32)),
            ..Change::default()
        };
        reregister(&table, key, &translation).expect("valid");
        assert_eq!(table.resolve(key, addr, 1), None);
        assert_eq!(
            table.resolve(key, second.as_ptr() as u64, 32),
            Some(second.as_ptr())
        );

        let wrong = Change {
            access: Some(2),
            ..Change::default()
        };
        assert_eq!(reregister(&table, key, &wrong), Err(Errno::INVALID));
        assert!(
            table
                .check_remote(
                    PdId(6),
                    key,
                    second.as_ptr() as u64,
                    32,
                    Access::REMOTE_READ
                )
                .is_ok()
        );
        assert_eq!(reregister(&table, key + 1, &access), Err(Errno::INVALID));
        let nothing = Change::default();
        assert_eq!(reregister(&table, key, &nothing), Err(Errno::INVALID));
    }
}
