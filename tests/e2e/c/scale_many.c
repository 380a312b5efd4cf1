/* Thousands of connections of one process, over stock libibverbs: what each takes of the heap, what it costs to use each once a
 * second, and what one more queue pair takes.
 *
 *   scale_many [-d DEVICE] [-s SERVER_IP] [-p TCP_PORT] [-g GIDS] [-G GIDS_OF_SERVER] [-n PROCESSES] [-q MORE] [-t SECONDS] [-i IDLE_SECONDS]
 *              [-m MOST_BYTES_IDLE] [-M MOST_BYTES_MORE] [-a AT_ONCE]
 *
 * The server forks PROCESSES children. The client has a queue pair from each of its first GIDS addresses to each of the first
 * GIDS_OF_SERVER of each child: as many connections, because a connection joins two addresses of two processes. Each carries a WRITE a second, of which
 * the children see the bytes and nothing else. Times are told; memory is held to its bounds. Last line OK. */
#include "scale_usage.h"
#include <getopt.h>
#include <sys/wait.h>

enum { TICKS = 100, WC = 256 };
struct peer { struct qp_address address; uint64_t base; uint32_t rkey; };
struct link { struct ibv_qp *qp; struct peer peer; };

static const struct qp_options OPTIONS = { .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1, .rd_atomic = 1 };
/* Rings of their least size: they are what a program asks for and no cost of a connection. */
static const struct ibv_qp_cap CAP = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
static const char *device = "metaroce0";
static int gids = 16, server_gids = 16, processes = 16, more = 256, at_once = 32;
static double seconds = 5, idle_s = 8;
static long most_idle, most_more;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint64_t *words;

static void open_all(int queue_pairs)
{
	context = open_named(device);
	CHECK((pd = ibv_alloc_pd(context)), "ibv_alloc_pd: %m");
	CHECK((cq = ibv_create_cq(context, queue_pairs, NULL, NULL, 0)), "ibv_create_cq: %m");
	words = memory(queue_pairs * sizeof *words);
	CHECK((mr = ibv_reg_mr(pd, words, queue_pairs * sizeof *words, REMOTE_RIGHTS | IBV_ACCESS_LOCAL_WRITE)), "ibv_reg_mr: %m");
}

static void create(struct link *links, int count)
{
	for (int at = 0; at < count; at++)
		links[at].qp = qp_create(pd, cq, CAP, true);
}

/* `first`: number of the first word. The client's address is number `at / server_gids`, the server's `at % server_gids`; of what comes on top
 * both have their first. */
static void connect_all(struct link *links, int count, int first, int other, bool server)
{
	struct peer *mine = calloc(count, sizeof *mine), *theirs = calloc(count, sizeof *theirs);

	for (int at = 0; at < count; at++) {
		int number = first >= processes * gids * server_gids ? 0 : server ? at % server_gids : at / server_gids;

		mine[at] = (struct peer){ { .qpn = links[at].qp->qp_num }, (uintptr_t)(words + (server ? at % (gids * server_gids) : first + at)), mr->rkey };
		CHECK(!ibv_query_gid(context, 1, number, &mine[at].address.gid), "GID %d: %m", number);
		mine[at].address.psn = number;	/* kept for below: PSNs are free to choose */
	}
	tcp_write(other, mine, count * sizeof *mine);
	tcp_read(other, theirs, count * sizeof *theirs);
	for (int at = 0; at < count; at++) {
		struct ibv_qp_attr rtr = rtr_attributes(&theirs[at].address, &OPTIONS);

		rtr.ah_attr.grh.sgid_index = mine[at].address.psn;
		qp_init(links[at].qp);
		modify(links[at].qp, rtr, RTR_MASK, "RTR");
		modify(links[at].qp, rts_attributes(&mine[at].address, &OPTIONS), RTS_MASK, "RTS");
		links[at].peer = theirs[at];
	}
	free(mine);
	free(theirs);
	char ready = 'c', got;
	tcp_write(other, &ready, 1);
	tcp_read(other, &got, 1);
}

static void child(int listener)
{
	int other = tcp_accept(listener), count = gids * server_gids;
	struct link *links = calloc(count, sizeof *links), *on_top;
	char what;

	open_all(count);
	create(links, count);
	connect_all(links, count, 0, other, true);
	/* Until the client ends; however long it takes, nothing is to be done here. */
	for (ssize_t n; (n = recv(other, &what, 1, 0));) {
		if (n < 0)
			continue;
		on_top = calloc(more, sizeof *on_top);
		create(on_top, more);
		connect_all(on_top, more, processes * count, other, true);
	}
	for (int at = 0; at < count; at++)
		CHECK(words[at], "nothing came on connection %d", at);
	exit(0);
}

static int reap(void)
{
	struct ibv_wc wc[WC];
	int n = ibv_poll_cq(cq, WC, wc);

	CHECK(n >= 0, "ibv_poll_cq");
	for (int i = 0; i < n; i++)
		CHECK(!wc[i].status, "WRITE %lu: %s", wc[i].wr_id, ibv_wc_status_str(wc[i].status));
	return n;
}

static void post(struct link *links, int at, int word)
{
	words[word]++;
	struct request r = { .opcode = IBV_WR_RDMA_WRITE, .id = at, .flags = IBV_SEND_SIGNALED,
		.local = { (uintptr_t)(words + word), sizeof *words, mr->lkey }, .remote = links[at].peer.base, .rkey = links[at].peer.rkey };
	int e = post_request(links[at].qp, &r);

	CHECK(!e, "ibv_post_send on connection %d: %s", at, strerror(e));
}

static void use_all(struct link *links, int count, int first)
{
	int done = 0;
	double end = now_s() + 60;

	for (int at = 0; at < count; at++) {
		post(links, at, first + at);
		while (at + 1 - done >= at_once) {
			done += reap();
			CHECK(now_s() < end, "only %d of %d WRITEs completed", done, count);
		}
	}
	for (; done < count; done += reap())
		CHECK(now_s() < end, "only %d of %d WRITEs completed", done, count);
}

static double cpu_now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Each connection once a second, evenly, by a program that sleeps between. */
static void once_a_second(struct link *links, int count)
{
	int ticks = seconds * TICKS, done = 0, posted = 0;
	struct usage before = usage_now();
	double start = now_s(), cpu = cpu_now_s();

	for (int tick = 0; tick < ticks; tick++) {
		int part = tick % TICKS;

		for (int at = (long)count * part / TICKS; at < (long)count * (part + 1) / TICKS; at++, posted++)
			post(links, at, at);
		done += reap();
		double left = start + (tick + 1.0) / TICKS - now_s();
		if (left > 0)
			usleep(left * 1e6);
	}
	double took = now_s() - start;

	cpu = cpu_now_s() - cpu;
	struct usage after = usage_now();
	for (double end = now_s() + 60; done < posted; done += reap())
		CHECK(now_s() < end, "only %d of %d WRITEs completed", done, posted);
	printf("%d connections, %.0f WRITEs/s: %.2f %% of a core, %.1f us each, %.0f wake-ups/s\n", count, posted / took, cpu / took * 100,
	       cpu / posted * 1e6, (after.wakeups - before.wakeups) / took);
}

static void rest(double s)
{
	struct timespec t = { .tv_sec = (time_t)s, .tv_nsec = (s - (time_t)s) * 1e9 };

	while (nanosleep(&t, &t))
		;
}

static void client(const char *server, const char *port)
{
	int each = gids * server_gids, count = processes * each, *others = calloc(processes, sizeof *others);
	struct link *links = calloc(count, sizeof *links), *on_top = calloc(more, sizeof *on_top);
	struct usage before, created, connected, used, idle, with_more;

	for (int i = 0; i < processes; i++)
		others[i] = tcp_connect(server, port);
	open_all(count + more);
	before = usage_now();
	create(links, count);
	created = usage_now();
	double start = now_s(), cpu = cpu_now_s();
	for (int i = 0; i < processes; i++)
		connect_all(links + i * each, each, i * each, others[i], false);
	use_all(links, count, 0);
	printf("%d connections set up and used in %.0f ms, %.1f us of a core each\n", count, (now_s() - start) * 1e3,
	       (cpu_now_s() - cpu) / count * 1e6);
	connected = usage_now();
	once_a_second(links, count);
	used = usage_now();
	rest(idle_s);
	cpu = cpu_now_s();
	rest(1);
	cpu = cpu_now_s() - cpu;
	idle = usage_now();
	print_usage("idle", &idle);
	printf("a queue pair in RESET %ld B; a connection with it: %ld B set up, %ld B used, %ld B idle (%.1f %% of a core with all idle)\n",
	       (created.heap_bytes - before.heap_bytes) / count, (connected.heap_bytes - created.heap_bytes) / count,
	       (used.heap_bytes - created.heap_bytes) / count, (idle.heap_bytes - created.heap_bytes) / count, cpu * 100);

	tcp_write(others[0], "m", 1);
	create(on_top, more);
	connect_all(on_top, more, count, others[0], false);
	use_all(on_top, more, count);
	rest(idle_s);
	with_more = usage_now();
	printf("one more queue pair of a connection: %ld B\n", (with_more.heap_bytes - idle.heap_bytes) / more);
	start = now_s();
	use_all(links, count, 0);
	printf("all used after a rest in %.0f ms\n", (now_s() - start) * 1e3);
	CHECK(!most_idle || (idle.heap_bytes - created.heap_bytes) / count <= most_idle, "an idle connection takes more than %ld B", most_idle);
	CHECK(!most_more || (with_more.heap_bytes - idle.heap_bytes) / more <= most_more, "one more queue pair takes more than %ld B", most_more);
}

int main(int argc, char **argv)
{
	const char *server = NULL, *port = "18515";
	int c;

	while ((c = getopt(argc, argv, "d:s:p:g:G:n:q:t:i:m:M:a:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		case 's': server = optarg; break;
		case 'p': port = optarg; break;
		case 'g': gids = atoi(optarg); break;
		case 'G': server_gids = atoi(optarg); break;
		case 'n': processes = atoi(optarg); break;
		case 'q': more = atoi(optarg); break;
		case 't': seconds = atof(optarg); break;
		case 'i': idle_s = atof(optarg); break;
		case 'm': most_idle = atol(optarg); break;
		case 'a': at_once = atoi(optarg); break;
		case 'M': most_more = atol(optarg); break;
		default: return 2;
		}
	/* The allocator tells of its main arena only. */
	mallopt(M_ARENA_MAX, 1);
	if (server) {
		client(server, port);
		puts("OK");
		return 0;
	}
	int listener = tcp_listen(port);
	for (int i = 0; i < processes; i++) {
		fflush(stdout);
		pid_t pid = fork();
		CHECK(pid >= 0, "fork: %m");
		if (!pid)
			child(listener);
	}
	for (int i = 0, status; i < processes; i++)
		CHECK(wait(&status) > 0 && !status, "a child ended with status %#x", status);
	puts("OK");
	return 0;
}
