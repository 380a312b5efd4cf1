/* Many threads on one pair of queue pairs of one process, over stock libibverbs: four post sends, two poll their completions,
 * two sleep in the completion channel of the receiver and post new receives.
 *
 *   verbs_threads [-d DEVICE]
 *
 * Every message carries its thread and number, as payload and as immediate. Each must complete once on either side with the
 * right bytes; nothing may be lost when threads arm, poll and post at the same time. Ends within LIMIT_S; last line OK. */
#include "verbs_util.h"
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { POSTERS = 4, POLLERS = 2, RECEIVERS = 2, THREADS = POSTERS + POLLERS + RECEIVERS, MESSAGES = 20000, DEPTH = 128, LIMIT_S = 60 };

/* What a message says: every word of it the same. */
enum { WORDS = 8, BYTES = WORDS * sizeof(uint32_t) };
enum { SLOTS = 2 * DEPTH };
typedef uint32_t payload[WORDS];

static struct {
	payload out[POSTERS][SLOTS];	/* more than the send queue holds: the oldest of a thread has completed */
	payload in[DEPTH];		/* by the receive's number */
} *buffer;

static struct ibv_qp *sender, *receiver;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_comp_channel *channel;
static struct ibv_mr *mr;
static atomic_int sent, received;
static atomic_bool stop;
static atomic_uchar sent_times[POSTERS * MESSAGES], received_times[POSTERS * MESSAGES];

static struct ibv_sge piece(payload *p)
{
	return (struct ibv_sge){ .addr = (uintptr_t)p, .length = BYTES, .lkey = mr->lkey };
}

static void count(atomic_uchar *times, atomic_int *total, uint64_t number, const char *what)
{
	CHECK(number < POSTERS * MESSAGES, "%s of message %lu, which was never posted", what, number);
	CHECK(!atomic_fetch_add(&times[number], 1), "second %s of message %lu", what, number);
	atomic_fetch_add(total, 1);
}

static void *post(void *argument)
{
	uint32_t thread = (uintptr_t)argument;

	for (uint32_t i = 0; i < MESSAGES && !stop; i++) {
		payload *slot = &buffer->out[thread][i % SLOTS];
		uint32_t number = thread * MESSAGES + i;
		int e;

		struct request r = { .id = number, .opcode = IBV_WR_SEND_WITH_IMM, .imm = number, .local = piece(slot),
			.flags = IBV_SEND_SIGNALED | (i % 2 ? IBV_SEND_INLINE : 0) };
		for (int k = 0; k < WORDS; k++)
			(*slot)[k] = number;
		while ((e = post_request(sender, &r)) == ENOMEM && !stop)
			sched_yield();
		CHECK(!e || stop, "ibv_post_send: %s", strerror(e));
	}
	return NULL;
}

static void *poll_sends(void *argument)
{
	struct ibv_wc wc[16];

	(void)argument;
	while (!stop) {
		int n = ibv_poll_cq(send_cq, 16, wc);

		CHECK(n >= 0, "ibv_poll_cq: %d", n);
		for (int i = 0; i < n; i++) {
			CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].opcode == IBV_WC_SEND, "send %lu: %s, opcode %d", wc[i].wr_id,
			      ibv_wc_status_str(wc[i].status), wc[i].opcode);
			count(sent_times, &sent, wc[i].wr_id, "send completion");
		}
		if (!n)
			sched_yield();
	}
	return NULL;
}

static void take_message(const struct ibv_wc *wc)
{
	const payload *p = &buffer->in[wc->wr_id];
	int e;

	CHECK(wc->status == IBV_WC_SUCCESS && wc->opcode == IBV_WC_RECV && wc->byte_len == BYTES && wc->wc_flags == IBV_WC_WITH_IMM &&
	      wc->src_qp == sender->qp_num, "receive: %s, opcode %d, %u bytes, flags %#x, from %#x", ibv_wc_status_str(wc->status),
	      wc->opcode, wc->byte_len, wc->wc_flags, wc->src_qp);
	for (int k = 0; k < WORDS; k++)
		CHECK((*p)[k] == wc->imm_data, "word %d of message %u is %u", k, wc->imm_data, (*p)[k]);
	count(received_times, &received, wc->imm_data, "receive completion");
	/* its own place in the queue is free: it was polled */
	e = post_receive(receiver, wc->wr_id, piece(&buffer->in[wc->wr_id]));
	CHECK(!e, "ibv_post_recv: %s", strerror(e));
}

static void *sleep_for_receives(void *argument)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct ibv_wc wc[16];

	(void)argument;
	while (!stop) {
		struct ibv_cq *cq;
		void *cookie;
		int n;

		/* both threads wake up, one finds the event: the channel does not block */
		if (poll(&p, 1, 100) < 1 || ibv_get_cq_event(channel, &cq, &cookie))
			continue;
		CHECK(cq == receive_cq && cookie == &receive_cq, "an event of another completion queue");
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
		while ((n = ibv_poll_cq(cq, 16, wc)) > 0)
			for (int i = 0; i < n; i++)
				take_message(&wc[i]);
		CHECK(!n, "ibv_poll_cq: %d", n);
	}
	return NULL;
}

static void run(void)
{
	void *(*const body[THREADS])(void *) = { post, post, post, post, poll_sends, poll_sends, sleep_for_receives, sleep_for_receives };
	pthread_t threads[THREADS];
	double start = now_s();
	const int all = POSTERS * MESSAGES;

	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, body[i], (void *)i), "pthread_create");
	while ((sent < all || received < all) && now_s() - start < LIMIT_S)
		usleep(1000);
	stop = true;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(sent == all && received == all, "within %d s %d of %d messages were sent, %d received", LIMIT_S, sent, all, received);
	printf("%d messages by %d threads in %.2f s\n", all, THREADS, now_s() - start);
}

int main(int argc, char **argv)
{
	const struct qp_options options = { .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 4 };
	const char *device = "metaroce0";
	int c;

	while ((c = getopt(argc, argv, "d:")) > 0) {
		if (c != 'd')
			return 2;
		device = optarg;
	}
	struct ibv_context *context = open_named(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd, "ibv_alloc_pd: %m");
	buffer = memory(sizeof *buffer);
	CHECK((mr = ibv_reg_mr(pd, buffer, sizeof *buffer, IBV_ACCESS_LOCAL_WRITE)), "ibv_reg_mr: %m");
	CHECK((channel = ibv_create_comp_channel(context)), "ibv_create_comp_channel: %m");
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK), "O_NONBLOCK: %m");
	CHECK((send_cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0)), "ibv_create_cq: %m");
	CHECK((receive_cq = ibv_create_cq(context, 2 * DEPTH, &receive_cq, channel, 0)), "ibv_create_cq: %m");
	sender = qp_create(pd, send_cq, (struct ibv_qp_cap){ .max_send_wr = DEPTH, .max_send_sge = 1, .max_inline_data = BYTES }, false);
	receiver = qp_create(pd, receive_cq, (struct ibv_qp_cap){ .max_recv_wr = DEPTH, .max_recv_sge = 1 }, false);
	qp_connect_both(sender, receiver, &options);
	CHECK(!ibv_req_notify_cq(receive_cq, 0), "ibv_req_notify_cq");
	for (int i = 0; i < DEPTH; i++)
		CHECK(!post_receive(receiver, i, piece(&buffer->in[i])), "ibv_post_recv");
	run();
	CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver), "ibv_destroy_qp");
	CHECK(!ibv_destroy_cq(send_cq) && !ibv_destroy_cq(receive_cq) && !ibv_destroy_comp_channel(channel), "ibv_destroy_cq");
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "clean-up");
	puts("OK");
	return 0;
}
