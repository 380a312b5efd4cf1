//! Link speeds and MTUs in the codes of verbs.

/// The speed of a link as verbs express it: lanes times speed of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate {
    /// What the pair stands for.
    pub mbps: u32,
    /// `active_width`: 1 is one lane, 2 is four.
    pub width: u8,
    /// `active_speed`: code of a lane's speed.
    pub speed: u8,
    /// The text of sysfs.
    pub text: &'static str,
}

const ONE_LANE: u8 = 1;
const FOUR_LANES: u8 = 2;

/// The rates there are, ascending; the same pairs that Linux reports for Ethernet links of these speeds.
const RATES: &[LinkRate] = &[
    LinkRate {
        mbps: 1_000,
        width: ONE_LANE,
        speed: 1,
        text: "2.5 Gb/sec (1X SDR)",
    },
    LinkRate {
        mbps: 5_000,
        width: ONE_LANE,
        speed: 2,
        text: "5 Gb/sec (1X DDR)",
    },
    LinkRate {
        mbps: 10_000,
        width: ONE_LANE,
        speed: 4,
        text: "10 Gb/sec (1X QDR)",
    },
    LinkRate {
        mbps: 20_000,
        width: FOUR_LANES,
        speed: 2,
        text: "20 Gb/sec (4X DDR)",
    },
    LinkRate {
        mbps: 25_000,
        width: ONE_LANE,
        speed: 32,
        text: "25 Gb/sec (1X EDR)",
    },
    LinkRate {
        mbps: 40_000,
        width: FOUR_LANES,
        speed: 4,
        text: "40 Gb/sec (4X QDR)",
    },
    LinkRate {
        mbps: 50_000,
        width: ONE_LANE,
        speed: 64,
        text: "50 Gb/sec (1X HDR)",
    },
    LinkRate {
        mbps: 56_000,
        width: FOUR_LANES,
        speed: 16,
        text: "56 Gb/sec (4X FDR)",
    },
    LinkRate {
        mbps: 100_000,
        width: FOUR_LANES,
        speed: 32,
        text: "100 Gb/sec (4X EDR)",
    },
    LinkRate {
        mbps: 200_000,
        width: FOUR_LANES,
        speed: 64,
        text: "200 Gb/sec (4X HDR)",
    },
    LinkRate {
        mbps: 400_000,
        width: FOUR_LANES,
        speed: 128,
        text: "400 Gb/sec (4X NDR)",
    },
];

impl LinkRate {
    /// The largest rate that is not above the link's speed, or the lowest there is.
    pub fn of(mbps: u32) -> Self {
        RATES
            .iter()
            .rev()
            .find(|rate| rate.mbps <= mbps)
            .copied()
            .unwrap_or(RATES[0])
    }
}

/// Bytes of an Ethernet MTU that headers take at most (IPv6, UDP and our own, generously): what verbs call MTU is payload.
const HEADER_ROOM_BYTES: u32 = 112;

/// The code of `active_mtu` (`IBV_MTU_256` is 1 … `IBV_MTU_4096` is 5) for an interface's MTU: the largest payload of
/// which a packet holds one.
pub fn active_mtu_code(mtu_bytes: u32) -> u32 {
    let payload = mtu_bytes.saturating_sub(HEADER_ROOM_BYTES);
    (1..=5)
        .rev()
        .find(|code| 128 << code <= payload)
        .unwrap_or(1)
}
