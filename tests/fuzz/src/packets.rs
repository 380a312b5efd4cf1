//! The codec: any bytes must be a checked packet or a counted drop, and what was parsed must come out again the same.
//!
//! The first byte of the input says what is done to the rest before it is parsed: left as it is, or given the right
//! checksum (and version), without which hardly any input would get past the first check.

use metaroce_proto::wire::{ControlItem, Packet, VERSION, dissect, emit_again, seal};

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((mode, bytes)) = input.split_first() else {
        return;
    };
    let mut packet = bytes.to_vec();
    if mode & 1 != 0 {
        if let Some(first) = packet.first_mut() {
            *first = *first & 0x0f | VERSION << 4;
        }
        seal(&mut packet);
    }
    check(&packet);
}

fn check(datagram: &[u8]) {
    // The dissector reads the same bytes, right or wrong, and must always have something to say.
    let (line, fields) = (
        format!("{}", dissect(datagram)),
        format!("{:#}", dissect(datagram)),
    );
    assert!(!line.is_empty() && !fields.is_empty());
    let Ok(packet) = Packet::parse(datagram) else {
        return;
    };
    let Some(again) = emit_again(&packet, datagram.len()) else {
        // A CONTROL packet of unknown items only: there is nothing to emit.
        assert!(
            matches!(&packet, Packet::Control(control) if control.items().next().is_none()),
            "{packet:?} does not fit where it came from"
        );
        return;
    };
    assert!(again.len() <= datagram.len());
    let parsed = Packet::parse(&again).unwrap_or_else(|error| panic!("{error}: {packet:?}"));
    assert_same(&packet, &parsed);
    let twice = emit_again(&parsed, again.len()).expect("it fitted before");
    assert_eq!(
        again, twice,
        "writing again what was written gives other bytes"
    );
}

/// Both say the same; what a receiver skips (padding, reserved bits, unknown items and tails) apart.
fn assert_same(a: &Packet<'_>, b: &Packet<'_>) {
    assert_eq!(a.base(), b.base());
    match (a, b) {
        (
            Packet::Data {
                header: a,
                payload: payload_a,
                ..
            },
            Packet::Data {
                header: b,
                payload: payload_b,
                ..
            },
        ) => assert_eq!((a, payload_a), (b, payload_b)),
        (Packet::Ack(a), Packet::Ack(b)) => {
            assert_eq!((a.number(), a.allowance), (b.number(), b.allowance));
            assert!(a.path_blocks().eq(b.path_blocks()));
            assert!(a.stream_blocks().eq(b.stream_blocks()));
        }
        (Packet::Control(a), Packet::Control(b)) => {
            assert_eq!(a.is_reset(), b.is_reset());
            let (mut ours, mut theirs) = (a.items(), b.items());
            loop {
                match (ours.next(), theirs.next()) {
                    (None, None) => return,
                    (Some(a), Some(b)) => assert_same_item(&a, &b),
                    other => panic!("one item more or less: {other:?}"),
                }
            }
        }
        other => panic!("another kind of packet: {other:?}"),
    }
}

fn assert_same_item(a: &ControlItem<'_>, b: &ControlItem<'_>) {
    match (a, b) {
        (ControlItem::Close(a), ControlItem::Close(b))
        | (ControlItem::CloseAnswer(a), ControlItem::CloseAnswer(b)) => {
            assert_eq!(a.reason, b.reason);
            assert!(a.stream_blocks().eq(b.stream_blocks()));
        }
        _ => assert_eq!(format!("{a:?}"), format!("{b:?}")),
    }
}
