/* One copy of libibverbs, loaded by dlopen (RTLD_LOCAL, as Python wheels do): its functions, and a pair of connected queue
 * pairs over it. The functions are looked up in the copy itself, because the program may have another one linked.
 * Every function says what failed on standard output and returns nonzero. */
#ifndef PLUGIN_COPY_H
#define PLUGIN_COPY_H
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef ibv_reg_mr

#define MUST(copy, condition) \
	do { \
		if (!(condition)) { \
			printf("  %s: failed: %s\n", (copy)->path, #condition); \
			return -1; \
		} \
	} while (0)

#define FUNCTIONS(F) \
	F("IBVERBS_1.1", struct ibv_device **, get_device_list, (int *)) \
	F("IBVERBS_1.1", void, free_device_list, (struct ibv_device **)) \
	F("IBVERBS_1.1", struct ibv_context *, open_device, (struct ibv_device *)) \
	F("IBVERBS_1.1", int, close_device, (struct ibv_context *)) \
	F("IBVERBS_1.1", struct ibv_pd *, alloc_pd, (struct ibv_context *)) \
	F("IBVERBS_1.1", int, dealloc_pd, (struct ibv_pd *)) \
	F("IBVERBS_1.1", struct ibv_mr *, reg_mr, (struct ibv_pd *, void *, size_t, int)) \
	F("IBVERBS_1.1", int, dereg_mr, (struct ibv_mr *)) \
	F("IBVERBS_1.1", struct ibv_cq *, create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
	F("IBVERBS_1.1", int, destroy_cq, (struct ibv_cq *)) \
	F("IBVERBS_1.1", struct ibv_qp *, create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *)) \
	F("IBVERBS_1.1", int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int)) \
	F("IBVERBS_1.1", int, destroy_qp, (struct ibv_qp *)) \
	F("IBVERBS_1.1", int, query_gid, (struct ibv_context *, uint8_t, int, union ibv_gid *)) \
	F("IBVERBS_1.1", int, get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **)) \
	F("IBVERBS_1.1", void, ack_cq_events, (struct ibv_cq *, unsigned int)) \
	F("IBVERBS_1.0", struct ibv_comp_channel *, create_comp_channel, (struct ibv_context *)) \
	F("IBVERBS_1.0", int, destroy_comp_channel, (struct ibv_comp_channel *))

struct copy {
	const char *path;
	void *handle;
#define DECLARE(version, result, name, arguments) result (*name) arguments;
	FUNCTIONS(DECLARE)
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *sender, *receiver;
	char buffers[2][64];
	unsigned int messages;
};

/* Takes the functions of a loaded library. */
static inline int copy_bind(struct copy *copy, const char *path, void *handle)
{
	*copy = (struct copy){ .path = path, .handle = handle };
	if (!copy->handle) {
		printf("  dlopen: %s\n", dlerror());
		return -1;
	}
#define LOOK_UP(version, result, name, arguments) \
	copy->name = (result (*) arguments)dlvsym(copy->handle, "ibv_" #name, version); \
	MUST(copy, copy->name);
	FUNCTIONS(LOOK_UP)
	return 0;
}

static inline int copy_load(struct copy *copy, const char *path)
{
	return copy_bind(copy, path, dlopen(path, RTLD_NOW | RTLD_LOCAL));
}

/* Devices that the copy lists; opens the first one if `open`. */
static inline int copy_enumerate(struct copy *copy, int open)
{
	int count = -1;
	struct ibv_device **list = copy->get_device_list(&count);

	if (open && list && count >= 1)
		copy->context = copy->open_device(list[0]);
	if (list)
		copy->free_device_list(list);
	return count;
}

static inline int copy_connect(struct copy *copy, struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
				   .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				   .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .hop_limit = 1 } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				   .max_rd_atomic = 1 };

	return copy->modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	       copy->modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	       copy->modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Opens the first device, with everything that a message needs. */
static inline int copy_open(struct copy *copy)
{
	union ibv_gid gid;

	MUST(copy, copy_enumerate(copy, 1) >= 1);
	MUST(copy, copy->context);
	copy->pd = copy->alloc_pd(copy->context);
	MUST(copy, copy->pd);
	copy->mr = copy->reg_mr(copy->pd, copy->buffers, sizeof copy->buffers, IBV_ACCESS_LOCAL_WRITE);
	copy->channel = copy->create_comp_channel(copy->context);
	MUST(copy, copy->mr && copy->channel);
	copy->cq = copy->create_cq(copy->context, 16, copy, copy->channel, 0);
	MUST(copy, copy->cq);
	struct ibv_qp_init_attr attributes = { .send_cq = copy->cq, .recv_cq = copy->cq, .qp_type = IBV_QPT_RC,
					       .cap = { 8, 8, 1, 1, 0 } };
	copy->sender = copy->create_qp(copy->pd, &attributes);
	copy->receiver = copy->create_qp(copy->pd, &attributes);
	MUST(copy, copy->sender && copy->receiver);
	MUST(copy, !copy->query_gid(copy->context, 1, 0, &gid));
	MUST(copy, !copy_connect(copy, copy->sender, copy->receiver->qp_num, &gid));
	MUST(copy, !copy_connect(copy, copy->receiver, copy->sender->qp_num, &gid));
	return 0;
}

/* Sends a message, never the same twice, and sleeps in the completion channel until it has arrived. */
static inline int copy_message(struct copy *copy)
{
	struct ibv_sge to = { (uintptr_t)copy->buffers[1], 64, copy->mr->lkey };
	struct ibv_sge from = { (uintptr_t)copy->buffers[0], 64, copy->mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED },
			   *bad_send;
	int received = 0, sent = 0;

	snprintf(copy->buffers[0], sizeof copy->buffers[0], "message %u", ++copy->messages);
	MUST(copy, !ibv_req_notify_cq(copy->cq, 0) && !ibv_post_recv(copy->receiver, &receive, &bad_receive));
	MUST(copy, !ibv_post_send(copy->sender, &send, &bad_send));
	while (!received || !sent) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(copy->cq, 1, &wc);

		MUST(copy, n >= 0);
		if (n == 1) {
			MUST(copy, wc.status == IBV_WC_SUCCESS);
			*(wc.opcode == IBV_WC_RECV ? &received : &sent) = 1;
			continue;
		}
		struct ibv_cq *event;
		void *cq_context;

		MUST(copy, !copy->get_cq_event(copy->channel, &event, &cq_context));
		MUST(copy, event == copy->cq && cq_context == copy);
		copy->ack_cq_events(copy->cq, 1);
		MUST(copy, !ibv_req_notify_cq(copy->cq, 0));
	}
	MUST(copy, !strcmp(copy->buffers[0], copy->buffers[1]));
	return 0;
}

static inline int copy_close(struct copy *copy)
{
	MUST(copy, !copy->destroy_qp(copy->sender) && !copy->destroy_qp(copy->receiver) && !copy->destroy_cq(copy->cq));
	MUST(copy, !copy->destroy_comp_channel(copy->channel) && !copy->dereg_mr(copy->mr) && !copy->dealloc_pd(copy->pd));
	MUST(copy, !copy->close_device(copy->context));
	return 0;
}
#endif
