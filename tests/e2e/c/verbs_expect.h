/* What verbs_contract.c and verbs_errors.c share: expectations, regions, pairs of connected queue pairs in one process, topics.
 * A failed expectation says what was expected and what came, is counted, and the program goes on. */
#ifndef VERBS_EXPECT_H
#define VERBS_EXPECT_H
#include "verbs_util.h"
#include <getopt.h>

enum { ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | REMOTE_RIGHTS, SHIFTED_BASE = 0x5000 };
enum { DEPTH = 8, REGION_BYTES = 64 << 10, NO_EVENT = -1, FIRST_RECEIVE = 100 };
static const double SOON_S = 5, QUIET_S = 0.02;
static const struct ibv_qp_cap CAPABILITIES = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 2,
	.max_inline_data = 220 };
static const struct qp_options OPTIONS = { .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 4 };

/* Memory, and the address by which requests name its first byte. */
struct region { uint8_t *bytes; uint64_t base; struct ibv_mr *mr; uint32_t key; };

/* A queue pair and the completion queue that is its alone. */
struct end { struct ibv_qp *qp; struct ibv_cq *cq; uint32_t qpn; };
struct pair { struct end a, b; };

static const char *device = "metaroce0", *topic;
static struct ibv_context *context;
static struct ibv_pd *pd, *other_pd;
/* `closed` has no rights, `foreign` belongs to the other domain, `stale` is deregistered. */
static struct region source, target, shifted, closed, foreign, stale;
static int failures;

static inline __attribute__((format(printf, 1, 2))) void fail(const char *format, ...)
{
	va_list ap;

	printf("FAILED %s: ", topic);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	failures++;
}

#define EXPECT(condition, ...) do { if (!(condition)) fail(__VA_ARGS__); } while (0)
#define ERRNO_OF(pointer) (errno = 0, (pointer) ? 0 : errno)
#define COUNT(table) (sizeof(table) / sizeof *(table))

static inline void expect_errno(const char *what, int got, int wanted)
{
	EXPECT(got == wanted, "%s: expected errno %d (%s), got %d (%s)", what, wanted, strerror(wanted), got, strerror(got));
}

static inline void expect_number(const char *what, const char *of, uint64_t got, uint64_t wanted)
{
	EXPECT(got == wanted, "%s: expected %s %#lx, got %#lx", what, of, wanted, got);
}

static inline void expect_state(const char *what, struct ibv_qp *qp, enum ibv_qp_state wanted)
{
	expect_number(what, "state", qp_state(qp), wanted);
}

/* All fields that mean something; `wanted` need not tell qp_num. */
static inline void compare_completion(const char *what, const struct end *e, const struct ibv_wc *got, const struct ibv_wc *wanted)
{
	bool receive = wanted->opcode & IBV_WC_RECV;

	EXPECT(got->status == wanted->status, "%s: expected \"%s\", got \"%s\" (vendor_err %u)", what, ibv_wc_status_str(wanted->status),
	       ibv_wc_status_str(got->status), got->vendor_err);
	expect_number(what, "wr_id", got->wr_id, wanted->wr_id);
	expect_number(what, "qp_num", got->qp_num, e->qpn);
	if (got->status != IBV_WC_SUCCESS)
		return;
	expect_number(what, "opcode", got->opcode, wanted->opcode);
	expect_number(what, "wc_flags", got->wc_flags, wanted->wc_flags);
	expect_number(what, "vendor_err", got->vendor_err, 0);
	if (receive || wanted->opcode >= IBV_WC_RDMA_READ)
		expect_number(what, "byte_len", got->byte_len, wanted->byte_len);
	if (receive)
		expect_number(what, "src_qp", got->src_qp, wanted->src_qp);
	if (wanted->wc_flags & IBV_WC_WITH_IMM)
		expect_number(what, "imm_data", ntohl(got->imm_data), ntohl(wanted->imm_data));
}

static inline void expect_completion(const char *what, const struct end *e, struct ibv_wc wanted)
{
	struct ibv_wc wc;

	if (poll_for(e->cq, &wc, 1, SOON_S) == 1)
		compare_completion(what, e, &wc, &wanted);
	else
		fail("%s: no completion of request %lu within %.0f s", what, wanted.wr_id, SOON_S);
}

static inline void expect_done(const char *what, const struct end *e, uint64_t id, enum ibv_wc_opcode opcode)
{
	expect_completion(what, e, (struct ibv_wc){ .wr_id = id, .opcode = opcode });
}

static inline void expect_status(const char *what, const struct end *e, uint64_t id, enum ibv_wc_status status)
{
	expect_completion(what, e, (struct ibv_wc){ .wr_id = id, .status = status });
}

static inline void expect_nothing(const char *what, const struct end *e, double seconds)
{
	struct ibv_wc wc;

	if (poll_for(e->cq, &wc, 1, seconds))
		fail("%s: expected no completion, got wr_id %lu \"%s\"", what, wc.wr_id, ibv_wc_status_str(wc.status));
}

/* So many sends, numbered from `first_send`, and receives, from FIRST_RECEIVE: each kind in the order of posting. */
static inline void expect_flushes(const char *what, const struct end *e, uint64_t first_send, int sends, int receives, double within_s)
{
	uint64_t send = first_send, receive = FIRST_RECEIVE;
	struct ibv_wc wc[2 * DEPTH];
	int n = poll_for(e->cq, wc, sends + receives, within_s);

	expect_number(what, "flushed requests", n, sends + receives);
	for (int i = 0; i < n; i++) {
		uint64_t *next = wc[i].wr_id < FIRST_RECEIVE ? &send : &receive;

		compare_completion(what, e, &wc[i], &(struct ibv_wc){ .wr_id = (*next)++, .status = IBV_WC_WR_FLUSH_ERR });
	}
	expect_number(what, "flushed sends", send - first_send, sends);
}

/* Each queue pair raises the event that is named for it, in any order, and then there are no more. */
static inline void expect_events(const char *what, const struct pair *p, int at_a, int at_b)
{
	struct ibv_async_event event;

	while (take_async_event(context, at_a == NO_EVENT && at_b == NO_EVENT ? QUIET_S : SOON_S, &event)) {
		bool a = event.element.qp == p->a.qp;
		int *wanted = a ? &at_a : &at_b;

		if ((int)event.event_type != *wanted)
			fail("%s: unexpected event \"%s\" at the %s", what, ibv_event_type_str(event.event_type), a ? "requester" : "responder");
		else
			*wanted = NO_EVENT;
	}
	EXPECT(at_a == NO_EVENT, "%s: no event \"%s\" at the requester", what, ibv_event_type_str(at_a));
	EXPECT(at_b == NO_EVENT, "%s: no event \"%s\" at the responder", what, ibv_event_type_str(at_b));
}

static inline struct region region_create(struct ibv_pd *domain, int access, uint64_t base)
{
	struct region r = { .bytes = memory(REGION_BYTES) };

	r.base = base ? base : (uintptr_t)r.bytes;
	r.mr = ibv_reg_mr_iova(domain, r.bytes, REGION_BYTES, r.base, access);
	CHECK(r.mr, "ibv_reg_mr_iova: %m");
	r.key = r.mr->lkey;
	EXPECT(r.key && r.mr->rkey == r.key, "keys of a region: expected equal and not 0, got lkey %#x, rkey %#x", r.key, r.mr->rkey);
	return r;
}

static inline struct ibv_sge part(const struct region *r, uint64_t offset, uint32_t length)
{
	return (struct ibv_sge){ .addr = r->base + offset, .length = length, .lkey = r->key };
}

static inline struct end end_create(struct ibv_comp_channel *channel)
{
	struct end e = { .cq = ibv_create_cq(context, 4 * DEPTH, channel, channel, 0) };

	CHECK(e.cq, "ibv_create_cq: %m");
	e.qp = qp_create(pd, e.cq, CAPABILITIES, false);
	e.qpn = e.qp->qp_num;
	return e;
}

static inline struct pair pair_create(const struct qp_options *options)
{
	struct pair p = { end_create(NULL), end_create(NULL) };

	qp_connect_both(p.a.qp, p.b.qp, options);
	return p;
}

static inline void end_destroy(struct end e)
{
	if (e.qp)
		expect_errno("ibv_destroy_qp", ibv_destroy_qp(e.qp), 0);
	expect_errno("ibv_destroy_cq", ibv_destroy_cq(e.cq), 0);
}

static inline void pair_destroy(struct pair p)
{
	end_destroy(p.a);
	end_destroy(p.b);
}

static inline void open_all(void)
{
	context = open_named(device);
	CHECK((pd = ibv_alloc_pd(context)) && (other_pd = ibv_alloc_pd(context)), "ibv_alloc_pd: %m");
	source = region_create(pd, ALL_RIGHTS | IBV_ACCESS_RELAXED_ORDERING, 0);
	target = region_create(pd, ALL_RIGHTS, 0);
	shifted = region_create(pd, ALL_RIGHTS, SHIFTED_BASE);
	closed = region_create(pd, 0, 0);
	foreign = region_create(other_pd, ALL_RIGHTS, 0);
	stale = region_create(pd, ALL_RIGHTS, 0);
	CHECK(!ibv_dereg_mr(stale.mr), "ibv_dereg_mr");
}

static inline void close_all(void)
{
	CHECK(!ibv_dereg_mr(source.mr) && !ibv_dereg_mr(target.mr) && !ibv_dereg_mr(shifted.mr) && !ibv_dereg_mr(closed.mr) &&
	      !ibv_dereg_mr(foreign.mr), "ibv_dereg_mr");
	CHECK(!ibv_dealloc_pd(pd) && !ibv_dealloc_pd(other_pd) && !ibv_close_device(context), "clean-up");
}

static inline int send_8(struct ibv_qp *qp, uint64_t id, unsigned flags)
{
	return post_request(qp, &(struct request){ .id = id, .opcode = IBV_WR_SEND, .flags = flags, .local = part(&source, 0, 8) });
}

static inline int write_8(struct ibv_qp *qp, uint64_t id, unsigned flags)
{
	return post_request(qp, &(struct request){ .id = id, .opcode = IBV_WR_RDMA_WRITE, .flags = flags, .local = part(&source, 0, 8),
		.remote = target.base, .rkey = target.key });
}

static inline int receive_8(struct ibv_qp *qp, uint64_t id)
{
	return post_receive(qp, id, part(&target, 4096, 8));
}

static inline void expect_works(const char *what, const struct pair *p)
{
	expect_errno(what, write_8(p->a.qp, 99, IBV_SEND_SIGNALED), 0);
	expect_done(what, &p->a, 99, IBV_WC_RDMA_WRITE);
}

struct topic { const char *name; void (*run)(void); };

/* main() of a program: `[-d DEVICE] [TOPIC]`. */
static inline int run_topics(int argc, char **argv, const struct topic *topics, int count)
{
	int c, ran = 0;

	while ((c = getopt(argc, argv, "d:")) > 0) {
		if (c != 'd')
			return 2;
		device = optarg;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	open_all();
	for (int i = 0; i < count; i++) {
		double start = now_s();
		int before = failures;

		if (optind < argc && strcmp(argv[optind], topics[i].name))
			continue;
		topic = topics[i].name;
		topics[i].run();
		printf("%-20s %s, %.0f ms\n", topic, failures == before ? "ok" : "FAILED", (now_s() - start) * 1e3);
		ran++;
	}
	topic = "the end";
	close_all();
	CHECK(ran, "there is no topic '%s'", argv[optind]);
	CHECK(!failures, "%d expectations", failures);
	puts("OK");
	return 0;
}
#endif
