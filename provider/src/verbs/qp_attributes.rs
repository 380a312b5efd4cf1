//! The attributes of a queue pair: what `modify_qp` gives and `query_qp` returns, in safe types, and the check of their
//! values. Nothing is changed when a value is wrong.

use metaroce_proto::types::{Access, ConnectParams, SendParams};
use metaroce_proto::wire::{Gid, Qpn};

use super::errno::Errno;
use super::limits;
use super::qp_state::Mask;

/// The only port.
pub const PORT: u8 = 1;

/// Access flags that a queue pair or region may be given: the eight of verbs, and the optional range, of which unknown
/// ones are ignored.
pub const KNOWN_ACCESS: u32 = 0xff | 0x3ff0_0000;

/// Where the peer is (`struct ibv_ah_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressVector {
    /// The peer's GID.
    pub dest_gid: Gid,
    /// Kept for queries only.
    pub flow_label: u32,
    /// Index of the own GID.
    pub sgid_index: u8,
    /// Kept for queries only.
    pub hop_limit: u8,
    /// Kept for queries only.
    pub traffic_class: u8,
    /// Kept for queries only.
    pub dlid: u16,
    /// Kept for queries only.
    pub service_level: u8,
    /// Kept for queries only.
    pub source_path_bits: u8,
    /// Kept for queries only.
    pub static_rate: u8,
    /// Whether there is a GRH; on Ethernet there must be one.
    pub is_global: bool,
    /// Local port.
    pub port: u8,
}

impl AddressVector {
    /// EINVAL unless it has a GRH, our port and one of our GIDs (`source_gid` looks it up).
    pub fn check(&self, source_gid: &dyn Fn(u8) -> Option<Gid>) -> Result<(), Errno> {
        if !self.is_global {
            log::warn!(
                "an address without a GID (is_global is 0) is refused, as on every RoCE device: give the program a GID index \
                 (`-g 0` of ibv_rc_pingpong and the like)"
            );
        } else if self.port != PORT {
            log::warn!("port {} is refused: the device has port {PORT}", self.port);
        } else if source_gid(self.sgid_index).is_none() {
            log::warn!(
                "GID index {} is refused: nothing is there (`ibv_devinfo -v` shows the indexes)",
                self.sgid_index
            );
        } else {
            return Ok(());
        }
        Err(Errno::INVALID)
    }
}

/// The attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// Code 1 (256 B) … 5 (4096 B); packets follow the MTU of the path, whatever is said here.
    pub path_mtu: u32,
    /// First sequence number of the peer, 24 bits.
    pub rq_psn: u32,
    /// Own first sequence number, 24 bits.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qpn: u32,
    /// What the peer may do.
    pub access: u32,
    /// Where the peer is.
    pub address: AddressVector,
    /// Index into the table of partition keys, which has one entry.
    pub pkey_index: u16,
    /// Local port.
    pub port: u8,
    /// Whether the end of draining is to be told.
    pub drained_notify: bool,
    /// READs and atomics that may be outstanding at the peer.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer that may be outstanding here.
    pub max_dest_rd_atomic: u8,
    /// Encoded RNR timer.
    pub min_rnr_timer: u8,
    /// Encoded local ACK timeout.
    pub timeout: u8,
    /// Retries after a timeout.
    pub retry_count: u8,
    /// Retries after RNR.
    pub rnr_retry: u8,
    /// Path migration state; only MIGRATED (0) exists here.
    pub migration: u32,
}

impl Attributes {
    /// Takes over the attributes of `given` that are in `mask`, after checking their values.
    pub fn merge(
        &mut self,
        given: &Self,
        mask: Mask,
        source_gid: &dyn Fn(u8) -> Option<Gid>,
    ) -> Result<(), Errno> {
        given.check(mask, source_gid)?;
        macro_rules! take {
            ($($bit:ident => $field:ident),* $(,)?) => {
                $( if mask.has(Mask::$bit) { self.$field = given.$field; } )*
            };
        }
        take!(
            PATH_MTU => path_mtu, RQ_PSN => rq_psn, SQ_PSN => sq_psn, DEST_QPN => dest_qpn, ACCESS => access,
            ADDRESS => address, PKEY_INDEX => pkey_index, PORT => port, DRAINED_NOTIFY => drained_notify,
            MAX_RD_ATOMIC => max_rd_atomic, MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer, TIMEOUT => timeout, RETRY_COUNT => retry_count, RNR_RETRY => rnr_retry,
            MIGRATION => migration,
        );
        // As the wire has them: 24 bits.
        self.rq_psn &= limits::MAX_24_BIT;
        self.sq_psn &= limits::MAX_24_BIT;
        Ok(())
    }

    fn check(&self, mask: Mask, source_gid: &dyn Fn(u8) -> Option<Gid>) -> Result<(), Errno> {
        if mask.has(Mask::ALTERNATE_PATH) {
            return Err(Errno::NOT_SUPPORTED);
        }
        if mask.has(Mask::ADDRESS) {
            self.address.check(source_gid)?;
        }
        let rules = [
            (Mask::PATH_MTU, "path_mtu", (1..=5).contains(&self.path_mtu)),
            (
                Mask::DEST_QPN,
                "dest_qp_num",
                self.dest_qpn <= limits::MAX_24_BIT,
            ),
            (
                Mask::ACCESS,
                "qp_access_flags",
                self.access & !KNOWN_ACCESS == 0,
            ),
            (
                Mask::PKEY_INDEX,
                "pkey_index",
                self.pkey_index < limits::MAX_PKEYS,
            ),
            (Mask::PORT, "port_num", self.port == PORT),
            (
                Mask::MAX_RD_ATOMIC,
                "max_rd_atomic",
                self.max_rd_atomic <= limits::MAX_RD_ATOMIC,
            ),
            (
                Mask::MAX_DEST_RD_ATOMIC,
                "max_dest_rd_atomic",
                self.max_dest_rd_atomic <= limits::MAX_RD_ATOMIC,
            ),
            (
                Mask::MIN_RNR_TIMER,
                "min_rnr_timer",
                self.min_rnr_timer <= limits::MAX_RNR_TIMER,
            ),
            (
                Mask::TIMEOUT,
                "timeout",
                self.timeout <= limits::MAX_TIMEOUT,
            ),
            (
                Mask::RETRY_COUNT,
                "retry_cnt",
                self.retry_count <= limits::MAX_RETRY,
            ),
            (
                Mask::RNR_RETRY,
                "rnr_retry",
                self.rnr_retry <= limits::MAX_RETRY,
            ),
            (Mask::MIGRATION, "path_mig_state", self.migration == 0),
        ];
        let wrong = rules
            .iter()
            .find(|(bit, _, valid)| mask.has(*bit) && !valid);
        match wrong {
            None => Ok(()),
            Some((_, name, _)) => {
                log::warn!(
                    "{name} of a queue pair is out of range (`ibv_devinfo -v` shows the limits)"
                );
                Err(Errno::INVALID)
            }
        }
    }

    /// What the core is told at RTR. `source_gid` is the GID at `sgid_index`.
    pub fn connect_params(&self, source_gid: Gid) -> ConnectParams {
        ConnectParams {
            source_gid,
            dest_gid: self.address.dest_gid,
            dest_qpn: Qpn::truncate(self.dest_qpn),
            rq_psn: self.rq_psn,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            access: Access(self.access),
        }
    }

    /// What the core is told at RTS.
    pub fn send_params(&self) -> SendParams {
        SendParams {
            sq_psn: self.sq_psn,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn gids(index: u8) -> Option<Gid> {
        (index < 2).then_some(Gid([index; 16]))
    }

    fn valid() -> Attributes {
        let address = AddressVector {
            dest_gid: Gid([7; 16]),
            sgid_index: 1,
            is_global: true,
            port: 1,
            ..Default::default()
        };
        Attributes {
            path_mtu: 5,
            dest_qpn: 17,
            address,
            port: 1,
            ..Attributes::default()
        }
    }

    #[rstest]
    #[case(Mask::PATH_MTU, |a: &mut Attributes| a.path_mtu = 0)]
    #[case(Mask::PATH_MTU, |a: &mut Attributes| a.path_mtu = 6)]
    #[case(Mask::DEST_QPN, |a: &mut Attributes| a.dest_qpn = 1 << 24)]
    #[case(Mask::ACCESS, |a: &mut Attributes| a.access = 1 << 8)]
    #[case(Mask::ACCESS, |a: &mut Attributes| a.access = 1 << 31)]
    #[case(Mask::PKEY_INDEX, |a: &mut Attributes| a.pkey_index = 1)]
    #[case(Mask::PORT, |a: &mut Attributes| a.port = 0)]
    #[case(Mask::PORT, |a: &mut Attributes| a.port = 2)]
    #[case(Mask::MAX_RD_ATOMIC, |a: &mut Attributes| a.max_rd_atomic = limits::MAX_RD_ATOMIC + 1)]
    #[case(Mask::MAX_DEST_RD_ATOMIC, |a: &mut Attributes| a.max_dest_rd_atomic = 255)]
    #[case(Mask::MIN_RNR_TIMER, |a: &mut Attributes| a.min_rnr_timer = 32)]
    #[case(Mask::TIMEOUT, |a: &mut Attributes| a.timeout = 32)]
    #[case(Mask::RETRY_COUNT, |a: &mut Attributes| a.retry_count = 8)]
    #[case(Mask::RNR_RETRY, |a: &mut Attributes| a.rnr_retry = 8)]
    #[case(Mask::MIGRATION, |a: &mut Attributes| a.migration = 1)]
    #[case(Mask::ADDRESS, |a: &mut Attributes| a.address.is_global = false)]
    #[case(Mask::ADDRESS, |a: &mut Attributes| a.address.port = 2)]
    #[case(Mask::ADDRESS, |a: &mut Attributes| a.address.sgid_index = 2)]
    fn a_wrong_value_is_refused_if_it_is_meant_and_ignored_if_not(
        #[case] bit: Mask,
        #[case] spoil: fn(&mut Attributes),
    ) {
        let mut given = valid();
        spoil(&mut given);
        let mut target = Attributes::default();
        assert_eq!(target.merge(&given, bit, &gids), Err(Errno::INVALID));
        assert_eq!(
            target,
            Attributes::default(),
            "changed in spite of the error"
        );
        assert_eq!(
            target.merge(&given, Mask(!bit.0 & !Mask::ALTERNATE_PATH.0), &gids),
            Ok(())
        );
    }

    #[test]
    fn only_what_the_mask_names_is_taken_over() {
        let mut target = Attributes::default();
        let given = Attributes {
            rq_psn: 0xff12_3456,
            sq_psn: 9,
            timeout: 14,
            ..valid()
        };
        target
            .merge(&given, Mask::RQ_PSN | Mask::TIMEOUT, &gids)
            .expect("valid");
        assert_eq!(
            target,
            Attributes {
                rq_psn: 0x12_3456,
                timeout: 14,
                ..Attributes::default()
            }
        );
    }

    #[test]
    fn alternate_paths_are_not_there() {
        let result = Attributes::default().merge(&valid(), Mask::ALTERNATE_PATH, &gids);
        assert_eq!(result, Err(Errno::NOT_SUPPORTED));
    }

    #[test]
    fn the_core_is_told_what_was_given() {
        let mut attributes = Attributes {
            max_dest_rd_atomic: 3,
            min_rnr_timer: 12,
            access: 0xe,
            ..valid()
        };
        attributes.rq_psn = 77;
        let params = attributes.connect_params(Gid([1; 16]));
        assert_eq!(
            (
                params.rq_psn,
                params.max_dest_rd_atomic,
                params.min_rnr_timer
            ),
            (77, 3, 12)
        );
        assert_eq!(
            (params.dest_qpn, params.dest_gid),
            (Qpn::truncate(17), Gid([7; 16]))
        );
        assert!(params.access.allows(Access::REMOTE_WRITE));
    }
}
