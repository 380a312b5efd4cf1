/* How long it takes to connect, over stock libibverbs.
 *
 *   connect_time [-d DEVICE] [-s SERVER_IP] [-p TCP_PORT] [-n CONNECTS] [-l LIMIT_MS]
 *
 * CONNECTS times, one after the other, a queue pair is made on either side, the numbers are exchanged over TCP, both go to RTS,
 * and the client SENDs 8 bytes, twice: the time from its ibv_create_qp, and from its going to RTR, to the completion of the first
 * send, which says that the server has the message; the second tells the round trip. The first of them also makes the engine of
 * either process and the connection between them. The median must be below LIMIT_MS; the other times are told: also of those
 * connects alone in which neither program waited for a processor, where the kernel says so (both poll, and the scheduler often has
 * them share one for some ticks after the exchange over TCP). Last line OK. */
#include "verbs_util.h"
#include <getopt.h>

enum { MESSAGE_BYTES = 8, MOST = 10000 };

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Waits for a processor below this, in seconds, are those for the other threads of the program. */
#define SHORT_WAIT 100e-6

/* In seconds: from the first call, and from RTR, to the first completion; a round trip; the longer of both programs' waits for a
 * processor meanwhile. */
struct times { double whole, from_rtr, round_trip, waited; };

/* How long this thread has been ready to run and was not run, in seconds; 0 where the kernel does not count it. */
static double waited_s(void)
{
	unsigned long long ran, waited = 0;
	FILE *f = fopen("/proc/thread-self/schedstat", "r");

	if (f && fscanf(f, "%llu %llu", &ran, &waited) != 2)
		waited = 0;
	if (f)
		fclose(f);
	return waited * 1e-9;
}

/* One queue pair. */
static struct times connect_once(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr, int to_other, bool sends, int number)
{
	const struct qp_options options = { .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 1 };
	struct ibv_qp_cap cap = { .max_send_wr = 1, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_sge all = { .addr = (uintptr_t)mr->addr, .length = MESSAGE_BYTES, .lkey = mr->lkey };
	uint64_t *word = mr->addr, content = 0x1234567800000000 + number;
	struct qp_address other;
	struct ibv_wc wc;
	double start = now_s();
	struct ibv_qp *qp = qp_create(pd, cq, cap, true);
	struct qp_address mine = qp_address_of(qp, number);

	qp_init(qp);
	*word = sends ? content : 0;
	for (int i = 0; i < 2 && !sends; i++)
		CHECK(!post_receive(qp, number, all), "ibv_post_recv");
	tcp_write(to_other, &mine, sizeof mine);
	tcp_read(to_other, &other, sizeof other);
	double waited = waited_s(), other_waited, rtr = now_s(), done[3] = { rtr };

	qp_connect(qp, &mine, &other, &options);
	for (int i = 1; i <= 2; i++) {
		if (sends) {
			struct request r = { .opcode = IBV_WR_SEND, .id = number, .local = all };
			CHECK(!post_request(qp, &r), "ibv_post_send");
		}
		CHECK(poll_for(cq, &wc, 1, 30) == 1, "connect %d: no completion within 30 s", number);
		done[i] = now_s();
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)number && wc.qp_num == qp->qp_num, "connect %d: %s", number,
		      ibv_wc_status_str(wc.status));
		CHECK(*word == content, "connect %d: wrong content", number);
	}
	waited = waited_s() - waited;
	/* Nobody begins the next one before both have done with this. */
	tcp_write(to_other, &waited, sizeof waited);
	tcp_read(to_other, &other_waited, sizeof other_waited);
	CHECK(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	return (struct times){ done[1] - start, done[1] - rtr, done[2] - done[1], waited > other_waited ? waited : other_waited };
}

int main(int argc, char **argv)
{
	const char *device = "metaroce0", *server = NULL, *port = "18515";
	int connects = 100, c;
	double limit_ms = 1e9;
	static double took[MOST], from_rtr[MOST], round_trip[MOST], undelayed[MOST];
	int never_waited = 0;

	while ((c = getopt(argc, argv, "d:s:p:n:l:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		case 's': server = optarg; break;
		case 'p': port = optarg; break;
		case 'n': connects = atoi(optarg); break;
		case 'l': limit_ms = atof(optarg); break;
		default: return 2;
		}
	CHECK(connects > 0 && connects <= MOST, "bad arguments");
	struct ibv_context *context = open_named(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);

	CHECK(pd && cq, "ibv_alloc_pd, ibv_create_cq: %m");
	struct ibv_mr *mr = ibv_reg_mr(pd, memory(MESSAGE_BYTES), MESSAGE_BYTES, IBV_ACCESS_LOCAL_WRITE);

	CHECK(mr, "ibv_reg_mr: %m");
	int to_other = server ? tcp_connect(server, port) : tcp_accept(tcp_listen(port));

	for (int i = 0; i < connects; i++) {
		struct times t = connect_once(pd, cq, mr, to_other, server != NULL, i + 1);

		took[i] = t.whole;
		from_rtr[i] = t.from_rtr;
		round_trip[i] = t.round_trip;
		if (t.waited < SHORT_WAIT)
			undelayed[never_waited++] = t.from_rtr;
	}
	double first = took[0];

	qsort(took, connects, sizeof *took, by_size);
	qsort(from_rtr, connects, sizeof *from_rtr, by_size);
	qsort(undelayed, never_waited, sizeof *undelayed, by_size);
	qsort(round_trip, connects, sizeof *round_trip, by_size);
	double median = took[connects / 2];

	printf("%d connects, from ibv_create_qp to the first completed message: median %.2f ms, slowest %.1f ms, the first of the process %.1f ms\n",
	       connects, median * 1e3, took[connects - 1] * 1e3, first * 1e3);
	printf("from RTR to the first byte delivered and acknowledged: median %.0f us, 90 %% within %.0f us; a round trip: median %.0f us\n",
	       from_rtr[connects / 2] * 1e6, from_rtr[connects * 9 / 10] * 1e6, round_trip[connects / 2] * 1e6);
	if (never_waited)
		printf("the same of %d connects in which neither program waited for a processor: median %.0f us, 99 %% within %.0f us, slowest %.0f us\n",
		       never_waited, undelayed[never_waited / 2] * 1e6, undelayed[never_waited * 99 / 100] * 1e6, undelayed[never_waited - 1] * 1e6);
	CHECK(median * 1e3 < limit_ms, "the median is above %.0f ms", limit_ms);
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "cannot close");
	puts("OK");
	return 0;
}
