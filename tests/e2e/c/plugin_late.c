/* plugin_late together|again|private|many|fork|unready LIBRARY...: copies of libibverbs that come and go while others work.
 *
 *   together  each copy is loaded when those before it have an open device with traffic; all send in turns; then they are
 *             closed in the order in which they came, while the rest goes on; the first comes again
 *   again     each copy is loaded, used, closed and unloaded, round after round, and the process does not grow
 *   private   the first is loaded a second time into a namespace of the dynamic linker of its own (dlmopen), where nothing
 *             is preloaded: it sees no device, and the one outside goes on
 *   many      each must either work or see no device; prints how many worked
 *   fork      a child is made while a queue pair is at work: what the child does with its parent's objects, and its end,
 *             do not reach the parent's peer; the child's own device works; and the parent goes on
 *   unready   a SEND finds no receive, and from then on nobody calls the library: it still arrives once there is one
 *
 * Prints what it does, "OK" at the end and returns 0 if all was well. */
#include "plugin_copy.h"
#include <dirent.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	MAX_COPIES = 64,
	TURNS = 20,
	WARM_UP = 5,    /* rounds after which nothing may grow any more */
	ROUNDS = 40,
	GROWTH_KIB = 1024 /* of resident memory: what the allocator may keep */
};

static struct copy copies[MAX_COPIES];

static int messages(int first, int count)
{
	for (int i = first; i < count; i++)
		if (copy_message(&copies[i]))
			return -1;
	return 0;
}

static int together(int count, char **paths)
{
	if (count == 1)
		return copy_load(&copies[0], paths[0]) || copy_open(&copies[0]) || messages(0, 1) || copy_close(&copies[0]);
	for (int i = 0; i < count; i++)
		if (copy_load(&copies[i], paths[i]) || copy_open(&copies[i]) || messages(0, i + 1))
			return -1;
	for (int turn = 0; turn < TURNS; turn++)
		if (messages(0, count))
			return -1;
	for (int i = 0; i < count; i++) {
		if (copy_close(&copies[i]) || dlclose(copies[i].handle) || messages(i + 1, count))
			return -1;
		/* the last one alone: with it, the first again */
		if (i == count - 2 && (copy_load(&copies[0], paths[0]) || copy_open(&copies[0]) || messages(0, 1)))
			return -1;
	}
	return messages(0, 1) || copy_close(&copies[0]);
}

struct size { int files, mappings, threads; long resident_kib; };

static int entries(const char *path)
{
	int count = 0;
	DIR *directory = opendir(path);

	while (directory && readdir(directory))
		count++;
	if (directory)
		closedir(directory);
	return count;
}

static struct size size_of_process(void)
{
	struct size size = { .files = entries("/proc/self/fd"), .threads = entries("/proc/self/task") };
	char line[512];
	FILE *file = fopen("/proc/self/maps", "r");

	while (file && fgets(line, sizeof line, file))
		size.mappings++;
	if (file)
		fclose(file);
	file = fopen("/proc/self/status", "r");
	while (file && fgets(line, sizeof line, file))
		sscanf(line, "VmRSS: %ld", &size.resident_kib);
	if (file)
		fclose(file);
	return size;
}

static int again(int count, char **paths)
{
	struct size before = { 0 }, after;

	for (int round = 0; round < WARM_UP + ROUNDS; round++) {
		if (round == WARM_UP)
			before = size_of_process();
		for (int i = 0; i < count; i++)
			if (copy_load(&copies[i], paths[i]) || copy_open(&copies[i]) || copy_message(&copies[i]) ||
			    copy_close(&copies[i]) || dlclose(copies[i].handle))
				return -1;
	}
	after = size_of_process();
	printf("files %d to %d, mappings %d to %d, threads %d to %d, resident %ld to %ld KiB\n", before.files, after.files,
	       before.mappings, after.mappings, before.threads, after.threads, before.resident_kib, after.resident_kib);
	/* a thread that is ending may still be listed, and the allocator may cut an arena in two */
	return after.files > before.files || after.mappings > before.mappings + 8 || after.threads > before.threads + 1 ||
	       after.resident_kib > before.resident_kib + GROWTH_KIB;
}

static int private_namespace(char **paths)
{
	if (copy_load(&copies[0], paths[0]) || copy_open(&copies[0]) || copy_message(&copies[0]))
		return -1;
	if (copy_bind(&copies[1], paths[0], dlmopen(LM_ID_NEWLM, paths[0], RTLD_NOW | RTLD_LOCAL)))
		return -1;
	int count = copy_enumerate(&copies[1], 0);

	printf("in a namespace of its own: %d devices\n", count);
	return count > 0 || copy_message(&copies[0]) || copy_close(&copies[0]);
}

static int many(int count, char **paths)
{
	int worked = 0;

	for (int i = 0; i < count; i++) {
		if (copy_load(&copies[i], paths[i]))
			return -1;
		if (copy_enumerate(&copies[i], 0) < 1)
			continue;
		if (copy_open(&copies[i]) || copy_message(&copies[i]))
			return -1;
		worked++;
	}
	printf("%d of %d copies work\n", worked, count);
	for (int i = 0; i < count; i++)
		if (copies[i].context && (copy_message(&copies[i]) || copy_close(&copies[i])))
			return -1;
	return 0;
}

static int child(struct copy *inherited, const char *path)
{
	struct copy *own = &copies[1];
	struct ibv_sge from = { (uintptr_t)inherited->buffers[0], 64, inherited->mr->lkey };
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc wc;

	/* The answers do not matter: it must not hang, crash, or send anything in the parent's name. */
	(void)!ibv_post_send(inherited->sender, &send, &bad);
	(void)!ibv_poll_cq(inherited->cq, 1, &wc);
	if (copy_load(own, path) || copy_open(own) || copy_message(own) || copy_close(own))
		return -1;
	(void)!inherited->destroy_qp(inherited->sender);
	return 0;
}

static int forked(char **paths)
{
	int status = 0;

	if (copy_load(&copies[0], paths[0]) || copy_open(&copies[0]) || copy_message(&copies[0]))
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		alarm(20);
		exit(child(&copies[0], paths[0]) != 0); /* with all destructors */
	}
	for (int turn = 0; turn < TURNS; turn++)
		if (copy_message(&copies[0]))
			return -1;
	waitpid(pid, &status, 0);
	if (status)
		printf("the child ended with status %#x\n", status);
	for (int turn = 0; turn < TURNS; turn++)
		if (copy_message(&copies[0]))
			return -1;
	return status || copy_close(&copies[0]);
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The message is looked for in memory, so that no call can move it on. */
static int unready(char **paths)
{
	const double bound_s = 2;
	struct copy *copy = &copies[0];

	if (copy_load(copy, paths[0]) || copy_open(copy))
		return -1;
	struct ibv_sge to = { (uintptr_t)copy->buffers[1], 64, copy->mr->lkey };
	struct ibv_sge from = { (uintptr_t)copy->buffers[0], 64, copy->mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;

	memset(copy->buffers[0], 'x', sizeof copy->buffers[0]);
	MUST(copy, !ibv_post_send(copy->sender, &send, &bad_send));
	usleep(50000); /* many times min_rnr_timer: refused and refused again */
	MUST(copy, !copy->buffers[1][63]);
	MUST(copy, !ibv_post_recv(copy->receiver, &receive, &bad_receive));
	double start = now_s();
	while (!*(volatile char *)&copy->buffers[1][63] && now_s() - start < bound_s)
		usleep(100);
	printf("arrived %.1f ms after the receive was posted\n", (now_s() - start) * 1e3);
	MUST(copy, !memcmp(copy->buffers[0], copy->buffers[1], sizeof copy->buffers[0]));
	return copy_close(copy);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[1] : "";
	int count = argc - 2, failed;

	setvbuf(stdout, NULL, _IONBF, 0);
	alarm(50); /* a hang is a failure, too */
	if (count > MAX_COPIES)
		count = MAX_COPIES;
	if (!strcmp(mode, "together"))
		failed = together(count, argv + 2);
	else if (!strcmp(mode, "again"))
		failed = again(count, argv + 2);
	else if (!strcmp(mode, "private"))
		failed = private_namespace(argv + 2);
	else if (!strcmp(mode, "many"))
		failed = many(count, argv + 2);
	else if (!strcmp(mode, "fork"))
		failed = forked(argv + 2);
	else if (!strcmp(mode, "unready"))
		failed = unready(argv + 2);
	else {
		fprintf(stderr, "usage: %s together|again|private|many|fork|unready LIBRARY...\n", argv[0]);
		return 2;
	}
	puts(failed ? "BAD" : "OK");
	return failed != 0;
}
