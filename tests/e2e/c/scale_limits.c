/* The limits that the device reports are the limits, to the last object; at a limit nothing is lost, and what is given back can
 * be had again. Over stock libibverbs.
 *
 *   scale_limits [-d DEVICE] [-a] [-P PORTS] [TOPIC]
 *
 * -a: memory regions too, of which there are a million. -P: only the UDP ports of a host, of which METAROCE_PORTS left PORTS.
 * Last line OK. */
#include "scale_local.h"
#include <getopt.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { FEW_FILES = 256, LEFT_FILES = 5, MOST_PORTS = 16 };

static const char *device = "metaroce0";
static struct ibv_context *context;
static struct ibv_device_attr limits;
static bool all;

static void expect(const char *what, long got, long wanted)
{
	CHECK(got == wanted, "%s: %ld, wanted %ld", what, got, wanted);
}

static struct ibv_qp *try_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = LOCAL_CAP };

	errno = 0;
	return ibv_create_qp(pd, &a);
}

/* All of them; then one is destroyed, and one more can be had, under a number that was not used for long. */
static void qps(void)
{
	struct local l = local_make(context);
	int count = 0, room = limits.max_qp + 1;
	struct ibv_qp **qp = calloc(room, sizeof *qp);
	struct usage before = usage_now();
	uint8_t *seen = calloc(1, 1 << 24);

	while (count < room && (qp[count] = try_qp(l.pd, l.cq)))
		count++;
	expect("errno beyond max_qp", errno, ENOMEM);
	/* two are those of `l` */
	expect("queue pairs", count + 2, limits.max_qp);
	struct usage with_all = usage_now();
	printf("%d queue pairs in RESET: %.0f bytes of heap each\n", count, (double)(with_all.heap_bytes - before.heap_bytes) / count);
	for (int i = 0; i < count; i++)
		CHECK(qp[i]->qp_num > 1 && !seen[qp[i]->qp_num]++, "QP number %#x is used twice", qp[i]->qp_num);
	local_messages(&l, 4);
	uint32_t gone = qp[0]->qp_num;
	for (int i = 0; i < 100; i++) {
		CHECK(!ibv_destroy_qp(qp[0]), "ibv_destroy_qp");
		CHECK((qp[0] = try_qp(l.pd, l.cq)), "no queue pair after one was destroyed: %m");
		CHECK(qp[0]->qp_num != gone, "number %#x is used again at once", gone);
		gone = qp[0]->qp_num;
		CHECK(!try_qp(l.pd, l.cq) && errno == ENOMEM, "one too many");
	}
	for (int i = 0; i < count; i++)
		CHECK(!ibv_destroy_qp(qp[i]), "ibv_destroy_qp");
	for (int i = 0; i < 2 * limits.max_qp; i++) {
		CHECK((qp[0] = try_qp(l.pd, l.cq)), "queue pair %d after all were destroyed: %m", i);
		CHECK(!ibv_destroy_qp(qp[0]), "ibv_destroy_qp");
	}
	local_messages(&l, 4);
	local_end(&l);
	free(seen);
	free(qp);
}

/* `make` until it fails, `end` all, and one more. */
static void to_the_limit(const char *what, long limit, void *(*make)(void *), int (*end)(void *), void *argument)
{
	void **object = calloc(limit + 1, sizeof *object);
	struct usage before = usage_now();
	long count = 0;

	errno = 0;
	while (count <= limit && (object[count] = make(argument)))
		count++;
	expect("errno beyond the limit", errno, ENOMEM);
	expect(what, count, limit);
	struct usage with_all = usage_now();
	printf("%ld %s: %.0f bytes of heap each\n", count, what, (double)(with_all.heap_bytes - before.heap_bytes) / count);
	CHECK(!end(object[0]) && (object[0] = make(argument)), "%s: none after one was given back: %m", what);
	CHECK(!make(argument) && errno == ENOMEM, "%s: one too many", what);
	while (count)
		CHECK(!end(object[--count]), "%s: giving back %ld", what, count);
	CHECK((object[0] = make(argument)) && !end(object[0]), "%s: none after all were given back: %m", what);
	free(object);
}

static void *make_cq(void *argument)
{
	(void)argument;
	return ibv_create_cq(context, 16, NULL, NULL, 0);
}

static int end_cq(void *cq) { return ibv_destroy_cq(cq); }

static void cqs(void) { to_the_limit("completion queues", limits.max_cq, make_cq, end_cq, NULL); }

static void *make_pd(void *argument)
{
	(void)argument;
	return ibv_alloc_pd(context);
}

static int end_pd(void *pd) { return ibv_dealloc_pd(pd); }

static void pds(void) { to_the_limit("protection domains", limits.max_pd, make_pd, end_pd, NULL); }

static void *make_mr(void *pd)
{
	static char bytes[64];

	return ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
}

static int end_mr(void *mr) { return ibv_dereg_mr(mr); }

static void mrs(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);

	CHECK(pd, "ibv_alloc_pd: %m");
	if (all)
		to_the_limit("memory regions", limits.max_mr, make_mr, end_mr, pd);
	CHECK(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
}

/* Sizes: what is reported can be had, one more is EINVAL. */
static void sizes(void)
{
	struct local l = local_make(context);
	const struct ibv_qp_cap most = { .max_send_wr = limits.max_qp_wr, .max_recv_wr = limits.max_qp_wr, .max_send_sge = limits.max_sge,
		.max_recv_sge = limits.max_sge };

	CHECK(!ibv_destroy_qp(qp_create(l.pd, l.cq, most, false)), "ibv_destroy_qp");
	for (int i = 0; i < 4; i++) {
		struct ibv_qp_init_attr a = { .send_cq = l.cq, .recv_cq = l.cq, .qp_type = IBV_QPT_RC, .cap = most };
		uint32_t *field[] = { &a.cap.max_send_wr, &a.cap.max_recv_wr, &a.cap.max_send_sge, &a.cap.max_recv_sge };

		++*field[i];
		errno = 0;
		CHECK(!ibv_create_qp(l.pd, &a), "more than the device has of %d", i);
		expect("errno", errno, EINVAL);
	}
	struct ibv_cq *cq = ibv_create_cq(context, limits.max_cqe, NULL, NULL, 0);
	CHECK(cq && cq->cqe >= limits.max_cqe && !ibv_destroy_cq(cq), "a completion queue of max_cqe: %m");
	errno = 0;
	CHECK(!ibv_create_cq(context, limits.max_cqe + 1, NULL, NULL, 0), "more than max_cqe");
	expect("errno", errno, EINVAL);
	local_end(&l);
}

static long files(void) { return usage_now().fds; }

/* Takes all descriptors but `left`; the last one taken comes first. */
static int take_files(int *taken, int left)
{
	int n = 0, fd;

	while (n < FEW_FILES && (fd = dup(0)) >= 0)
		taken[n++] = fd;
	while (left-- && n)
		close(taken[--n]);
	return n;
}

/* With few descriptors: whatever fails says EMFILE and leaves nothing behind. */
static void descriptors(void)
{
	struct rlimit before, few;
	struct ibv_context *opened[FEW_FILES];
	struct ibv_comp_channel *channel[FEW_FILES];
	int taken[FEW_FILES], count, n = 0;

	CHECK(!getrlimit(RLIMIT_NOFILE, &before), "getrlimit: %m");
	few = (struct rlimit){ FEW_FILES, before.rlim_max };
	CHECK(!setrlimit(RLIMIT_NOFILE, &few), "setrlimit: %m");
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0], "no device: %m");
	long at_first = files();
	while (n < FEW_FILES && (opened[n] = ibv_open_device(list[0])))
		n++;
	expect("errno of ibv_open_device", errno, EMFILE);
	CHECK(n > 10, "only %d contexts", n);
	printf("%d contexts in %d descriptors\n", n, FEW_FILES);
	while (n)
		CHECK(!ibv_close_device(opened[--n]), "ibv_close_device");
	expect("descriptors after ibv_close_device", files(), at_first);

	struct ibv_context *own = ibv_open_device(list[0]);
	CHECK(own, "ibv_open_device: %m");
	struct ibv_pd *pd = ibv_alloc_pd(own);
	struct ibv_cq *cq = ibv_create_cq(own, 16, NULL, NULL, 0);
	CHECK(pd && cq, "ibv_alloc_pd, ibv_create_cq: %m");
	for (count = 0; count < FEW_FILES && (channel[count] = ibv_create_comp_channel(own)); count++)
		;
	expect("errno of ibv_create_comp_channel", errno, EMFILE);
	printf("%d completion channels\n", count);
	while (count)
		CHECK(!ibv_destroy_comp_channel(channel[--count]), "ibv_destroy_comp_channel");
	/* those that were closed are swept out with the next */
	CHECK((channel[0] = ibv_create_comp_channel(own)) && !ibv_destroy_comp_channel(channel[0]), "ibv_create_comp_channel: %m");

	/* the first queue pair of a device needs most of all: its sockets */
	n = take_files(taken, LEFT_FILES);
	long full = files();
	for (int i = 0; i < 3; i++) {
		CHECK(!try_qp(pd, cq), "a queue pair without descriptors");
		expect("errno of ibv_create_qp", errno, EMFILE);
		expect("descriptors after a failed ibv_create_qp", files(), full);
	}
	while (n)
		close(taken[--n]);
	struct local l = local_make(own);
	/* all there are, while everything works */
	n = take_files(taken, 0);
	local_messages(&l, 4);
	while (n)
		close(taken[--n]);
	local_end(&l);
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(own), "clean-up");
	ibv_free_device_list(list);
	expect("descriptors at the end", files(), at_first + 2);	/* both ends of the last channel */
	CHECK(!setrlimit(RLIMIT_NOFILE, &before), "setrlimit: %m");
}

/* A process that has a port until something is written to `hold`. */
static pid_t hold_port(int *hold)
{
	int ends[2], ready[2];
	char c = 'r';

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends) && !pipe(ready), "socketpair, pipe: %m");
	pid_t pid = fork();
	CHECK(pid >= 0, "fork: %m");
	if (!pid) {
		struct ibv_context *own = open_named(device);
		struct local l = local_make(own);

		close(ends[0]);
		CHECK(write(ready[1], &c, 1) == 1, "write: %m");
		CHECK(read(ends[1], &c, 1) == 1, "read: %m");
		local_messages(&l, 2);
		local_end(&l);
		CHECK(!ibv_close_device(own), "ibv_close_device");
		_exit(0);
	}
	close(ends[1]);
	close(ready[1]);
	CHECK(read(ready[0], &c, 1) == 1, "a process got no port");
	close(ready[0]);
	*hold = ends[0];
	return pid;
}

/* Every process with a queue pair has a port. When all are taken the next one is told so, until a process ends. */
static void ports(int count)
{
	int hold[MOST_PORTS], status;
	pid_t pid[MOST_PORTS];
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);

	CHECK(pd && cq && count <= MOST_PORTS, "ibv_alloc_pd, ibv_create_cq: %m");
	for (int i = 0; i < count; i++)
		pid[i] = hold_port(&hold[i]);
	long before = files();
	CHECK(!try_qp(pd, cq), "a queue pair without a port");
	expect("errno without a port", errno, EADDRINUSE);
	expect("descriptors", files(), before);
	tcp_write(hold[0], "e", 1);
	CHECK(waitpid(pid[0], &status, 0) == pid[0] && !status, "child: status %#x", status);
	struct local l = local_make(context);
	local_messages(&l, 4);
	local_end(&l);
	for (int i = 1; i < count; i++) {
		tcp_write(hold[i], "e", 1);
		CHECK(waitpid(pid[i], &status, 0) == pid[i] && !status, "child: status %#x", status);
	}
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd), "clean-up");
	printf("%d ports: ok\n", count);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } topics[] = { { "descriptors", descriptors }, { "sizes", sizes }, { "qps", qps },
		{ "cqs", cqs }, { "pds", pds }, { "mrs", mrs } };
	int c, only_ports = 0;

	while ((c = getopt(argc, argv, "d:aP:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		case 'a': all = true; break;
		case 'P': only_ports = atoi(optarg); break;
		default: return 2;
		}
	setvbuf(stdout, NULL, _IOLBF, 0);
	context = open_named(device);
	CHECK(!ibv_query_device(context, &limits), "ibv_query_device");
	if (only_ports)
		ports(only_ports);
	for (unsigned i = 0; !only_ports && i < sizeof topics / sizeof *topics; i++) {
		double start = now_s();

		if (optind < argc && strcmp(argv[optind], topics[i].name))
			continue;
		topics[i].run();
		printf("%-12s ok, %.0f ms\n", topics[i].name, (now_s() - start) * 1e3);
	}
	CHECK(!ibv_close_device(context), "ibv_close_device");
	puts("OK");
	return 0;
}
