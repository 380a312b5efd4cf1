/* The contract of verbs, call by call, over stock libibverbs: arguments and errno, states, regions, every operation with
 * the fields of its completions, full queues. Two queue pairs of one process talk to each other.
 *
 *   verbs_contract [-d DEVICE] [TOPIC]
 *
 * The topics are listed at the end; the last line is OK if no expectation failed. Errors and events: verbs_events.c. */
#include "verbs_expect.h"

/* ---- arguments and errno ---- */

static void completion_queues(void)
{
	static const struct { const char *what; int entries, vector; } refused[] = {
		{ "CQ of 0 entries", 0, 0 }, { "CQ of -5 entries", -5, 0 }, { "CQ of 2^30 entries", 1 << 30, 0 },
		{ "completion vector 1", 10, 1 }, { "completion vector -1", 10, -1 } };
	int cookie;

	for (size_t i = 0; i < COUNT(refused); i++)
		expect_errno(refused[i].what, ERRNO_OF(ibv_create_cq(context, refused[i].entries, NULL, NULL, refused[i].vector)), EINVAL);
	struct ibv_cq *cq = ibv_create_cq(context, 10, &cookie, NULL, 0);
	CHECK(cq, "ibv_create_cq: %m");
	EXPECT(cq->cqe >= 10 && cq->cq_context == &cookie, "a CQ of 10 entries has %d", cq->cqe);
	expect_errno("ibv_resize_cq to 100", ibv_resize_cq(cq, 100), 0);
	EXPECT(cq->cqe >= 100, "a CQ that was resized to 100 entries has %d", cq->cqe);
	expect_errno("ibv_resize_cq to 0", ibv_resize_cq(cq, 0), EINVAL);
	expect_errno("ibv_destroy_cq", ibv_destroy_cq(cq), 0);
}

/* What users complain about: "only 339 QPs a process", "inline sizes that surprise": exact EINVAL beyond the limits, the grant is told. */
static void queue_pairs(void)
{
	static const struct { const char *what; int type; struct ibv_qp_cap cap; int error; } refused[] = {
		{ "type UC", IBV_QPT_UC, { 1, 1, 1, 1, 0 }, EOPNOTSUPP }, { "type UD", IBV_QPT_UD, { 1, 1, 1, 1, 0 }, EOPNOTSUPP },
		{ "type 77", 77, { 1, 1, 1, 1, 0 }, EINVAL }, { "2^20 sends", IBV_QPT_RC, { 1 << 20, 1, 1, 1, 0 }, EINVAL },
		{ "2^20 receives", IBV_QPT_RC, { 1, 1 << 20, 1, 1, 0 }, EINVAL }, { "1000 pieces", IBV_QPT_RC, { 1, 1, 1000, 1, 0 }, EINVAL },
		{ "1000 pieces of a receive", IBV_QPT_RC, { 1, 1, 1, 1000, 0 }, EINVAL },
		{ "1 MiB inline", IBV_QPT_RC, { 1, 1, 1, 1, 1 << 20 }, EINVAL } };
	struct end e = end_create(NULL);
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr init;

	for (size_t i = 0; i < COUNT(refused); i++) {
		init = (struct ibv_qp_init_attr){ .send_cq = e.cq, .recv_cq = e.cq, .qp_type = refused[i].type, .cap = refused[i].cap };
		expect_errno(refused[i].what, ERRNO_OF(ibv_create_qp(pd, &init)), refused[i].error);
	}
	expect_errno("ibv_dealloc_pd with a QP in it", ibv_dealloc_pd(pd), EBUSY);
	expect_errno("ibv_destroy_cq with a QP at it", ibv_destroy_cq(e.cq), EBUSY);
	expect_errno("ibv_query_qp", ibv_query_qp(e.qp, &attributes, IBV_QP_STATE | IBV_QP_CAP, &init), 0);
	EXPECT(attributes.qp_state == IBV_QPS_RESET && attributes.cap.max_send_wr >= DEPTH && attributes.cap.max_inline_data >= 220 &&
	       init.send_cq == e.cq && init.qp_type == IBV_QPT_RC, "ibv_query_qp does not say what the new QP is");
	end_destroy(e);
}

/* What this device does not have must be refused with the number by which programs recognise that. */
static void missing_features(void)
{
	struct end e = end_create(NULL);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_cq_init_attr_ex cq = { .cqe = 10 };
	struct ibv_qp_init_attr_ex qp = { .send_cq = e.cq, .recv_cq = e.cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE };
	struct ibv_ece ece = { 0 };

	expect_errno("ibv_query_ece", ibv_query_ece(e.qp, &ece), EOPNOTSUPP);
	expect_errno("ibv_set_ece", ibv_set_ece(e.qp, &ece), EOPNOTSUPP);
	expect_errno("ibv_reg_dmabuf_mr", ERRNO_OF(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE)), EOPNOTSUPP);
	expect_errno("ibv_create_srq", ERRNO_OF(ibv_create_srq(pd, &srq)), EOPNOTSUPP);
	expect_errno("ibv_alloc_mw", ERRNO_OF(ibv_alloc_mw(pd, IBV_MW_TYPE_1)), EOPNOTSUPP);
	expect_errno("ibv_create_cq_ex", ERRNO_OF(ibv_create_cq_ex(context, &cq)), EOPNOTSUPP);
	expect_errno("ibv_create_qp_ex with send operations", ERRNO_OF(ibv_create_qp_ex(context, &qp)), EOPNOTSUPP);
	qp.comp_mask = IBV_QP_INIT_ATTR_PD;
	struct ibv_qp *plain = ibv_create_qp_ex(context, &qp);
	CHECK(plain, "ibv_create_qp_ex without extensions: %m");
	EXPECT(!ibv_qp_to_qp_ex(plain), "a plain QP has the extended interface");
	expect_errno("ibv_destroy_qp", ibv_destroy_qp(plain), 0);
	end_destroy(e);
}

/* Every refused change leaves the state as it was, and the right one works afterwards. */
static void transitions(void)
{
#define SET(member, number) 0, 0, offsetof(struct ibv_qp_attr, member), sizeof((struct ibv_qp_attr *)0)->member, number
#define MASK(without, with) without, with, 0, 0, 0
	static const struct {
		const char *what; enum ibv_qp_state from, to; int without, with; size_t offset, bytes; uint64_t number;
	} refused[] = {
		{ "RESET to INIT without a port", IBV_QPS_RESET, IBV_QPS_INIT, MASK(IBV_QP_PORT, 0) },
		{ "RESET to INIT with a timeout", IBV_QPS_RESET, IBV_QPS_INIT, MASK(0, IBV_QP_TIMEOUT) },
		{ "RESET to INIT on port 2", IBV_QPS_RESET, IBV_QPS_INIT, SET(port_num, 2) },
		{ "RESET to INIT with P_Key 1", IBV_QPS_RESET, IBV_QPS_INIT, SET(pkey_index, 1) },
		{ "RESET to INIT with unknown rights", IBV_QPS_RESET, IBV_QPS_INIT, SET(qp_access_flags, 1u << 31) },
		{ "RESET to RTR", IBV_QPS_RESET, IBV_QPS_RTR, MASK(0, 0) }, { "RESET to RTS", IBV_QPS_RESET, IBV_QPS_RTS, MASK(0, 0) },
		{ "RESET to ERR", IBV_QPS_RESET, IBV_QPS_ERR, MASK(0, 0) }, { "INIT to RTS", IBV_QPS_INIT, IBV_QPS_RTS, MASK(0, 0) },
		{ "RESET to state 9", IBV_QPS_RESET, IBV_QPS_INIT, SET(qp_state, 9) },
		{ "INIT to RTR without an address", IBV_QPS_INIT, IBV_QPS_RTR, MASK(IBV_QP_AV, 0) },
		{ "INIT to RTR without a GRH", IBV_QPS_INIT, IBV_QPS_RTR, SET(ah_attr.is_global, 0) },
		{ "INIT to RTR from GID 200", IBV_QPS_INIT, IBV_QPS_RTR, SET(ah_attr.grh.sgid_index, 200) },
		{ "INIT to RTR with MTU 0", IBV_QPS_INIT, IBV_QPS_RTR, SET(path_mtu, 0) },
		{ "INIT to RTR with MTU 6", IBV_QPS_INIT, IBV_QPS_RTR, SET(path_mtu, 6) },
		{ "INIT to RTR with RNR timer 32", IBV_QPS_INIT, IBV_QPS_RTR, SET(min_rnr_timer, 32) },
		{ "INIT to RTR with 255 READs", IBV_QPS_INIT, IBV_QPS_RTR, SET(max_dest_rd_atomic, 255) },
		{ "RTR to RTS without a PSN", IBV_QPS_RTR, IBV_QPS_RTS, MASK(IBV_QP_SQ_PSN, 0) },
		{ "RTR to RTS with timeout 32", IBV_QPS_RTR, IBV_QPS_RTS, SET(timeout, 32) },
		{ "RTR to RTS with 8 retries", IBV_QPS_RTR, IBV_QPS_RTS, SET(retry_cnt, 8) },
		{ "RTR to RTS with 8 RNR retries", IBV_QPS_RTR, IBV_QPS_RTS, SET(rnr_retry, 8) },
		{ "RTR to RTS with 255 READs", IBV_QPS_RTR, IBV_QPS_RTS, SET(max_rd_atomic, 255) },
		{ "RTR to INIT", IBV_QPS_RTR, IBV_QPS_INIT, MASK(0, 0) } };
	struct end e = end_create(NULL);
	struct qp_address self = qp_address_of(e.qp, 0xabcdef);
	struct ibv_qp_attr steps[] = { [IBV_QPS_INIT] = init_attributes(), [IBV_QPS_RTR] = rtr_attributes(&self, &OPTIONS),
		[IBV_QPS_RTS] = rts_attributes(&self, &OPTIONS), [IBV_QPS_ERR] = { .qp_state = IBV_QPS_ERR } }, a;
	const int masks[] = { [IBV_QPS_INIT] = INIT_MASK, [IBV_QPS_RTR] = RTR_MASK, [IBV_QPS_RTS] = RTS_MASK, [IBV_QPS_ERR] = IBV_QP_STATE };
	struct ibv_qp_init_attr init;

	for (enum ibv_qp_state state = IBV_QPS_RESET; state < IBV_QPS_RTS; state++) {
		for (size_t i = 0; i < COUNT(refused); i++) {
			if (refused[i].from != state)
				continue;
			a = steps[refused[i].to];
			memcpy((char *)&a + refused[i].offset, &refused[i].number, refused[i].bytes);
			expect_errno(refused[i].what, ibv_modify_qp(e.qp, &a, (masks[refused[i].to] & ~refused[i].without) | refused[i].with), EINVAL);
			expect_state(refused[i].what, e.qp, state);
		}
		expect_errno("a send before RTS", write_8(e.qp, 1, 0), EINVAL);
		expect_errno("a receive in RESET, INIT, RTR", receive_8(e.qp, 1), state == IBV_QPS_RESET ? EINVAL : 0);
		modify(e.qp, steps[state + 1], masks[state + 1], "the next state");
	}
	expect_errno("ibv_query_qp", ibv_query_qp(e.qp, &a, RTR_MASK | RTS_MASK, &init), 0);
	EXPECT(a.qp_state == IBV_QPS_RTS && a.timeout == 14 && a.retry_cnt == 7 && a.rnr_retry == 7 && a.min_rnr_timer == 12 &&
	       a.path_mtu == IBV_MTU_4096 && a.rq_psn == 0xabcdef && a.sq_psn == 0xabcdef && a.dest_qp_num == e.qp->qp_num &&
	       a.max_rd_atomic == 4 && a.max_dest_rd_atomic == 4 && a.qp_access_flags == REMOTE_RIGHTS && a.ah_attr.is_global &&
	       !memcmp(&a.ah_attr.grh.dgid, &self.gid, sizeof self.gid), "ibv_query_qp does not return what was set");
	end_destroy(e);
}

static void memory_regions(void)
{
	uint8_t *read_only = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const struct { const char *what; void *at; size_t length; int access, error; } cases[] = {
		{ "remote write without local write", source.bytes, 4096, IBV_ACCESS_REMOTE_WRITE, EINVAL },
		{ "remote atomic without local write", source.bytes, 4096, IBV_ACCESS_REMOTE_ATOMIC, EINVAL },
		{ "unknown rights", source.bytes, 4096, 1 << 8, EINVAL }, { "a range that wraps", source.bytes, -1, 0, EINVAL },
		{ "on-demand paging", source.bytes, 4096, IBV_ACCESS_ON_DEMAND, EOPNOTSUPP },
		{ "memory that is not mapped", (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE, EFAULT },
		{ "local write to read-only memory", read_only, 4096, IBV_ACCESS_LOCAL_WRITE, EFAULT },
		{ "read-only memory", read_only, 4096, IBV_ACCESS_REMOTE_READ, 0 },
		{ "a region of length 0", source.bytes, 0, IBV_ACCESS_LOCAL_WRITE, 0 } };
	struct ibv_ah_attr paths[] = { { .port_num = 1, .is_global = 1 }, { .port_num = 1 }, { .port_num = 2, .is_global = 1 },
		{ .port_num = 1, .is_global = 1, .grh.sgid_index = 200 } };

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ibv_mr *mr = NULL;

		expect_errno(cases[i].what, ERRNO_OF(mr = ibv_reg_mr(pd, cases[i].at, cases[i].length, cases[i].access)), cases[i].error);
		EXPECT(!mr || !ibv_dereg_mr(mr), "%s: ibv_dereg_mr", cases[i].what);
	}
	expect_errno("ibv_dealloc_pd with a region in it", ibv_dealloc_pd(other_pd), EBUSY);
	for (size_t i = 0; i < COUNT(paths); i++) {
		struct ibv_ah *ah = NULL;

		CHECK(!ibv_query_gid(context, 1, 0, &paths[i].grh.dgid), "ibv_query_gid");
		expect_errno("address handle: right, no GRH, port 2, GID 200", ERRNO_OF(ah = ibv_create_ah(pd, &paths[i])), i ? EINVAL : 0);
		EXPECT(!ah || !ibv_destroy_ah(ah), "ibv_destroy_ah");
	}
	munmap(read_only, 4096);
}

static void work_requests(void)
{
	static const struct { const char *what; int opcode; unsigned flags; int pieces; uint32_t bytes; int error; } refused[] = {
		{ "opcode 0x77", 0x77, 0, 1, 8, EINVAL }, { "unknown flag", IBV_WR_SEND, 1 << 20, 1, 8, EINVAL },
		{ "3 pieces", IBV_WR_SEND, 0, 3, 8, EINVAL }, { "-1 pieces", IBV_WR_SEND, 0, -1, 8, EINVAL },
		{ "inline READ", IBV_WR_RDMA_READ, IBV_SEND_INLINE, 1, 8, EINVAL }, { "4 KiB inline", IBV_WR_SEND, IBV_SEND_INLINE, 1, 4096, EINVAL },
		{ "atomic on 4 bytes", IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1, 4, EINVAL }, { "atomic into 2 pieces", IBV_WR_ATOMIC_CMP_AND_SWP, 0, 2, 4, EINVAL },
		{ "SEND_WITH_INV", IBV_WR_SEND_WITH_INV, 0, 1, 8, EOPNOTSUPP }, { "LOCAL_INV", IBV_WR_LOCAL_INV, 0, 0, 0, EOPNOTSUPP },
		{ "BIND_MW", IBV_WR_BIND_MW, 0, 0, 0, EOPNOTSUPP } };
	struct pair p = pair_create(&OPTIONS);

	for (size_t i = 0; i < COUNT(refused); i++) {
		struct ibv_sge pieces[3] = { part(&source, 0, refused[i].bytes), part(&source, 64, refused[i].bytes), part(&source, 128, 8) };
		struct ibv_send_wr list[3], *bad = NULL;

		/* the first of the list is posted, the second refused, the third not looked at */
		for (int k = 0; k < 3; k++)
			list[k] = (struct ibv_send_wr){ .wr_id = k, .next = k < 2 ? &list[k + 1] : NULL, .sg_list = pieces, .num_sge = 1,
				.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { target.base, target.key } };
		list[1].opcode = refused[i].opcode;
		list[1].send_flags = refused[i].flags;
		list[1].num_sge = refused[i].pieces;
		expect_errno(refused[i].what, ibv_post_send(p.a.qp, list, &bad), refused[i].error);
		EXPECT(bad == &list[1], "%s: expected bad_wr to be the second request, got number %ld", refused[i].what, bad ? bad - list : -1);
		expect_done(refused[i].what, &p.a, 0, IBV_WC_RDMA_WRITE);
	}
	struct ibv_sge pieces[3] = { part(&source, 0, 8), part(&source, 64, 8), part(&source, 128, 8) };
	struct ibv_recv_wr receive = { .sg_list = pieces, .num_sge = 3 }, *bad = NULL;
	expect_errno("a receive of 3 pieces", ibv_post_recv(p.a.qp, &receive, &bad), EINVAL);
	EXPECT(bad == &receive, "a receive of 3 pieces: bad_wr is not set");
	expect_nothing("after the refused requests", &p.a, QUIET_S);
	expect_works("after the refused requests", &p);
	pair_destroy(p);
}

/* ---- what requests do, and when there is room for them ---- */

enum { CONSUMES = 1, READS = 2, OFFSET = 64, UNTOUCHED = 0xee };

static const struct operation {
	const char *name; enum ibv_wr_opcode opcode; unsigned flags; uint32_t bytes; const struct region *remote;
	enum ibv_wc_opcode done, received; int kind; } operations[] = {
	{ "SEND", IBV_WR_SEND, 0, 20000, &target, IBV_WC_SEND, IBV_WC_RECV, CONSUMES },
	{ "inline SEND", IBV_WR_SEND, IBV_SEND_INLINE, 220, &target, IBV_WC_SEND, IBV_WC_RECV, CONSUMES },
	{ "empty SEND", IBV_WR_SEND, IBV_SEND_SOLICITED, 0, &target, IBV_WC_SEND, IBV_WC_RECV, CONSUMES },
	{ "SEND_WITH_IMM", IBV_WR_SEND_WITH_IMM, 0, 100, &target, IBV_WC_SEND, IBV_WC_RECV, CONSUMES },
	{ "WRITE", IBV_WR_RDMA_WRITE, 0, 20000, &target, IBV_WC_RDMA_WRITE, 0, 0 },
	{ "WRITE by iova", IBV_WR_RDMA_WRITE, 0, 100, &shifted, IBV_WC_RDMA_WRITE, 0, 0 },
	{ "inline WRITE", IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 220, &target, IBV_WC_RDMA_WRITE, 0, 0 },
	{ "empty WRITE to a stale key", IBV_WR_RDMA_WRITE, 0, 0, &stale, IBV_WC_RDMA_WRITE, 0, 0 },
	{ "WRITE_WITH_IMM", IBV_WR_RDMA_WRITE_WITH_IMM, 0, 100, &shifted, IBV_WC_RDMA_WRITE, IBV_WC_RECV_RDMA_WITH_IMM, CONSUMES },
	{ "empty WRITE_WITH_IMM", IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, &target, IBV_WC_RDMA_WRITE, IBV_WC_RECV_RDMA_WITH_IMM, CONSUMES },
	{ "READ", IBV_WR_RDMA_READ, 0, 20000, &target, IBV_WC_RDMA_READ, 0, READS },
	{ "fenced READ by iova", IBV_WR_RDMA_READ, IBV_SEND_FENCE, 64, &shifted, IBV_WC_RDMA_READ, 0, READS },
	{ "empty READ", IBV_WR_RDMA_READ, 0, 0, &target, IBV_WC_RDMA_READ, 0, READS },
};

static void run_operation(const struct pair *p, const struct operation *o, uint64_t id)
{
	bool send = o->opcode == IBV_WR_SEND || o->opcode == IBV_WR_SEND_WITH_IMM, imm = o->opcode == IBV_WR_SEND_WITH_IMM ||
		o->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	uint8_t *local = source.bytes, *remote = o->remote->bytes + OFFSET, *from = o->kind == READS ? remote : local,
		*into = o->kind == READS ? local : remote, expected[20000];

	for (uint32_t i = 0; i < o->bytes; i++)
		from[i] = expected[i] = i * 7 + (i >> 8) + id;
	memset(into, UNTOUCHED, o->bytes + 8);
	if (o->kind == CONSUMES)
		expect_errno(o->name, post_receive(p->b.qp, id + 1000, send ? part(&target, OFFSET, 30000) : (struct ibv_sge){ 0 }), 0);
	expect_errno(o->name, post_request(p->a.qp, &(struct request){ .id = id, .opcode = o->opcode, .flags = o->flags | IBV_SEND_SIGNALED,
		.local = part(&source, 0, o->bytes), .imm = htonl(0x12345678), .remote = o->remote->base + OFFSET, .rkey = o->remote->key }), 0);
	if (o->flags & IBV_SEND_INLINE)
		memset(from, 0, o->bytes);		/* inline bytes were taken while posting */
	expect_completion(o->name, &p->a, (struct ibv_wc){ .wr_id = id, .opcode = o->done, .byte_len = o->bytes });
	if (o->kind == CONSUMES)
		expect_completion(o->name, &p->b, (struct ibv_wc){ .wr_id = id + 1000, .opcode = o->received, .byte_len = o->bytes,
			.src_qp = p->a.qpn, .wc_flags = imm ? IBV_WC_WITH_IMM : 0, .imm_data = htonl(0x12345678) });
	EXPECT(!memcmp(into, expected, o->bytes), "%s: wrong bytes", o->name);
	EXPECT(o->remote == &stale || into[o->bytes] == UNTOUCHED, "%s: a byte behind the message was written", o->name);
}

/* What users complain about: "write-with-immediate returned EINVAL; writes over one MTU failed". */
static void all_operations(void)
{
	struct pair p = pair_create(&OPTIONS);

	for (size_t i = 0; i < COUNT(operations); i++)
		run_operation(&p, &operations[i], i);
	expect_nothing("completions of the requester", &p.a, QUIET_S);
	expect_nothing("completions of the responder", &p.b, 0);
	expect_events("all operations", &p, NO_EVENT, NO_EVENT);
	pair_destroy(p);
}

/* What users complain about: "memory windows and atomics missing". */
static void atomics(void)
{
	static const struct { const char *what; enum ibv_wr_opcode opcode; uint64_t operand, swap, found, after; } steps[] = {
		{ "compare and swap, equal", IBV_WR_ATOMIC_CMP_AND_SWP, 1, 5, 1, 5 },
		{ "compare and swap, different", IBV_WR_ATOMIC_CMP_AND_SWP, 1, 9, 5, 5 },
		{ "fetch and add", IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 5, 6 },
		{ "fetch and add of -7", IBV_WR_ATOMIC_FETCH_AND_ADD, -7ull, 0, 6, -1ull } };
	struct pair p = pair_create(&OPTIONS);
	uint64_t *word = (uint64_t *)(target.bytes + 8), *found = (uint64_t *)source.bytes;

	*word = 1;
	for (size_t i = 0; i < COUNT(steps); i++) {
		expect_errno(steps[i].what, post_request(p.a.qp, &(struct request){ .id = i, .opcode = steps[i].opcode, .flags = IBV_SEND_SIGNALED,
			.local = part(&source, 0, 8), .remote = target.base + 8, .rkey = target.key, .compare_add = steps[i].operand, .swap = steps[i].swap }), 0);
		expect_completion(steps[i].what, &p.a, (struct ibv_wc){ .wr_id = i, .byte_len = 8,
			.opcode = steps[i].opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD });
		expect_number(steps[i].what, "the old value", *found, steps[i].found);
		expect_number(steps[i].what, "the new value", *word, steps[i].after);
	}
	pair_destroy(p);
}

/* A request keeps its place until its completion, or that of a later signaled one, was polled. */
static void full_queues(void)
{
	struct pair p = pair_create(&OPTIONS);

	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < DEPTH; i++)
			expect_errno("a send while there is room", write_8(p.a.qp, i, i == DEPTH - 1 ? IBV_SEND_SIGNALED : 0), 0);
		expect_errno("a send to a full queue", write_8(p.a.qp, 50, 0), ENOMEM);
		expect_done("the signaled one of a full queue", &p.a, DEPTH - 1, IBV_WC_RDMA_WRITE);
		for (int i = 0; i < DEPTH; i++)
			expect_errno("a receive while there is room", receive_8(p.b.qp, i), 0);
		expect_errno("a receive to a full queue", receive_8(p.b.qp, 50), ENOMEM);
		for (int i = 0; i < DEPTH; i++)
			expect_errno("a send to posted receives", send_8(p.a.qp, i, IBV_SEND_SIGNALED), 0);
		for (int i = 0; i < DEPTH; i++)
			expect_done("sends of a full queue", &p.a, i, IBV_WC_SEND);
		expect_errno("a receive while completions are not polled", receive_8(p.b.qp, 50), ENOMEM);
		for (int i = 0; i < DEPTH; i++)
			expect_completion("receives of a full queue", &p.b, (struct ibv_wc){ .wr_id = i, .opcode = IBV_WC_RECV, .byte_len = 8,
				.src_qp = p.a.qpn });
	}
	pair_destroy(p);
}

static void expect_write(const char *what, const struct ibv_mr *mr, uint64_t remote, enum ibv_wc_status status)
{
	struct pair p = pair_create(&OPTIONS);
	bool good = status == IBV_WC_SUCCESS;

	memset(source.bytes, 0x5a, 8);
	memset((void *)remote, UNTOUCHED, 8);
	expect_errno(what, post_request(p.a.qp, &(struct request){ .id = 5, .opcode = IBV_WR_RDMA_WRITE, .flags = IBV_SEND_SIGNALED,
		.local = part(&source, 0, 8), .remote = remote, .rkey = mr->rkey }), 0);
	expect_completion(what, &p.a, (struct ibv_wc){ .wr_id = 5, .opcode = IBV_WC_RDMA_WRITE, .status = status });
	expect_number(what, "the last byte written", ((uint8_t *)remote)[7], good ? 0x5a : UNTOUCHED);
	expect_events(what, &p, good ? NO_EVENT : IBV_EVENT_QP_FATAL, good ? NO_EVENT : IBV_EVENT_QP_ACCESS_ERR);
	pair_destroy(p);
}

static void changed_regions(void)
{
	struct ibv_mr *mr = region_create(pd, 0, 0).mr;
	struct ibv_pd *third = ibv_alloc_pd(context);
	uint64_t old = (uintptr_t)mr->addr, new = (uintptr_t)memory(4096);

	expect_write("before it is changed", mr, old, IBV_WC_REM_ACCESS_ERR);
	expect_errno("changing rights", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_RIGHTS), 0);
	expect_write("after its rights changed", mr, old, IBV_WC_SUCCESS);
	EXPECT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE), "impossible rights are accepted");
	EXPECT(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), "a change of nothing is accepted");
	expect_write("after a change was refused", mr, old, IBV_WC_SUCCESS);
	expect_errno("changing memory", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)new, 100, 0), 0);
	EXPECT((uintptr_t)mr->addr == new && mr->length == 100, "a changed region tells addr %p, length %zu", mr->addr, mr->length);
	expect_write("after its memory changed", mr, new + 92, IBV_WC_SUCCESS);
	expect_write("beyond the changed memory", mr, new + 93, IBV_WC_REM_ACCESS_ERR);
	expect_write("its old memory", mr, old, IBV_WC_REM_ACCESS_ERR);
	expect_errno("changing the domain", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, third, NULL, 0, 0), 0);
	expect_write("from the old domain", mr, new, IBV_WC_REM_ACCESS_ERR);
	expect_errno("ibv_dealloc_pd of the region's new domain", ibv_dealloc_pd(third), EBUSY);
	expect_errno("ibv_dereg_mr", ibv_dereg_mr(mr), 0);
	expect_errno("ibv_dealloc_pd", ibv_dealloc_pd(third), 0);
}

static const struct topic topics[] = {
	{ "completion_queues", completion_queues }, { "queue_pairs", queue_pairs }, { "missing_features", missing_features },
	{ "transitions", transitions }, { "memory_regions", memory_regions }, { "work_requests", work_requests },
	{ "all_operations", all_operations }, { "atomics", atomics }, { "full_queues", full_queues }, { "changed_regions", changed_regions },
};

int main(int argc, char **argv)
{
	return run_topics(argc, argv, topics, COUNT(topics));
}
