/* plugin_enumerate LIBRARY LIBRARY: eight threads load, enumerate, open, close and unload two copies of libibverbs at the
 * same time. Prints the number of failures; returns 0 if there were none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { THREADS = 8, TURNS = 100 };

static int failures;

static void *turns(void *path)
{
	for (int i = 0; i < TURNS; i++) {
		void *copy = dlopen(path, RTLD_NOW | RTLD_LOCAL);

		if (!copy) {
			printf("%s\n", dlerror());
			__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
			return NULL;
		}
		struct ibv_device **(*get_list)(int *) = dlvsym(copy, "ibv_get_device_list", "IBVERBS_1.1");
		void (*free_list)(struct ibv_device **) = dlvsym(copy, "ibv_free_device_list", "IBVERBS_1.1");
		struct ibv_context *(*open)(struct ibv_device *) = dlvsym(copy, "ibv_open_device", "IBVERBS_1.1");
		int (*close)(struct ibv_context *) = dlvsym(copy, "ibv_close_device", "IBVERBS_1.1");
		int count = 0;
		struct ibv_device **list = get_list(&count);
		struct ibv_context *context = count >= 1 ? open(list[0]) : NULL;

		if (!context)
			__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
		if (list)
			free_list(list);
		if (context)
			close(context);
		dlclose(copy);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	if (argc != 3) {
		fprintf(stderr, "usage: %s LIBRARY LIBRARY\n", argv[0]);
		return 2;
	}
	alarm(50);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, turns, argv[1 + i % 2]);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("%d failures\n", failures);
	return failures != 0;
}
