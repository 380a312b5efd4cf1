//! The states of a queue pair and the transitions between them: the table of the InfiniBand architecture (11.2.5.2) for
//! reliable connections, as the kernel's `ib_modify_qp_is_ok` applies it. Pure; `qp_modify.rs` carries transitions out.

use std::fmt;
use std::ops::BitOr;

use super::errno::Errno;

/// `enum ibv_qp_state`, same numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum QpState {
    /// IBV_QPS_RESET: as created; nothing may be posted.
    Reset = 0,
    /// IBV_QPS_INIT: receives may be posted.
    Init = 1,
    /// IBV_QPS_RTR: messages are received.
    ReadyToReceive = 2,
    /// IBV_QPS_RTS: messages are sent.
    ReadyToSend = 3,
    /// IBV_QPS_SQD: sends in progress end, posted ones wait.
    SendQueueDrained = 4,
    /// IBV_QPS_SQE: never reached by a reliable connection, whose send errors lead to [`QpState::Error`].
    SendQueueError = 5,
    /// IBV_QPS_ERR: whatever is posted completes flushed.
    Error = 6,
}

impl QpState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrained,
        Self::SendQueueError,
        Self::Error,
    ];

    /// The state with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// A set of attributes: `enum ibv_qp_attr_mask`, same bits. Those without a name here belong to no transition.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Mask(pub u32);

impl Mask {
    /// IBV_QP_STATE
    pub const STATE: Self = Self(1 << 0);
    /// IBV_QP_CUR_STATE
    pub const CURRENT_STATE: Self = Self(1 << 1);
    /// IBV_QP_EN_SQD_ASYNC_NOTIFY
    pub const DRAINED_NOTIFY: Self = Self(1 << 2);
    /// IBV_QP_ACCESS_FLAGS
    pub const ACCESS: Self = Self(1 << 3);
    /// IBV_QP_PKEY_INDEX
    pub const PKEY_INDEX: Self = Self(1 << 4);
    /// IBV_QP_PORT
    pub const PORT: Self = Self(1 << 5);
    /// IBV_QP_AV
    pub const ADDRESS: Self = Self(1 << 7);
    /// IBV_QP_PATH_MTU
    pub const PATH_MTU: Self = Self(1 << 8);
    /// IBV_QP_TIMEOUT
    pub const TIMEOUT: Self = Self(1 << 9);
    /// IBV_QP_RETRY_CNT
    pub const RETRY_COUNT: Self = Self(1 << 10);
    /// IBV_QP_RNR_RETRY
    pub const RNR_RETRY: Self = Self(1 << 11);
    /// IBV_QP_RQ_PSN
    pub const RQ_PSN: Self = Self(1 << 12);
    /// IBV_QP_MAX_QP_RD_ATOMIC
    pub const MAX_RD_ATOMIC: Self = Self(1 << 13);
    /// IBV_QP_ALT_PATH
    pub const ALTERNATE_PATH: Self = Self(1 << 14);
    /// IBV_QP_MIN_RNR_TIMER
    pub const MIN_RNR_TIMER: Self = Self(1 << 15);
    /// IBV_QP_SQ_PSN
    pub const SQ_PSN: Self = Self(1 << 16);
    /// IBV_QP_MAX_DEST_RD_ATOMIC
    pub const MAX_DEST_RD_ATOMIC: Self = Self(1 << 17);
    /// IBV_QP_PATH_MIG_STATE
    pub const MIGRATION: Self = Self(1 << 18);
    /// IBV_QP_DEST_QPN
    pub const DEST_QPN: Self = Self(1 << 20);

    /// No attribute.
    pub const NONE: Self = Self(0);

    /// Whether every attribute of `other` is in `self`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for Mask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mask({:#x})", self.0)
    }
}

/// A legal transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// Attributes that must be given, besides the state.
    pub required: Mask,
    /// Attributes that may be given.
    pub optional: Mask,
}

/// What may be changed while a connection is up.
const LIVE: Mask = Mask::CURRENT_STATE
    .and(Mask::ACCESS)
    .and(Mask::MIN_RNR_TIMER)
    .and(Mask::ALTERNATE_PATH)
    .and(Mask::MIGRATION);

/// The transition from one state to another, if there is one.
pub const fn transition(from: QpState, to: QpState) -> Option<Transition> {
    use QpState::{
        Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError,
    };
    let local = Mask::PKEY_INDEX.and(Mask::PORT).and(Mask::ACCESS);
    let (required, optional) = match (from, to) {
        (_, Reset) => (Mask::NONE, Mask::NONE),
        // A queue pair that was just created has nothing to flush; the kernel refuses.
        (Reset, Error) => return None,
        (_, Error) => (Mask::NONE, Mask::NONE),
        (Reset, Init) => (local, Mask::NONE),
        (Init, Init) => (Mask::NONE, local),
        (Init, ReadyToReceive) => (
            Mask::ADDRESS
                .and(Mask::PATH_MTU)
                .and(Mask::DEST_QPN)
                .and(Mask::RQ_PSN)
                .and(Mask::MAX_DEST_RD_ATOMIC)
                .and(Mask::MIN_RNR_TIMER),
            Mask::ALTERNATE_PATH.and(Mask::ACCESS).and(Mask::PKEY_INDEX),
        ),
        (ReadyToReceive, ReadyToSend) => (
            Mask::TIMEOUT
                .and(Mask::RETRY_COUNT)
                .and(Mask::RNR_RETRY)
                .and(Mask::SQ_PSN)
                .and(Mask::MAX_RD_ATOMIC),
            LIVE,
        ),
        (ReadyToSend | SendQueueDrained, ReadyToSend) => (Mask::NONE, LIVE),
        (ReadyToSend, SendQueueDrained) => (Mask::NONE, Mask::DRAINED_NOTIFY),
        (SendQueueDrained, SendQueueDrained) => (
            Mask::NONE,
            Mask::PORT
                .and(Mask::ADDRESS)
                .and(Mask::TIMEOUT)
                .and(Mask::RETRY_COUNT)
                .and(Mask::RNR_RETRY)
                .and(Mask::MAX_RD_ATOMIC)
                .and(Mask::MAX_DEST_RD_ATOMIC)
                .and(Mask::ALTERNATE_PATH)
                .and(Mask::ACCESS)
                .and(Mask::PKEY_INDEX)
                .and(Mask::MIN_RNR_TIMER)
                .and(Mask::MIGRATION),
        ),
        (SendQueueError, ReadyToSend) => (Mask::NONE, Mask::NONE),
        _ => return None,
    };
    Some(Transition { required, optional })
}

/// Whether `mask` may be given for the transition `from` → `to`: EINVAL if the transition is not legal, lacks a required
/// attribute or has one that is neither required nor optional.
pub fn check(from: QpState, to: QpState, mask: Mask) -> Result<(), Errno> {
    use QpState::{ReadyToReceive, ReadyToSend, SendQueueDrained, SendQueueError};
    let running = matches!(
        from,
        ReadyToReceive | ReadyToSend | SendQueueDrained | SendQueueError
    );
    if mask.has(Mask::CURRENT_STATE) && !running {
        return Err(Errno::INVALID);
    }
    let transition = transition(from, to).ok_or(Errno::INVALID)?;
    let allowed = transition.required | transition.optional | Mask::STATE;
    if mask.has(transition.required) && allowed.has(mask) {
        Ok(())
    } else {
        Err(Errno::INVALID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpState::{
        Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError,
    };

    /// One line for each legal transition: required, optional, in the bits of `enum ibv_qp_attr_mask`.
    const LEGAL: &[(QpState, QpState, u32, u32)] = &[
        (Reset, Reset, 0, 0),
        (Reset, Init, 0x38, 0),
        (Init, Reset, 0, 0),
        (Init, Error, 0, 0),
        (Init, Init, 0, 0x38),
        (Init, ReadyToReceive, 0x12_9180, 0x4018),
        (ReadyToReceive, Reset, 0, 0),
        (ReadyToReceive, Error, 0, 0),
        (ReadyToReceive, ReadyToSend, 0x1_2e00, 0x4_c00a),
        (ReadyToSend, Reset, 0, 0),
        (ReadyToSend, Error, 0, 0),
        (ReadyToSend, ReadyToSend, 0, 0x4_c00a),
        (ReadyToSend, SendQueueDrained, 0, 0x4),
        (SendQueueDrained, Reset, 0, 0),
        (SendQueueDrained, Error, 0, 0),
        (SendQueueDrained, ReadyToSend, 0, 0x4_c00a),
        (SendQueueDrained, SendQueueDrained, 0, 0x6_eeb8),
        (SendQueueError, Reset, 0, 0),
        (SendQueueError, Error, 0, 0),
        (SendQueueError, ReadyToSend, 0, 0),
        (Error, Reset, 0, 0),
        (Error, Error, 0, 0),
    ];

    fn legal(from: QpState, to: QpState) -> Option<(Mask, Mask)> {
        let line = LEGAL.iter().find(|line| line.0 == from && line.1 == to);
        line.map(|line| (Mask(line.2), Mask(line.3)))
    }

    #[test]
    fn every_pair_of_states_is_as_in_the_table() {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let found = transition(from, to).map(|t| (t.required, t.optional));
                assert_eq!(found, legal(from, to), "{from:?} -> {to:?}");
            }
        }
    }

    #[test]
    fn every_single_attribute_missing_or_added_is_judged_by_the_table() {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let Some((required, optional)) = legal(from, to) else {
                    assert_eq!(
                        check(from, to, Mask::STATE),
                        Err(Errno::INVALID),
                        "{from:?} -> {to:?}"
                    );
                    assert_eq!(
                        check(from, to, Mask(0x1f_ffff)),
                        Err(Errno::INVALID),
                        "{from:?} -> {to:?}"
                    );
                    continue;
                };
                let whole = required | Mask::STATE;
                assert_eq!(check(from, to, whole), Ok(()), "{from:?} -> {to:?}");
                assert_eq!(
                    check(from, to, whole | optional),
                    Ok(()),
                    "{from:?} -> {to:?} all optional"
                );
                for bit in 1..32 {
                    let bit = Mask(1 << bit);
                    if required.has(bit) {
                        let without = Mask(whole.0 & !bit.0);
                        assert_eq!(
                            check(from, to, without),
                            Err(Errno::INVALID),
                            "{from:?} -> {to:?} - {bit:?}"
                        );
                    } else {
                        let expected = if optional.has(bit) {
                            Ok(())
                        } else {
                            Err(Errno::INVALID)
                        };
                        assert_eq!(
                            check(from, to, whole | bit),
                            expected,
                            "{from:?} -> {to:?} + {bit:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn current_state_is_no_attribute_of_a_queue_pair_that_is_not_running() {
        for from in [Reset, Init, Error] {
            for to in QpState::ALL {
                assert_eq!(
                    check(from, to, Mask::STATE | Mask::CURRENT_STATE),
                    Err(Errno::INVALID)
                );
            }
        }
    }

    #[test]
    fn numbers_are_those_of_verbs() {
        for (number, state) in (0..).zip(QpState::ALL) {
            assert_eq!(QpState::from_number(number), Some(state));
            assert_eq!(state as u32, number);
        }
        assert_eq!(QpState::from_number(7), None);
        assert_eq!(QpState::from_number(u32::MAX), None);
    }
}
