/* Watches memory as real programs do while it is written to over RDMA: polls flags, last bytes and first bytes, and looks
 * each time whether everything that must be there before is there; over stock libibverbs.
 *
 *   visibility -d DEVICE -p TCP_PORT -m strict|relaxed [-q QPS]                      the watcher
 *   visibility -d DEVICE -p TCP_PORT -m … [-q QPS] -s IP [-t SECONDS] [-r SEED]      the writer
 *
 * A queue pair goes in rounds. In round r the writer WRITEs bytes of a random length into slot r % SLOTS, and in most
 * rounds then a flag, by a WRITE of its own; up to SLOTS rounds are under way. The watcher never gets a completion of them. It reads
 * memory, now and then without calling the library for a while, and as soon as it sees a sign of round r,
 *   its flag: all bytes of the round must be there,
 *   its last byte: all bytes of the round must be there,
 *   any of its first byte, last byte, flag: all bytes and flags of all earlier rounds must be there.
 * What is missing is an early byte. When a round is complete its slot is cleared and handed back, by a WRITE that the
 * writer polls for in turn. A byte that is neither 0 nor what belongs there fails the run in any mode.
 *
 * With -m strict memory is registered without IBV_ACCESS_RELAXED_ORDERING and with -m relaxed with it. -m forced registers as
 * -m relaxed does and expects what -m strict does: METAROCE_VISIBILITY=strict. Early bytes fail a strict or forced run. The
 * watcher's last line is "early E (flag F, last byte L, across messages A) in R rounds"; both end with OK. */
#include "verbs_util.h"
#include <getopt.h>
#include <sched.h>

enum { MAX_QPS = 64, SLOTS = 16, PERIOD = 255, SIGNAL_EVERY = 8, QUEUE = 4 * SLOTS, STALL_S = 30 };
enum { FLAG = 1, LAST = 2, ACROSS = 4 };

static const uint32_t lengths[] = { 1, 4, 8, 13, 64, 200, 1000, 1025, 4096, 4097, 8192, 10000, 20000, 65536, 131072, 262144 };
enum { LENGTHS = sizeof lengths / sizeof lengths[0], SLOT_BYTES = 262144 };

struct hello { struct qp_address qp; uint64_t addr; uint32_t rkey; };

struct lane {
	struct ibv_qp *qp;
	struct hello peer;
	uint64_t next;			/* writer: the round that is posted next; watcher: the one that is complete next */
	uint64_t end;			/* rounds; known to the watcher when the writer has stopped */
	uint8_t noted[SLOTS];		/* watcher: early bytes of a round count once of each kind */
	unsigned unretired;		/* requests posted since the last signaled one that completed */
	double moved;			/* when it last went on */
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr, *pattern_mr;
static struct lane lanes[MAX_QPS];
static int nqp = 4;
static uint64_t seed = 1, total_rounds, total_bytes, early[ACROSS + 1];
static uint8_t *mem, *pattern;
static size_t lane_bytes;
static const struct qp_options options = { .timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 1 };

/* Of a queue pair: slots, then a flag of 8 bytes a slot, then what was handed back; the writer uses only the last. */
static uint8_t *slot(int q, uint64_t round) { return mem + q * lane_bytes + round % SLOTS * SLOT_BYTES; }
static uint64_t *flag(int q, uint64_t round) { return (uint64_t *)(mem + q * lane_bytes + (size_t)SLOTS * SLOT_BYTES) + round % SLOTS; }
static uint64_t *handed_back(int q) { return flag(q, 0) + SLOTS; }

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30; x *= 0xbf58476d1ce4e5b9; x ^= x >> 27; x *= 0x94d049bb133111eb;
	return x ^ x >> 31;
}

/* Both sides know what a round is. */
static uint32_t length_of(int q, uint64_t round) { return lengths[mix(seed + round * MAX_QPS + q) % LENGTHS]; }
static bool has_flag(int q, uint64_t round) { return mix(~seed - round * MAX_QPS - q) % 4; }
static const uint8_t *bytes_of(uint64_t round) { return pattern + round % PERIOD; }

static void set_up(int tcp, int access)
{
	/* Bytes are 1…255, never 0: an untouched byte is told from every other. */
	pattern = memory(SLOT_BYTES + PERIOD);
	for (size_t i = 0; i < SLOT_BYTES + PERIOD; i++)
		pattern[i] = 1 + i % PERIOD;
	lane_bytes = (size_t)SLOTS * SLOT_BYTES + 4096;
	mem = memory(nqp * lane_bytes);
	mr = ibv_reg_mr(pd, mem, nqp * lane_bytes, access);
	pattern_mr = ibv_reg_mr(pd, pattern, SLOT_BYTES + PERIOD, 0);
	CHECK(mr && pattern_mr, "ibv_reg_mr: %m");
	for (int q = 0; q < nqp; q++) {
		struct lane *l = &lanes[q];

		l->qp = qp_create(pd, cq, (struct ibv_qp_cap){ .max_send_wr = QUEUE, .max_recv_wr = 1, .max_send_sge = 1,
			.max_recv_sge = 1, .max_inline_data = 8 }, false);
		qp_init(l->qp);
		struct hello mine = { qp_address_of(l->qp, q), (uintptr_t)(mem + q * lane_bytes), mr->rkey };
		tcp_write(tcp, &mine, sizeof mine);
		tcp_read(tcp, &l->peer, sizeof l->peer);
		qp_connect(l->qp, &mine.qp, &l->peer.qp, &options);
		l->next = 1;
		l->moved = now_s();
	}
}

static void retire(void)
{
	struct ibv_wc wc[32];
	int n = ibv_poll_cq(cq, 32, wc);

	CHECK(n >= 0, "ibv_poll_cq");
	for (int i = 0; i < n; i++) {
		CHECK(wc[i].status == IBV_WC_SUCCESS, "a WRITE ended with %s", ibv_wc_status_str(wc[i].status));
		lanes[wc[i].wr_id >> 32].unretired -= (uint32_t)wc[i].wr_id;
	}
}

/* The signaled request that retires all so far carries their number; unsignaled ones never fill the queue. */
static void post(int q, const void *from, uint32_t bytes, size_t to, bool signaled, bool in_line)
{
	struct lane *l = &lanes[q];
	static unsigned since[MAX_QPS];

	l->unretired++;
	since[q]++;
	signaled |= since[q] >= SIGNAL_EVERY;
	struct request r = { .opcode = IBV_WR_RDMA_WRITE, .id = (uint64_t)q << 32 | since[q], .remote = l->peer.addr + to,
		.rkey = l->peer.rkey, .flags = (signaled ? IBV_SEND_SIGNALED : 0) | (in_line ? IBV_SEND_INLINE : 0),
		.local = { .addr = (uintptr_t)from, .length = bytes, .lkey = in_line ? 0 : pattern_mr->lkey } };
	int e = post_request(l->qp, &r);
	CHECK(!e, "ibv_post_send: %s", strerror(e));
	if (signaled)
		since[q] = 0;
}

static size_t offset_in_lane(int q, const void *p) { return (const uint8_t *)p - (mem + q * lane_bytes); }

static bool write_round(int q)
{
	struct lane *l = &lanes[q];
	uint64_t back = __atomic_load_n(handed_back(q), __ATOMIC_ACQUIRE);

	if (l->next > back + SLOTS || l->unretired + 2 > QUEUE)
		return false;
	uint64_t round = l->next++;
	post(q, bytes_of(round), length_of(q, round), offset_in_lane(q, slot(q, round)), false, false);
	if (has_flag(q, round))
		post(q, &round, sizeof round, offset_in_lane(q, flag(q, round)), false, true);
	return true;
}

static void write_all(int tcp, double seconds)
{
	double end = now_s() + seconds;

	while (now_s() < end) {
		bool any = false;

		for (int q = 0; q < nqp; q++) {
			struct lane *l = &lanes[q];
			bool went = write_round(q);

			any |= went;
			if (went)
				l->moved = now_s();
			CHECK(now_s() - l->moved < STALL_S, "queue pair %d: nothing handed back for %d s", q, STALL_S);
		}
		retire();
		if (!any)
			sched_yield();
	}
	for (int q = 0; q < nqp; q++) {
		uint64_t last = lanes[q].next;

		tcp_write(tcp, &last, sizeof last);
	}
	/* The watcher's word that it has seen everything. */
	for (;;) {
		char c;
		ssize_t n = recv(tcp, &c, 1, MSG_DONTWAIT);

		if (n == 1)
			break;
		CHECK(n < 0 && now_s() < end + 2 * STALL_S, "the watcher did not see everything");
		retire();
	}
}

static bool first_byte_is_there(int q, uint64_t round) { return __atomic_load_n(slot(q, round), __ATOMIC_ACQUIRE); }
static bool last_byte_is_there(int q, uint64_t round) { return __atomic_load_n(slot(q, round) + length_of(q, round) - 1, __ATOMIC_ACQUIRE); }

static bool flag_is_there(int q, uint64_t round)
{
	uint64_t value = has_flag(q, round) ? __atomic_load_n(flag(q, round), __ATOMIC_ACQUIRE) : 0;

	CHECK(!value || value == round, "queue pair %d: the flag of round %lu is %lu", q, round, value);
	return value;
}

static void check_byte(int q, uint64_t round, uint32_t i)
{
	uint8_t byte = __atomic_load_n(slot(q, round) + i, __ATOMIC_RELAXED), right = bytes_of(round)[i];

	CHECK(!byte || byte == right, "queue pair %d, round %lu: byte %u of %u is %u instead of %u", q, round, i, length_of(q, round), byte, right);
}

/* All bytes of the round, its flag not. What is there must be right. Every byte is loaded once: memcmp loads those that differ
 * again, and takes buffers for equal if they have become so in between. */
static bool bytes_are_there(int q, uint64_t round)
{
	const uint8_t *found = slot(q, round), *right = bytes_of(round);
	uint32_t length = length_of(q, round), i = 0, step;
	bool all = true;

	for (; i < length; i += step) {
		uint64_t word = 0, wanted = 0;

		step = length - i >= 8 ? 8 : 1;
		memcpy(&wanted, right + i, step);
		word = step == 8 ? __atomic_load_n((const uint64_t *)(found + i), __ATOMIC_RELAXED) : __atomic_load_n(found + i, __ATOMIC_RELAXED);
		if (word == wanted)
			continue;
		all = false;
		for (uint32_t j = i; j < i + step; j++)
			check_byte(q, round, j);
		if (i >= 8192)
			break;
	}
	return all;
}

static bool is_complete(int q, uint64_t round)
{
	return bytes_are_there(q, round) && (!has_flag(q, round) || flag_is_there(q, round));
}

static void note(int q, uint64_t round, int kind)
{
	uint8_t *noted = &lanes[q].noted[round % SLOTS];

	early[kind] += !(*noted & kind);
	*noted |= kind;
}

/* Looks for a sign of a round, then at what must be there: in this order, as programs do. */
static void look_at(int q, uint64_t round)
{
	bool by_flag = flag_is_there(q, round), by_last = !by_flag && last_byte_is_there(q, round);

	if (!by_flag && !by_last && !first_byte_is_there(q, round))
		return;
	for (uint64_t before = lanes[q].next; before < round; before++)
		if (!is_complete(q, before))
			note(q, round, ACROSS);
	if ((by_flag || by_last) && !bytes_are_there(q, round))
		note(q, round, by_flag ? FLAG : LAST);
}

static void hand_back(int q)
{
	struct lane *l = &lanes[q];
	uint64_t round = l->next;

	memset(slot(q, round), 0, length_of(q, round));
	*flag(q, round) = 0;
	l->noted[round % SLOTS] = 0;
	total_rounds++;
	total_bytes += length_of(q, round);
	l->next++;
	l->moved = now_s();
	/* The slot is clean before the writer can know of it. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	post(q, &round, sizeof round, offset_in_lane(q, handed_back(q)), false, true);
}

static bool look(int q)
{
	struct lane *l = &lanes[q];

	/* The latest first: between two looks only earlier ones can have come in addition. */
	for (uint64_t round = l->next + SLOTS; --round >= l->next; )
		look_at(q, round);
	while (l->unretired + 1 < QUEUE && is_complete(q, l->next))
		hand_back(q);
	return l->end && l->next == l->end;
}

static void watch(int tcp)
{
	bool done = false;
	int known = 0;

	while (!done) {
		double now = now_s();

		/* Every other 10 ms the library is not called, but to hand back. */
		if ((long)(now * 100) % 2)
			retire();
		done = true;
		for (int q = 0; q < nqp; q++) {
			done &= look(q);
			CHECK(now - lanes[q].moved < STALL_S, "queue pair %d: round %lu is not complete after %d s", q, lanes[q].next, STALL_S);
		}
		for (struct pollfd p = { .fd = tcp, .events = POLLIN }; known < nqp && poll(&p, 1, 0) == 1; known++)
			tcp_read(tcp, &lanes[known].end, sizeof lanes[known].end);
		sched_yield();
	}
	tcp_write(tcp, "d", 1);
}

int main(int argc, char **argv)
{
	const char *device = "metaroce0", *server = NULL, *port = "18600", *mode = "strict";
	double seconds = 5;
	int c;

	while ((c = getopt(argc, argv, "d:s:p:q:t:r:m:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		case 's': server = optarg; break;
		case 'p': port = optarg; break;
		case 'q': nqp = atoi(optarg); break;
		case 't': seconds = atof(optarg); break;
		case 'r': seed = strtoull(optarg, NULL, 0); break;
		case 'm': mode = optarg; break;
		default: return 2;
		}
	bool relaxed = !strcmp(mode, "relaxed"), forced = !strcmp(mode, "forced");
	CHECK(nqp >= 1 && nqp <= MAX_QPS && (relaxed || forced || !strcmp(mode, "strict")), "-q 1…%d, -m strict|forced|relaxed", MAX_QPS);
	int tcp = server ? tcp_connect(server, port) : tcp_accept(tcp_listen(port));

	context = open_named(device);
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, MAX_QPS * QUEUE, NULL, NULL, 0)), "PD and CQ: %m");
	if (server)
		tcp_write(tcp, &seed, sizeof seed);
	else
		tcp_read(tcp, &seed, sizeof seed);
	set_up(tcp, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | (relaxed || forced ? IBV_ACCESS_RELAXED_ORDERING : 0));
	if (server)
		write_all(tcp, seconds);
	else
		watch(tcp);
	for (int q = 0; q < nqp; q++)
		CHECK(!ibv_destroy_qp(lanes[q].qp), "ibv_destroy_qp");
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(pattern_mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "clean-up");
	if (!server) {
		uint64_t all = early[FLAG] + early[LAST] + early[ACROSS];

		printf("%s: %lu bytes, early %lu (flag %lu, last byte %lu, across messages %lu) in %lu rounds\n", mode, total_bytes, all,
		       early[FLAG], early[LAST], early[ACROSS], total_rounds);
		CHECK(relaxed || !all, "early bytes where memory must show WRITEs in order");
	}
	printf("OK\n");
	return 0;
}
