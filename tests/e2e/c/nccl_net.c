/* Drives the unmodified IB transport inside an NCCL library with host memory: no GPU, no CUDA, no NCCL source.
 *
 *   nccl_net LIBNCCL loop|server|client [HOST [TCP_PORT [COMMS [MAX_BYTES [ITERATIONS [told]]]]]]
 *
 * With `told` on both sides, transfers of MAX_BYTES follow until the sender is told to end by SIGUSR1.
 * The transport is the table `ncclNetIb`, a file-local object: its address is read from the library's .symtab, which
 * the wheels on PyPI keep. The table's layout follows from ncclGetVersion. Every byte of every transfer is compared.
 * Exit status: 0 and last line OK; 2 usage or library, 3 a call failed, 4 no init, 5 no device, 6 connect timeout,
 * 7 no request, 8 wrong size, 9 transfer timeout, 10 wrong byte. */
#include "verbs_util.h"
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <sys/stat.h>

enum { MAX_COMMS = 16, HANDLE_BYTES = 128, TAG = 7, TIMEOUT_S = 60, FILL = 0xee };

typedef void log_function(int level, unsigned long flags, const char *file, int line, const char *format, ...);

/* Entries 5…17 of the table are the same in every version; the first four and the arguments of a few differ. */
struct net {
	const char *name;
	void *init;
	int (*devices)(int *);
	int (*get_properties)(int, void *);
	void *listen, *connect;
	int (*accept)(void *, void **, void **);
	int (*reg_mr)(void *, void *, size_t, int, void **);
	void *reg_mr_dmabuf;
	int (*dereg_mr)(void *, void *);
	void *isend, *irecv, *iflush;
	int (*test)(void *, int *, int *);
	int (*close_send)(void *), (*close_recv)(void *), (*close_listen)(void *);
	void *get_device_mr, *irecv_consumed, *make_vdevice;
	int (*finalize)(void *);
};

static const struct net *net;
static int version;			/* of the table */
static void *net_context;
static bool sends, receives, until_told, may_end;
static volatile sig_atomic_t told;
static int comms = 1, iterations = 50;
static size_t max_bytes = 4 << 20;
static void *send_comm[MAX_COMMS], *recv_comm[MAX_COMMS], *listen_comm[MAX_COMMS], *send_mr[MAX_COMMS], *recv_mr[MAX_COMMS];
static uint8_t *send_buffer[MAX_COMMS], *recv_buffer[MAX_COMMS], *expected;

#define CALL(expression) do { int r_ = (expression); if (r_) quit(3, "%s -> %d", #expression, r_); } while (0)

static __attribute__((noreturn, format(printf, 2, 3))) void quit(int status, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	exit(status);
}

static void print_log(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
	va_list ap;

	(void)level, (void)flags, (void)file, (void)line;
	va_start(ap, format);
	fputs("[nccl] ", stderr);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
}

/* Address of a local symbol of a loaded library, from the section table of its file. */
static void *local_symbol(void *handle, const char *name)
{
	struct link_map *map;
	struct stat st;
	void *found = NULL;

	if (dlinfo(handle, RTLD_DI_LINKMAP, &map))
		return NULL;
	int fd = open(map->l_name, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		return NULL;
	char *file = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (file == MAP_FAILED)
		return NULL;
	const Elf64_Ehdr *header = (void *)file;
	const Elf64_Shdr *section = (void *)(file + header->e_shoff);
	for (int i = 0; i < header->e_shnum && !found; i++) {
		if (section[i].sh_type != SHT_SYMTAB)
			continue;
		const Elf64_Sym *symbol = (void *)(file + section[i].sh_offset);
		const char *names = file + section[section[i].sh_link].sh_offset;
		for (size_t k = 0; k < section[i].sh_size / sizeof *symbol && !found; k++)
			if (symbol[k].st_value && !strcmp(names + symbol[k].st_name, name))
				found = (void *)(map->l_addr + symbol[k].st_value);
	}
	munmap(file, st.st_size);
	return found;
}

static void load(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int (*get_version)(int *) = handle ? dlsym(handle, "ncclGetVersion") : NULL;
	int nccl = 0;

	if (!get_version || get_version(&nccl))
		quit(2, "%s is not an NCCL library: %s", path, dlerror());
	net = local_symbol(handle, "ncclNetIb");
	if (!net)
		quit(2, "%s has no symbol ncclNetIb (stripped?)", path);
	version = nccl >= 23000 ? 12 : nccl >= 22800 ? 11 : nccl >= 22600 ? 10 : 9;
	printf("nccl %d, table version %d, transport %s\n", nccl, version, net->name);
}

static void init(void)
{
	int config[4] = { -1 }, devices = 0, r;

	if (version >= 11)
		r = ((int (*)(void **, uint64_t, void *, log_function *, void *))net->init)(&net_context, 1, config, print_log, NULL);
	else
		r = ((int (*)(log_function *, void *))net->init)(print_log, NULL);
	if (r)
		quit(4, "init -> %d", r);
	CALL(net->devices(&devices));
	if (!devices)
		quit(5, "NCCL found no device");
	printf("devices %d\n", devices);
}

static int start_listen(void *handle, void **comm)
{
	if (version >= 11)
		return ((int (*)(void *, int, void *, void **))net->listen)(net_context, 0, handle, comm);
	return ((int (*)(int, void *, void **))net->listen)(0, handle, comm);
}

static int try_connect(void *handle, void **comm)
{
	int config[4] = { -1, -1, -1, -1 };
	void *device_comm = NULL;

	if (version >= 11)
		return ((int (*)(void *, int, void *, void **, void **))net->connect)(net_context, 0, handle, comm, &device_comm);
	if (version == 10)
		return ((int (*)(int, void *, void *, void **, void **))net->connect)(0, config, handle, comm, &device_comm);
	return ((int (*)(int, void *, void **, void **))net->connect)(0, handle, comm, &device_comm);
}

static int start_send(int i, size_t bytes, void **request)
{
	if (version >= 10)
		return ((int (*)(void *, void *, size_t, int, void *, void *, void **))net->isend)(send_comm[i], send_buffer[i], bytes, TAG, send_mr[i], NULL, request);
	return ((int (*)(void *, void *, size_t, int, void *, void **))net->isend)(send_comm[i], send_buffer[i], bytes, TAG, send_mr[i], request);
}

static int start_recv(int i, size_t bytes, void **request)
{
	void *data = recv_buffer[i];
	int tag = TAG;

	if (version >= 10)
		return ((int (*)(void *, int, void **, size_t *, int *, void **, void **, void **))net->irecv)(recv_comm[i], 1, &data, &bytes, &tag, &recv_mr[i], NULL, request);
	return ((int (*)(void *, int, void **, size_t *, int *, void **, void **))net->irecv)(recv_comm[i], 1, &data, &bytes, &tag, &recv_mr[i], request);
}

static void pattern(uint8_t *p, size_t bytes, uint32_t seed)
{
	for (size_t i = 0; i < bytes; i++)
		p[i] = (i * 2654435761u + seed * 40503u) >> 13;
}

static void connect_all(char handles[][HANDLE_BYTES])
{
	double start = now_s();
	int left;

	do {
		left = 0;
		for (int i = 0; i < comms; i++) {
			void *device_comm = NULL;

			if (sends && !send_comm[i])
				CALL(try_connect(handles[i], &send_comm[i]));
			if (receives && !recv_comm[i])
				CALL(net->accept(listen_comm[i], &recv_comm[i], &device_comm));
			left += (sends && !send_comm[i]) + (receives && !recv_comm[i]);
		}
		if (now_s() - start > TIMEOUT_S)
			quit(6, "no connection within %d s", TIMEOUT_S);
	} while (left);
	printf("connected %d comm(s) in %.1f ms\n", comms, (now_s() - start) * 1e3);
}

static void register_all(void)
{
	expected = malloc(max_bytes + 1);
	for (int i = 0; i < comms; i++) {
		if (sends) {
			send_buffer[i] = memory(max_bytes + 1);
			CALL(net->reg_mr(send_comm[i], send_buffer[i], max_bytes + 1, 1, &send_mr[i]));
		}
		if (receives) {
			recv_buffer[i] = memory(max_bytes + 1);
			CALL(net->reg_mr(recv_comm[i], recv_buffer[i], max_bytes + 1, 1, &recv_mr[i]));
		}
	}
}

/* One transfer of `bytes` on every communicator at once, for which receivers have `room`. If it `may_end` here, it may be of
 * nothing instead, which the receiving side cannot know before. Returns what was received. */
static size_t transfer(size_t bytes, size_t room, int number)
{
	void *send_request[MAX_COMMS] = { 0 }, *recv_request[MAX_COMMS] = { 0 };
	int sent[MAX_COMMS] = { 0 }, received[MAX_COMMS] = { 0 }, left, size, got[MAX_COMMS] = { 0 };
	double start = now_s();

	for (int i = 0; i < comms; i++) {
		if (receives) {
			memset(recv_buffer[i], FILL, room + 1);
			CALL(start_recv(i, room, &recv_request[i]));
			if (!recv_request[i])
				quit(7, "irecv gave no request");
		}
		if (sends)
			pattern(send_buffer[i], bytes, number * 17 + i);
	}
	do {
		left = 0;
		for (int i = 0; i < comms; i++) {
			if (sends && !sent[i]) {
				if (!send_request[i])
					CALL(start_send(i, bytes, &send_request[i]));
				if (send_request[i])
					CALL(net->test(send_request[i], &sent[i], &size));
				left += !sent[i];
			}
			if (receives && !received[i]) {
				got[i] = -1;
				CALL(net->test(recv_request[i], &received[i], &got[i]));
				if (received[i] && got[i] != (int)bytes && (got[i] || sends || !may_end))
					quit(8, "size %d instead of %zu", got[i], bytes);
				left += !received[i];
			}
		}
		if (now_s() - start > TIMEOUT_S)
			quit(9, "transfer of %zu bytes not done within %d s", bytes, TIMEOUT_S);
	} while (left);
	for (int i = 0; receives && i < comms; i++) {
		pattern(expected, got[i], number * 17 + i);
		if (memcmp(expected, recv_buffer[i], got[i]) || recv_buffer[i][got[i]] != FILL)
			quit(10, "wrong byte in a transfer of %d bytes on comm %d", got[i], i);
	}
	return got[comms - 1];
}

static void end_it(int signal)
{
	(void)signal;
	told = true;
}

/* The sender ends it with a transfer of nothing, by which the other side knows. */
static int transfer_until_told(int number)
{
	int first = number;

	may_end = true;
	signal(SIGUSR1, end_it);
	puts("transferring until told");
	for (bool end = false; !end; number++) {
		size_t bytes = sends && told ? 0 : max_bytes, got = transfer(bytes, max_bytes, number);

		end = sends ? !bytes : !got;
	}
	return number - first;
}

static void transfer_all(void)
{
	double start = now_s();
	uint64_t total = 0;
	int number = 0;

	for (size_t bytes = 0; bytes <= max_bytes; bytes = bytes ? bytes * 8 + (bytes < 64) : 1)
		for (int k = 0; k < (bytes > 1 << 20 ? iterations / 10 + 1 : iterations); k++, number++) {
			transfer(bytes, bytes, number);
			total += bytes * comms;
		}
	if (until_told) {
		int more = transfer_until_told(number);

		number += more;
		total += (more - 1) * max_bytes * comms;
	}
	double s = now_s() - start;
	printf("%d transfers on %d comm(s), %.1f MB verified in %.2f s (%.1f MB/s)\n", number, comms, total / 1e6, s, total / 1e6 / s);
}

static void close_all(void)
{
	for (int i = 0; i < comms; i++) {
		if (sends) {
			CALL(net->dereg_mr(send_comm[i], send_mr[i]));
			CALL(net->close_send(send_comm[i]));
		}
		if (receives) {
			CALL(net->dereg_mr(recv_comm[i], recv_mr[i]));
			CALL(net->close_recv(recv_comm[i]));
			CALL(net->close_listen(listen_comm[i]));
		}
	}
	if (version >= 11)
		CALL(net->finalize(net_context));
}

int main(int argc, char **argv)
{
	static char handles[MAX_COMMS][HANDLE_BYTES];
	int tcp = -1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 3)
		quit(2, "usage: nccl_net LIBNCCL loop|server|client [HOST [TCP_PORT [COMMS [MAX_BYTES [ITERATIONS [told]]]]]]");
	const char *host = argc > 3 ? argv[3] : "127.0.0.1", *port = argc > 4 ? argv[4] : "18630";
	comms = argc > 5 ? atoi(argv[5]) : comms;
	max_bytes = argc > 6 ? strtoull(argv[6], NULL, 0) : max_bytes;
	iterations = argc > 7 ? atoi(argv[7]) : iterations;
	until_told = argc > 8 && !strcmp(argv[8], "told");
	if (comms < 1 || comms > MAX_COMMS)
		quit(2, "COMMS is 1…%d", MAX_COMMS);
	sends = strcmp(argv[2], "server");
	receives = strcmp(argv[2], "client");
	load(argv[1]);
	init();
	if (!sends)
		tcp = tcp_accept(tcp_listen(port));
	else if (!receives)
		tcp = tcp_connect(host, port);
	for (int i = 0; receives && i < comms; i++)
		CALL(start_listen(handles[i], &listen_comm[i]));
	if (!sends)
		tcp_write(tcp, handles, comms * HANDLE_BYTES);
	else if (!receives)
		tcp_read(tcp, handles, comms * HANDLE_BYTES);
	connect_all(handles);
	register_all();
	transfer_all();
	if (tcp >= 0) {		/* neither side closes while the other still transfers */
		char c = 'd';
		tcp_write(tcp, &c, 1);
		tcp_read(tcp, &c, 1);
	}
	close_all();
	puts("OK");
	return 0;
}
