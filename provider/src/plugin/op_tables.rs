//! The layouts of `struct verbs_context_ops`, as data.
//!
//! The table that a provider passes to `verbs_set_ops` has no version and no length: its layout follows from the release
//! of libibverbs, and the private ABI number alone does not tell, since ops were inserted in the middle within one number.
//! So a layout is chosen by the pair (private ABI, highest public minor version), both read from the version
//! definitions of the loaded object. An unknown pair is refused; adding a release means adding a line to [`RELEASES`].

/// Members of `verbs_context_ops` in rdma-core 36 … 58, in order.
const BASE: [&str; 76] = [
    "advise_mr",
    "alloc_dm",
    "alloc_mw",
    "alloc_null_mr",
    "alloc_parent_domain",
    "alloc_pd",
    "alloc_td",
    "async_event",
    "attach_counters_point_flow",
    "attach_mcast",
    "bind_mw",
    "close_xrcd",
    "cq_event",
    "create_ah",
    "create_counters",
    "create_cq",
    "create_cq_ex",
    "create_flow",
    "create_flow_action_esp",
    "create_qp",
    "create_qp_ex",
    "create_rwq_ind_table",
    "create_srq",
    "create_srq_ex",
    "create_wq",
    "dealloc_mw",
    "dealloc_pd",
    "dealloc_td",
    "dereg_mr",
    "destroy_ah",
    "destroy_counters",
    "destroy_cq",
    "destroy_flow",
    "destroy_flow_action",
    "destroy_qp",
    "destroy_rwq_ind_table",
    "destroy_srq",
    "destroy_wq",
    "detach_mcast",
    "free_context",
    "free_dm",
    "get_srq_num",
    "import_dm",
    "import_mr",
    "import_pd",
    "modify_cq",
    "modify_flow_action_esp",
    "modify_qp",
    "modify_qp_rate_limit",
    "modify_srq",
    "modify_wq",
    "open_qp",
    "open_xrcd",
    "poll_cq",
    "post_recv",
    "post_send",
    "post_srq_ops",
    "post_srq_recv",
    "query_device_ex",
    "query_ece",
    "query_port",
    "query_qp",
    "query_qp_data_in_order",
    "query_rt_values",
    "query_srq",
    "read_counters",
    "reg_dm_mr",
    "reg_dmabuf_mr",
    "reg_mr",
    "req_notify_cq",
    "rereg_mr",
    "resize_cq",
    "set_ece",
    "unimport_dm",
    "unimport_mr",
    "unimport_pd",
];

/// A member that a release inserted, and the member that follows it.
struct Insertion {
    name: &'static str,
    before: &'static str,
}

const fn insert(name: &'static str, before: &'static str) -> Insertion {
    Insertion { name, before }
}

/// Insertions of rdma-core 59.
const SINCE_59: &[Insertion] = &[
    insert("alloc_dmah", "alloc_mw"),
    insert("dealloc_dmah", "dealloc_mw"),
    insert("reg_mr_ex", "req_notify_cq"),
];
/// Insertions of rdma-core 62.
const SINCE_62: &[Insertion] = &[
    insert("dm_export_dmabuf_fd", "free_context"),
    insert("query_port_speed", "query_qp"),
];
/// Insertions of rdma-core 64.
const SINCE_64: &[Insertion] = &[
    insert("alloc_buf", "alloc_dm"),
    insert("free_buf", "free_context"),
];
/// Insertions of rdma-core 65.
const SINCE_65: &[Insertion] = &[
    insert("create_comp_cntr", "create_counters"),
    insert("destroy_comp_cntr", "destroy_counters"),
    insert("inc_comp_cntr", "modify_cq"),
    insert("inc_err_comp_cntr", "modify_cq"),
    insert("qp_attach_comp_cntr", "query_device_ex"),
    insert("query_comp_cntr_caps", "query_device_ex"),
    insert("read_comp_cntr", "read_counters"),
    insert("read_err_comp_cntr", "reg_dm_mr"),
    insert("set_comp_cntr", "set_ece"),
    insert("set_err_comp_cntr", "unimport_dm"),
];

/// One line for each distinct layout.
pub(super) struct Release {
    /// n of the version definition `IBVERBS_PRIVATE_n`.
    pub(super) private_abi: u32,
    /// Highest n of the version definitions `IBVERBS_1.n`.
    pub(super) public_minor: u32,
    /// Which releases have it, for messages.
    pub(super) rdma_core: &'static str,
    /// Members that `verbs_context_ops` has.
    pub(super) op_count: usize,
    /// Place of `ibv_context` in `verbs_context`, with which the probe is compared.
    pub(super) context_offset_bytes: usize,
    insertions: &'static [&'static [Insertion]],
}

/// Which releases have a known layout, for messages.
pub(crate) const SERVED: &str = "rdma-core 36 to 65";

/// Every layout that is known. The file names of the plugin end in `-rdmav<private_abi>.so`.
pub(super) const RELEASES: &[Release] = &[
    Release {
        private_abi: 34,
        public_minor: 14,
        rdma_core: "36 to 56",
        op_count: 76,
        context_offset_bytes: 320,
        insertions: &[],
    },
    Release {
        private_abi: 57,
        public_minor: 14,
        rdma_core: "57, 58",
        op_count: 76,
        context_offset_bytes: 320,
        insertions: &[],
    },
    Release {
        private_abi: 59,
        public_minor: 15,
        rdma_core: "59 to 61",
        op_count: 79,
        context_offset_bytes: 344,
        insertions: &[SINCE_59],
    },
    Release {
        private_abi: 59,
        public_minor: 16,
        rdma_core: "62, 63",
        op_count: 81,
        context_offset_bytes: 352,
        insertions: &[SINCE_59, SINCE_62],
    },
    Release {
        private_abi: 64,
        public_minor: 17,
        rdma_core: "64",
        op_count: 83,
        context_offset_bytes: 368,
        insertions: &[SINCE_59, SINCE_62, SINCE_64],
    },
    Release {
        private_abi: 65,
        public_minor: 18,
        rdma_core: "65",
        op_count: 93,
        context_offset_bytes: 368,
        insertions: &[SINCE_59, SINCE_62, SINCE_64, SINCE_65],
    },
];

/// A layout: the names of the members, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpTable(Vec<&'static str>);

impl OpTable {
    /// The names of the members, in order.
    pub(super) fn names(&self) -> &[&'static str] {
        &self.0
    }
}

impl Release {
    /// The release with these version definitions, if it is known.
    pub(super) fn find(private_abi: u32, public_minor: u32) -> Option<&'static Self> {
        RELEASES
            .iter()
            .find(|r| r.private_abi == private_abi && r.public_minor == public_minor)
    }

    /// Its layout of `verbs_context_ops`.
    ///
    /// # Panics
    /// The data above contradicts itself, which the tests rule out.
    pub(super) fn op_table(&self) -> OpTable {
        let mut names = BASE.to_vec();
        for insertion in self.insertions.iter().copied().flatten() {
            let place = names.iter().position(|name| *name == insertion.before);
            names.insert(
                place.expect("every insertion names a member"),
                insertion.name,
            );
        }
        assert_eq!(
            names.len(),
            self.op_count,
            "table of rdma-core {}",
            self.rdma_core
        );
        OpTable(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::releases;
    use rstest::rstest;

    /// The pair of version definitions chooses the layout, and the layout is that of the release's debug information.
    #[test]
    fn every_row_is_the_layout_of_its_releases() {
        let layouts = releases::all();
        assert_eq!(layouts.len(), RELEASES.len(), "a column for each row");
        for layout in layouts {
            let (abi, minor) = (layout.private_abi, layout.public_minor);
            let row = Release::find(abi, minor).unwrap_or_else(|| panic!("no row {abi}-1.{minor}"));
            let members = layout.members_of("verbs_context_ops");
            let names: Vec<&str> = members.iter().map(|&(name, _)| name).collect();
            assert_eq!(row.op_table().names(), names, "{abi}-1.{minor}");
            let offsets = members.iter().map(|&(_, offset)| offset);
            assert!(offsets.eq((0..names.len()).map(|place| place * 8)));
            assert_eq!(
                row.context_offset_bytes, layout.bytes["verbs_context.context"],
                "{abi}-1.{minor}"
            );
        }
    }

    #[rstest]
    #[case(34, 14, 76)]
    #[case(57, 14, 76)]
    #[case(59, 15, 79)]
    #[case(59, 16, 81)]
    #[case(64, 17, 83)]
    #[case(65, 18, 93)]
    fn every_release_has_its_number_of_ops_in_alphabetical_order(
        #[case] private_abi: u32,
        #[case] public_minor: u32,
        #[case] count: usize,
    ) {
        let table = Release::find(private_abi, public_minor)
            .expect("known")
            .op_table();
        assert_eq!(table.names().len(), count);
        // rdma-core keeps the structure sorted; an insertion in the wrong place would show.
        assert!(table.names().is_sorted(), "{:?}", table.names());
        let mut unique = table.names().to_vec();
        unique.dedup();
        assert_eq!(unique.len(), count);
    }

    #[rstest]
    #[case(34, 14, "alloc_dm", "alloc_mw")]
    #[case(59, 15, "alloc_dm", "alloc_dmah")]
    #[case(59, 15, "reg_mr", "reg_mr_ex")]
    #[case(59, 16, "detach_mcast", "dm_export_dmabuf_fd")]
    #[case(59, 16, "query_port", "query_port_speed")]
    #[case(64, 17, "advise_mr", "alloc_buf")]
    #[case(64, 17, "dm_export_dmabuf_fd", "free_buf")]
    #[case(65, 18, "create_ah", "create_comp_cntr")]
    #[case(65, 18, "import_pd", "inc_comp_cntr")]
    #[case(65, 18, "inc_err_comp_cntr", "modify_cq")]
    #[case(65, 18, "read_counters", "read_err_comp_cntr")]
    #[case(65, 18, "set_ece", "set_err_comp_cntr")]
    fn neighbours(
        #[case] private_abi: u32,
        #[case] public_minor: u32,
        #[case] first: &str,
        #[case] second: &str,
    ) {
        let table = Release::find(private_abi, public_minor)
            .expect("known")
            .op_table();
        let place = table
            .names()
            .iter()
            .position(|name| *name == first)
            .expect(first);
        assert_eq!(table.names()[place + 1], second);
    }

    /// Places that can be read off the debug information of rdma-core 44: offset / 8.
    #[rstest]
    #[case("create_qp", 152)]
    #[case("free_context", 312)]
    #[case("poll_cq", 424)]
    #[case("query_device_ex", 464)]
    #[case("query_port", 480)]
    #[case("set_ece", 576)]
    #[case("unimport_pd", 600)]
    fn places_in_rdma_core_44(#[case] name: &str, #[case] offset_bytes: usize) {
        let table = Release::find(34, 14).expect("known").op_table();
        assert_eq!(table.names()[offset_bytes / 8], name);
    }

    #[test]
    fn unknown_pairs_are_not_guessed() {
        for pair in [
            (34, 13),
            (34, 15),
            (33, 14),
            (59, 14),
            (64, 16),
            (66, 18),
            (0, 0),
        ] {
            assert!(Release::find(pair.0, pair.1).is_none(), "{pair:?}");
        }
    }
}
