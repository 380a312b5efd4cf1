/* Many queue pairs between two processes over stock libibverbs, and many of them one after the other.
 *
 *   scale_pairs [-d DEVICE] [-s SERVER_IP] [-p TCP_PORT] [-q QPS] [-r ROUNDS] [-n CYCLES] [-b BATCH] [-c CHECK_AT]
 *
 * First QPS queue pairs at once, each of which exchanges data both ways ROUNDS times: an unsignaled WRITE, a SEND with
 * immediate and a READ. Then CYCLES times: BATCH new queue pairs are made, connected, used and left, in one of the WAYS to
 * leave, which take turns. Every byte, the bytes between, and every field of every completion are looked at. What the process
 * uses is read after CHECK_AT cycles and at the end: it must not have grown. Last line OK. */
#include "scale_usage.h"
#include <getopt.h>

enum { SLOT = 2048, PARTS = 4, DEPTH = 4, BLANK = 0xEE, MOST_BYTES = SLOT - 64, PER_QP = 3 };
enum part { SOURCE, TARGET, RECEIVED, READ_BACK };
/* How a batch ends. The side that is first waits for the other's word before the other goes. */
enum way { A_FIRST, B_FIRST, TOGETHER, RESET_AND_AGAIN, ONE_RESETS, ERROR_FIRST, NEVER_USED, WAYS };
static const char *const WAY[WAYS] = { "A first", "B first", "together", "reset and again", "one resets", "error first", "never used" };

struct peer { struct qp_address address; uint64_t base; uint32_t rkey; };
struct pair { struct ibv_qp *qp; struct peer peer; uint32_t qpn; int sent, received; };

static const struct qp_options OPTIONS = { .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1, .rd_atomic = 4 };
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct pair *pairs;
static uint8_t *buffer;
static int side, tcp, qps = 1000;
static uint32_t generation;
static unsigned long messages;

static uint8_t *part(int at, enum part which) { return buffer + ((size_t)at * PARTS + which) * SLOT; }
static uint64_t offset(int at, enum part which) { return ((uint64_t)at * PARTS + which) * SLOT; }

static uint32_t mix(uint32_t x)
{
	x = (x ^ x >> 16) * 0x7feb352d;
	x = (x ^ x >> 15) * 0x846ca68b;
	return x ^ x >> 16;
}

/* What side `from` sends on pair `at` in this generation. */
static uint32_t seed(int from, int at) { return mix(generation * 4 + from) + at * 0x9e3779b9; }
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

	tcp_write(tcp, &what, 1);
	tcp_read(tcp, &got, 1);
	CHECK(got == what, "out of step: '%c' here, '%c' there", what, got);
}

static void create(int at)
{
	struct ibv_qp_cap cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 };

	pairs[at] = (struct pair){ .qp = qp_create(pd, cq, cap, false) };
	pairs[at].qpn = pairs[at].qp->qp_num;
}

/* From RESET to RTS with the other side's queue pairs of the same places, the first receives posted. */
static void connect_all(int count)
{
	struct peer *mine = calloc(count, sizeof *mine), *theirs = calloc(count, sizeof *theirs);

	for (int at = 0; at < count; at++)
		mine[at] = (struct peer){ qp_address_of(pairs[at].qp, mix(generation + at) & 0xffffff), (uintptr_t)buffer, mr->rkey };
	tcp_write(tcp, mine, count * sizeof *mine);
	tcp_read(tcp, theirs, count * sizeof *theirs);
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
		.remote = p->peer.base + offset(at, TARGET), .rkey = p->peer.rkey };
	struct request send = { .opcode = IBV_WR_SEND_WITH_IMM, .id = at, .flags = IBV_SEND_SIGNALED, .imm = htonl(seed(side, at)),
		.local = piece(at, SOURCE, length(side, at, 2)) };
	struct request read = { .opcode = IBV_WR_RDMA_READ, .id = at, .flags = IBV_SEND_SIGNALED,
		.local = piece(at, READ_BACK, length(!side, at, 3)), .remote = p->peer.base + offset(at, SOURCE), .rkey = p->peer.rkey };

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

static void receive_again(int count)
{
	for (int at = 0; at < count; at++) {
		int e = post_receive(pairs[at].qp, at, piece(at, RECEIVED, SLOT));
		CHECK(!e, "ibv_post_recv: %s", strerror(e));
	}
}

static void destroy_all(int count)
{
	for (int at = 0; at < count; at++) {
		int e = ibv_destroy_qp(pairs[at].qp);
		CHECK(!e, "ibv_destroy_qp: %s", strerror(e));
	}
}

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
		create(at);
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
		create(at);
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
	CHECK(late.heap_bytes <= early.heap_bytes + (64 << 10), "the heap has grown by %ld bytes", late.heap_bytes - early.heap_bytes);
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
	context = open_named(device);
	CHECK((pd = ibv_alloc_pd(context)), "ibv_alloc_pd: %m");
	CHECK((cq = ibv_create_cq(context, qps * (PER_QP + 1), NULL, NULL, 0)), "ibv_create_cq: %m");
	size_t bytes = (size_t)qps * PARTS * SLOT;
	buffer = memory(bytes);
	CHECK((mr = ibv_reg_mr(pd, buffer, bytes, IBV_ACCESS_LOCAL_WRITE | REMOTE_RIGHTS)), "ibv_reg_mr: %m");
	pairs = calloc(qps, sizeof *pairs);
	tcp = server ? tcp_connect(server, port) : tcp_accept(tcp_listen(port));
	run_many(rounds);
	if (cycles)
		run_cycles(cycles, batch, check_at);
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "clean-up");
	printf("%lu messages\nOK\n", messages);
	return 0;
}
