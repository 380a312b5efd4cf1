//! Two engines of one NIC know of each other, and of who has ended.

use super::*;
use metaroce_proto::cc::Others;

fn others(engine: &Engine) -> Others {
    engine.inner.gate.enter().neighbours.others()
}

#[test]
fn engines_of_one_nic_count_each_other() {
    const LENGTH: usize = 64 << 10;
    let (a, b) = pair(LENGTH);
    let transfer = |wr_id: u64| {
        a.write_to(&b, wr_id, LENGTH);
        a.wait(1, pause);
    };
    let end = Instant::now() + PATIENCE;
    // Other tests use the same interface: they may be seen, too.
    while others(a.engine()).connections == 0 || others(b.engine()).connections == 0 {
        transfer(1);
        assert!(Instant::now() < end, "they do not see each other");
    }
    let core = b.engine().inner.gate.enter();
    let own = core.endpoint.receivers_share();
    assert_eq!(own.connections, 1);
    b.engine().inner.leave(core);
}
