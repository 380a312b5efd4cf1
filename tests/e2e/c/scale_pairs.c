/* Many queue pairs between two processes over stock libibverbs, and many of them one after the other.
 *
 *   scale_pairs [-d DEVICE] [-s SERVER_IP] [-p TCP_PORT] [-q QPS] [-r ROUNDS] [-n CYCLES] [-b BATCH] [-c CHECK_AT]
 *
 * First QPS queue pairs at once, each of which exchanges data both ways ROUNDS times: an unsignaled WRITE, a SEND with
 * immediate and a READ. Then CYCLES times: BATCH new queue pairs are made, connected, used and left, in one of the WAYS to
 * leave, which take turns. Every byte, the bytes between, and every field of every completion are looked at. What the process
 * uses is read after CHECK_AT cycles and at the end: it must not have grown. Last line OK. */
#include "scale_exchange.h"
#include <getopt.h>

/* How a batch ends. The side that is first waits for the other's word before the other goes. */
enum way { A_FIRST, B_FIRST, TOGETHER, RESET_AND_AGAIN, ONE_RESETS, ERROR_FIRST, NEVER_USED, WAYS };
static const char *const WAY[WAYS] = { "A first", "B first", "together", "reset and again", "one resets", "error first", "never used" };


static int qps = 1000;

static void all_to(int count, enum ibv_qp_state state)
{
	for (int at = 0; at < count; at++)
		modify(pairs[at].qp, (struct ibv_qp_attr){ .qp_state = state }, IBV_QP_STATE, state == IBV_QPS_ERR ? "ERR" : "RESET");
}

/* A posted receive per queue pair that nothing will use is flushed. */
static void flushed(int count)
{
	struct ibv_wc wc[64];

	for (int left = count; left;) {
		int n = poll_for(cq, wc, left < 64 ? left : 64, 10);
		CHECK(n > 0, "%d flushed receives are missing", left);
		for (int i = 0; i < n; i++)
			CHECK(wc[i].status == IBV_WC_WR_FLUSH_ERR, "wr_id %lu: %s", wc[i].wr_id, ibv_wc_status_str(wc[i].status));
		left -= n;
	}
}

/* In words: `first` goes, and the other when it has gone. */
static void leave_in_turn(int count, bool first)
{
	if (first)
		destroy_all(count);
	barrier('1');
	if (!first)
		destroy_all(count);
	barrier('2');
}

static void cycle(int count, enum way way)
{
	for (int at = 0; at < count; at++)
		create(at, at);
	connect_all(count);
	if (way == NEVER_USED) {
		destroy_all(count);
		flushed(count);
		barrier('n');
		generation++;
		return;
	}
	exchange(count);
	switch (way) {
	case RESET_AND_AGAIN:
		all_to(count, IBV_QPS_RESET);
		connect_all(count);
		exchange(count);
		leave_in_turn(count, !side);
		break;
	case ONE_RESETS:
		if (side)
			all_to(count, IBV_QPS_RESET);
		barrier('r');
		destroy_all(count);
		break;
	case ERROR_FIRST:
		receive_again(count);
		all_to(count, IBV_QPS_ERR);
		flushed(count);
		leave_in_turn(count, side);
		break;
	case TOGETHER:
		destroy_all(count);
		break;
	default:
		leave_in_turn(count, (way == A_FIRST) == !side);
	}
	barrier('e');
}

/* After the lingering of ended streams and connections is over. */
static struct usage settled(const char *when)
{
	barrier('s');
	usleep(2500000);
	barrier('t');
	malloc_trim(0);
	struct usage u = usage_now();
	print_usage(when, &u);
	return u;
}

static void run_many(int rounds)
{
	double start = now_s(), created, connected, exchanged;
	struct usage before = usage_now();

	for (int at = 0; at < qps; at++)
		create(at, at);
	created = now_s();
	connect_all(qps);
	connected = now_s();
	exchange(qps);
	exchanged = now_s();
	for (int round = 1; round < rounds; round++) {
		receive_again(qps);
		exchange(qps);
	}
	double rounds_done = now_s();
	struct usage at_most = usage_now();
	destroy_all(qps);
	printf("%d queue pairs: made in %.0f ms, connected in %.0f ms, first exchange %.0f ms, %d more %.0f ms each, destroyed in %.0f ms\n", qps,
	       (created - start) * 1e3, (connected - created) * 1e3, (exchanged - connected) * 1e3, rounds - 1,
	       rounds > 1 ? (rounds_done - exchanged) * 1e3 / (rounds - 1) : 0, (now_s() - rounds_done) * 1e3);
	printf("a queue pair in use takes %.1f KiB of heap\n", (at_most.heap_bytes - before.heap_bytes) / 1024.0 / qps);
	print_usage("with all", &at_most);
	barrier('m');
}

static void run_cycles(int cycles, int batch, int check_at)
{
	struct usage early = { 0 };
	double all[WAYS] = { 0 }, slowest[WAYS] = { 0 };
	int times[WAYS] = { 0 };

	for (int i = 0; i < cycles; i++) {
		enum way way = i % WAYS;
		double took = now_s();

		cycle(batch, way);
		took = now_s() - took;
		all[way] += took;
		times[way]++;
		if (took > slowest[way])
			slowest[way] = took;
		if (i + 1 == check_at)
			early = settled("early");
	}
	struct usage late = settled("at the end");

	for (enum way way = 0; way < WAYS; way++)
		if (times[way])
			printf("%-15s %d cycles of %d queue pairs: %.2f ms each, the slowest %.1f ms\n", WAY[way], times[way], batch,
			       all[way] * 1e3 / times[way], slowest[way] * 1e3);
	CHECK(late.fds == early.fds && late.sockets == early.sockets && late.threads == early.threads, "descriptors or threads have grown");
	/* the allocator counts what its threads keep for themselves as used, some 100 KiB each */
	CHECK(late.heap_bytes <= early.heap_bytes + (256 << 10), "the heap has grown by %ld bytes", late.heap_bytes - early.heap_bytes);
	CHECK(late.rss_bytes <= early.rss_bytes + (2 << 20), "the RSS has grown by %ld bytes", late.rss_bytes - early.rss_bytes);
	CHECK(late.heap_bytes + (8 << 20) > early.heap_bytes, "that is not the heap");
}

int main(int argc, char **argv)
{
	const char *device = "metaroce0", *server = NULL, *port = "18515";
	int rounds = 3, cycles = 0, batch = 2, check_at = 200, c;

	while ((c = getopt(argc, argv, "d:s:p:q:r:n:b:c:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		case 's': server = optarg; break;
		case 'p': port = optarg; break;
		case 'q': qps = atoi(optarg); break;
		case 'r': rounds = atoi(optarg); break;
		case 'n': cycles = atoi(optarg); break;
		case 'b': batch = atoi(optarg); break;
		case 'c': check_at = atoi(optarg); break;
		default: return 2;
		}
	CHECK(qps > 0 && rounds > 0 && batch > 0 && batch <= qps && (!cycles || (check_at > 0 && check_at < cycles)), "bad arguments");
	setvbuf(stdout, NULL, _IOLBF, 0);
	side = server != NULL;
	open_for(device, qps);
	to_other = server ? tcp_connect(server, port) : tcp_accept(tcp_listen(port));
	run_many(rounds);
	if (cycles)
		run_cycles(cycles, batch, check_at);
	close_all();
	printf("%lu messages\nOK\n", messages);
	return 0;
}
