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

/**
 * struct oc_piece - the pages of one piece of a region's vector
 * @pages: pinned; what is before iov.base in the first page is not of the piece
 * @n: how many are pinned
 */
struct oc_piece {
	struct page **pages;
	unsigned long n;
};

/**
 * struct oc_file_regions - the regions that an open file has, under their cookies
 * @list: the regions
 * @n: how many
 * @pinned: pages that they pin
 *
 * All of it is under oc_regions_lock.
 */
struct oc_file_regions {
	struct list_head list;
	unsigned long n;
	unsigned long pinned;
};

/**
 * struct oc_pinner - an address space with pinned memory
 * @notifier: ends the regions with the address space, even if the file stays open
 * @regions: pinned by it; under oc_regions_lock
 * @users: regions, and files that keep it; under oc_regions_lock
 *
 * There is one for each address space, which @notifier keeps as a structure. All users together
 * have one reference of it.
 */
struct oc_pinner {
	struct mmu_notifier notifier;
	struct list_head regions;
	unsigned long users;
};

/**
 * struct oc_region - pinned memory, named by a cookie
 * @users: who may copy, and its being published; with the last one it ends
 * @held: of this structure: by its users, while it is pinned, and by lists
 * @rcu: for look-ups that may still see it
 * @gate: where its bytes move
 * @ended: destroyed, or its address space has ended. Under oc_regions_lock; read unlocked, too
 * @unpinned: nothing is pinned any more; read unlocked
 * @over: it has ended, and no byte moves any more
 * @deferred: its unpinning, where that has to wait
 * @listed: among all regions; under oc_regions_lock
 * @creator: the process that made it
 * @published: Under its cookie: it may be used. A single-use one is found by its owner until it
 *   ends. Under oc_regions_lock
 * @node: under its cookie; changed under oc_regions_lock, looked up under RCU
 * @link: of its file; under oc_regions_lock
 * @file: the file's regions. Used under oc_regions_lock while it is among them; else only compared
 * @cookie: its name
 * @read: others may copy out of it
 * @write: others may copy into it
 * @single_use: it ends with its first use
 * @any_user: others than @uid in @ns may use it
 * @uid: the effective uid of its maker
 * @ns: the maker's user namespace
 * @pinned_by: of its pinner; under oc_regions_lock
 * @pinner: whose memory it is; NULL: nobody's yet
 * @mm: the pinner's address space
 * @account: of the user whose limit the pins count against; NULL: nobody's
 * @user: whose quota this counts against
 * @pinned: pages that are counted
 * @total: bytes
 * @n: pieces
 * @iov: the vector
 * @piece: its pages; what it says is there within @gate only
 *
 * Also the local side of a copy that the worker does: then without a cookie. Members without a lock
 * are set before it is published and stay as they are.
 */
struct oc_region {
	refcount_t users;
	struct kref held;
	struct rcu_head rcu;
	struct oc_gate gate;
	bool ended;
	bool unpinned;
	struct completion over;
	struct oc_deferred deferred;
	struct oc_listed listed;
	struct pid *creator;
	bool published;
	struct hlist_node node;
	struct list_head link;
	struct oc_file_regions *file;
	u64 cookie;
	bool read;
	bool write;
	bool single_use;
	bool any_user;
	kuid_t uid;
	struct user_namespace *ns;
	struct list_head pinned_by;
	struct oc_pinner *pinner;
	struct mm_struct *mm;
	const struct cred *account;
	struct oc_user *user;
	unsigned long pinned;
	u64 total;
	u32 n;
	struct oc_iovec *iov;
	struct oc_piece *piece;
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

/**
 * struct oc_work - a copy for the worker
 * @link: in the queue; under the file's queue_lock
 * @dst: where to; this has a reference
 * @src: where from; this has a reference
 * @dst_off: first byte in @dst
 * @src_off: first byte in @src
 * @len: bytes
 * @index: of its status
 * @notify: its end is also to be read from the file
 */
struct oc_work {
	struct list_head link;
	struct oc_region *dst;
	struct oc_region *src;
	u64 dst_off;
	u64 src_off;
	u64 len;
	u32 index;
	bool notify;
};

/**
 * struct oc_knem - an open file of /dev/knem
 * @regions: its regions; under oc_regions_lock
 * @pinner: of the address space that made the last region here, for the next one; the same lock
 * @cpus: where the worker may run; empty: anywhere. Under @lock, until there is a status array
 * @status: the status array; set once, after what follows up to @worker
 * @statuses: how many entries it has
 * @user: whose quota it counts against
 * @worker: made by the first copy for it; set once, under @worker_lock
 * @stop: the file is going: the copy that runs ends
 * @queue: copies for the worker
 * @queued: copies in the queue, promised to it, or running: at most as many as there are statuses
 * @ring: indices of completed copies, oldest first
 * @ring_head: where the oldest is
 * @ring_ready: how many there are; a hint for poll() is read unlocked
 * @ring_taken: in the ring, or promised to copies that run
 * @worker_wait: woken when a copy is queued
 * @reader_wait: woken when there is one to read, or fewer are to come
 */
struct oc_knem {
	struct oc_file_regions regions;
	struct oc_pinner *pinner;
	/** @lock: of binding and the making of the status array; within the mmap lock */
	struct mutex lock;
	/** @read_lock: one reader at a time */
	struct mutex read_lock;
	/** @worker_lock: of making the worker */
	struct mutex worker_lock;
	cpumask_var_t cpus;
	u8 *status;
	u32 statuses;
	struct oc_user *user;
	struct task_struct *worker;
	bool stop;

	/** @queue_lock: guards all that follows */
	spinlock_t queue_lock;
	struct list_head queue;
	u32 queued;
	u32 *ring;
	u32 ring_head;
	u32 ring_ready;
	u32 ring_taken;
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
