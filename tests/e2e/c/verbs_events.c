/* What a program is told when something happens, over stock libibverbs: every error with its status, the flushes, the
 * asynchronous event and the state; the end of queue pairs; RNR; completion channels; many objects; closing with leftovers.
 * Two queue pairs of one process talk to each other, "a" is the requester.
 *
 *   verbs_events [-d DEVICE] [TOPIC]
 *
 * The topics are listed at the end; the last line is OK if no expectation failed. */
#include "verbs_expect.h"
#include <dirent.h>

/* ---- errors ---- */

enum { UNKNOWN_KEY = 0x40000000, LAST_7 = REGION_BYTES - 7, UNUSED_BYTE = 9000, RECEIVE_BYTES = 16 };

static const struct error_case {
	const char *name;
	enum ibv_wr_opcode opcode;
	uint32_t bytes;
	const struct region *local, *remote;	/* NULL: `source`, `target` */
	uint32_t local_offset, remote_offset, lkey_flip, rkey_flip, receive_flip;	/* bits of a key that are wrong */
	bool qp_refuses;			/* the responder's queue pair grants nothing */
	enum ibv_wc_status status, receive_status;	/* the latter 0: the receive is not to blame */
	int event;				/* of the responder */
} errors[] = {
#define ROW(what, code, size) .name = what, .opcode = IBV_WR_##code, .bytes = size
#define ACCESS .status = IBV_WC_REM_ACCESS_ERR, .event = IBV_EVENT_QP_ACCESS_ERR
#define REQUEST .status = IBV_WC_REM_INV_REQ_ERR, .event = IBV_EVENT_QP_REQ_ERR
#define LOCAL .status = IBV_WC_LOC_PROT_ERR, .event = NO_EVENT
	{ ROW("WRITE, unknown rkey", RDMA_WRITE, 8), .rkey_flip = UNKNOWN_KEY, ACCESS },
	{ ROW("WRITE, past the end", RDMA_WRITE, 8), .remote_offset = LAST_7, ACCESS },
	{ ROW("WRITE, large, past the end", RDMA_WRITE, 20000), .remote_offset = REGION_BYTES - 19999, ACCESS },
	{ ROW("WRITE, region without rights", RDMA_WRITE, 8), .remote = &closed, ACCESS },
	{ ROW("WRITE, region of another domain", RDMA_WRITE, 8), .remote = &foreign, ACCESS },
	{ ROW("WRITE, region that is gone", RDMA_WRITE, 8), .remote = &stale, ACCESS },
	{ ROW("WRITE_WITH_IMM, past the end", RDMA_WRITE_WITH_IMM, 8), .remote_offset = LAST_7, ACCESS },
	{ ROW("READ, unknown rkey", RDMA_READ, 8), .rkey_flip = UNKNOWN_KEY, ACCESS },
	{ ROW("READ, past the end", RDMA_READ, 8), .remote_offset = LAST_7, ACCESS },
	{ ROW("READ, region without rights", RDMA_READ, 8), .remote = &closed, ACCESS },
	{ ROW("FETCH_ADD, unknown rkey", ATOMIC_FETCH_AND_ADD, 8), .rkey_flip = UNKNOWN_KEY, ACCESS },
	{ ROW("CMP_SWAP, region without rights", ATOMIC_CMP_AND_SWP, 8), .remote = &closed, ACCESS },
	{ ROW("FETCH_ADD, odd address", ATOMIC_FETCH_AND_ADD, 8), .remote_offset = 9, REQUEST },
	{ ROW("WRITE, QP without rights", RDMA_WRITE, 8), .qp_refuses = true, REQUEST },
	{ ROW("READ, QP without rights", RDMA_READ, 8), .qp_refuses = true, REQUEST },
	{ ROW("CMP_SWAP, QP without rights", ATOMIC_CMP_AND_SWP, 8), .qp_refuses = true, REQUEST },
	{ ROW("SEND, longer than the receive", SEND, 64), REQUEST, .receive_status = IBV_WC_LOC_LEN_ERR },
	{ ROW("SEND, receive with unknown lkey", SEND, 8), .receive_flip = UNKNOWN_KEY, .status = IBV_WC_REM_OP_ERR,
	  .event = IBV_EVENT_QP_FATAL, .receive_status = IBV_WC_LOC_PROT_ERR },
	{ ROW("WRITE, unknown lkey", RDMA_WRITE, 8), .lkey_flip = UNKNOWN_KEY, LOCAL },
	{ ROW("WRITE, from past the end", RDMA_WRITE, 8), .local_offset = LAST_7, LOCAL },
	{ ROW("SEND, from another domain", SEND, 8), .local = &foreign, LOCAL },
	{ ROW("SEND, from a region that is gone", SEND, 8), .local = &stale, LOCAL },
	{ ROW("READ, into a region without rights", RDMA_READ, 8), .local = &closed, LOCAL },
	{ ROW("FETCH_ADD, into a region without rights", ATOMIC_FETCH_AND_ADD, 8), .local = &closed, LOCAL },
};

/* A good WRITE, the bad request and one behind it, with a receive at the requester and two at the responder. */
static void post_error(const struct pair *p, const struct error_case *c)
{
	const struct region *from = c->local ? c->local : &source, *to = c->remote ? c->remote : &target;
	struct ibv_sge local = part(from, c->local_offset, c->bytes), into = part(&target, 4096, RECEIVE_BYTES);

	local.lkey ^= c->lkey_flip;
	into.lkey ^= c->receive_flip;
	expect_errno(c->name, receive_8(p->a.qp, FIRST_RECEIVE), 0);
	for (int i = 0; i < 2; i++)
		expect_errno(c->name, post_receive(p->b.qp, FIRST_RECEIVE + i, into), 0);
	if (!c->qp_refuses)
		expect_works(c->name, p);
	else
		modify(p->b.qp, (struct ibv_qp_attr){ .qp_access_flags = 0 }, IBV_QP_ACCESS_FLAGS, "RTS without rights");
	target.bytes[UNUSED_BYTE] = 0;
	source.bytes[0] = 0x5a;
	expect_errno(c->name, post_request(p->a.qp, &(struct request){ .id = 1, .opcode = c->opcode, .local = local,
		.remote = to->base + c->remote_offset, .rkey = to->key ^ c->rkey_flip }), 0);
	expect_errno(c->name, post_request(p->a.qp, &(struct request){ .id = 2, .opcode = IBV_WR_RDMA_WRITE, .local = part(&source, 0, 1),
		.remote = target.base + UNUSED_BYTE, .rkey = target.key }), 0);
}

/* What users complain about: "error completions with junk fields mislead the logs". */
static void run_error(const struct error_case *c)
{
	struct pair p = pair_create(&OPTIONS);
	bool at_responder = c->event != NO_EVENT;

	post_error(&p, c);
	expect_status(c->name, &p.a, 1, c->status);
	expect_flushes(c->name, &p.a, 2, 1, 1, SOON_S);
	expect_events(c->name, &p, IBV_EVENT_QP_FATAL, c->event);
	expect_state(c->name, p.a.qp, IBV_QPS_ERR);
	expect_state(c->name, p.b.qp, at_responder ? IBV_QPS_ERR : IBV_QPS_RTS);
	for (int i = 0; at_responder && i < 2; i++)
		expect_status(c->name, &p.b, FIRST_RECEIVE + i, !i && c->receive_status ? c->receive_status : IBV_WC_WR_FLUSH_ERR);
	expect_nothing(c->name, &p.b, 0);
	expect_number(c->name, "a byte that a flushed WRITE names", target.bytes[UNUSED_BYTE], 0);

	/* whatever is posted to a failed queue pair is flushed at once */
	for (int i = 0; i < 3; i++) {
		expect_errno(c->name, write_8(p.a.qp, i, 0), 0);
		expect_errno(c->name, receive_8(p.a.qp, FIRST_RECEIVE + i), 0);
	}
	expect_flushes(c->name, &p.a, 0, 3, 3, SOON_S);

	/* and after RESET it begins a new life, without what was posted in the old one */
	modify(p.a.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE, "RESET");
	modify(p.b.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE, "RESET");
	qp_connect_both(p.a.qp, p.b.qp, &OPTIONS);
	expect_works(c->name, &p);
	expect_nothing(c->name, &p.b, 0);
	pair_destroy(p);
}

static void all_errors(void)
{
	for (size_t i = 0; i < COUNT(errors); i++)
		run_error(&errors[i]);
}

/* A completion queue that is too small: its own event, and its queue pair fails. */
static void overflow(void)
{
	struct pair p = pair_create(&OPTIONS);
	struct ibv_cq *small = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_async_event event;
	int cq_errors = 0, fatal = 0, posted = 0;

	CHECK(small, "ibv_create_cq: %m");
	struct ibv_qp *qp = qp_create(pd, small, (struct ibv_qp_cap){ .max_send_wr = small->cqe + 1, .max_send_sge = 1 }, true);
	struct ibv_qp *peer = qp_create(pd, p.b.cq, CAPABILITIES, false);
	qp_connect_both(qp, peer, &OPTIONS);
	for (; posted < small->cqe + 1; posted++)
		expect_errno("a WRITE", write_8(qp, posted, 0), 0);
	while (take_async_event(context, cq_errors && fatal ? QUIET_S : SOON_S, &event)) {
		cq_errors += event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == small;
		fatal += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp;
	}
	expect_number("overflow", "events \"CQ error\"", cq_errors, 1);
	expect_number("overflow", "events \"QP fatal\"", fatal, 1);
	expect_state("overflow", qp, IBV_QPS_ERR);
	expect_errno("ibv_destroy_qp", ibv_destroy_qp(qp), 0);
	expect_errno("ibv_destroy_qp", ibv_destroy_qp(peer), 0);
	expect_errno("ibv_destroy_cq", ibv_destroy_cq(small), 0);
	pair_destroy(p);
}

/* ---- the end of queue pairs ---- */

/* SENDs that wait for a receiver, and receives. */
static void post_both(const struct end *e)
{
	for (int i = 0; i < 4; i++) {
		expect_errno("a SEND", send_8(e->qp, i, 0), 0);
		expect_errno("a receive", receive_8(e->qp, FIRST_RECEIVE + i), 0);
	}
}

/* What users complain about: "flushed work requests late or missing after an error". */
static void ends_of_queue_pairs(void)
{
	struct pair p = pair_create(&OPTIONS);

	post_both(&p.a);
	expect_errno("ibv_destroy_qp", ibv_destroy_qp(p.a.qp), 0);
	p.a.qp = NULL;
	expect_flushes("when ibv_destroy_qp returns", &p.a, 0, 4, 4, 0);
	pair_destroy(p);

	p = pair_create(&OPTIONS);
	post_both(&p.a);
	modify(p.a.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE, "ERR");
	expect_flushes("the program's change to ERR", &p.a, 0, 4, 4, SOON_S);
	expect_events("the program's change to ERR", &p, NO_EVENT, NO_EVENT);
	expect_state("the program's change to ERR", p.a.qp, IBV_QPS_ERR);
	pair_destroy(p);

	p = pair_create(&OPTIONS);
	post_both(&p.a);
	modify(p.a.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE, "RESET");
	expect_nothing("RESET", &p.a, QUIET_S);
	expect_events("RESET", &p, NO_EVENT, NO_EVENT);
	pair_destroy(p);
}

/* Within this a queue pair must give up a peer that is silent: its attributes' time, and some. */
static double patience_s(void)
{
	return 1.25 * (OPTIONS.retry_cnt + 1) * 4.096e-6 * (1 << OPTIONS.timeout) + 0.2;
}

/* The peer's queue pair is destroyed: that harms only who sends to it, and within the bound of his own attributes. */
static void peer_gone(void)
{
	struct pair p = pair_create(&OPTIONS);

	expect_works("before the peer goes", &p);
	expect_errno("a receive", receive_8(p.a.qp, FIRST_RECEIVE), 0);
	expect_errno("ibv_destroy_qp", ibv_destroy_qp(p.b.qp), 0);
	p.b.qp = NULL;
	expect_nothing("without sends", &p.a, QUIET_S);
	expect_state("without sends", p.a.qp, IBV_QPS_RTS);
	double start = now_s();
	expect_errno("a send to nobody", write_8(p.a.qp, 1, 0), 0);
	expect_errno("a send to nobody", write_8(p.a.qp, 2, 0), 0);
	expect_status("a send to nobody", &p.a, 1, IBV_WC_RETRY_EXC_ERR);
	expect_flushes("a send to nobody", &p.a, 2, 1, 1, SOON_S);
	expect_events("a send to nobody", &p, IBV_EVENT_QP_FATAL, NO_EVENT);
	EXPECT(now_s() - start < patience_s(), "a send to nobody: expected its end within %.3f s, took %.3f s", patience_s(), now_s() - start);
	pair_destroy(p);
}

/* Events that nobody read are withdrawn when their object is destroyed; else ibv_get_async_event would name freed memory. */
static void withdrawn_events(void)
{
	struct pair p = pair_create(&OPTIONS);
	struct ibv_async_event event;

	expect_errno("a bad WRITE", post_request(p.a.qp, &(struct request){ .id = 1, .opcode = IBV_WR_RDMA_WRITE, .local = part(&source, 0, 8),
		.remote = target.base, .rkey = target.key ^ UNKNOWN_KEY }), 0);
	expect_status("a bad WRITE", &p.a, 1, IBV_WC_REM_ACCESS_ERR);
	pair_destroy(p);
	EXPECT(!take_async_event(context, QUIET_S, &event), "an event of a queue pair that was destroyed");
}

/* ---- receiver not ready ---- */

/* Posts a WRITE and the request in one list, so that they travel together. */
static int post_behind_write(struct ibv_qp *qp, const struct request *r)
{
	struct request write = { .opcode = IBV_WR_RDMA_WRITE, .flags = IBV_SEND_SIGNALED, .local = part(&source, 0, 8),
		.remote = target.base, .rkey = target.key };
	struct ibv_sge pieces[2];
	struct ibv_send_wr list[2] = { work_request(&write, &pieces[0]), work_request(r, &pieces[1]) }, *bad;

	list[0].next = &list[1];
	return ibv_post_send(qp, list, &bad);
}

/* What users complain about: "tiny RNR timers make a NAK storm", "reposting a receive does not wake the sender". */
static void receiver_not_ready(void)
{
	struct qp_options twice = OPTIONS;
	const double waits_s = 2 * 0.64e-3;	/* two retries, after the time of min_rnr_timer 12 each */
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM };

	twice.rnr_retry = 2;
	for (size_t i = 0; i < COUNT(opcodes); i++) {
		struct pair p = pair_create(&twice);
		struct request r = { .id = 1, .opcode = opcodes[i], .local = part(&source, 0, 8), .remote = target.base, .rkey = target.key };
		double start = now_s();

		expect_errno("a request without a receive", post_request(p.a.qp, &r), 0);
		expect_errno("a request behind it", write_8(p.a.qp, 2, 0), 0);
		expect_status("after two RNR retries", &p.a, 1, IBV_WC_RNR_RETRY_EXC_ERR);
		EXPECT(now_s() - start >= waits_s, "two RNR retries: expected at least %.2f ms, took %.2f ms", waits_s * 1e3, (now_s() - start) * 1e3);
		expect_flushes("after two RNR retries", &p.a, 2, 1, 0, SOON_S);
		expect_events("after two RNR retries", &p, IBV_EVENT_QP_FATAL, NO_EVENT);
		expect_state("after two RNR retries", p.a.qp, IBV_QPS_ERR);
		expect_state("after two RNR retries", p.b.qp, IBV_QPS_RTS);
		pair_destroy(p);

		/* 7 retries mean for ever: a peer that answers is not silent, and a late receive rescues the request */
		p = pair_create(&OPTIONS);
		r.flags = IBV_SEND_SIGNALED;
		expect_errno("a request before its receive", post_behind_write(p.a.qp, &r), 0);
		expect_done("a WRITE in front", &p.a, 0, IBV_WC_RDMA_WRITE);
		expect_nothing("a request before its receive", &p.a, patience_s());
		expect_errno("a late receive", receive_8(p.b.qp, 1), 0);
		expect_done("a rescued request", &p.a, 1, i ? IBV_WC_RDMA_WRITE : IBV_WC_SEND);
		expect_completion("a late receive", &p.b, (struct ibv_wc){ .wr_id = 1, .byte_len = 8, .src_qp = p.a.qpn,
			.opcode = i ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, .wc_flags = i ? IBV_WC_WITH_IMM : 0 });
		expect_events("a rescued request", &p, NO_EVENT, NO_EVENT);
		pair_destroy(p);
	}
}

/* ---- completion channels ---- */

/* Which completion queue the next event names; acknowledged. */
static struct ibv_cq *next_event(struct ibv_comp_channel *channel, double seconds)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *cookie;

	if (poll(&p, 1, seconds * 1e3) != 1)
		return NULL;
	CHECK(!ibv_get_cq_event(channel, &cq, &cookie), "ibv_get_cq_event: %m");
	EXPECT(cookie == channel, "an event does not return cq_context");
	ibv_ack_cq_events(cq, 1);
	return cq;
}

static void message(const struct pair *p, unsigned flags)
{
	expect_errno("a receive", receive_8(p->b.qp, 1), 0);
	expect_errno("a SEND", send_8(p->a.qp, 2, flags | IBV_SEND_SIGNALED), 0);
}

static void message_received(const struct pair *p)
{
	expect_completion("a receive", &p->b, (struct ibv_wc){ .wr_id = 1, .opcode = IBV_WC_RECV, .byte_len = 8, .src_qp = p->a.qpn });
}

/* What users complain about: "an event comes but the CQ is empty". A trap: libibverbs closes a channel without telling. */
static void completion_channels(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *others[48];

	CHECK(channel, "ibv_create_comp_channel: %m");
	for (size_t i = 0; i < COUNT(others); i++)
		CHECK((others[i] = ibv_create_cq(context, 64, channel, channel, 0)), "ibv_create_cq: %m");
	struct pair p = { end_create(channel), end_create(channel) };
	qp_connect_both(p.a.qp, p.b.qp, &OPTIONS);
	expect_errno("ibv_destroy_comp_channel with CQs at it", ibv_destroy_comp_channel(channel), EBUSY);
	for (int i = 0; i < 30; i++) {
		expect_errno("ibv_req_notify_cq", ibv_req_notify_cq(p.b.cq, 0), 0);
		message(&p, 0);
		EXPECT(next_event(channel, SOON_S) == p.b.cq, "message %d: no event of the receiver's CQ", i);
		message_received(&p);		/* at once: an event promises a completion */
		expect_done("a SEND", &p.a, 2, IBV_WC_SEND);
	}
	message(&p, 0);
	message_received(&p);
	expect_done("a SEND", &p.a, 2, IBV_WC_SEND);
	EXPECT(!next_event(channel, QUIET_S), "an event of a CQ that is not armed");
	ibv_req_notify_cq(p.b.cq, 1);
	message(&p, 0);
	expect_done("a SEND", &p.a, 2, IBV_WC_SEND);
	EXPECT(!next_event(channel, QUIET_S), "an event of a plain message, though armed for solicited ones");
	message(&p, IBV_SEND_SOLICITED);
	EXPECT(next_event(channel, SOON_S) == p.b.cq, "no event of a solicited message");
	expect_done("a solicited SEND", &p.a, 2, IBV_WC_SEND);
	message_received(&p);
	message_received(&p);
	message(&p, 0);
	expect_done("a SEND", &p.a, 2, IBV_WC_SEND);
	ibv_req_notify_cq(p.b.cq, 0);
	EXPECT(next_event(channel, SOON_S) == p.b.cq, "a completion between the last poll and arming is stranded");
	message_received(&p);
	ibv_req_notify_cq(p.b.cq, 0);
	message(&p, 0);
	expect_done("a SEND", &p.a, 2, IBV_WC_SEND);
	pair_destroy(p);			/* although an event waits: it is withdrawn */
	EXPECT(!next_event(channel, 0), "an event of a CQ that was destroyed");
	for (size_t i = 0; i < COUNT(others); i++)
		expect_errno("ibv_destroy_cq", ibv_destroy_cq(others[i]), 0);
	expect_errno("ibv_destroy_comp_channel", ibv_destroy_comp_channel(channel), 0);
}

/* ---- many objects, and closing ---- */

static int open_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int n = 0;

	CHECK(directory, "/proc/self/fd: %m");
	while (readdir(directory))
		n++;
	closedir(directory);
	return n;
}

static void many_channels(void)
{
	int before = open_descriptors();

	for (int i = 0; i < 3000; i++) {
		struct ibv_comp_channel *channel = ibv_create_comp_channel(context);

		CHECK(channel, "channel %d: %m", i);
		CHECK(!ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	}
	/* a few may be kept for the next ones, but not more and more */
	EXPECT(open_descriptors() <= before + 4, "after 3000 channels: expected %d open files, got %d", before, open_descriptors());
}

static void many_queue_pairs(void)
{
	enum { ONE_BY_ONE = 2000, AT_ONCE = 4000 };
	static struct ibv_qp *qps[AT_ONCE];
	static bool taken[1 << 24];
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	uint32_t last = 0;

	for (int i = 0; i < ONE_BY_ONE; i++) {
		struct ibv_qp *qp = qp_create(pd, cq, CAPABILITIES, false);

		EXPECT(qp->qp_num != last, "number %#x is used again at once", last);
		last = qp->qp_num;
		CHECK(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	}
	for (int i = 0; i < AT_ONCE; i++) {
		qps[i] = qp_create(pd, cq, CAPABILITIES, false);
		uint32_t number = qps[i]->qp_num;
		CHECK(number > 1 && number < (1 << 24) - 1 && !taken[number], "queue pair %d has the number %#x", i, number);
		taken[number] = true;
	}
	for (int i = 0; i < AT_ONCE; i++)
		CHECK(!ibv_destroy_qp(qps[i]), "ibv_destroy_qp");
	expect_errno("ibv_destroy_cq", ibv_destroy_cq(cq), 0);
}

/* A device is closed with everything left behind; then it can be opened again and works, and no file stays open. */
static void leftovers(void)
{
	int after_first = 0;

	for (int round = 0; round < 4; round++) {
		struct pair left = pair_create(&OPTIONS);

		expect_works("before closing", &left);
		post_both(&left.a);
		expect_errno("ibv_close_device with leftovers", ibv_close_device(context), 0);
		if (round == 0)
			after_first = open_descriptors();
		EXPECT(open_descriptors() <= after_first, "after closing: expected %d open files, got %d", after_first, open_descriptors());
		open_all();
	}
	struct pair p = pair_create(&OPTIONS);
	expect_works("after opening again", &p);
	pair_destroy(p);
}

static const struct topic topics[] = {
	{ "all_errors", all_errors }, { "overflow", overflow }, { "ends_of_queue_pairs", ends_of_queue_pairs }, { "peer_gone", peer_gone },
	{ "withdrawn_events", withdrawn_events }, { "receiver_not_ready", receiver_not_ready },
	{ "completion_channels", completion_channels }, { "many_channels", many_channels }, { "many_queue_pairs", many_queue_pairs },
	{ "leftovers", leftovers },
};

int main(int argc, char **argv)
{
	return run_topics(argc, argv, topics, COUNT(topics));
}
