/* What the scale_*.c programs of one process share: two queue pairs of a context that are connected to each other, and messages
 * between them of which every byte and every field of every completion is looked at. Any thread may have its own. */
#ifndef SCALE_LOCAL_H
#define SCALE_LOCAL_H
#include "scale_usage.h"

enum { LOCAL_BYTES = 3000, LOCAL_DEPTH = 4 };

struct local {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp[2];
	uint8_t *bytes;		/* what is sent, then what is received */
	uint32_t number;
};

static const struct qp_options LOCAL_OPTIONS = { .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1, .rd_atomic = 1 };
static const struct ibv_qp_cap LOCAL_CAP = { .max_send_wr = LOCAL_DEPTH, .max_recv_wr = LOCAL_DEPTH, .max_send_sge = 1, .max_recv_sge = 1 };

/* Everything on an open context but queue pairs. */
static inline struct local local_without_qps(struct ibv_context *context)
{
	struct local l = { .context = context, .bytes = memory(2 * LOCAL_BYTES) };

	CHECK((l.pd = ibv_alloc_pd(context)), "ibv_alloc_pd: %m");
	CHECK((l.cq = ibv_create_cq(context, 4 * LOCAL_DEPTH, NULL, NULL, 0)), "ibv_create_cq: %m");
	CHECK((l.mr = ibv_reg_mr(l.pd, l.bytes, 2 * LOCAL_BYTES, IBV_ACCESS_LOCAL_WRITE)), "ibv_reg_mr: %m");
	return l;
}

static inline void local_connect(struct local *l)
{
	for (int i = 0; i < 2; i++)
		l->qp[i] = qp_create(l->pd, l->cq, LOCAL_CAP, true);
	qp_connect_both(l->qp[0], l->qp[1], &LOCAL_OPTIONS);
}

static inline struct local local_make(struct ibv_context *context)
{
	struct local l = local_without_qps(context);

	local_connect(&l);
	return l;
}

/* One message from queue pair `from` to the other. */
static inline void local_message(struct local *l, int from)
{
	struct ibv_sge out = { (uintptr_t)l->bytes, LOCAL_BYTES, l->mr->lkey }, in = { (uintptr_t)l->bytes + LOCAL_BYTES, LOCAL_BYTES, l->mr->lkey };
	uint32_t number = l->number++, sent = l->qp[from]->qp_num, received = l->qp[!from]->qp_num;
	struct request r = { .opcode = IBV_WR_SEND_WITH_IMM, .id = number, .imm = htonl(number), .local = out };
	struct ibv_wc wc[2];
	int e, got[2] = { 0 };

	for (int i = 0; i < LOCAL_BYTES; i++) {
		l->bytes[i] = i * 31 + number * 7 + (i >> 8);
		l->bytes[LOCAL_BYTES + i] = ~l->bytes[i];
	}
	CHECK(!(e = post_receive(l->qp[!from], number, in)), "ibv_post_recv: %s", strerror(e));
	CHECK(!(e = post_request(l->qp[from], &r)), "ibv_post_send: %s", strerror(e));
	CHECK(poll_for(l->cq, wc, 2, 60) == 2, "message %u from %#x to %#x did not arrive", number, sent, received);
	for (int i = 0; i < 2; i++) {
		bool receive = wc[i].opcode & IBV_WC_RECV;

		CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == number && wc[i].qp_num == (receive ? received : sent) && !got[receive]++,
		      "message %u: opcode %d of %#x: %s", number, wc[i].opcode, wc[i].qp_num, ibv_wc_status_str(wc[i].status));
		CHECK(!receive || (wc[i].byte_len == LOCAL_BYTES && wc[i].src_qp == sent && wc[i].wc_flags == IBV_WC_WITH_IMM &&
				   ntohl(wc[i].imm_data) == number), "message %u: wrong receive completion", number);
	}
	CHECK(!memcmp(l->bytes, l->bytes + LOCAL_BYTES, LOCAL_BYTES), "message %u: wrong bytes", number);
}

static inline void local_messages(struct local *l, int count)
{
	for (int i = 0; i < count; i++)
		local_message(l, i & 1);
}

/* The end of everything. */
static inline void local_end(struct local *l)
{
	CHECK(!l->qp[0] || (!ibv_destroy_qp(l->qp[0]) && !ibv_destroy_qp(l->qp[1])), "ibv_destroy_qp");
	CHECK(!ibv_dereg_mr(l->mr) && !ibv_destroy_cq(l->cq) && !ibv_dealloc_pd(l->pd), "clean-up");
	munmap(l->bytes, 2 * LOCAL_BYTES);
}
#endif
