//! The table itself: one layout for each table of WIRE.md, section 2, in the order of that text.

use super::{Brief, Condition, Field, Kind, Layout, Raw, Then};
use crate::wire::{
    ACK_HEADER_BYTES, BASE_BYTES, BaseFlags, CLOSE_BYTES, ChecksumMode, CloseReason,
    DATA_HEADER_BYTES, DataFlags, FillStatus, HELLO_ADDRESS_BYTES, HELLO_ADDRESSES_MAX,
    HELLO_BYTES, ITEM_HEADER_BYTES, ItemKind, NakCode, OPEN_BYTES, Opcode, OpenFlags,
    PATH_BLOCK_BYTES, PacketType, PathFlags, RESET_BYTES, SHUT_BYTES, STREAM_BLOCK_BYTES,
    ShutReason, VECTOR_WORDS,
};

/// Every layout.
pub static LAYOUTS: &[&Layout] = &[
    &BASE,
    &DATA,
    &COMPARE_AND_SWAP,
    &FETCH_AND_ADD,
    &ATOMIC_RESULT,
    &ACK,
    &PATH_BLOCK,
    &VECTOR_WORD,
    &STREAM_BLOCK,
    &CONTROL,
    &ITEM,
    &HELLO,
    &HELLO_ADDRESS,
    &OPEN,
    &SHUT,
    &RESET,
    &CLOSE,
    &TRAILER,
];

/// A field of whole bytes.
const fn field(
    name: &'static str,
    label: &'static str,
    byte: usize,
    bits: usize,
    kind: Kind,
) -> Field {
    Field {
        name,
        label,
        bit: 8 * byte,
        bits,
        kind,
        when: &[],
        brief: Brief::No,
    }
}

const fn reserved(name: &'static str, byte: usize, bits: usize) -> Field {
    field(name, "reserved", byte, bits, Kind::Reserved)
}

impl Field {
    const fn brief(self) -> Self {
        Self {
            brief: Brief::Named,
            ..self
        }
    }

    const fn headline(self) -> Self {
        Self {
            brief: Brief::Headline,
            ..self
        }
    }

    const fn when(self, when: &'static [Condition]) -> Self {
        Self { when, ..self }
    }
}

const NUMBER: Kind = Kind::Number("");
const BYTES: Kind = Kind::Number("B");
const PACKETS: Kind = Kind::Number("packets");

// ---- conditions: the type of the packet and its opcode, wherever they are asked ----

const fn type_is(values: &'static [u64]) -> Condition {
    Condition {
        bit: 4,
        bits: 4,
        values,
        holds: true,
    }
}

const fn opcode(values: &'static [u64], holds: bool) -> Condition {
    Condition {
        bit: 8 * BASE_BYTES,
        bits: 8,
        values,
        holds,
    }
}

const IS_DATA: Condition = type_is(&[PacketType::Data as u64]);
const IS_ACK: Condition = type_is(&[PacketType::Ack as u64]);
const IS_NEITHER: Condition = Condition {
    holds: false,
    ..type_is(&[PacketType::Data as u64, PacketType::Ack as u64])
};

/// Opcodes whose packets take a PSN (WIRE 4.2).
const WITH_PSN: &[u64] = &[
    Opcode::Write as u64,
    Opcode::WriteImm as u64,
    Opcode::Send as u64,
    Opcode::SendImm as u64,
    Opcode::SendInv as u64,
    Opcode::ReadReq as u64,
    Opcode::ReadResp as u64,
    Opcode::CmpSwap as u64,
    Opcode::FetchAdd as u64,
    Opcode::AtomicResp as u64,
    Opcode::Fill as u64,
];
const DATAGRAMS: &[u64] = &[Opcode::UdSend as u64, Opcode::UdSendImm as u64];
const WITH_IMMEDIATE: &[u64] = &[
    Opcode::WriteImm as u64,
    Opcode::SendImm as u64,
    Opcode::UcWriteImm as u64,
    Opcode::UcSendImm as u64,
    Opcode::UdSendImm as u64,
];
/// Opcodes that use the field of the immediate at all.
const WITH_IMMEDIATE_FIELD: &[u64] = &[
    Opcode::WriteImm as u64,
    Opcode::SendImm as u64,
    Opcode::UcWriteImm as u64,
    Opcode::UcSendImm as u64,
    Opcode::UdSendImm as u64,
    Opcode::SendInv as u64,
    Opcode::Fill as u64,
];

// ---- names of values ----

const TYPES: &[(u64, &str)] = &[
    (PacketType::Data as u64, "DATA"),
    (PacketType::Ack as u64, "ACK"),
    (PacketType::Control as u64, "CONTROL"),
];
const OPCODES: [(u64, &str); Opcode::ALL.len()] = {
    let mut named = [(0, ""); Opcode::ALL.len()];
    let mut at = 0;
    while at < named.len() {
        named[at] = (Opcode::ALL[at] as u64, Opcode::ALL[at].name());
        at += 1;
    }
    named
};
const FILL_STATUSES: &[(u64, &str)] = &[
    (FillStatus::Nothing as u64, "nothing"),
    (FillStatus::RemoteAccess as u64, "remote-access"),
    (FillStatus::RemoteOperational as u64, "remote-operational"),
];
const CODES: &[(u64, &str)] = &[
    (NakCode::None as u64, "none"),
    (NakCode::Rnr as u64, "rnr"),
    (NakCode::RemoteAccess as u64, "remote-access"),
    (NakCode::InvalidRequest as u64, "invalid-request"),
    (NakCode::RemoteOperational as u64, "remote-operational"),
    (NakCode::Length as u64, "length"),
    (NakCode::Hold as u64, "hold"),
];
const BODIES: &[(u64, &Layout)] = &[
    (ItemKind::Hello as u64, &HELLO),
    (ItemKind::Open as u64, &OPEN),
    (ItemKind::Shut as u64, &SHUT),
    (ItemKind::ShutAnswer as u64, &SHUT),
    (ItemKind::Reset as u64, &RESET),
    (ItemKind::Close as u64, &CLOSE),
    (ItemKind::CloseAnswer as u64, &CLOSE),
];
const ITEM_KINDS: &[(u64, &str)] = &[
    (ItemKind::Hello as u64, "HELLO"),
    (ItemKind::Open as u64, "OPEN"),
    (ItemKind::Shut as u64, "SHUT"),
    (ItemKind::ShutAnswer as u64, "SHUT-ANSWER"),
    (ItemKind::Reset as u64, "RESET"),
    (ItemKind::Close as u64, "CLOSE"),
    (ItemKind::CloseAnswer as u64, "CLOSE-ANSWER"),
];

// ---- the layouts ----

/// Base header.
pub static BASE: Layout = Layout {
    name: "",
    title: "Base header",
    sentence: "2.5",
    bytes: BASE_BYTES,
    fields: &[
        field("version", "version", 0, 4, NUMBER),
        Field {
            bit: 4,
            ..field("type", "type", 0, 4, Kind::Choice(TYPES)).headline()
        },
        field("flags", "flags", 1, 8, Kind::Flags(BaseFlags::NAMED)).brief(),
        field("path", "path", 2, 8, NUMBER).brief(),
        field("epoch", "epoch", 3, 8, NUMBER),
        field("connection", "connection id", 4, 32, Kind::Hex),
        field("psn", "PSN", 8, 32, NUMBER)
            .brief()
            .when(&[IS_DATA, opcode(WITH_PSN, true)]),
        field("next_psn", "next PSN", 8, 32, NUMBER)
            .brief()
            .when(&[IS_DATA, opcode(WITH_PSN, false)]),
        field("ack_number", "ACK number", 8, 32, NUMBER)
            .brief()
            .when(&[IS_ACK]),
        reserved("no_psn", 8, 32).when(&[IS_NEITHER]),
        field("stamp", "time stamp", 12, 32, Kind::Stamp),
    ],
    then: &[Then::Choose {
        by: "type",
        cases: &[
            (PacketType::Data as u64, &DATA),
            (PacketType::Ack as u64, &ACK),
            (PacketType::Control as u64, &CONTROL),
        ],
    }],
};

/// DATA header.
pub static DATA: Layout = Layout {
    name: "data",
    title: "DATA",
    sentence: "2.12",
    bytes: DATA_HEADER_BYTES - BASE_BYTES,
    fields: &[
        field("opcode", "opcode", 0, 8, Kind::Choice(&OPCODES)).headline(),
        field("flags", "flags", 1, 8, Kind::Flags(DataFlags::NAMED)),
        field("attempt", "attempt", 2, 8, NUMBER),
        reserved("reserved", 3, 8),
        field("payload_length", "payload length", 4, 16, BYTES).brief(),
        field("qpn", "destination QPN", 6, 24, Kind::Qpn).brief(),
        field("token", "token", 9, 24, Kind::Hex),
        field("msn", "MSN", 12, 32, NUMBER).brief(),
        field("ssn", "SSN (receive number)", 16, 32, NUMBER),
        field("message_length", "message length", 20, 32, BYTES).brief(),
        field("offset", "offset in the message", 24, 32, BYTES).brief(),
        field(
            "remote_address",
            "remote address of offset 0",
            28,
            64,
            Kind::Hex,
        )
        .when(&[opcode(DATAGRAMS, false)]),
        field("qkey", "Q_Key", 28, 32, Kind::Hex).when(&[opcode(DATAGRAMS, true)]),
        field("source_qpn", "source QPN", 32, 24, Kind::Qpn).when(&[opcode(DATAGRAMS, true)]),
        reserved("no_address", 35, 8).when(&[opcode(DATAGRAMS, true)]),
        field("rkey", "rkey", 36, 32, Kind::Hex),
        field("immediate", "immediate", 40, 32, Kind::Hex).when(&[opcode(WITH_IMMEDIATE, true)]),
        field("invalidate_rkey", "rkey to invalidate", 40, 32, Kind::Hex)
            .when(&[opcode(&[Opcode::SendInv as u64], true)]),
        field(
            "fill_status",
            "status of the FILL",
            40,
            32,
            Kind::Choice(FILL_STATUSES),
        )
        .when(&[opcode(&[Opcode::Fill as u64], true)]),
        reserved("no_immediate", 40, 32).when(&[opcode(WITH_IMMEDIATE_FIELD, false)]),
        field("checksum", "CRC32C", 44, 32, Kind::Checksum),
    ],
    then: &[
        Then::Body {
            length: "payload_length",
            by: "opcode",
            cases: &[
                (Opcode::CmpSwap as u64, &COMPARE_AND_SWAP),
                (Opcode::FetchAdd as u64, &FETCH_AND_ADD),
                (Opcode::AtomicResp as u64, &ATOMIC_RESULT),
            ],
            raw: Raw {
                name: "payload",
                label: "payload",
            },
        },
        Then::Rest(Raw {
            name: "padding",
            label: "padding",
        }),
    ],
};

static COMPARE_AND_SWAP: Layout = Layout {
    name: "compare_and_swap",
    title: "Compare and swap",
    sentence: "2.20",
    bytes: Opcode::ATOMIC_OPERAND_BYTES as usize,
    fields: &[
        field("compare", "compare with", 0, 64, Kind::Hex),
        field("swap", "store", 8, 64, Kind::Hex),
    ],
    then: &[],
};

static FETCH_AND_ADD: Layout = Layout {
    name: "fetch_and_add",
    title: "Fetch and add",
    sentence: "2.20",
    bytes: Opcode::ATOMIC_OPERAND_BYTES as usize,
    fields: &[
        field("add", "add", 0, 64, Kind::Hex),
        reserved("reserved", 8, 64),
    ],
    then: &[],
};

static ATOMIC_RESULT: Layout = Layout {
    name: "atomic_result",
    title: "Result of an atomic",
    sentence: "2.20",
    bytes: Opcode::ATOMIC_RESULT_BYTES as usize,
    fields: &[field("before", "value before", 0, 64, Kind::Hex)],
    then: &[],
};

/// ACK header.
pub static ACK: Layout = Layout {
    name: "ack",
    title: "ACK",
    sentence: "2.25",
    bytes: ACK_HEADER_BYTES - BASE_BYTES,
    fields: &[
        field("grant", "grant", 0, 32, Kind::Grant),
        field("window", "window", 4, 32, BYTES),
        field("w0", "W0", 8, 16, PACKETS),
        field("path_blocks", "number of path blocks", 10, 8, NUMBER),
        field("stream_blocks", "number of stream blocks", 11, 8, NUMBER),
        field("checksum", "CRC32C", 12, 32, Kind::Checksum),
    ],
    then: &[
        Then::Repeat {
            count: "path_blocks",
            most: u8::MAX as u64,
            layout: &PATH_BLOCK,
        },
        Then::Repeat {
            count: "stream_blocks",
            most: u8::MAX as u64,
            layout: &STREAM_BLOCK,
        },
        Then::Rest(Raw {
            name: "padding",
            label: "padding",
        }),
    ],
};

/// Path block of an ACK.
pub static PATH_BLOCK: Layout = Layout {
    name: "path_block",
    title: "Path block",
    sentence: "2.28",
    bytes: PATH_BLOCK_BYTES,
    fields: &[
        field("path", "path", 0, 8, NUMBER).brief(),
        field("epoch", "epoch of the echoed packet", 1, 8, NUMBER),
        field("words", "number of bitvector words", 2, 8, NUMBER),
        field("flags", "flags", 3, 8, Kind::Flags(PathFlags::NAMED)),
        field(
            "cumulative",
            "cumulative PSN (lowest not received)",
            4,
            32,
            NUMBER,
        )
        .brief(),
        field("echoed_stamp", "echoed stamp", 8, 32, Kind::Stamp),
        field("ack_delay", "ack delay", 12, 16, Kind::AckDelay),
        field("ce_count", "CE count", 14, 16, PACKETS),
        field("duplicates", "duplicates", 16, 16, PACKETS),
        field("received", "received", 18, 16, PACKETS),
    ],
    then: &[Then::Repeat {
        count: "words",
        most: VECTOR_WORDS as u64,
        layout: &VECTOR_WORD,
    }],
};

/// Word of a path block's bitvector: bit i of word w stands for PSN cumulative + 32 w + i.
pub static VECTOR_WORD: Layout = Layout {
    name: "vector",
    title: "Bitvector word",
    sentence: "2.28",
    bytes: 4,
    fields: &[field("word", "received beyond", 0, 32, Kind::Hex)],
    then: &[],
};

/// Stream block of an ACK or CLOSE.
pub static STREAM_BLOCK: Layout = Layout {
    name: "stream_block",
    title: "Stream block",
    sentence: "2.29",
    bytes: STREAM_BLOCK_BYTES,
    fields: &[
        field("qpn", "QPN", 0, 24, Kind::Qpn).brief(),
        field("code", "code", 3, 8, Kind::Choice(CODES)),
        field("token", "token", 4, 24, Kind::Hex),
        field("attempt", "attempt that was refused", 7, 8, NUMBER),
        field("msn_executed", "MSN executed", 8, 32, NUMBER).brief(),
        field(
            "credit",
            "credit (first SSN without a receive)",
            12,
            32,
            NUMBER,
        ),
        field("rnr_timer", "RNR timer", 16, 8, NUMBER),
        reserved("reserved", 17, 24),
    ],
    then: &[],
};

/// CONTROL packet: no header of its own.
pub static CONTROL: Layout = Layout {
    name: "control",
    title: "CONTROL",
    sentence: "2.32",
    bytes: 0,
    fields: &[],
    then: &[
        Then::Items {
            layout: &ITEM,
            tail_bytes: TRAILER.bytes,
        },
        Then::One(&TRAILER),
    ],
};

/// Header of an item.
pub static ITEM: Layout = Layout {
    name: "item",
    title: "Item",
    sentence: "2.33",
    bytes: ITEM_HEADER_BYTES,
    fields: &[
        field("kind", "kind", 0, 8, Kind::Open(ITEM_KINDS)).headline(),
        reserved("reserved", 1, 8),
        field("length", "length of the body", 2, 16, BYTES),
    ],
    then: &[Then::Body {
        length: "length",
        by: "kind",
        cases: BODIES,
        raw: Raw {
            name: "unknown",
            label: "unknown",
        },
    }],
};

/// HELLO.
pub static HELLO: Layout = Layout {
    name: "hello",
    title: "HELLO",
    sentence: "2.35",
    bytes: HELLO_BYTES,
    fields: &[
        field("my_id", "my id", 0, 32, Kind::Hex).brief(),
        field("incarnation", "my incarnation", 4, 64, Kind::Hex),
        field("echo", "echo of your id", 12, 32, Kind::Hex).brief(),
        field("source_gid", "source GID", 16, 128, Kind::Gid).brief(),
        field("destination_gid", "destination GID", 32, 128, Kind::Gid),
        field("port", "my endpoint port", 48, 16, NUMBER),
        field("payload_size", "payload size accepted", 50, 16, BYTES),
        field("paths", "path ids accepted", 52, 16, NUMBER),
        field(
            "checksum_mode",
            "checksum mode wanted",
            54,
            8,
            Kind::Choice(ChecksumMode::NAMED),
        ),
        field("addresses", "number of addresses", 55, 8, NUMBER),
        field("window", "window", 56, 32, BYTES),
        field("w0", "W0", 60, 16, PACKETS),
        reserved("reserved", 62, 16),
        field(
            "message_span",
            "message span per stream",
            64,
            32,
            Kind::Number("messages"),
        ),
        field("packet_span", "packet span per stream", 68, 32, PACKETS),
    ],
    then: &[Then::Repeat {
        count: "addresses",
        most: HELLO_ADDRESSES_MAX as u64,
        layout: &HELLO_ADDRESS,
    }],
};

/// Address of a HELLO.
pub static HELLO_ADDRESS: Layout = Layout {
    name: "address",
    title: "Address",
    sentence: "2.35",
    bytes: HELLO_ADDRESS_BYTES,
    fields: &[
        field("gid", "GID", 0, 128, Kind::Gid),
        field("plane", "plane", 16, 8, NUMBER),
        field("speed", "speed", 17, 24, Kind::Number("Mb/s")),
    ],
    then: &[],
};

/// OPEN.
pub static OPEN: Layout = Layout {
    name: "open",
    title: "OPEN",
    sentence: "2.36",
    bytes: OPEN_BYTES,
    fields: &[
        field("from_qpn", "from QPN", 0, 24, Kind::Qpn).brief(),
        field("flags", "flags", 3, 8, Kind::Flags(OpenFlags::NAMED)),
        field("to_qpn", "to QPN", 4, 24, Kind::Qpn).brief(),
        field("rnr_timer", "RNR timer", 7, 8, NUMBER),
        field("token", "token of this life", 8, 24, Kind::Hex),
        reserved("reserved", 11, 8),
        field("echo", "echo of your token", 12, 24, Kind::Hex),
        reserved("reserved_2", 15, 8),
        field("sq_psn", "sq_psn of the program", 16, 32, NUMBER),
        field("rq_psn", "rq_psn of the program", 20, 32, NUMBER),
        field(
            "credit",
            "credit (first SSN without a receive)",
            24,
            32,
            NUMBER,
        ),
        field("max_dest_rd_atomic", "max_dest_rd_atomic", 28, 8, NUMBER),
        field("max_rd_atomic", "max_rd_atomic", 29, 8, NUMBER),
        reserved("reserved_3", 30, 16),
    ],
    then: &[],
};

/// SHUT and SHUT-ANSWER.
pub static SHUT: Layout = Layout {
    name: "shut",
    title: "SHUT",
    sentence: "2.37",
    bytes: SHUT_BYTES,
    fields: &[
        field("from_qpn", "from QPN", 0, 24, Kind::Qpn).brief(),
        field("reason", "reason", 3, 8, Kind::Choice(ShutReason::NAMED)).brief(),
        field("token", "token of the sender's life", 4, 24, Kind::Hex),
        reserved("reserved", 7, 8),
        field("to_qpn", "to QPN", 8, 24, Kind::Qpn).brief(),
        reserved("reserved_2", 11, 8),
        field(
            "to_token",
            "token of the receiver's life",
            12,
            24,
            Kind::Hex,
        ),
        reserved("reserved_3", 15, 8),
        field("msn_executed", "last MSN executed", 16, 32, NUMBER),
    ],
    then: &[],
};

/// RESET.
pub static RESET: Layout = Layout {
    name: "reset",
    title: "RESET",
    sentence: "2.38",
    bytes: RESET_BYTES,
    fields: &[field(
        "unknown_id",
        "connection id that is not known",
        0,
        32,
        Kind::Hex,
    )
    .brief()],
    then: &[],
};

/// CLOSE and CLOSE-ANSWER.
pub static CLOSE: Layout = Layout {
    name: "close",
    title: "CLOSE",
    sentence: "2.39",
    bytes: CLOSE_BYTES,
    fields: &[
        field("reason", "reason", 0, 8, Kind::Choice(CloseReason::NAMED)).brief(),
        field("stream_blocks", "number of stream blocks", 1, 8, NUMBER),
        reserved("reserved", 2, 16),
    ],
    then: &[Then::Repeat {
        count: "stream_blocks",
        most: u8::MAX as u64,
        layout: &STREAM_BLOCK,
    }],
};

/// The end of a CONTROL packet.
pub static TRAILER: Layout = Layout {
    name: "trailer",
    title: "Trailer",
    sentence: "2.32",
    bytes: 4,
    fields: &[field("checksum", "CRC32C", 0, 32, Kind::Checksum)],
    then: &[],
};
