/* What an idle process costs: wake-ups and processor time a second, over stock libibverbs.
 *
 *   scale_idle [-d DEVICE] [-t SECONDS] [-w MOST_WAKEUPS_A_SECOND]
 *
 * Each state in turn: a device that is open; two queue pairs of this process connected, after some messages; the same after a
 * spell of polling; one that sleeps in a completion channel; queue pairs in RTR whose peer's process does not exist, and whose
 * peer's process has no such queue pair; a queue pair whose peer has gone. In none of them is anything outstanding that could
 * come to an end, so hardly anything may wake up. Last line OK. */
#include "scale_usage.h"
#include <getopt.h>

enum { MESSAGES = 200, BYTES = 4096, ABSENT = 8, LOOKS = 3 };

static const struct qp_options OPTIONS = { .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 1 };
static const struct ibv_qp_cap CAP = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 };
/* Acknowledgements and markers; and the young repetitions of a question that nobody answers. */
static const double QUIET_S = 0.5, UNANSWERED_S = 4;
static double seconds = 2, most = 10;
static int failures;

/* Once; `cpu` gets the part of a processor in percent. */
static double wakeups_a_second(double *cpu)
{
	struct timespec rest = { .tv_sec = (time_t)seconds, .tv_nsec = (seconds - (time_t)seconds) * 1e9 };
	struct usage before = usage_now();
	double start = now_s();

	while (nanosleep(&rest, &rest))
		;
	struct usage after = usage_now();
	double took = now_s() - start;
	*cpu = (after.cpu_s - before.cpu_s) / took * 100;
	/* the one nap is no cost of the device */
	long wakeups = after.wakeups - before.wakeups - 1;
	return wakeups < 0 ? 0 : wakeups / took;
}

/* `settle_s`: what was begun comes to its end first. The least of a few looks counts: on a busy machine something late may fall
 * into one, but what ticks is in all of them. */
static void idle(const char *state, double settle_s)
{
	double cpu, least = 0;
	int looks = 0;

	usleep(settle_s * 1e6);
	do {
		double wakeups = wakeups_a_second(&cpu);

		least = looks++ && least < wakeups ? least : wakeups;
	} while (least > most && looks < LOOKS);
	printf("%-36s %6.1f wake-ups/s, %.2f %% of a processor%s\n", state, least, cpu, looks > 1 ? ", not at the first look" : "");
	if (least > most) {
		printf("FAILED: more than %.0f a second\n", most);
		failures++;
	}
}

static void send_all(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *cq, struct ibv_mr *mr)
{
	struct ibv_sge piece = { .addr = (uintptr_t)mr->addr, .length = BYTES, .lkey = mr->lkey };

	for (int i = 0; i < MESSAGES; i++) {
		struct request r = { .opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED, .local = piece };
		struct ibv_wc wc[2];

		CHECK(!post_receive(to, 1, piece) && !post_request(from, &r), "post");
		CHECK(poll_for(cq, wc, 2, 10) == 2 && !wc[0].status && !wc[1].status, "message %d did not arrive", i);
	}
}

int main(int argc, char **argv)
{
	const char *device = "metaroce0";
	struct ibv_cq *event_cq;
	void *cookie;
	int c;

	while ((c = getopt(argc, argv, "d:t:w:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		case 't': seconds = atof(optarg); break;
		case 'w': most = atof(optarg); break;
		default: return 2;
		}
	setvbuf(stdout, NULL, _IOLBF, 0);
	struct ibv_context *context = open_named(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(pd && channel, "ibv_alloc_pd, ibv_create_comp_channel: %m");
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, channel, 0);
	CHECK(cq, "ibv_create_cq: %m");
	struct ibv_mr *mr = ibv_reg_mr(pd, memory(BYTES), BYTES, IBV_ACCESS_LOCAL_WRITE | REMOTE_RIGHTS);
	CHECK(mr, "ibv_reg_mr: %m");
	idle("an open device", QUIET_S);

	struct ibv_qp *a = qp_create(pd, cq, CAP, true), *b = qp_create(pd, cq, CAP, true);
	idle("queue pairs in RESET", QUIET_S);
	qp_connect_both(a, b, &OPTIONS);
	send_all(a, b, cq, mr);
	idle("connected, not polled any more", QUIET_S);
	struct ibv_wc wc;
	for (double end = now_s() + 0.2; now_s() < end;)
		CHECK(!ibv_poll_cq(cq, 1, &wc), "a completion of nothing");
	idle("after polling in vain", QUIET_S);
	CHECK(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	CHECK(!poll(&p, 1, 0), "an event of nothing");
	idle("armed", QUIET_S);

	struct ibv_qp *absent[ABSENT];
	for (int i = 0; i < ABSENT; i++) {
		/* the first half: no process there; the second: this process, which has no such queue pair */
		struct qp_address peer = qp_address_of(a, 0);
		peer.qpn = i < ABSENT / 2 ? (a->qp_num ^ 1 << 14) : (a->qp_num & ~0x3fffu) | (0x3000 + i);
		absent[i] = qp_create(pd, cq, CAP, true);
		qp_init(absent[i]);
		modify(absent[i], rtr_attributes(&peer, &OPTIONS), RTR_MASK, "RTR");
	}
	idle("in RTR, without a peer", UNANSWERED_S);
	for (int i = 0; i < ABSENT; i++)
		CHECK(!ibv_destroy_qp(absent[i]), "ibv_destroy_qp");
	CHECK(!ibv_destroy_qp(b), "ibv_destroy_qp");
	idle("the peer has gone", QUIET_S);
	CHECK(!ibv_destroy_qp(a), "ibv_destroy_qp");
	idle("no queue pair any more", QUIET_S);
	/* nothing completed, so no event came */
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK) && ibv_get_cq_event(channel, &event_cq, &cookie), "an event of nothing");
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) &&
	      !ibv_close_device(context), "clean-up");
	CHECK(!failures, "%d states cost too much", failures);
	puts("OK");
	return 0;
}
