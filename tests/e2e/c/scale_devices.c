/* Many devices in one process, each opened several times, over stock libibverbs.
 *
 *   scale_devices [-n DEVICES] [-o OPENS]
 *
 * There must be at least DEVICES. With the usual limit of descriptors all are open at once, and every context has two queue pairs that exchange messages; then all
 * is closed, and what it took must be back. Last line OK. */
#include "scale_local.h"
#include <getopt.h>
#include <sys/resource.h>

enum { MOST = 64, MESSAGES = 10, USUAL_FILES = 1024 };

int main(int argc, char **argv)
{
	int devices = 1, opens = 3, there, c;

	while ((c = getopt(argc, argv, "n:o:")) > 0)
		switch (c) {
		case 'n': devices = atoi(optarg); break;
		case 'o': opens = atoi(optarg); break;
		default: return 2;
		}
	CHECK(devices > 0 && devices <= MOST && opens > 0, "bad arguments");
	struct rlimit files;
	CHECK(!getrlimit(RLIMIT_NOFILE, &files), "getrlimit: %m");
	files.rlim_cur = USUAL_FILES;
	CHECK(!setrlimit(RLIMIT_NOFILE, &files), "setrlimit: %m");
	setvbuf(stdout, NULL, _IOLBF, 0);
	struct ibv_device **list = ibv_get_device_list(&there);
	CHECK(list && there >= devices, "%d devices, wanted %d", there, devices);
	struct local *l = calloc(devices * opens, sizeof *l);
	struct usage before = usage_now(), with_all = before;
	for (int turn = 0; turn < 3; turn++) {
		for (int i = 0; i < devices * opens; i++) {
			struct ibv_context *context = ibv_open_device(list[i % devices]);

			CHECK(context, "open %d of %s: %m", i / devices, ibv_get_device_name(list[i % devices]));
			l[i] = local_make(context);
		}
		for (int i = 0; i < devices * opens; i++)
			local_messages(&l[i], MESSAGES);
		with_all = usage_now();
		for (int i = 0; i < devices * opens; i++) {
			local_end(&l[i]);
			CHECK(!ibv_close_device(l[i].context), "ibv_close_device");
		}
		struct usage after = usage_now();
		CHECK(after.fds == before.fds && after.threads == before.threads, "%ld descriptors and %ld threads before, %ld and %ld after",
		      before.fds, before.threads, after.fds, after.threads);
	}
	ibv_free_device_list(list);
	print_usage("with all", &with_all);
	printf("%d devices, opened %d times each: %.1f descriptors a device\nOK\n", devices, opens,
	       (double)(with_all.fds - before.fds) / devices);
	return 0;
}
