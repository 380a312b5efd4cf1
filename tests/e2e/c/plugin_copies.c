/* plugin_copies LIBRARY...: every copy of libibverbs is loaded in turn by dlopen (RTLD_LOCAL, as Python wheels do),
 * enumerated and opened; a message goes from one queue pair to another through a completion channel; then everything
 * is closed and the copy is unloaded. Then all of that once more (a copy that comes again must find the provider, though
 * its constructor does not run again), then in a forked child, and after the fork in the parent.
 *
 * Prints a line for each step, "COPIES OK" at the end and returns 0 if all was well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#undef ibv_reg_mr

/* A function of this copy: dlsym would return the one of another copy that is loaded globally. */
#define FROM_COPY(handle, version, result, name, ...) \
	result (*name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))dlvsym(handle, "ibv_" #name, version)

#define MUST(condition) \
	do { \
		if (!(condition)) { \
			printf("  %s: failed: %s\n", path, #condition); \
			return -1; \
		} \
	} while (0)

static void *copy;

static int connect_pair(struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid)
{
	FROM_COPY(copy, "IBVERBS_1.1", int, modify_qp, struct ibv_qp *, struct ibv_qp_attr *, int);
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
				   .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				   .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .hop_limit = 1 } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				   .max_rd_atomic = 1 };

	return modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	       modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	       modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					   IBV_QP_MAX_QP_RD_ATOMIC);
}

static int send_a_message(const char *path, struct ibv_context *context)
{
	FROM_COPY(copy, "IBVERBS_1.1", struct ibv_pd *, alloc_pd, struct ibv_context *);
	FROM_COPY(copy, "IBVERBS_1.1", int, dealloc_pd, struct ibv_pd *);
	FROM_COPY(copy, "IBVERBS_1.1", struct ibv_mr *, reg_mr, struct ibv_pd *, void *, size_t, int);
	FROM_COPY(copy, "IBVERBS_1.1", int, dereg_mr, struct ibv_mr *);
	FROM_COPY(copy, "IBVERBS_1.1", struct ibv_cq *, create_cq, struct ibv_context *, int, void *,
		  struct ibv_comp_channel *, int);
	FROM_COPY(copy, "IBVERBS_1.1", int, destroy_cq, struct ibv_cq *);
	FROM_COPY(copy, "IBVERBS_1.1", struct ibv_qp *, create_qp, struct ibv_pd *, struct ibv_qp_init_attr *);
	FROM_COPY(copy, "IBVERBS_1.1", int, destroy_qp, struct ibv_qp *);
	FROM_COPY(copy, "IBVERBS_1.1", int, query_gid, struct ibv_context *, uint8_t, int, union ibv_gid *);
	FROM_COPY(copy, "IBVERBS_1.1", int, get_cq_event, struct ibv_comp_channel *, struct ibv_cq **, void **);
	FROM_COPY(copy, "IBVERBS_1.1", void, ack_cq_events, struct ibv_cq *, unsigned int);
	FROM_COPY(copy, "IBVERBS_1.0", struct ibv_comp_channel *, create_comp_channel, struct ibv_context *);
	FROM_COPY(copy, "IBVERBS_1.0", int, destroy_comp_channel, struct ibv_comp_channel *);
	char buffers[2][64] = { "hello", "" };
	struct ibv_pd *pd = alloc_pd(context);
	struct ibv_mr *mr = pd ? reg_mr(pd, buffers, sizeof buffers, IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_comp_channel *channel = create_comp_channel(context);
	struct ibv_cq *cq = channel ? create_cq(context, 16, &copy, channel, 0) : NULL, *event;
	struct ibv_qp_init_attr attributes = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					       .cap = { 8, 8, 1, 1, 0 } };
	struct ibv_qp *sender, *receiver;
	union ibv_gid gid;
	void *cq_context;

	MUST(pd && mr && channel && cq);
	sender = create_qp(pd, &attributes);
	receiver = create_qp(pd, &attributes);
	MUST(sender && receiver);
	MUST(!query_gid(context, 1, 0, &gid));
	MUST(!connect_pair(sender, receiver->qp_num, &gid) && !connect_pair(receiver, sender->qp_num, &gid));

	struct ibv_sge to = { (uintptr_t)buffers[1], 64, mr->lkey }, from = { (uintptr_t)buffers[0], 64, mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;

	MUST(!ibv_req_notify_cq(cq, 0) && !ibv_post_recv(receiver, &receive, &bad_receive));
	MUST(!ibv_post_send(sender, &send, &bad_send));
	MUST(!get_cq_event(channel, &event, &cq_context) && event == cq && cq_context == &copy);
	ack_cq_events(cq, 1);
	struct ibv_wc wc;
	MUST(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	MUST(!strcmp(buffers[1], "hello"));
	MUST(!destroy_qp(sender) && !destroy_qp(receiver) && !destroy_cq(cq) && !destroy_comp_channel(channel));
	MUST(!dereg_mr(mr) && !dealloc_pd(pd));
	return 0;
}

static int use(const char *path, int keep)
{
	int count = -1, failed;

	copy = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!copy) {
		printf("  dlopen: %s\n", dlerror());
		return -1;
	}
	FROM_COPY(copy, "IBVERBS_1.1", struct ibv_device **, get_device_list, int *);
	FROM_COPY(copy, "IBVERBS_1.1", void, free_device_list, struct ibv_device **);
	FROM_COPY(copy, "IBVERBS_1.1", struct ibv_context *, open_device, struct ibv_device *);
	FROM_COPY(copy, "IBVERBS_1.1", int, close_device, struct ibv_context *);

	struct ibv_device **list = get_device_list(&count);
	MUST(list && count >= 1);
	struct ibv_context *context = open_device(list[0]);
	MUST(context);
	failed = send_a_message(path, context);
	failed |= close_device(context);
	free_device_list(list);
	printf("  %s: %d devices, message %s\n", path, count, failed ? "FAILED" : "ok");
	if (!keep)
		dlclose(copy);
	return failed;
}

int main(int argc, char **argv)
{
	int failed = 0, status = 0;

	if (argc < 2) {
		fprintf(stderr, "usage: %s LIBRARY...\n", argv[0]);
		return 2;
	}
	setvbuf(stdout, NULL, _IONBF, 0);
	alarm(50); /* a hang is a failure, too */
	puts("each copy:");
	for (int i = 1; i < argc; i++)
		failed |= use(argv[i], 0);
	puts("again, after dlclose:");
	for (int i = 1; i < argc; i++)
		failed |= use(argv[i], 1);
	puts("in a forked child:");
	pid_t child = fork();
	if (child == 0) {
		alarm(20);
		_exit(use(argv[1], 1) != 0);
	}
	waitpid(child, &status, 0);
	puts("in the parent, after the fork:");
	failed |= (status != 0) | use(argv[1], 1);
	puts(failed ? "COPIES BAD" : "COPIES OK");
	return failed != 0;
}
