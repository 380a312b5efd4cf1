/* What the scale_*.c programs share: many queue pairs, each with a counterpart on the other side, exchange data both ways: an
 * unsignaled WRITE, a SEND with immediate and a READ each. Every byte, the bytes between, and every field of every completion
 * are looked at. */
#ifndef SCALE_EXCHANGE_H
#define SCALE_EXCHANGE_H
#include "scale_usage.h"

enum { SLOT = 2048, PARTS = 4, DEPTH = 4, BLANK = 0xEE, MOST_BYTES = SLOT - 64, PER_QP = 3 };
enum part { SOURCE, TARGET, RECEIVED, READ_BACK };
/* `base`: where its parts begin. */
struct peer { struct qp_address address; uint64_t base; uint32_t rkey; };
/* `id` is the same on both sides, and names the content of what is exchanged. */
struct pair { struct ibv_qp *qp; struct peer peer; uint32_t qpn, id; int sent, received; };

static const struct qp_options OPTIONS = { .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1, .rd_atomic = 4 };
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct pair *pairs;
static uint8_t *buffer;
/* `to_other`: the other side, or who speaks to it for us. */
static int side, to_other;
static uint32_t generation;
static unsigned long messages;

static uint8_t *part(int at, enum part which) { return buffer + ((size_t)at * PARTS + which) * SLOT; }

static uint32_t mix(uint32_t x)
{
	x = (x ^ x >> 16) * 0x7feb352d;
	x = (x ^ x >> 15) * 0x846ca68b;
	return x ^ x >> 16;
}

/* What side `from` sends on pair `at` in this generation. */
static uint32_t seed(int from, int at) { return mix(generation * 4 + from) + pairs[at].id * 0x9e3779b9; }
static uint32_t length(int from, int at, uint32_t salt) { return 1 + mix(seed(from, at) + salt) % MOST_BYTES; }
static uint8_t byte(uint32_t seed, uint32_t i) { return mix(seed + (i >> 2)) >> 8 * (i & 3); }

static void look(const uint8_t *p, uint32_t bytes, int from, int at, const char *what)
{
	uint32_t s = seed(from, at);

	for (uint32_t i = 0; i < SLOT; i++) {
		uint8_t wanted = i < bytes ? byte(s, i) : BLANK;

		CHECK(p[i] == wanted, "%s of pair %d, generation %u: byte %u of %u is %02x, wanted %02x", what, at, generation, i, bytes, p[i],
		      wanted);
	}
}

static struct ibv_sge piece(int at, enum part which, uint32_t bytes)
{
	return (struct ibv_sge){ .addr = (uintptr_t)part(at, which), .length = bytes, .lkey = mr->lkey };
}

static void barrier(char what)
{
	char got;

	tcp_write(to_other, &what, 1);
	tcp_read(to_other, &got, 1);
	CHECK(got == what, "out of step: '%c' here, '%c' there", what, got);
}

static void create(int at, uint32_t id)
{
	struct ibv_qp_cap cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 };

	pairs[at] = (struct pair){ .qp = qp_create(pd, cq, cap, false), .id = id };
	pairs[at].qpn = pairs[at].qp->qp_num;
}

/* From RESET to RTS with the other side's queue pairs of the same places, the first receives posted. */
static void connect_all(int count)
{
	struct peer *mine = calloc(count, sizeof *mine), *theirs = calloc(count, sizeof *theirs);

	for (int at = 0; at < count; at++)
		mine[at] = (struct peer){ qp_address_of(pairs[at].qp, mix(generation + at) & 0xffffff), (uintptr_t)part(at, SOURCE), mr->rkey };
	tcp_write(to_other, mine, count * sizeof *mine);
	tcp_read(to_other, theirs, count * sizeof *theirs);
	for (int at = 0; at < count; at++) {
		pairs[at].peer = theirs[at];
		qp_init(pairs[at].qp);
		int e = post_receive(pairs[at].qp, at, piece(at, RECEIVED, SLOT));
		CHECK(!e, "ibv_post_recv: %s", strerror(e));
		qp_connect(pairs[at].qp, &mine[at].address, &theirs[at].address, &OPTIONS);
	}
	free(mine);
	free(theirs);
}

static void prepare(int at)
{
	uint32_t s = seed(side, at);

	for (uint32_t i = 0; i < SLOT; i++)
		part(at, SOURCE)[i] = byte(s, i);
	memset(part(at, TARGET), BLANK, (PARTS - 1) * SLOT);
	pairs[at].sent = pairs[at].received = 0;
}

static void post(int at)
{
	struct pair *p = &pairs[at];
	struct request write = { .opcode = IBV_WR_RDMA_WRITE, .id = at, .local = piece(at, SOURCE, length(side, at, 1)),
		.remote = p->peer.base + TARGET * SLOT, .rkey = p->peer.rkey };
	struct request send = { .opcode = IBV_WR_SEND_WITH_IMM, .id = at, .flags = IBV_SEND_SIGNALED, .imm = htonl(seed(side, at)),
		.local = piece(at, SOURCE, length(side, at, 2)) };
	struct request read = { .opcode = IBV_WR_RDMA_READ, .id = at, .flags = IBV_SEND_SIGNALED,
		.local = piece(at, READ_BACK, length(!side, at, 3)), .remote = p->peer.base + SOURCE * SLOT, .rkey = p->peer.rkey };

	for (int i = 0; i < PER_QP; i++) {
		int e = post_request(p->qp, i == 0 ? &write : i == 1 ? &send : &read);
		CHECK(!e, "ibv_post_send on pair %d: %s", at, strerror(e));
	}
}

static void take(const struct ibv_wc *wc, int count)
{
	CHECK(wc->wr_id < (uint64_t)count, "completion of pair %lu of %d", wc->wr_id, count);
	int at = wc->wr_id;
	struct pair *p = &pairs[at];

	CHECK(wc->status == IBV_WC_SUCCESS && !wc->vendor_err, "pair %d, generation %u, opcode %d: %s, vendor_err %u", at, generation, wc->opcode,
	      ibv_wc_status_str(wc->status), wc->vendor_err);
	CHECK(wc->qp_num == p->qpn, "pair %d: qp_num %#x, wanted %#x", at, wc->qp_num, p->qpn);
	if (wc->opcode & IBV_WC_RECV) {
		CHECK(wc->opcode == IBV_WC_RECV && wc->wc_flags == IBV_WC_WITH_IMM && wc->src_qp == p->peer.address.qpn && !p->received++ &&
		      wc->byte_len == length(!side, at, 2) && ntohl(wc->imm_data) == seed(!side, at),
		      "receive of pair %d: opcode %d, flags %#x, from %#x, %u bytes, immediate %#x", at, wc->opcode, wc->wc_flags, wc->src_qp,
		      wc->byte_len, ntohl(wc->imm_data));
		/* the WRITE before it is in place */
		look(part(at, TARGET), length(!side, at, 1), !side, at, "the WRITE");
		look(part(at, RECEIVED), wc->byte_len, !side, at, "the SEND");
		return;
	}
	CHECK(!wc->wc_flags && wc->opcode == (p->sent ? IBV_WC_RDMA_READ : IBV_WC_SEND), "completion %d of pair %d: opcode %d, flags %#x", p->sent,
	      at, wc->opcode, wc->wc_flags);
	if (p->sent++) {
		CHECK(wc->byte_len == length(!side, at, 3), "READ of pair %d: %u bytes", at, wc->byte_len);
		look(part(at, READ_BACK), wc->byte_len, !side, at, "the READ");
	}
}

/* All pairs exchange one of each; at the end both sides have seen everything. */
static void exchange(int count)
{
	int left = count * PER_QP;
	double end = now_s() + 60;
	struct ibv_wc wc[64];

	for (int at = 0; at < count; at++)
		prepare(at);
	barrier('p');
	for (int at = 0; at < count; at++)
		post(at);
	while (left) {
		int n = ibv_poll_cq(cq, 64, wc);

		CHECK(n >= 0 && n <= left, "ibv_poll_cq: %d with %d to come", n, left);
		for (int i = 0; i < n; i++)
			take(&wc[i], count);
		left -= n;
		if (n)
			end = now_s() + 60;
		CHECK(now_s() < end, "%d of %d completions are missing (generation %u)", left, count * PER_QP, generation);
	}
	messages += (unsigned long)count * PER_QP;
	barrier('x');
	CHECK(!ibv_poll_cq(cq, 1, wc), "one completion too many: wr_id %lu", wc->wr_id);
	generation++;
}

/* The device and everything that `count` queue pairs need. */
static void open_for(const char *device, int count)
{
	size_t bytes = (size_t)count * PARTS * SLOT;

	context = open_named(device);
	CHECK((pd = ibv_alloc_pd(context)), "ibv_alloc_pd: %m");
	CHECK((cq = ibv_create_cq(context, count * (PER_QP + 1), NULL, NULL, 0)), "ibv_create_cq: %m");
	buffer = memory(bytes);
	CHECK((mr = ibv_reg_mr(pd, buffer, bytes, IBV_ACCESS_LOCAL_WRITE | REMOTE_RIGHTS)), "ibv_reg_mr: %m");
	CHECK((pairs = calloc(count, sizeof *pairs)), "memory");
}

static void close_all(void)
{
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "clean-up");
}

static void destroy_all(int count)
{
	for (int at = 0; at < count; at++) {
		int e = ibv_destroy_qp(pairs[at].qp);
		CHECK(!e, "ibv_destroy_qp: %s", strerror(e));
	}
}

static void receive_again(int count)
{
	for (int at = 0; at < count; at++) {
		int e = post_receive(pairs[at].qp, at, piece(at, RECEIVED, SLOT));
		CHECK(!e, "ibv_post_recv: %s", strerror(e));
	}
}
#endif
