// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * libibverbs in software, for tests of what no software device of the kernel has: extended connections (XRC).
 *
 * Processes that name the same file in MODEL_VERBS share its devices. The file is the world: queue pairs, queues and
 * registrations of all processes, under one lock. A send is carried out by the process that posts it. That process
 * takes a receive of its peer, copies to the peer's memory with process_vm_writev, and completes on both sides. So a
 * message has come when ibv_post_send returns, and nothing is ever under way. It stands for a device only where the
 * interface says what one does, and for no speed.
 *
 * It is strict. What a device refuses is refused with the same code. Besides, each call that no correct program makes
 * is counted and named in the world (see `offence`). So a test fails whose program goes on after an error.
 *
 * Structures, names and numbers are those of <infiniband/verbs.h>.
 *
 * Environment: MODEL_VERBS is the file. MODEL_VERBS_DEVICES says how many devices there are, x0 and so on, 2 if it says
 * nothing. MODEL_VERBS_XRC=0 takes extended connections away.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define DEVICES 4
#define QPS 1024
#define SRQS 256
#define CQS 256
#define MRS 8192
#define XRCDS 64
#define HOLDERS 32
#define CQE 8192
#define WQE 4096
#define RQE 512
#define INLINE 220
#define MESSAGE (8u << 20)
#define SGE 4

/* A receive that was posted. */
struct wqe {
	uint64_t id;
	struct ibv_sge sge;
};

struct xrcd_state {
	bool used;
	int device;
	dev_t dev;
	ino_t ino;
	int opens;
};

struct mr_state {
	bool used;
	pid_t pid;
	int pd;
	uint64_t addr;
	uint64_t length;
	int access;
};

struct cq_state {
	bool used;
	pid_t pid;
	int device;
	int length;
	int armed;
	/* The socket of its channel; 0: it has none. */
	int channel;
	uint32_t head, tail;
	struct ibv_wc wc[CQE];
};

struct srq_state {
	bool used;
	pid_t pid;
	int device;
	int pd;
	enum ibv_srq_type type;
	int xrcd;
	int cq;
	uint32_t length, limit;
	uint32_t head, tail;
	struct wqe wqe[WQE];
};

struct qp_state {
	bool used;
	enum ibv_qp_type type;
	enum ibv_qp_state state;
	pid_t pid;
	int device;
	int pd;
	int cq;
	/* Its queue of receives; -1: its own. */
	int srq;
	int xrcd;
	int access;
	uint32_t peer;
	uint8_t gid[16];
	uint32_t sends, recvs;
	/* Sends that hold room: those that were not told of, too. */
	uint32_t busy;
	uint32_t inlined;
	uint32_t head, tail;
	struct wqe wqe[RQE];
	pid_t holders[HOLDERS];
};

enum count {
	OFFENCES,
	INITIATORS,
	TARGETS,
	CONNECTIONS,
	MOST_INITIATORS,
	MOST_TARGETS,
	MOST_CONNECTIONS,
	XRC_SENDS,
	XRC_READS,
	OPENED_TARGETS,
	PINNED,
	COUNTS = 16,
};

struct world {
	/* For tests, which read the file (`world.rs`): what there is and was, and what no correct program does. */
	uint64_t counts[COUNTS];
	char offence[256];
	pthread_mutex_t lock;
	int pds, channels;
	struct xrcd_state xrcd[XRCDS];
	struct mr_state mr[MRS];
	struct qp_state qp[QPS];
	struct srq_state srq[SRQS];
	struct cq_state cq[CQS];
};

/* Numbers of queue pairs and queues of receives, as peers see them: none is a small one, and none is another's. */
#define QPN(index) (0x001000u + (uint32_t)(index))
#define SRQN(index) (0x700000u + (uint32_t)(index))
#define KEY(index) (((uint32_t)(index) << 8) | 0x5a)

struct device {
	struct ibv_device base;
	int number;
};

struct context {
	struct verbs_context base;
	int number;
};

struct pd {
	struct ibv_pd base;
	int number;
	int users;
};

struct mr {
	struct ibv_mr base;
	int index;
};

struct channel {
	struct ibv_comp_channel base;
	int number;
};

struct cq {
	struct ibv_cq base;
	int index;
	int users;
};

struct xrcd {
	struct ibv_xrcd base;
	int index;
	int users;
};

struct srq {
	struct ibv_srq base;
	int index;
	struct xrcd *xrcd;
	struct cq *cq;
};

struct qp {
	struct ibv_qp base;
	int index;
	struct xrcd *xrcd;
};

static struct world *world;
static char world_path[108];
static struct device devices[DEVICES];
static int device_count;
static bool has_xrc = true;

static void lock(void)
{
	if (pthread_mutex_lock(&world->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&world->lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&world->lock);
}

/* A call that no correct program makes: noted, and refused with this code. */
__attribute__((format(printf, 2, 3))) static int offence(int code, const char *format, ...)
{
	va_list list;

	if (world->counts[OFFENCES]++ == 0) {
		va_start(list, format);
		vsnprintf(world->offence, sizeof(world->offence), format, list);
		va_end(list);
	}
	errno = code;
	return code;
}

#define REFUSE(code, ...) (offence(code, __VA_ARGS__), unlock(), NULL)

/* ---- The world. ---- */

static bool begin(void)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	const char *path = getenv("MODEL_VERBS");
	const char *count = getenv("MODEL_VERBS_DEVICES");
	const char *xrc = getenv("MODEL_VERBS_XRC");
	pthread_mutexattr_t attr;
	struct stat stat;
	int fd;

	pthread_mutex_lock(&once);
	if (world || !path || strlen(path) >= sizeof(world_path)) {
		pthread_mutex_unlock(&once);
		return world != NULL;
	}
	strcpy(world_path, path);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || flock(fd, LOCK_EX) || fstat(fd, &stat) || ftruncate(fd, sizeof(struct world)))
		goto out;
	world = mmap(NULL, sizeof(struct world), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (world == MAP_FAILED) {
		world = NULL;
		goto out;
	}
	if (stat.st_size == 0) {
		pthread_mutexattr_init(&attr);
		pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
		pthread_mutex_init(&world->lock, &attr);
	}
	/* A peer that posts a send writes to this process. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	device_count = count ? atoi(count) : 2;
	if (device_count > DEVICES)
		device_count = DEVICES;
	has_xrc = !xrc || strcmp(xrc, "0");
	for (int number = 0; number < device_count; number++) {
		devices[number].number = number;
		devices[number].base.node_type = IBV_NODE_CA;
		devices[number].base.transport_type = IBV_TRANSPORT_IB;
		snprintf(devices[number].base.name, IBV_SYSFS_NAME_MAX, "x%d", number);
	}
out:
	if (fd >= 0) {
		/* The mapping keeps the file open. */
		flock(fd, LOCK_UN);
		close(fd);
	}
	pthread_mutex_unlock(&once);
	return world != NULL;
}

static bool lives(pid_t pid)
{
	return pid > 0 && (kill(pid, 0) == 0 || errno != ESRCH);
}

/* A target lives as long as one of the processes that have it open. */
static bool is_held(struct qp_state *qp)
{
	if (qp->type != IBV_QPT_XRC_RECV)
		return lives(qp->pid);
	for (int index = 0; index < HOLDERS; index++)
		if (lives(qp->holders[index]))
			return true;
	return false;
}

static void gid_of(int device, uint8_t gid[16])
{
	memset(gid, 0, 16);
	gid[10] = gid[11] = 0xff;
	gid[12] = 10;
	gid[13] = 88;
	gid[15] = (uint8_t)(device + 1);
}

static void count(enum ibv_qp_type type, int by)
{
	enum count what = type == IBV_QPT_XRC_SEND ? INITIATORS : type == IBV_QPT_XRC_RECV ? TARGETS : CONNECTIONS;
	uint64_t *now = &world->counts[what], *most = &world->counts[what - INITIATORS + MOST_INITIATORS];

	*now += (uint64_t)by;
	if (*now > *most)
		*most = *now;
}

/* Memory of another process, or of this one. `false`: the process is gone, or has no such memory. */
static bool copy(pid_t pid, uint64_t there, void *here, size_t length, bool out)
{
	struct iovec own = { here, length }, other = { (void *)(uintptr_t)there, length };
	ssize_t done;

	if (length == 0)
		return true;
	if (pid == getpid()) {
		memcpy(out ? other.iov_base : here, out ? here : other.iov_base, length);
		return true;
	}
	done = out ? process_vm_writev(pid, &own, 1, &other, 1, 0) : process_vm_readv(pid, &own, 1, &other, 1, 0);
	return done == (ssize_t)length;
}

static struct mr_state *registered(uint32_t key, int pd, uint64_t addr, uint64_t length, int access)
{
	uint32_t index = key >> 8;
	struct mr_state *mr = &world->mr[index % MRS];

	if (index >= MRS || !mr->used || key != KEY(index) || mr->pd != pd || (mr->access & access) != access)
		return NULL;
	if (addr < mr->addr || length > mr->length || addr - mr->addr > mr->length - length)
		return NULL;
	return mr;
}

static void address_of(int channel, struct sockaddr_un *address)
{
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	/* Beside the world, so that it goes with it. */
	if (snprintf(address->sun_path, sizeof(address->sun_path), "%s.%d", world_path, channel) >=
	    (int)sizeof(address->sun_path))
		abort();
}

static void complete(int index, const struct ibv_wc *wc)
{
	static int out = -1;
	struct cq_state *cq = &world->cq[index];
	struct sockaddr_un address;

	if (!cq->used)
		return;
	if ((int)(cq->tail - cq->head) >= cq->length) {
		offence(0, "a queue of %d completions is too short", cq->length);
		return;
	}
	cq->wc[cq->tail++ % CQE] = *wc;
	if (!cq->armed || !cq->channel)
		return;
	cq->armed = 0;
	if (out < 0)
		out = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	address_of(cq->channel, &address);
	/* Who is gone is told nothing. */
	sendto(out, &index, sizeof(index), MSG_NOSIGNAL, (struct sockaddr *)&address, sizeof(address));
}

/* Completions of what is destroyed are told to nobody. */
static void forget(int cq, uint32_t qpn, bool receives)
{
	struct cq_state *state = &world->cq[cq];
	uint32_t to = state->head;

	for (uint32_t from = state->head; from != state->tail; from++) {
		struct ibv_wc *wc = &state->wc[from % CQE];
		bool is_receive = wc->opcode & IBV_WC_RECV;

		if (wc->qp_num == qpn && is_receive == receives)
			continue;
		state->wc[to++ % CQE] = *wc;
	}
	state->tail = to;
}

/* ---- Devices. ---- */

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list;

	if (!begin()) {
		errno = ENOSYS;
		return NULL;
	}
	list = calloc((size_t)device_count + 1, sizeof(*list));
	for (int number = 0; number < device_count; number++)
		list[number] = &devices[number].base;
	if (count)
		*count = device_count;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	return (__be64)((struct device *)device)->number + 1;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t length)
{
	struct ibv_port_attr found = {
		.state = IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = IBV_MTU_4096,
		.gid_tbl_len = 2,
		.max_msg_sz = MESSAGE,
		.pkey_tbl_len = 1,
		.active_width = 2,
		.active_speed = 32,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};

	(void)context;
	if (port != 1)
		return EINVAL;
	memcpy(attr, &found, length < sizeof(found) ? length : sizeof(found));
	return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	return query_port(context, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	memset(attr, 0, sizeof(*attr));
	attr->max_mr_size = UINT64_MAX;
	attr->max_qp = QPS;
	attr->max_qp_wr = 4096;
	attr->device_cap_flags = has_xrc ? IBV_DEVICE_XRC : 0;
	attr->max_sge = SGE;
	attr->max_cq = CQS;
	attr->max_cqe = CQE;
	attr->max_mr = MRS;
	attr->max_qp_rd_atom = 16;
	attr->max_qp_init_rd_atom = 16;
	attr->max_srq = SRQS;
	attr->max_srq_wr = WQE;
	attr->max_srq_sge = 1;
	attr->phys_port_cnt = 1;
	return 0;
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t length)
{
	struct ibv_device_attr_ex found;

	(void)input;
	memset(&found, 0, sizeof(found));
	ibv_query_device(context, &found.orig_attr);
	memcpy(attr, &found, length < sizeof(found) ? length : sizeof(found));
	return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	if (port != 1 || index != 1) {
		errno = ENODATA;
		return -1;
	}
	gid_of(((struct device *)context->device)->number, gid->raw);
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t size)
{
	if (port != 1 || index != 1 || flags || size != sizeof(*entry))
		return ENODATA;
	memset(entry, 0, sizeof(*entry));
	gid_of(((struct device *)context->device)->number, entry->gid.raw);
	entry->gid_index = index;
	entry->port_num = port;
	entry->gid_type = IBV_GID_TYPE_ROCE_V2;
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t count, uint32_t flags,
			     size_t size)
{
	return count > 0 && _ibv_query_gid_ex(context, 1, 1, entries, flags, size) == 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *key)
{
	(void)context;
	*key = 0xffff;
	return port == 1 && index == 0 ? 0 : -1;
}

/* ---- Domains and memory. ---- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct pd *pd = calloc(1, sizeof(*pd));

	pd->base.context = context;
	lock();
	pd->number = ++world->pds;
	unlock();
	return &pd->base;
}

int ibv_dealloc_pd(struct ibv_pd *base)
{
	struct pd *pd = (struct pd *)base;

	lock();
	if (pd->users > 0) {
		offence(EBUSY, "a domain is given back that %d objects are of", pd->users);
		unlock();
		return EBUSY;
	}
	unlock();
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *base, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct pd *pd = (struct pd *)base;
	struct mr *mr;

	lock();
	if (iova != (uint64_t)(uintptr_t)addr || length == 0)
		return REFUSE(EINVAL, "a registration of no bytes");
	for (int index = 1; index < MRS; index++) {
		struct mr_state *state = &world->mr[index];

		if (state->used)
			continue;
		*state = (struct mr_state){ true, getpid(), pd->number, (uint64_t)(uintptr_t)addr, length, (int)access };
		pd->users++;
		world->counts[PINNED] += length;
		unlock();
		mr = calloc(1, sizeof(*mr));
		mr->index = index;
		mr->base = (struct ibv_mr){ base->context, base, addr, length, 0, KEY(index), KEY(index) };
		return &mr->base;
	}
	unlock();
	errno = ENOMEM;
	return NULL;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uint64_t)(uintptr_t)addr, (unsigned int)access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

int ibv_dereg_mr(struct ibv_mr *base)
{
	struct mr *mr = (struct mr *)base;

	lock();
	world->mr[mr->index].used = false;
	world->counts[PINNED] -= base->length;
	((struct pd *)base->pd)->users--;
	unlock();
	free(mr);
	return 0;
}

/* ---- Queues of completions. ---- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct channel *channel = calloc(1, sizeof(*channel));
	struct sockaddr_un address;

	channel->base.context = context;
	channel->base.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	lock();
	channel->number = ++world->channels;
	unlock();
	address_of(channel->number, &address);
	if (channel->base.fd < 0 || bind(channel->base.fd, (struct sockaddr *)&address, sizeof(address))) {
		free(channel);
		return NULL;
	}
	return &channel->base;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
	struct channel *channel = (struct channel *)base;
	struct sockaddr_un address;

	lock();
	if (base->refcnt > 0) {
		offence(EBUSY, "a channel is given back that %d queues use", base->refcnt);
		unlock();
		return EBUSY;
	}
	unlock();
	address_of(channel->number, &address);
	unlink(address.sun_path);
	close(base->fd);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int length, void *word, struct ibv_comp_channel *channel,
			     int vector)
{
	struct cq *cq;

	lock();
	if (length < 1 || length > CQE || vector != 0)
		return REFUSE(EINVAL, "a queue of %d completions", length);
	for (int index = 0; index < CQS; index++) {
		struct cq_state *state = &world->cq[index];

		if (state->used && lives(state->pid))
			continue;
		state->used = true;
		state->pid = getpid();
		state->device = ((struct context *)context)->number;
		state->length = length;
		state->armed = 0;
		state->channel = channel ? ((struct channel *)channel)->number : 0;
		state->head = state->tail = 0;
		if (channel)
			channel->refcnt++;
		unlock();
		cq = calloc(1, sizeof(*cq));
		cq->index = index;
		cq->base.context = context;
		cq->base.channel = channel;
		cq->base.cq_context = word;
		cq->base.cqe = length;
		return &cq->base;
	}
	unlock();
	errno = ENOMEM;
	return NULL;
}

int ibv_resize_cq(struct ibv_cq *base, int length)
{
	struct cq *cq = (struct cq *)base;
	struct cq_state *state = &world->cq[cq->index];

	if (length < 1 || length > CQE)
		return EINVAL;
	lock();
	if ((int)(state->tail - state->head) <= length) {
		state->length = length;
		base->cqe = length;
	}
	unlock();
	return base->cqe == length ? 0 : EINVAL;
}

int ibv_destroy_cq(struct ibv_cq *base)
{
	struct cq *cq = (struct cq *)base;

	lock();
	if (cq->users > 0) {
		offence(EBUSY, "a queue of completions is given back that %d pairs or queues use", cq->users);
		unlock();
		return EBUSY;
	}
	world->cq[cq->index].used = false;
	if (base->channel)
		base->channel->refcnt--;
	unlock();
	free(cq);
	return 0;
}

static __thread struct ibv_cq *last_cq;

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **word)
{
	int index;

	if (recv(channel->fd, &index, sizeof(index), 0) != sizeof(index))
		return -1;
	/* Programs of ours have one queue for a channel, and look at neither. */
	*cq = last_cq;
	*word = NULL;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	(void)cq;
	(void)count;
}

static int req_notify_cq(struct ibv_cq *base, int solicited)
{
	(void)solicited;
	lock();
	world->cq[((struct cq *)base)->index].armed = 1;
	unlock();
	return 0;
}

static int poll_cq(struct ibv_cq *base, int most, struct ibv_wc *wc)
{
	struct cq_state *cq = &world->cq[((struct cq *)base)->index];
	int taken = 0;

	lock();
	while (taken < most && cq->head != cq->tail)
		wc[taken++] = cq->wc[cq->head++ % CQE];
	unlock();
	return taken;
}

/* ---- Extended connections' domains. ---- */

static struct ibv_xrcd *open_xrcd(struct ibv_context *base, struct ibv_xrcd_init_attr *attr)
{
	struct context *context = (struct context *)((char *)base - offsetof(struct context, base.context));
	struct xrcd *xrcd;
	struct stat stat = { 0 };
	int found = -1;

	if (!has_xrc) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	lock();
	if (attr->comp_mask != (IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS))
		return REFUSE(EINVAL, "a domain by a mask of %#x", attr->comp_mask);
	if (attr->fd != -1 && fstat(attr->fd, &stat)) {
		unlock();
		return NULL;
	}
	for (int index = 0; index < XRCDS && attr->fd != -1; index++) {
		struct xrcd_state *state = &world->xrcd[index];

		if (state->used && state->device == context->number && state->dev == stat.st_dev &&
		    state->ino == stat.st_ino)
			found = index;
	}
	if (found < 0 && !(attr->oflags & O_CREAT))
		return REFUSE(ENOENT, "no domain of that file");
	for (int index = 0; index < XRCDS && found < 0; index++) {
		if (!world->xrcd[index].used) {
			world->xrcd[index] =
				(struct xrcd_state){ true, context->number, stat.st_dev, stat.st_ino, 0 };
			found = index;
		}
	}
	if (found < 0) {
		unlock();
		errno = ENOMEM;
		return NULL;
	}
	world->xrcd[found].opens++;
	unlock();
	xrcd = calloc(1, sizeof(*xrcd));
	xrcd->base.context = base;
	xrcd->index = found;
	return &xrcd->base;
}

static int close_xrcd(struct ibv_xrcd *base)
{
	struct xrcd *xrcd = (struct xrcd *)base;

	lock();
	if (xrcd->users > 0) {
		offence(EBUSY, "a domain (XRC) is closed that %d objects are of", xrcd->users);
		unlock();
		return EBUSY;
	}
	if (--world->xrcd[xrcd->index].opens == 0)
		world->xrcd[xrcd->index].used = false;
	unlock();
	free(xrcd);
	return 0;
}

/* ---- Queues of receives. ---- */

static struct ibv_srq *make_srq(struct ibv_context *context, struct ibv_pd *pd, const struct ibv_srq_attr *attr,
				enum ibv_srq_type type, struct xrcd *xrcd, struct cq *cq)
{
	struct srq *srq;

	lock();
	if (attr->max_wr < 1 || attr->max_wr > WQE || attr->max_sge != 1)
		return REFUSE(EINVAL, "%u receives of %u pieces", attr->max_wr, attr->max_sge);
	for (int index = 0; index < SRQS; index++) {
		struct srq_state *state = &world->srq[index];

		if (state->used && lives(state->pid))
			continue;
		state->used = true;
		state->pid = getpid();
		state->device = ((struct device *)context->device)->number;
		state->pd = ((struct pd *)pd)->number;
		state->type = type;
		state->xrcd = xrcd ? xrcd->index : -1;
		state->cq = cq ? cq->index : -1;
		state->length = attr->max_wr;
		state->limit = 0;
		state->head = state->tail = 0;
		((struct pd *)pd)->users++;
		if (xrcd)
			xrcd->users++;
		if (cq)
			cq->users++;
		unlock();
		srq = calloc(1, sizeof(*srq));
		srq->base.context = context;
		srq->base.pd = pd;
		srq->index = index;
		srq->xrcd = xrcd;
		srq->cq = cq;
		return &srq->base;
	}
	unlock();
	errno = ENOMEM;
	return NULL;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	return make_srq(pd->context, pd, &attr->attr, IBV_SRQT_BASIC, NULL, NULL);
}

static struct ibv_srq *create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t all = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ;

	if (!has_xrc) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (attr->comp_mask != all || attr->srq_type != IBV_SRQT_XRC || !attr->pd || !attr->xrcd || !attr->cq) {
		lock();
		return REFUSE(EINVAL, "receives by a mask of %#x, of type %d", attr->comp_mask, (int)attr->srq_type);
	}
	return make_srq(context, attr->pd, &attr->attr, IBV_SRQT_XRC, (struct xrcd *)attr->xrcd,
			(struct cq *)attr->cq);
}

static int get_srq_num(struct ibv_srq *base, uint32_t *number)
{
	struct srq *srq = (struct srq *)base;

	if (!srq->xrcd)
		return EOPNOTSUPP;
	*number = SRQN(srq->index);
	return 0;
}

int ibv_modify_srq(struct ibv_srq *base, struct ibv_srq_attr *attr, int mask)
{
	if (mask != IBV_SRQ_LIMIT)
		return EINVAL;
	world->srq[((struct srq *)base)->index].limit = attr->srq_limit;
	return 0;
}

int ibv_query_srq(struct ibv_srq *base, struct ibv_srq_attr *attr)
{
	struct srq_state *state = &world->srq[((struct srq *)base)->index];

	*attr = (struct ibv_srq_attr){ state->length, 1, state->limit };
	return 0;
}

int ibv_destroy_srq(struct ibv_srq *base)
{
	struct srq *srq = (struct srq *)base;

	lock();
	for (int index = 0; index < QPS; index++) {
		if (world->qp[index].used && world->qp[index].srq == srq->index && world->qp[index].pid == getpid()) {
			offence(EBUSY, "receives are given back that a pair takes from");
			unlock();
			return EBUSY;
		}
	}
	world->srq[srq->index].used = false;
	((struct pd *)base->pd)->users--;
	if (srq->xrcd)
		srq->xrcd->users--;
	if (srq->cq)
		srq->cq->users--;
	unlock();
	free(srq);
	return 0;
}

static int post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct srq_state *srq = &world->srq[((struct srq *)base)->index];
	int code = 0;

	lock();
	for (; wr && !code; wr = wr->next) {
		*bad = wr;
		if (srq->tail - srq->head >= srq->length)
			code = ENOMEM;
		else if (wr->num_sge != 1 || !registered(wr->sg_list->lkey, srq->pd, wr->sg_list->addr,
							 wr->sg_list->length, IBV_ACCESS_LOCAL_WRITE))
			code = offence(EINVAL, "a receive into memory that is not registered");
		else
			srq->wqe[srq->tail++ % WQE] = (struct wqe){ wr->wr_id, *wr->sg_list };
	}
	unlock();
	return code;
}

/* ---- Queue pairs. ---- */

static int new_qp(enum ibv_qp_type type, int device)
{
	for (int index = 0; index < QPS; index++) {
		struct qp_state *qp = &world->qp[index];

		if (qp->used && is_held(qp))
			continue;
		if (qp->used)
			count(qp->type, -1);
		memset(qp, 0, offsetof(struct qp_state, wqe));
		memset(qp->holders, 0, sizeof(qp->holders));
		qp->used = true;
		qp->type = type;
		qp->state = IBV_QPS_RESET;
		qp->pid = getpid();
		qp->device = device;
		qp->srq = qp->xrcd = qp->cq = qp->pd = -1;
		count(type, 1);
		return index;
	}
	return -1;
}

static struct qp *handle(struct ibv_context *context, int index, enum ibv_qp_type type)
{
	struct qp *qp = calloc(1, sizeof(*qp));

	qp->index = index;
	qp->base.context = context;
	qp->base.qp_num = QPN(index);
	qp->base.qp_type = type;
	qp->base.state = IBV_QPS_RESET;
	return qp;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *base, struct ibv_qp_init_attr *attr)
{
	struct cq *cq = (struct cq *)attr->send_cq;
	struct srq *srq = (struct srq *)attr->srq;
	struct qp_state *state;
	struct qp *qp;
	int index;

	lock();
	if (attr->qp_type != IBV_QPT_RC && attr->qp_type != IBV_QPT_XRC_SEND) {
		unlock();
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (attr->qp_type == IBV_QPT_XRC_SEND && !has_xrc) {
		unlock();
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!cq || attr->cap.max_send_wr < 1 || attr->cap.max_send_wr > 4096 || attr->cap.max_send_sge > SGE)
		return REFUSE(EINVAL, "a pair of %u sends", attr->cap.max_send_wr);
	if (attr->qp_type == IBV_QPT_XRC_SEND && (srq || attr->cap.max_recv_wr))
		return REFUSE(EINVAL, "an initiator with receives");
	if (attr->qp_type == IBV_QPT_RC && srq && srq->xrcd)
		return REFUSE(EINVAL, "a connection with receives of an extended one");
	if (attr->cap.max_recv_wr > RQE)
		return REFUSE(EINVAL, "a pair of %u receives", attr->cap.max_recv_wr);
	index = new_qp(attr->qp_type, ((struct device *)base->context->device)->number);
	if (index < 0) {
		unlock();
		errno = ENOMEM;
		return NULL;
	}
	state = &world->qp[index];
	state->pd = ((struct pd *)base)->number;
	state->cq = cq->index;
	state->srq = srq ? srq->index : -1;
	state->sends = attr->cap.max_send_wr;
	state->recvs = srq ? 0 : attr->cap.max_recv_wr;
	state->inlined = INLINE;
	((struct pd *)base)->users++;
	cq->users++;
	unlock();
	attr->cap.max_inline_data = INLINE;
	qp = handle(base->context, index, attr->qp_type);
	qp->base.pd = base;
	qp->base.send_cq = attr->send_cq;
	qp->base.recv_cq = attr->recv_cq;
	qp->base.srq = attr->srq;
	return &qp->base;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct xrcd *xrcd = (struct xrcd *)attr->xrcd;
	struct qp *qp;
	int index;

	lock();
	if (attr->qp_type != IBV_QPT_XRC_RECV || attr->comp_mask != IBV_QP_INIT_ATTR_XRCD || !xrcd)
		return REFUSE(EINVAL, "a pair of type %d by a mask of %#x", (int)attr->qp_type, attr->comp_mask);
	index = new_qp(IBV_QPT_XRC_RECV, ((struct device *)context->device)->number);
	if (index < 0) {
		unlock();
		errno = ENOMEM;
		return NULL;
	}
	world->qp[index].xrcd = xrcd->index;
	world->qp[index].holders[0] = getpid();
	xrcd->users++;
	unlock();
	qp = handle(context, index, IBV_QPT_XRC_RECV);
	qp->xrcd = xrcd;
	return &qp->base;
}

static struct ibv_qp *open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
	const uint32_t all = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	struct xrcd *xrcd = (struct xrcd *)attr->xrcd;
	uint32_t index = attr->qp_num - QPN(0);
	struct qp_state *state;
	struct qp *qp;

	lock();
	if (attr->comp_mask != all || attr->qp_type != IBV_QPT_XRC_RECV || !xrcd)
		return REFUSE(EINVAL, "a pair is opened by a mask of %#x", attr->comp_mask);
	state = &world->qp[index % QPS];
	if (index >= QPS || !state->used || state->type != IBV_QPT_XRC_RECV || state->xrcd != xrcd->index ||
	    !is_held(state)) {
		unlock();
		errno = EINVAL;
		return NULL;
	}
	for (int holder = 0; holder < HOLDERS; holder++) {
		if (lives(state->holders[holder]))
			continue;
		state->holders[holder] = getpid();
		xrcd->users++;
		world->counts[OPENED_TARGETS]++;
		unlock();
		qp = handle(context, (int)index, IBV_QPT_XRC_RECV);
		qp->base.state = state->state;
		qp->xrcd = xrcd;
		return &qp->base;
	}
	unlock();
	errno = ENOMEM;
	return NULL;
}

static void flush(struct qp_state *qp, uint32_t qpn)
{
	qp->state = IBV_QPS_ERR;
	while (qp->cq >= 0 && qp->head != qp->tail) {
		struct ibv_wc wc = {
			.wr_id = qp->wqe[qp->head++ % RQE].id,
			.status = IBV_WC_WR_FLUSH_ERR,
			.opcode = IBV_WC_RECV,
			.qp_num = qpn,
		};
		complete(qp->cq, &wc);
	}
}

int ibv_destroy_qp(struct ibv_qp *base)
{
	struct qp *qp = (struct qp *)base;
	struct qp_state *state = &world->qp[qp->index];
	bool held = false;

	lock();
	for (int holder = 0; holder < HOLDERS && qp->xrcd; holder++) {
		if (state->holders[holder] == getpid()) {
			state->holders[holder] = 0;
			break;
		}
	}
	if (qp->xrcd) {
		qp->xrcd->users--;
		held = is_held(state);
	} else {
		((struct pd *)base->pd)->users--;
		((struct cq *)base->send_cq)->users--;
		forget(((struct cq *)base->send_cq)->index, base->qp_num, false);
	}
	if (!held) {
		state->used = false;
		count(state->type, -1);
	}
	unlock();
	free(qp);
	return 0;
}

/* What each change of state must say, and may say besides, as the kernel's table has it. */
struct change {
	enum ibv_qp_type type;
	enum ibv_qp_state from, to;
	int must, may;
};

#define BEGIN (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define PATH (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define SERVES (IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define ASKS (IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)
#define OFTEN (IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE)

static const struct change changes[] = {
	{ IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, BEGIN, 0 },
	{ IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, PATH | SERVES, OFTEN | IBV_QP_PKEY_INDEX },
	{ IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, ASKS | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN, OFTEN | IBV_QP_MIN_RNR_TIMER },
	{ IBV_QPT_XRC_SEND, IBV_QPS_RESET, IBV_QPS_INIT, BEGIN, 0 },
	{ IBV_QPT_XRC_SEND, IBV_QPS_INIT, IBV_QPS_RTR, PATH, OFTEN | IBV_QP_PKEY_INDEX },
	{ IBV_QPT_XRC_SEND, IBV_QPS_RTR, IBV_QPS_RTS, ASKS | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN, OFTEN },
	{ IBV_QPT_XRC_RECV, IBV_QPS_RESET, IBV_QPS_INIT, BEGIN, 0 },
	{ IBV_QPT_XRC_RECV, IBV_QPS_INIT, IBV_QPS_RTR, PATH | SERVES, OFTEN | IBV_QP_PKEY_INDEX },
	{ IBV_QPT_XRC_RECV, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_SQ_PSN, OFTEN | IBV_QP_MIN_RNR_TIMER },
};

static const struct change *find_change(const struct qp_state *qp, enum ibv_qp_state to)
{
	for (size_t index = 0; index < sizeof(changes) / sizeof(changes[0]); index++) {
		const struct change *change = &changes[index];

		if (change->type == qp->type && change->from == qp->state && change->to == to)
			return change;
	}
	return NULL;
}

static int connect_to(struct qp_state *qp, const struct ibv_qp_attr *attr)
{
	uint8_t gid[16];

	if (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > IBV_MTU_4096 || attr->ah_attr.port_num != 1 ||
	    !attr->ah_attr.is_global || attr->ah_attr.grh.sgid_index != 1 || attr->rq_psn > 0xffffff)
		return offence(EINVAL, "a path that leads nowhere");
	for (int number = 0; number < DEVICES; number++) {
		gid_of(number, gid);
		if (memcmp(gid, attr->ah_attr.grh.dgid.raw, sizeof(gid)) == 0) {
			memcpy(qp->gid, gid, sizeof(gid));
			qp->peer = attr->dest_qp_num;
			return 0;
		}
	}
	/* Nobody has that address. */
	return ETIMEDOUT;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	struct qp_state *qp = &world->qp[((struct qp *)base)->index];
	const struct change *change;
	int code = 0, given = mask & ~IBV_QP_STATE;

	lock();
	if (!(mask & IBV_QP_STATE)) {
		code = offence(EINVAL, "a change of no state");
	} else if (attr->qp_state == IBV_QPS_ERR) {
		flush(qp, base->qp_num);
	} else if (attr->qp_state == IBV_QPS_RESET) {
		qp->state = IBV_QPS_RESET;
	} else {
		change = find_change(qp, attr->qp_state);
		if (!change || (given & change->must) != change->must || given & ~(change->must | change->may))
			code = offence(EINVAL, "a pair of type %d goes from state %d to %d by a mask of %#x",
				       (int)qp->type, (int)qp->state, (int)attr->qp_state, mask);
		else if (attr->qp_state == IBV_QPS_RTR)
			code = connect_to(qp, attr);
		else if (attr->qp_state == IBV_QPS_INIT && attr->port_num != 1)
			code = offence(EINVAL, "port %d", attr->port_num);
		if (!code && attr->qp_state == IBV_QPS_INIT)
			qp->access = (int)attr->qp_access_flags;
		if (!code)
			qp->state = attr->qp_state;
	}
	base->state = qp->state;
	unlock();
	return code;
}

int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)mask;
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	attr->qp_state = attr->cur_qp_state = world->qp[((struct qp *)base)->index].state;
	return 0;
}

static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct qp_state *qp = &world->qp[((struct qp *)base)->index];
	int code = 0;

	lock();
	for (; wr && !code; wr = wr->next) {
		*bad = wr;
		if (qp->srq >= 0 || qp->type != IBV_QPT_RC || qp->state == IBV_QPS_RESET)
			code = offence(EINVAL, "a receive of a pair that has none of its own");
		else if (qp->tail - qp->head >= qp->recvs)
			code = ENOMEM;
		else if (wr->num_sge != 1 || !registered(wr->sg_list->lkey, qp->pd, wr->sg_list->addr,
							 wr->sg_list->length, IBV_ACCESS_LOCAL_WRITE))
			code = offence(EINVAL, "a receive into memory that is not registered");
		else
			qp->wqe[qp->tail++ % RQE] = (struct wqe){ wr->wr_id, *wr->sg_list };
	}
	unlock();
	return code;
}

/* ---- Sends. ---- */

/* The queue of receives that a message goes to, or whose domain a read is of. `NULL`: none of the target's domain. */
static struct srq_state *named(const struct qp_state *peer, uint32_t number)
{
	uint32_t index = number - SRQN(0);
	struct srq_state *srq = &world->srq[index % SRQS];

	if (index >= SRQS || !srq->used || !lives(srq->pid) || srq->type != IBV_SRQT_XRC || srq->xrcd != peer->xrcd)
		return NULL;
	return srq;
}

/* The end of a connection that a pair is connected with, if it is there and connected with that. */
static struct qp_state *peer_of(const struct qp_state *qp, uint32_t qpn)
{
	uint32_t index = qp->peer - QPN(0);
	struct qp_state *peer = &world->qp[index % QPS];
	enum ibv_qp_type wanted = qp->type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : IBV_QPT_RC;
	uint8_t gid[16];

	if (index >= QPS || !peer->used || peer->type != wanted || !is_held(peer) || peer->peer != qpn)
		return NULL;
	if (peer->state != IBV_QPS_RTR && peer->state != IBV_QPS_RTS)
		return NULL;
	gid_of(peer->device, gid);
	return memcmp(gid, qp->gid, sizeof(gid)) ? NULL : peer;
}

static enum ibv_wc_status deliver(struct qp_state *qp, uint32_t qpn, const struct ibv_send_wr *wr, const void *bytes,
				  size_t length)
{
	struct qp_state *peer = peer_of(qp, qpn);
	struct srq_state *srq = NULL;
	struct wqe wqe;
	struct ibv_wc wc = { .opcode = IBV_WC_RECV };
	pid_t pid;
	int cq;

	if (!peer)
		return IBV_WC_RETRY_EXC_ERR;
	if (qp->type == IBV_QPT_XRC_SEND) {
		srq = named(peer, wr->qp_type.xrc.remote_srqn);
		if (!srq)
			return IBV_WC_REM_INV_REQ_ERR;
		world->counts[XRC_SENDS]++;
	} else if (peer->srq >= 0) {
		srq = &world->srq[peer->srq];
	}
	if (srq ? srq->head == srq->tail : peer->head == peer->tail) {
		/* Nobody that bounds what it sends by what was permitted ever finds a peer without a receive. */
		offence(0, "a message finds no receive");
		return IBV_WC_RNR_RETRY_EXC_ERR;
	}
	wqe = srq ? srq->wqe[srq->head++ % WQE] : peer->wqe[peer->head++ % RQE];
	pid = srq ? srq->pid : peer->pid;
	cq = srq && srq->type == IBV_SRQT_XRC ? srq->cq : peer->cq;
	wc.wr_id = wqe.id;
	wc.qp_num = qp->peer;
	if (length > wqe.sge.length) {
		wc.status = IBV_WC_LOC_LEN_ERR;
		complete(cq, &wc);
		return IBV_WC_REM_INV_REQ_ERR;
	}
	if (!copy(pid, wqe.sge.addr, (void *)(uintptr_t)bytes, length, true))
		return IBV_WC_RETRY_EXC_ERR;
	wc.byte_len = (uint32_t)length;
	if (wr->opcode == IBV_WR_SEND_WITH_IMM) {
		wc.wc_flags = IBV_WC_WITH_IMM;
		wc.imm_data = wr->imm_data;
	}
	complete(cq, &wc);
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status read_from(struct qp_state *qp, uint32_t qpn, const struct ibv_send_wr *wr)
{
	struct qp_state *peer = peer_of(qp, qpn);
	const struct ibv_sge *sge = wr->sg_list;
	struct srq_state *srq = NULL;
	struct mr_state *mr;

	if (!peer)
		return IBV_WC_RETRY_EXC_ERR;
	if (qp->type == IBV_QPT_XRC_SEND) {
		srq = named(peer, wr->qp_type.xrc.remote_srqn);
		if (!srq)
			return IBV_WC_REM_INV_REQ_ERR;
		world->counts[XRC_READS]++;
	}
	mr = registered(wr->wr.rdma.rkey, srq ? srq->pd : peer->pd, wr->wr.rdma.remote_addr, sge->length,
			IBV_ACCESS_REMOTE_READ);
	if (!mr || !(peer->access & IBV_ACCESS_REMOTE_READ)) {
		offence(0, "a read of memory that its peer has not shown");
		return IBV_WC_REM_ACCESS_ERR;
	}
	if (!copy(mr->pid, wr->wr.rdma.remote_addr, (void *)(uintptr_t)sge->addr, sge->length, false))
		return IBV_WC_RETRY_EXC_ERR;
	return IBV_WC_SUCCESS;
}

static int post_one(struct qp_state *qp, uint32_t qpn, const struct ibv_send_wr *wr)
{
	bool in_request = wr->send_flags & IBV_SEND_INLINE;
	const struct ibv_sge *sge = wr->num_sge ? wr->sg_list : NULL;
	size_t length = sge ? sge->length : 0;
	bool is_read = wr->opcode == IBV_WR_RDMA_READ;
	enum ibv_wc_status status;
	struct ibv_wc wc = { .wr_id = wr->wr_id, .qp_num = qpn, .opcode = is_read ? IBV_WC_RDMA_READ : IBV_WC_SEND };

	if (qp->type != IBV_QPT_RC && qp->type != IBV_QPT_XRC_SEND)
		return offence(EINVAL, "a target sends");
	if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR)
		return offence(EINVAL, "a pair in state %d sends", (int)qp->state);
	if (wr->num_sge > 1 || length > MESSAGE || (in_request && (length > qp->inlined || is_read)))
		return offence(EINVAL, "a request of %zu bytes in %d pieces", length, wr->num_sge);
	if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM && (!is_read || !sge))
		return offence(EOPNOTSUPP, "a request of kind %d", (int)wr->opcode);
	if (qp->busy >= qp->sends)
		return offence(ENOMEM, "more than %u sends under way", qp->sends);
	if (qp->state == IBV_QPS_ERR) {
		status = IBV_WC_WR_FLUSH_ERR;
	} else if (sge && !in_request &&
		   !registered(sge->lkey, qp->pd, sge->addr, length, is_read ? IBV_ACCESS_LOCAL_WRITE : 0)) {
		offence(0, "a request names memory that is not registered");
		status = IBV_WC_LOC_PROT_ERR;
	} else if (is_read) {
		status = read_from(qp, qpn, wr);
	} else {
		status = deliver(qp, qpn, wr, sge ? (void *)(uintptr_t)sge->addr : NULL, length);
	}
	qp->busy++;
	if (status != IBV_WC_SUCCESS)
		flush(qp, qpn);
	if (status != IBV_WC_SUCCESS || wr->send_flags & IBV_SEND_SIGNALED) {
		wc.status = status;
		complete(qp->cq, &wc);
		/* Those that tell of nothing give their room back with the next one that does. */
		qp->busy = 0;
	}
	return 0;
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp_state *qp = &world->qp[((struct qp *)base)->index];
	int code = 0;

	lock();
	for (; wr && !code; wr = wr->next) {
		*bad = wr;
		code = post_one(qp, base->qp_num, wr);
	}
	unlock();
	return code;
}

/* ---- Contexts. ---- */

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct context *context = calloc(1, sizeof(*context));
	struct verbs_context *verbs = &context->base;

	context->number = ((struct device *)device)->number;
	verbs->sz = sizeof(*verbs);
	verbs->context.device = device;
	verbs->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	verbs->context.num_comp_vectors = 1;
	verbs->context.cmd_fd = -1;
	verbs->context.async_fd = eventfd(0, EFD_CLOEXEC);
	verbs->context.ops.poll_cq = poll_cq;
	verbs->context.ops.req_notify_cq = req_notify_cq;
	verbs->context.ops.post_srq_recv = post_srq_recv;
	verbs->context.ops.post_send = post_send;
	verbs->context.ops.post_recv = post_recv;
	verbs->query_port = query_port;
	verbs->query_device_ex = query_device_ex;
	verbs->open_qp = open_qp;
	verbs->create_qp_ex = create_qp_ex;
	verbs->get_srq_num = get_srq_num;
	verbs->create_srq_ex = create_srq_ex;
	verbs->open_xrcd = open_xrcd;
	verbs->close_xrcd = close_xrcd;
	return &verbs->context;
}

int ibv_close_device(struct ibv_context *base)
{
	struct context *context = (struct context *)((char *)base - offsetof(struct context, base.context));

	close(base->async_fd);
	free(context);
	return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	uint64_t none;

	(void)event;
	/* Nothing ever happens on this device. */
	return read(context->async_fd, &none, sizeof(none)) < 0 ? -1 : -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

/* ---- What there is not. ---- */

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	(void)pd, (void)offset, (void)length, (void)iova, (void)fd, (void)access;
	errno = EOPNOTSUPP;
	return NULL;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	(void)qp;
	errno = EOPNOTSUPP;
	return NULL;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	(void)pd, (void)attr;
	errno = EOPNOTSUPP;
	return NULL;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	(void)pd, (void)wc, (void)grh, (void)port;
	errno = EOPNOTSUPP;
	return NULL;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	(void)ah;
	return EOPNOTSUPP;
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp, (void)gid, (void)lid;
	return EOPNOTSUPP;
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp, (void)gid, (void)lid;
	return EOPNOTSUPP;
}

int ibv_fork_init(void)
{
	return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	(void)status;
	return "a status";
}

const char *ibv_event_type_str(enum ibv_event_type event)
{
	(void)event;
	return "an event";
}

const char *ibv_port_state_str(enum ibv_port_state state)
{
	(void)state;
	return "a state";
}
