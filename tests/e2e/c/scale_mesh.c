/* Many processes on one host, each with a queue pair to each of as many processes on another, over stock libibverbs.
 *
 *   scale_mesh [-d DEVICE] [-s SERVER_IP] [-p TCP_PORT] [-n PROCESSES] [-r ROUNDS]
 *
 * Either side forks PROCESSES children, which open the device, connect to all children of the other side, exchange data with
 * all of them ROUNDS times and look at every byte (scale_exchange.h). The parents carry addresses and barriers. Last line OK. */
#include "scale_exchange.h"
#include <getopt.h>
#include <sys/wait.h>

enum { MOST = 64 };

static const char *device = "metaroce0";
static int processes = 8, rounds = 3;
static int child_of[MOST], socket_of[MOST];

/* Child `me`: its queue pair `at` is that to child `at` of the other side. */
static void child(int me)
{
	struct usage before, with_all;

	open_for(device, processes);
	for (int at = 0; at < processes; at++)
		create(at, side ? at * processes + me : me * processes + at);
	before = usage_now();
	connect_all(processes);
	exchange(processes);
	for (int round = 1; round < rounds; round++) {
		receive_again(processes);
		exchange(processes);
	}
	with_all = usage_now();
	destroy_all(processes);
	barrier('d');
	close_all();
	if (!me) {
		print_usage("one process", &with_all);
		printf("a connection in use takes %.1f KiB of heap\n", (with_all.heap_bytes - before.heap_bytes) / 1024.0 / processes);
	}
}

static void start(int me)
{
	int ends[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair: %m");
	fflush(stdout);
	child_of[me] = fork();
	CHECK(child_of[me] >= 0, "fork: %m");
	if (child_of[me]) {
		close(ends[0]);
		socket_of[me] = ends[1];
		return;
	}
	for (int i = 0; i < me; i++)
		close(socket_of[i]);
	close(ends[1]);
	close(to_other);
	to_other = ends[0];
	child(me);
	exit(0);
}

/* Each child's letter to all others: what child `i` has for child `j` of the other side is there what it has from `i`. */
static void carry_addresses(void)
{
	size_t row = processes * sizeof(struct peer);
	struct peer *mine = calloc(processes, row), *theirs = calloc(processes, row), *turned = calloc(1, row);

	for (int i = 0; i < processes; i++)
		tcp_read(socket_of[i], mine + i * processes, row);
	tcp_write(to_other, mine, processes * row);
	tcp_read(to_other, theirs, processes * row);
	for (int i = 0; i < processes; i++) {
		for (int j = 0; j < processes; j++)
			turned[j] = theirs[j * processes + i];
		tcp_write(socket_of[i], turned, row);
	}
	free(mine);
	free(theirs);
	free(turned);
}

/* All children of both sides are there before any goes on. */
static void carry_barrier(void)
{
	char what = 0, got;

	for (int i = 0; i < processes; i++) {
		tcp_read(socket_of[i], &got, 1);
		CHECK(!what || got == what, "children out of step");
		what = got;
	}
	barrier(what);
	for (int i = 0; i < processes; i++)
		tcp_write(socket_of[i], &what, 1);
}

int main(int argc, char **argv)
{
	const char *server = NULL, *port = "18515";
	int c;

	while ((c = getopt(argc, argv, "d:s:p:n:r:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		case 's': server = optarg; break;
		case 'p': port = optarg; break;
		case 'n': processes = atoi(optarg); break;
		case 'r': rounds = atoi(optarg); break;
		default: return 2;
		}
	CHECK(processes > 0 && processes <= MOST && rounds > 0, "bad arguments");
	side = server != NULL;
	to_other = server ? tcp_connect(server, port) : tcp_accept(tcp_listen(port));
	double began = now_s();
	for (int i = 0; i < processes; i++)
		start(i);
	carry_addresses();
	for (int i = 0; i < 2 * rounds + 1; i++)
		carry_barrier();
	for (int i = 0; i < processes; i++) {
		int status;

		CHECK(waitpid(child_of[i], &status, 0) == child_of[i] && !status, "child %d ended with status %#x", i, status);
	}
	printf("%d x %d processes, all pairs, %d rounds in %.0f ms\nOK\n", processes, processes, rounds, (now_s() - began) * 1e3);
	return 0;
}
