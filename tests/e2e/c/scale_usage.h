/* What a process uses, as the kernel and the allocator tell: for the scale_*.c programs. */
#ifndef SCALE_USAGE_H
#define SCALE_USAGE_H
#include "verbs_util.h"
#include <dirent.h>
#include <malloc.h>

struct usage {
	long rss_bytes, heap_bytes, fds, sockets, threads;
	/* of all threads together */
	long wakeups;
	double cpu_s;
};

static inline long entries(const char *folder, const char *target, long *of_target)
{
	DIR *d = opendir(folder);
	long n = 0;

	CHECK(d, "%s: %m", folder);
	for (struct dirent *e; (e = readdir(d));) {
		char path[512], link[64] = "";

		if (e->d_name[0] == '.')
			continue;
		n++;
		snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
		if (of_target && readlink(path, link, sizeof link - 1) > 0 && !strncmp(link, target, strlen(target)))
			++*of_target;
	}
	closedir(d);
	return n;
}

/* The sum of `field` of /proc/PID/task/TID/status over all threads. */
static inline long sum_of_status(int pid, const char *field)
{
	char folder[64];
	long sum = 0;

	snprintf(folder, sizeof folder, "/proc/%d/task", pid);
	DIR *d = opendir(folder);
	CHECK(d, "%s: %m", folder);
	for (struct dirent *e; (e = readdir(d));) {
		char path[512], line[256];
		FILE *f;

		snprintf(path, sizeof path, "%s/%s/status", folder, e->d_name);
		if (e->d_name[0] == '.' || !(f = fopen(path, "r")))
			continue;
		while (fgets(line, sizeof line, f))
			if (!strncmp(line, field, strlen(field)))
				sum += atol(line + strlen(field));
		fclose(f);
	}
	closedir(d);
	return sum;
}

static inline double cpu_s_of(int pid)
{
	char path[64], text[1024];
	unsigned long user = 0, system = 0;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	FILE *f = fopen(path, "r");
	CHECK(f && fgets(text, sizeof text, f), "%s: %m", path);
	fclose(f);
	char *rest = strrchr(text, ')');
	CHECK(rest && sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2, "%s", path);
	return (double)(user + system) / sysconf(_SC_CLK_TCK);
}

static inline struct usage usage_now(void)
{
	struct usage u = { .heap_bytes = 0 };
	long pages = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	CHECK(f && fscanf(f, "%ld %ld", &pages, &resident) == 2, "/proc/self/statm: %m");
	fclose(f);
	u.rss_bytes = resident * sysconf(_SC_PAGESIZE);
	struct mallinfo2 heap = mallinfo2();
	u.heap_bytes = heap.uordblks + heap.hblkhd;
	u.fds = entries("/proc/self/fd", "socket:", &u.sockets) - 1;	/* less the folder's own */
	u.threads = entries("/proc/self/task", "", NULL);
	u.wakeups = sum_of_status(getpid(), "voluntary_ctxt_switches:");
	u.cpu_s = cpu_s_of(getpid());
	return u;
}

static inline void print_usage(const char *when, const struct usage *u)
{
	printf("%s: RSS %.1f MiB, heap %.3f MiB, %ld descriptors (%ld sockets), %ld threads\n", when, u->rss_bytes / 1048576.0,
	       u->heap_bytes / 1048576.0, u->fds, u->sockets, u->threads);
}
#endif
