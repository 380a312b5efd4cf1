/* Byte checker: a random mix of all RC operations between two processes over stock libibverbs; every byte, every
 * field of every completion and the order are checked.
 *
 *   byte_check -d DEVICE[,DEVICE…] [-s SERVER_IP] [-p TCP_PORT] [-q QPS] [-t SECONDS] [-r SEED] [-m MAX_BYTES] [-e]
 *
 * With several devices the queue pairs go round them, and each device has a completion queue of its own. SIGUSR1, sent to
 * both sides, ends the run before its time.
 *
 * Both sides derive the same plan from the seed: for every queue pair, direction and round the operations, their
 * sizes, offsets and scatter lists. The requester posts a whole round at once. Completions promise that the bytes
 * are in the target's memory: on the last one it says DONE over TCP, the target looks at every byte of its memory,
 * the gaps between the operations included, and answers OK, which starts the next round. A receive completion
 * promises that all earlier WRITEs of its queue pair are in place: the target looks at them at that very moment. */
#include "verbs_util.h"
#include <getopt.h>
#include <signal.h>

enum {
	MAX_QPS = 128, MAX_DEVICES = 8, MAX_OPS = 32, MAX_SGE = 30, SEND_WR = 64, RECV_WR = 64, INLINE_MAX = 200,
	ATOMIC_WORDS = 32, READ_SOURCE = 1 << 20, GUARD = 64,
};

enum kind { K_WRITE, K_WRITE_IMM, K_SEND, K_SEND_IMM, K_READ, K_READ_BACK, K_CAS, K_FAA, KINDS };
static const char *const kind_name[KINDS] = {
	"write", "write_imm", "send", "send_imm", "read", "read_back", "cas", "faa" };

struct op {
	enum kind kind;
	uint32_t bytes, imm;
	uint64_t local;			/* offset in the requester's buffer */
	uint64_t remote;		/* offset in the target's buffer (or read source, or atomic word) */
	uint64_t seed;			/* of the content */
	uint64_t operand[2];
	int nsge, recv_nsge, reads;	/* reads: index of the WRITE that a K_READ_BACK reads */
	uint32_t recv_slack;		/* bytes that the receive has besides */
	bool inlined, fence, signaled, solicited;
	uint64_t shape;			/* seed of the scatter list */
};

struct plan {
	int n;
	bool late_receives;
	uint64_t bytes;			/* of buffer that the round uses on each side */
	struct op op[MAX_OPS];
};

/* One direction of a queue pair, seen from either end. */
struct flow {
	uint32_t round;
	struct plan plan;
	bool active;
	int done, expected_recv, next_recv;
	double post_receives_at;
	uint64_t atomic[ATOMIC_WORDS];
};

struct device { struct ibv_context *context; struct ibv_pd *pd; struct ibv_comp_channel *channel; struct ibv_cq *cq; };

struct qp {
	struct device *device;
	struct ibv_qp *qp;
	struct ibv_mr *send_mr, *target_mr, *read_mr, *atomic_mr;
	uint8_t *send_buffer, *target_buffer, *read_buffer;
	uint64_t *atomic_buffer;
	uint64_t send_base, target_base, read_base, atomic_base;	/* addresses to put into work requests */
	struct flow out, in;
	struct { uint64_t target_base, read_base, atomic_base; uint32_t target_key, read_key, atomic_key; } peer;
	uint32_t peer_qpn;
};

struct hello {
	struct qp_address address;
	uint64_t target_base, read_base, atomic_base;
	uint32_t target_key, read_key, atomic_key, pad;
};

struct message { uint32_t type, qp, round, pad; };
enum { M_DONE = 1, M_OK, M_END };

static struct qp qps[MAX_QPS];
static struct device devices[MAX_DEVICES];
static int nqp = 8, ndevice, tcp, side;
static uint64_t base_seed = 1, buffer_bytes, max_bytes = 8 << 20;
static double seconds = 10, deadline, last_progress;
static bool use_events, we_end, peer_ends;
static volatile sig_atomic_t told;
static uint64_t count[KINDS], total_bytes, rounds, unsignaled;

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30; x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27; x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t draw(uint64_t *state) { return mix(*state += 0x9e3779b97f4a7c15ull); }
static uint64_t below(uint64_t *state, uint64_t n) { return draw(state) % n; }

static void fill(uint8_t *p, uint64_t n, uint64_t seed)
{
	uint64_t i = 0;

	for (; i + 8 <= n; i += 8) {
		uint64_t v = (seed + i) * 0x9e3779b97f4a7c15ull;
		v ^= v >> 29;
		memcpy(p + i, &v, 8);
	}
	uint64_t v = (seed + i) * 0x9e3779b97f4a7c15ull;
	v ^= v >> 29;
	memcpy(p + i, &v, n - i);
}

static void verify(const uint8_t *p, uint64_t from, uint64_t n, uint64_t seed, const char *what, int q, uint32_t round, int op)
{
	for (uint64_t i = from & ~7ull; i < n; i += 8) {
		uint64_t v = (seed + i) * 0x9e3779b97f4a7c15ull, got = 0, len = n - i < 8 ? n - i : 8;
		v ^= v >> 29;
		memcpy(&got, p + i, len);
		if (memcmp(&got, &v, len))
			die("MISMATCH %s qp %d round %u op %d at byte %lu of %lu: %016lx instead of %016lx",
			    what, q, round, op, i, n, got, v);
	}
}

static void verify_untouched(const uint8_t *p, uint64_t n, int q, uint32_t round, uint64_t at)
{
	for (uint64_t i = 0; i < n; i++)
		if (p[i] != 0xEE)
			die("MISMATCH qp %d round %u: byte %lu outside of every operation was written (%02x)", q, round, at + i, p[i]);
}

static uint32_t random_size(uint64_t *s)
{
	switch (below(s, 12)) {
	case 0: return 0;
	case 1: case 2: return 1 + below(s, 64);
	case 3: case 4: case 5: return 1 + below(s, 4096);
	case 6: case 7: return 4096 * (1 + below(s, 8));
	case 8: case 9: return 1 + below(s, 65536);
	case 10: return 1 + below(s, 1 << 20);
	default: return 1 + below(s, max_bytes);
	}
}

static void make_plan(struct plan *p, int q, int from_side, uint32_t round)
{
	uint64_t s = mix(base_seed ^ mix(q * 4 + from_side) ^ mix((uint64_t)round << 20)), at = 0;

	*p = (struct plan){ .n = 1 + below(&s, MAX_OPS), .late_receives = !below(&s, 16) };
	for (int i = 0; i < p->n; i++) {
		struct op *o = &p->op[i];

		*o = (struct op){ .kind = below(&s, KINDS), .bytes = random_size(&s), .imm = draw(&s), .seed = draw(&s) << 3,
			.operand = { draw(&s), draw(&s) }, .fence = !below(&s, 4), .signaled = below(&s, 3) || i == p->n - 1,
			.solicited = !below(&s, 3), .nsge = 1 + below(&s, below(&s, 4) ? 4 : MAX_SGE), .shape = draw(&s),
			.recv_nsge = 1 + below(&s, below(&s, 4) ? 3 : MAX_SGE), .recv_slack = below(&s, 100), .reads = -1 };
		if (o->kind == K_READ_BACK) {
			for (int k = below(&s, i + 1), tries = 0; tries < i && o->reads < 0; tries++, k = (k + 1) % i)
				if (k < i && p->op[k].kind <= K_WRITE_IMM)
					o->reads = k;
			if (o->reads < 0)
				o->kind = K_READ;
			else
				o->bytes = p->op[o->reads].bytes;
		}
		if (o->kind == K_CAS || o->kind == K_FAA) {
			o->bytes = 8;
			o->nsge = 1;
		}
		if (o->kind == K_READ && o->bytes > READ_SOURCE)
			o->bytes = READ_SOURCE;
		if (at + o->bytes + 3 * GUARD > buffer_bytes) {
			p->n = i;
			break;
		}
		at += 1 + below(&s, GUARD);	/* odd offsets, and a gap that must stay untouched */
		o->local = at;
		if (o->kind == K_READ)
			o->remote = below(&s, READ_SOURCE - o->bytes + 1);
		else if (o->kind == K_READ_BACK)
			o->remote = p->op[o->reads].remote;
		else if (o->kind == K_CAS || o->kind == K_FAA)
			o->remote = below(&s, ATOMIC_WORDS);
		else
			o->remote = at;
		o->inlined = o->kind <= K_SEND_IMM && o->bytes <= INLINE_MAX && below(&s, 2);
		at += o->bytes + o->recv_slack;
	}
	if (p->n)
		p->op[p->n - 1].signaled = true;
	p->bytes = at + GUARD;
}

static bool consumes_receive(const struct op *o)
{
	return o->kind == K_WRITE_IMM || o->kind == K_SEND || o->kind == K_SEND_IMM;
}

/* Cuts [addr, addr + bytes) into at most n entries of random lengths; empty ones may occur. */
static int cut(struct ibv_sge *sge, int n, uint64_t addr, uint32_t bytes, uint32_t lkey, uint64_t shape)
{
	if (!bytes && shape & 1)
		return 0;
	for (int i = 0; i < n; i++) {
		uint32_t len = i == n - 1 ? bytes : bytes ? below(&shape, bytes + 1) / (i + 1 < n / 2 ? 4 : 1) : 0;

		sge[i] = (struct ibv_sge){ .addr = addr, .length = len, .lkey = lkey };
		addr += len;
		bytes -= len;
	}
	return n;
}

static void post_receives(int q)
{
	struct qp *x = &qps[q];
	struct flow *f = &x->in;

	f->post_receives_at = 0;
	f->next_recv = 0;
	for (int i = 0; i < f->plan.n; i++) {
		const struct op *o = &f->plan.op[i];
		struct ibv_sge sge[MAX_SGE];
		struct ibv_recv_wr wr = { .wr_id = (uint64_t)f->round << 8 | i, .sg_list = sge }, *bad;

		if (!consumes_receive(o))
			continue;
		if (o->kind != K_WRITE_IMM)
			wr.num_sge = cut(sge, o->recv_nsge, x->target_base + o->remote, o->bytes + o->recv_slack, x->target_mr->lkey, o->shape);
		int e = ibv_post_recv(x->qp, &wr, &bad);
		CHECK(!e, "ibv_post_recv: %s", strerror(e));
	}
}

static void expect_round(int q)
{
	struct qp *x = &qps[q];
	struct flow *f = &x->in;

	make_plan(&f->plan, q, !side, f->round);
	memset(x->target_buffer, 0xEE, f->plan.bytes);
	f->active = true;
	if (f->plan.late_receives)
		f->post_receives_at = now_s() + 0.003;
	else
		post_receives(q);
}

static void start_round(int q)
{
	struct qp *x = &qps[q];
	struct flow *f = &x->out;
	static const enum ibv_wr_opcode opcode[KINDS] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
		IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD };

	make_plan(&f->plan, q, side, f->round);
	f->active = true;
	f->done = 0;
	memset(x->send_buffer, 0xEE, f->plan.bytes);
	for (int i = 0; i < f->plan.n; i++)
		if (f->plan.op[i].kind <= K_SEND_IMM)
			fill(x->send_buffer + f->plan.op[i].local, f->plan.op[i].bytes, f->plan.op[i].seed);
	for (int i = 0; i < f->plan.n; i++) {
		struct op *o = &f->plan.op[i];
		struct ibv_sge sge[MAX_SGE];
		struct ibv_send_wr wr = { .wr_id = (uint64_t)f->round << 8 | i, .sg_list = sge, .opcode = opcode[o->kind],
			.send_flags = (o->signaled ? IBV_SEND_SIGNALED : 0) | (o->fence ? IBV_SEND_FENCE : 0) |
				(o->solicited ? IBV_SEND_SOLICITED : 0) | (o->inlined ? IBV_SEND_INLINE : 0), .imm_data = o->imm }, *bad;

		/* inline data is copied while it is posted: give it from elsewhere and spoil it at once */
		uint8_t scratch[INLINE_MAX];
		uint64_t local = x->send_base + o->local;
		if (o->inlined) {
			memcpy(scratch, x->send_buffer + o->local, o->bytes);
			local = (uintptr_t)scratch;
		}
		wr.num_sge = cut(sge, o->nsge, local, o->bytes, o->inlined ? 0xdead : x->send_mr->lkey, o->shape);
		if (o->kind == K_CAS || o->kind == K_FAA) {
			uint64_t *word = &f->atomic[o->remote];

			wr.wr.atomic.remote_addr = x->peer.atomic_base + 8 * o->remote;
			wr.wr.atomic.rkey = x->peer.atomic_key;
			if (o->kind == K_CAS && o->operand[1] & 1)
				o->operand[0] = *word;		/* half of them find what they compare with */
			wr.wr.atomic.compare_add = o->operand[0];
			wr.wr.atomic.swap = o->operand[1];
			o->seed = *word;			/* the value that must come back */
			if (o->kind == K_FAA)
				*word += o->operand[0];
			else if (*word == o->operand[0])
				*word = o->operand[1];
		} else if (o->kind == K_READ) {
			wr.wr.rdma.remote_addr = x->peer.read_base + o->remote;
			wr.wr.rdma.rkey = x->peer.read_key;
		} else {
			wr.wr.rdma.remote_addr = x->peer.target_base + o->remote;
			wr.wr.rdma.rkey = x->peer.target_key;
		}
		int e = ibv_post_send(x->qp, &wr, &bad);
		CHECK(!e, "ibv_post_send of %s (%u bytes, %d SGEs): %s", kind_name[o->kind], o->bytes, wr.num_sge, strerror(e));
		memset(scratch, 0x11, sizeof scratch);
		unsignaled += !o->signaled;
	}
}

static void say(uint32_t type, int q, uint32_t round)
{
	struct message m = { type, q, round, 0 };

	tcp_write(tcp, &m, sizeof m);
}

static void verify_requested(int q, int i)
{
	struct qp *x = &qps[q];
	struct flow *f = &x->out;
	const struct op *o = &f->plan.op[i];
	const uint8_t *p = x->send_buffer + o->local;

	switch (o->kind) {
	case K_READ:
		CHECK(!memcmp(p, qps[q].read_buffer + READ_SOURCE + o->remote, o->bytes), "MISMATCH read qp %d round %u op %d", q, f->round, i);
		break;
	case K_READ_BACK:
		verify(p, 0, o->bytes, f->plan.op[o->reads].seed, "read back", q, f->round, i);
		break;
	case K_CAS: case K_FAA:
		CHECK(!memcmp(p, &o->seed, 8), "MISMATCH %s qp %d round %u op %d: %016lx instead of %016lx", kind_name[o->kind], q,
		      f->round, i, *(uint64_t __attribute__((aligned(1))) *)p, o->seed);
		break;
	default:
		break;
	}
}

/* READs and atomics wrote nothing but their own bytes of the requester's buffer. */
static void verify_gaps(int q)
{
	const struct qp *x = &qps[q];
	const struct plan *p = &x->out.plan;
	uint64_t at = 0;

	for (int i = 0; i < p->n; i++) {
		verify_untouched(x->send_buffer + at, p->op[i].local - at, q, x->out.round, at);
		at = p->op[i].local + p->op[i].bytes;
	}
	verify_untouched(x->send_buffer + at, p->bytes - at, q, x->out.round, at);
}

static void send_completion(int q, const struct ibv_wc *wc)
{
	static const enum ibv_wc_opcode opcode[KINDS] = { IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND,
		IBV_WC_RDMA_READ, IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD };
	struct flow *f = &qps[q].out;
	int i = wc->wr_id & 0xff;

	CHECK(f->active && wc->wr_id >> 8 == f->round && i < f->plan.n, "completion of an unknown request: wr_id %lx, qp %d", wc->wr_id, q);
	CHECK(f->plan.op[i].signaled, "completion of an unsignaled request: qp %d round %u op %d", q, f->round, i);
	CHECK(wc->opcode == opcode[f->plan.op[i].kind], "opcode %d of %s", wc->opcode, kind_name[f->plan.op[i].kind]);
	if (f->plan.op[i].kind >= K_READ)
		CHECK(wc->byte_len == f->plan.op[i].bytes, "byte_len %u of %s of %u bytes", wc->byte_len, kind_name[f->plan.op[i].kind], f->plan.op[i].bytes);
	CHECK(i >= f->done, "completion out of order: qp %d round %u op %d after %d", q, f->round, i, f->done);
	for (; f->done <= i; f->done++) {
		CHECK(f->done == i || !f->plan.op[f->done].signaled, "completion of op %d of qp %d is missing", f->done, q);
		verify_requested(q, f->done);
		count[f->plan.op[f->done].kind]++;
		total_bytes += f->plan.op[f->done].bytes;
	}
	if (f->done == f->plan.n) {
		verify_gaps(q);
		f->active = false;
		say(M_DONE, q, f->round);
	}
}

static void recv_completion(int q, const struct ibv_wc *wc)
{
	struct flow *f = &qps[q].in;
	int i = wc->wr_id & 0xff;

	CHECK(f->active && wc->wr_id >> 8 == f->round && i < f->plan.n, "receive completion of an unknown request: wr_id %lx, qp %d", wc->wr_id, q);
	const struct op *o = &f->plan.op[i];
	for (; f->next_recv < i; f->next_recv++) {
		const struct op *earlier = &f->plan.op[f->next_recv];

		CHECK(!consumes_receive(earlier), "receive completion out of order: qp %d round %u op %d before %d", q, f->round, i, f->next_recv);
		if (earlier->kind == K_WRITE)
			verify(qps[q].target_buffer + earlier->remote, 0, earlier->bytes, earlier->seed, "write before a receive", q, f->round, f->next_recv);
	}
	CHECK(f->next_recv == i, "receive completed twice: qp %d round %u op %d", q, f->round, i);
	f->next_recv++;
	CHECK(wc->byte_len == o->bytes, "byte_len %u of a received %s of %u bytes", wc->byte_len, kind_name[o->kind], o->bytes);
	CHECK(wc->opcode == (o->kind == K_WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV), "opcode %d of a received %s", wc->opcode, kind_name[o->kind]);
	if (o->kind != K_SEND)
		CHECK(wc->wc_flags & IBV_WC_WITH_IMM && wc->imm_data == o->imm, "immediate %08x instead of %08x", wc->imm_data, o->imm);
	else
		CHECK(!(wc->wc_flags & IBV_WC_WITH_IMM), "IBV_WC_WITH_IMM on a plain SEND");
	CHECK(wc->src_qp == qps[q].peer_qpn, "src_qp %u instead of %u", wc->src_qp, qps[q].peer_qpn);
	verify(qps[q].target_buffer + o->remote, 0, o->bytes, o->seed, kind_name[o->kind], q, f->round, i);
}

static void verify_target(int q)
{
	struct qp *x = &qps[q];
	struct flow *f = &x->in;
	uint64_t at = 0;

	for (int i = 0; i < f->plan.n; i++) {
		const struct op *o = &f->plan.op[i];

		if (o->kind > K_SEND_IMM)
			continue;
		verify_untouched(x->target_buffer + at, o->remote - at, q, f->round, at);
		verify(x->target_buffer + o->remote, 0, o->bytes, o->seed, kind_name[o->kind], q, f->round, i);
		at = o->remote + o->bytes;
	}
	verify_untouched(x->target_buffer + at, f->plan.bytes - at, q, f->round, at);
}

static void on_message(const struct message *m)
{
	struct qp *x = &qps[m->qp];

	last_progress = now_s();
	switch (m->type) {
	case M_DONE: {
		int receives = 0, seen = 0;

		CHECK(x->in.active && x->in.round == m->round, "DONE for round %u in round %u", m->round, x->in.round);
		/* the target's own completions may still wait in its queue */
		for (int i = 0; i < x->in.plan.n; i++) {
			receives += consumes_receive(&x->in.plan.op[i]);
			seen += consumes_receive(&x->in.plan.op[i]) && i < x->in.next_recv;
		}
		x->in.expected_recv = receives > seen ? receives - seen : -1;	/* finish_rounds() goes on when they are in */
		return;
	}
	case M_OK:
		CHECK(!x->out.active && x->out.round == m->round, "OK for round %u in round %u", m->round, x->out.round);
		rounds++;
		x->out.round++;
		if (now_s() < deadline && !told)
			start_round(m->qp);
		else
			x->out.round = UINT32_MAX;
		return;
	case M_END:
		peer_ends = true;
		return;
	default:
		die("message %u", m->type);
	}
}

/* The requester said DONE and all receives are here: look at every byte, then let the next round begin. */
static void finish_rounds(void)
{
	for (int q = 0; q < nqp; q++) {
		struct flow *f = &qps[q].in;

		if (f->post_receives_at && now_s() >= f->post_receives_at)
			post_receives(q);
		if (!f->active || !f->expected_recv)
			continue;
		bool missing = false;
		for (int i = f->next_recv; i < f->plan.n; i++)
			missing |= consumes_receive(&f->plan.op[i]);
		if (missing)
			continue;
		verify_target(q);
		f->expected_recv = 0;
		f->active = false;
		uint32_t round = f->round++;
		expect_round(q);
		say(M_OK, q, round);
	}
}

/* Only within a device do numbers tell queue pairs apart. */
static int qp_index(const struct device *device, uint32_t qpn)
{
	for (int q = 0; q < nqp; q++)
		if (qps[q].device == device && qps[q].qp->qp_num == qpn)
			return q;
	die("completion with unknown qp_num %u", qpn);
}

static bool poll_device(const struct device *device)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(device->cq, 16, wc);

	CHECK(n >= 0, "ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++) {
		int q = qp_index(device, wc[i].qp_num);

		CHECK(!wc[i].status, "completion error %s (vendor_err %u), qp %d wr_id %lx", ibv_wc_status_str(wc[i].status), wc[i].vendor_err, q, wc[i].wr_id);
		if (wc[i].opcode & IBV_WC_RECV)
			recv_completion(q, &wc[i]);
		else
			send_completion(q, &wc[i]);
	}
	if (n)
		last_progress = now_s();
	return n > 0;
}

static bool poll_completions(void)
{
	bool any = false;

	for (int d = 0; d < ndevice; d++)
		any |= poll_device(&devices[d]);
	return any;
}

static void read_messages(void)
{
	static struct message m;
	static size_t have;
	ssize_t r;

	while ((r = recv(tcp, (char *)&m + have, sizeof m - have, MSG_DONTWAIT)) > 0)
		if ((have += r) == sizeof m) {
			have = 0;
			on_message(&m);
		}
	/* a side that has both words of the end goes, maybe before the other has looked */
	CHECK((r < 0 && (errno == EAGAIN || errno == EINTR)) || (!r && we_end && peer_ends), "the other side closed the TCP connection");
}

static void wait_for_news(void)
{
	struct pollfd p[1 + MAX_DEVICES] = { { .fd = tcp, .events = POLLIN } };
	struct ibv_cq *which;
	void *context;

	for (int d = 0; d < ndevice; d++) {
		p[1 + d] = (struct pollfd){ .fd = devices[d].channel->fd, .events = POLLIN };
		CHECK(!ibv_req_notify_cq(devices[d].cq, 0), "ibv_req_notify_cq");
	}
	if (poll_completions())
		return;
	poll(p, 1 + ndevice, 2);
	for (int d = 0; d < ndevice; d++)
		if (p[1 + d].revents) {
			CHECK(!ibv_get_cq_event(devices[d].channel, &which, &context) && which == devices[d].cq && context == &devices[d], "ibv_get_cq_event");
			ibv_ack_cq_events(devices[d].cq, 1);
		}
}

static void report_stall(void)
{
	for (int q = 0; q < nqp; q++)
		fprintf(stderr, "qp %d: out round %u done %d of %d active %d; in round %u receives %d of %d ops active %d\n", q, qps[q].out.round,
			qps[q].out.done, qps[q].out.plan.n, qps[q].out.active, qps[q].in.round, qps[q].in.next_recv, qps[q].in.plan.n, qps[q].in.active);
	die("STALLED: no progress for 30 s");
}

static void end_it(int signal) { told = signal; }

static void run(void)
{
	signal(SIGUSR1, end_it);
	last_progress = now_s();
	deadline = last_progress + seconds;
	for (int q = 0; q < nqp; q++)
		start_round(q);
	while (!we_end || !peer_ends) {
		bool all_out = true;

		if (!poll_completions() && use_events)
			wait_for_news();
		read_messages();
		finish_rounds();
		for (int q = 0; q < nqp; q++)
			all_out &= qps[q].out.round == UINT32_MAX;
		if (all_out && !we_end) {
			we_end = true;
			say(M_END, 0, 0);
		}
		if (now_s() - last_progress > 30)
			report_stall();
	}
}

/* Odd queue pairs use their own addresses (iova) and strict ordering, even ones virtual addresses and relaxed. */
static struct ibv_mr *reg(struct ibv_pd *pd, int q, void *p, uint64_t n, uint64_t *base)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_mr *mr;

	*base = q & 1 ? 0x10000 : (uintptr_t)p;
	mr = q & 1 ? ibv_reg_mr_iova(pd, p, n, *base, access) : ibv_reg_mr(pd, p, n, access | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr, "ibv_reg_mr: %m");
	return mr;
}

static void open_device(const char *name)
{
	CHECK(ndevice < MAX_DEVICES, "more than %d devices", MAX_DEVICES);
	struct device *x = &devices[ndevice++];

	x->context = open_named(name);
	x->pd = ibv_alloc_pd(x->context);
	CHECK(x->pd, "ibv_alloc_pd: %m");
	x->channel = ibv_create_comp_channel(x->context);
	CHECK(x->channel, "ibv_create_comp_channel: %m");
	x->cq = ibv_create_cq(x->context, nqp * (SEND_WR + RECV_WR), x, x->channel, 0);
	CHECK(x->cq, "ibv_create_cq: %m");
}

static void create(int q)
{
	struct qp *x = &qps[q];
	struct ibv_pd *pd;

	x->device = &devices[q % ndevice];
	pd = x->device->pd;

	x->qp = qp_create(pd, x->device->cq, (struct ibv_qp_cap){ .max_send_wr = SEND_WR, .max_recv_wr = RECV_WR, .max_send_sge = MAX_SGE,
		.max_recv_sge = MAX_SGE, .max_inline_data = INLINE_MAX }, false);
	x->send_buffer = memory(buffer_bytes + 4096);
	x->target_buffer = memory(buffer_bytes + 4096);
	x->read_buffer = memory(2 * READ_SOURCE);	/* what we serve, and what the peer serves, to compare with */
	x->atomic_buffer = memory(4096);
	fill(x->read_buffer, READ_SOURCE, mix(base_seed + 2 * q + side) << 3);
	fill(x->read_buffer + READ_SOURCE, READ_SOURCE, mix(base_seed + 2 * q + !side) << 3);
	x->send_mr = reg(pd, q, x->send_buffer, buffer_bytes + 4096, &x->send_base);
	x->target_mr = reg(pd, q, x->target_buffer, buffer_bytes + 4096, &x->target_base);
	x->read_mr = reg(pd, q, x->read_buffer, READ_SOURCE, &x->read_base);
	x->atomic_mr = reg(pd, q, x->atomic_buffer, 4096, &x->atomic_base);
	qp_init(x->qp);
}

static void exchange(int q)
{
	struct qp *x = &qps[q];
	struct qp_options o = { .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1, .rd_atomic = 16 };
	struct hello mine = { .address = qp_address_of(x->qp, 0x1000 + q), .target_base = x->target_base, .read_base = x->read_base,
		.atomic_base = x->atomic_base, .target_key = x->target_mr->rkey, .read_key = x->read_mr->rkey, .atomic_key = x->atomic_mr->rkey }, peer;

	tcp_write(tcp, &mine, sizeof mine);
	tcp_read(tcp, &peer, sizeof peer);
	x->peer.target_base = peer.target_base;
	x->peer.read_base = peer.read_base;
	x->peer.atomic_base = peer.atomic_base;
	x->peer.target_key = peer.target_key;
	x->peer.read_key = peer.read_key;
	x->peer.atomic_key = peer.atomic_key;
	x->peer_qpn = peer.address.qpn;
	expect_round(q);
	qp_connect(x->qp, &mine.address, &peer.address, &o);
}

int main(int argc, char **argv)
{
	char one[] = "metaroce0", *names = one;
	const char *server = NULL, *port = "18600";
	int c;

	while ((c = getopt(argc, argv, "d:s:p:q:t:r:m:e")) > 0)
		switch (c) {
		case 'd': names = optarg; break;
		case 's': server = optarg; break;
		case 'p': port = optarg; break;
		case 'q': nqp = atoi(optarg); break;
		case 't': seconds = atof(optarg); break;
		case 'r': base_seed = strtoull(optarg, NULL, 0); break;
		case 'm': max_bytes = strtoull(optarg, NULL, 0); break;
		case 'e': use_events = true; break;
		default: return 2;
		}
	CHECK(nqp >= 1 && nqp <= MAX_QPS && max_bytes >= 1 && max_bytes <= 64 << 20, "-q 1…%d, -m 1…64 MiB", MAX_QPS);
	setvbuf(stdout, NULL, _IOLBF, 0);
	buffer_bytes = 2 * max_bytes + (1 << 20);
	side = server != NULL;
	tcp = server ? tcp_connect(server, port) : tcp_accept(tcp_listen(port));

	for (char *name = strtok(names, ","); name; name = strtok(NULL, ","))
		open_device(name);
	CHECK(ndevice, "-d: no device");
	for (int q = 0; q < nqp; q++)
		create(q);
	for (int q = 0; q < nqp; q++)
		exchange(q);
	run();
	for (int q = 0; q < nqp; q++) {
		CHECK(!ibv_destroy_qp(qps[q].qp), "ibv_destroy_qp");
		CHECK(!ibv_dereg_mr(qps[q].send_mr) && !ibv_dereg_mr(qps[q].target_mr) && !ibv_dereg_mr(qps[q].read_mr) &&
		      !ibv_dereg_mr(qps[q].atomic_mr), "ibv_dereg_mr");
	}
	for (struct device *x = devices; x < devices + ndevice; x++)
		CHECK(!ibv_destroy_cq(x->cq) && !ibv_destroy_comp_channel(x->channel) && !ibv_dealloc_pd(x->pd) &&
		      !ibv_close_device(x->context), "clean-up");
	printf("rounds %lu, bytes %lu, unsignaled %lu,", rounds, total_bytes, unsignaled);
	for (int k = 0; k < KINDS; k++)
		printf(" %s %lu", kind_name[k], count[k]);
	printf("\nOK\n");
	return 0;
}
