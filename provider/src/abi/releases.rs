//! The layouts of all releases of rdma-core that are served, as their debug information has them: `tests/abi/releases.txt`.
//!
//! For tests only. Most of these releases are in no distribution's archive, so that nothing but this table stands between
//! a slip of the pen and a crash there; the others run in the end-to-end suite.

use std::collections::BTreeMap;

/// One layout.
pub(crate) struct Layout {
    /// n of `IBVERBS_PRIVATE_n`.
    pub(crate) private_abi: u32,
    /// Highest n of `IBVERBS_1.n`.
    pub(crate) public_minor: u32,
    /// `sizeof STRUCTURE` or `STRUCTURE.MEMBER` → bytes.
    pub(crate) bytes: BTreeMap<String, usize>,
}

impl Layout {
    /// The members of a structure in the order of their offsets.
    pub(crate) fn members_of(&self, structure: &str) -> Vec<(&str, usize)> {
        let mut members: Vec<(&str, usize)> = self
            .bytes
            .iter()
            .filter_map(|(name, &offset)| {
                let member = name.strip_prefix(structure)?.strip_prefix('.')?;
                Some((member, offset))
            })
            .collect();
        members.sort_by_key(|&(_, offset)| offset);
        members
    }
}

/// Every column of the table.
pub(crate) fn all() -> Vec<Layout> {
    let text = include_str!("../../../tests/abi/releases.txt");
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let heads = lines.next().expect("a line of heads").split_whitespace();
    let mut layouts: Vec<Layout> = heads.skip(1).map(head).collect();
    for line in lines {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let values = words.split_off(words.len() - layouts.len());
        let name = words.join(" ");
        for (layout, value) in layouts.iter_mut().zip(values) {
            if value != "-" {
                let value = value.parse().expect("a number of bytes");
                layout.bytes.insert(name.clone(), value);
            }
        }
    }
    layouts
}

/// `34-1.14`.
fn head(text: &str) -> Layout {
    let (private_abi, public) = text.split_once("-1.").expect("PRIVATE-1.MINOR");
    Layout {
        private_abi: private_abi.parse().expect("a number"),
        public_minor: public.parse().expect("a number"),
        bytes: BTreeMap::new(),
    }
}
