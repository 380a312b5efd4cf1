//! The opcodes of DATA packets, what each implies for the other fields, and the status of a
//! FILL (WIRE 2.14 to 2.23). Tables only; the checks that use them are in `data.rs`.

use std::fmt;

/// Which kind of queue pair an opcode belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// None: a NOP belongs to the path.
    Path,
}

/// Defines the opcodes with wire values and names.
macro_rules! opcodes {
    ($($(#[$meta:meta])* $name:ident = $value:literal, $label:literal;)+) => {
        /// What a DATA packet asks for.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$meta])* $name = $value,)+
        }

        impl Opcode {
            /// All opcodes, in the order of their values.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The opcode of a wire value.
            #[must_use]
            #[inline]
            pub const fn from_wire(value: u8) -> Option<Self> {
                match value {
                    $($value => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// Its name in the protocol text.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }
        }
    };
}

opcodes! {
    /// Nothing for a stream: marker, probe, announcement, or a search for the path's MTU.
    #[default]
    Nop = 0x00, "NOP";
    /// RDMA WRITE.
    Write = 0x01, "WRITE";
    /// RDMA WRITE that consumes a receive and delivers an immediate.
    WriteImm = 0x02, "WRITE_IMM";
    /// SEND.
    Send = 0x03, "SEND";
    /// SEND with an immediate.
    SendImm = 0x04, "SEND_IMM";
    /// SEND that asks to invalidate a key of the receiver.
    SendInv = 0x05, "SEND_INV";
    /// Request of an RDMA READ; the message length is the read length.
    ReadReq = 0x06, "READ_REQ";
    /// A part of the answer to a READ.
    ReadResp = 0x07, "READ_RESP";
    /// Compare and swap of 8 bytes.
    CmpSwap = 0x08, "CMP_SWAP";
    /// Fetch and add of 8 bytes.
    FetchAdd = 0x09, "FETCH_ADD";
    /// The value that an atomic found.
    AtomicResp = 0x0a, "ATOMIC_RESP";
    /// Takes the place of a lost packet whose content is gone, or fails a READ.
    Fill = 0x0b, "FILL";
    /// RDMA WRITE of an unreliable connection.
    UcWrite = 0x21, "UC_WRITE";
    /// RDMA WRITE with an immediate of an unreliable connection.
    UcWriteImm = 0x22, "UC_WRITE_IMM";
    /// SEND of an unreliable connection.
    UcSend = 0x23, "UC_SEND";
    /// SEND with an immediate of an unreliable connection.
    UcSendImm = 0x24, "UC_SEND_IMM";
    /// Datagram.
    UdSend = 0x43, "UD_SEND";
    /// Datagram with an immediate.
    UdSendImm = 0x44, "UD_SEND_IMM";
}

impl Opcode {
    /// Bytes of an atomic's operands: compare and swap, or add and 0 (WIRE 2.20).
    pub const ATOMIC_OPERAND_BYTES: u16 = 16;
    /// Bytes of an atomic's result.
    pub const ATOMIC_RESULT_BYTES: u16 = 8;

    /// The kind of queue pair that it belongs to.
    #[must_use]
    #[inline]
    pub const fn service(self) -> Service {
        match self {
            Self::Nop => Service::Path,
            Self::UcWrite | Self::UcWriteImm | Self::UcSend | Self::UcSendImm => Service::Uc,
            Self::UdSend | Self::UdSendImm => Service::Ud,
            _ => Service::Rc,
        }
    }

    /// Whether the packet takes a PSN of its path and is retransmitted until acknowledged
    /// (WIRE 4.2): all of RC, and nothing else.
    #[must_use]
    #[inline]
    pub const fn takes_psn(self) -> bool {
        matches!(self.service(), Service::Rc)
    }

    /// Whether it answers a request, and so is keyed by the requester's QPN, token and MSN.
    #[must_use]
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResp | Self::AtomicResp)
    }

    /// Whether it is (part of) a message of the sender's own stream. A FILL may stand for either side.
    #[must_use]
    #[inline]
    pub const fn is_request(self) -> bool {
        !matches!(
            self,
            Self::Nop | Self::Fill | Self::ReadResp | Self::AtomicResp
        )
    }

    /// Whether it writes to a remote address that the packet names.
    #[must_use]
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::Write | Self::WriteImm | Self::UcWrite | Self::UcWriteImm
        )
    }

    /// Whether its bytes go to a posted receive.
    #[must_use]
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendImm
                | Self::SendInv
                | Self::UcSend
                | Self::UcSendImm
                | Self::UdSend
                | Self::UdSendImm
        )
    }

    /// Whether it is an atomic request.
    #[must_use]
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }

    /// Whether its message consumes a posted receive.
    #[must_use]
    #[inline]
    pub const fn consumes_receive(self) -> bool {
        self.is_send() || matches!(self, Self::WriteImm | Self::UcWriteImm)
    }

    /// Whether the immediate field is an immediate for the program.
    #[must_use]
    #[inline]
    pub const fn has_immediate(self) -> bool {
        matches!(
            self,
            Self::WriteImm | Self::SendImm | Self::UcWriteImm | Self::UcSendImm | Self::UdSendImm
        )
    }

    /// Whether remote address and rkey name memory.
    #[must_use]
    #[inline]
    pub const fn names_memory(self) -> bool {
        self.is_write() || self.is_atomic() || matches!(self, Self::ReadReq)
    }

    /// Whether the message may be cut into segments at offsets.
    #[must_use]
    #[inline]
    pub const fn is_segmented(self) -> bool {
        !matches!(self.service(), Service::Ud)
            && (self.is_write() || self.is_send() || matches!(self, Self::ReadResp))
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a FILL says about the message that it names (WIRE 2.23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FillStatus {
    /// Only the PSN is filled; streams ignore it.
    #[default]
    Nothing = 0,
    /// The READ or atomic of the addressee fails: the memory may no longer be accessed.
    RemoteAccess = 1,
    /// The READ or atomic of the addressee fails: the responder could not complete it.
    RemoteOperational = 2,
}

impl FillStatus {
    /// The status of a wire value.
    #[must_use]
    #[inline]
    pub const fn from_wire(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Nothing),
            1 => Some(Self::RemoteAccess),
            2 => Some(Self::RemoteOperational),
            _ => None,
        }
    }
}

impl fmt::Display for FillStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::RemoteAccess => "remote-access",
            Self::RemoteOperational => "remote-operational",
        })
    }
}
