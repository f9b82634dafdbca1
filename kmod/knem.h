/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of /dev/knem share. */
#ifndef OC_KNEM_H
#define OC_KNEM_H

#include <linux/completion.h>
#include <linux/cpumask.h>
#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "core.h"
#include "include/uapi/knem.h"

#define OC_KNEM_MAX_PIECES 65536U
#define OC_KNEM_MAX_STATUS (64 * PAGE_SIZE)

/*
 * The pages of one piece of a region's vector; what is before iov.base in the first page is not of
 * it.
 */
struct oc_piece {
	struct page **pages;
	unsigned long n;
};

/* The regions that an open file has, under their cookies. All of it is under oc_regions_lock. */
struct oc_file_regions {
	struct list_head list;
	unsigned long n;
	unsigned long pinned; /* pages */
};

/* An address space with pinned memory. Its regions end with it, even if the file stays open. */
struct oc_pinner {
	struct mmu_notifier notifier; /* one for each address space */
	struct list_head regions; /* under oc_regions_lock */
	unsigned long users; /* regions, and files that keep it; under oc_regions_lock */
};

/*
 * Pinned memory, named by a cookie. Also the local side of a copy that the worker does: then
 * without a cookie.
 */
struct oc_region {
	refcount_t users; /* who may copy; with the last one it ends */
	struct kref held; /* this structure: by its users, while it is pinned, and by lists */
	struct rcu_head rcu;
	struct oc_gate gate; /* where its bytes move */
	bool ended; /* destroyed, or its address space has ended; under oc_regions_lock */
	bool unpinned; /* nothing is pinned any more */
	struct completion over; /* it has ended, and no byte moves any more */
	struct oc_deferred deferred; /* its unpinning, where that has to wait */
	struct oc_listed listed; /* among all regions; under oc_regions_lock */
	struct pid *creator;
	/*
	 * Published under its cookie: it may be used. A single-use one is found by its owner until
	 * it ends.
	 */
	bool published;
	struct hlist_node node; /* under oc_regions_lock */
	struct list_head link; /* of its file; under oc_regions_lock */
	struct oc_file_regions *file; /* while it is there; else only compared */
	u64 cookie;
	bool read; /* others may copy out of it */
	bool write; /* others may copy into it */
	bool single_use;
	bool any_user;
	kuid_t uid;
	struct user_namespace *ns;
	struct list_head pinned_by; /* of its pinner; under oc_regions_lock */
	struct oc_pinner *pinner;
	struct mm_struct *mm; /* the pinner's */
	/* of the user whose limit the pins count against; NULL: nobody's */
	const struct cred *account;
	struct oc_user *user;
	unsigned long pinned; /* pages counted */
	u64 total; /* bytes */
	u32 n;
	struct oc_iovec *iov;
	struct oc_piece *piece; /* what it says is there within the gate only */
};

struct oc_region *oc_region_create(struct oc_pinner **kept, struct oc_iovec *iov, u32 n, bool read,
				   bool write, u32 flags);
void oc_region_publish(struct oc_region *region, struct oc_file_regions *file);
int oc_region_destroy(struct oc_file_regions *file, u64 cookie);
void oc_region_destroy_all(struct oc_file_regions *file);
void oc_pinner_forget(struct oc_pinner **kept);
void oc_region_sum(struct oc_file_regions *file, unsigned long *regions, unsigned long *pinned);
struct oc_region *oc_region_use(u64 cookie, bool write);
int oc_region_claim(struct oc_region *dst, struct oc_region *src);
void oc_region_put(struct oc_region *region);
void oc_region_drop(struct oc_region *region);
struct oc_iovec *oc_iovec_read(u64 array, u32 *n);

int oc_region_copy(struct oc_region *dst, u64 dst_off, struct oc_region *src, u64 src_off, u64 len,
		   const bool *stop);
int oc_region_copy_user(struct oc_region *region, u64 off, const struct oc_iovec *iov, u32 n,
			u64 len, bool to_user);

/* A copy for the worker. */
struct oc_work {
	struct list_head link;
	struct oc_region *dst;
	struct oc_region *src;
	u64 dst_off;
	u64 src_off;
	u64 len;
	u32 index; /* of its status */
	bool notify;
};

/* An open file. */
struct oc_knem {
	struct oc_file_regions regions;
	/* of the address space that made the last region here, for the next one; the same lock */
	struct oc_pinner *pinner;
	struct mutex lock; /* of binding and the making of the status array; within the mmap lock */
	struct mutex read_lock; /* one reader at a time */
	struct mutex worker_lock; /* of making the worker */
	cpumask_var_t cpus; /* where the worker may run; empty: anywhere */
	u8 *status; /* set once, after what follows up to the worker */
	u32 statuses;
	struct oc_user *user; /* whose quota the worker counts against */
	struct task_struct *worker; /* made by the first copy for it */
	bool stop;

	spinlock_t queue_lock; /* of what follows */
	struct list_head queue;
	/* in the queue, promised to it, or running: at most as many as there are statuses */
	u32 queued;
	u32 *ring; /* indices of completed copies, oldest first */
	u32 ring_head;
	u32 ring_ready; /* in the ring */
	u32 ring_taken; /* in the ring, or promised to copies that run */
	wait_queue_head_t worker_wait;
	wait_queue_head_t reader_wait;
};

int oc_async_start(struct oc_knem *k, struct vm_area_struct *vma);
int oc_async_worker(struct oc_knem *k);
void oc_async_stop(struct oc_knem *k);
int oc_async_check(struct oc_knem *k, u32 index, bool thread, bool notify);
void oc_async_submit(struct oc_knem *k, struct oc_work *work);
void oc_async_complete(struct oc_knem *k, u32 index, bool notify, u8 status);
void oc_async_leave_queue(struct oc_knem *k);
void oc_async_leave_ring(struct oc_knem *k);
ssize_t oc_async_read(struct oc_knem *k, char __user *buf, size_t count, bool nonblock);
bool oc_async_readable(struct oc_knem *k);
int oc_async_bind(struct oc_knem *k, const struct knem_cmd_bind_offload *b);

#endif
