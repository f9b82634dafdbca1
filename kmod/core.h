/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of the module share. Lock order and invariants: docs/kernel-module.md. */
#ifndef OC_CORE_H
#define OC_CORE_H

#include <linux/atomic.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/interval_tree.h>
#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/random.h>
#include <linux/refcount.h>
#include <linux/sizes.h>
#include <linux/types.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "listing.h"
#include "pure.h"
#include "include/uapi/onecopy.h"

#define OC_VERSION "0.1.0"
/*
 * Of /dev/onecopy, so that its node can be there before the module is, and the first open loads it.
 * One of those for local use: where it is taken, any other.
 */
#define OC_MINOR 244

/*
 * For allocations that are as large as the caller asks. If there is no memory for one, the caller
 * gets an error, and no trace goes to the log.
 */
#define OC_GFP_ASKED (GFP_KERNEL_ACCOUNT | __GFP_NOWARN)

/* ---- tasks that are in the middle of something (marks.c) ---- */
#define OC_MARK_BUCKETS 64

/**
 * struct oc_mark - a note that a task is in the middle of something
 * @node: in its bucket; under the bucket's lock
 * @task: who adds it, removes it and finds it
 */
struct oc_mark {
	struct hlist_node node;
	struct task_struct *task;
};

/**
 * struct oc_marks - a set of notes
 * @bucket: hashed by task, so that neither faults nor invalidations of different tasks meet at one
 *   lock
 * @bucket.lock: guards @bucket.head
 * @bucket.head: notes
 */
struct oc_marks {
	struct oc_mark_bucket {
		spinlock_t lock; /* of the list */
		struct hlist_head head;
	} ____cacheline_aligned_in_smp bucket[OC_MARK_BUCKETS];
};

void oc_marks_init(struct oc_marks *marks);
void oc_mark_set(struct oc_marks *marks, struct oc_mark *mark);
void oc_mark_clear(struct oc_marks *marks, struct oc_mark *mark);
struct oc_mark *oc_mark_find(struct oc_marks *marks);

/* ---- changes of an address space (changes.c) ---- */
struct oc_watch;
/**
 * struct oc_watch_ops - what is done when watched memory changes
 * @invalidate: A change begins. When this returns, nothing may use what the range has been. False:
 *   not yet, come again. Only a change that cannot wait may get that answer; it is notified under a
 *   spinlock. The end of the address space is notified as MMU_NOTIFY_RELEASE.
 */
struct oc_watch_ops {
	bool (*invalidate)(struct oc_watch *watch, const struct mmu_notifier_range *range);
};

/**
 * struct oc_watch - a subscription to the changes of a part of an address space
 * @node: the part, in the tree of @changes; under the lock of these
 * @changes: of that address space, of which the watch is a user
 * @mm: the address space, kept as a structure as long as the watch, without its users
 * @ops: what is done when the memory changes
 * @serial: a notification passes over watches that came after it
 * @notifying: calls of @ops->invalidate that run just now. Under the lock of @changes; a waiting
 *   task reads it unlocked
 * @leaving: it is not notified any more; under the lock of @changes
 *
 * A member of the segment or attachment that watches. What has no lock is set by oc_watch_begin()
 * and stays as it is.
 */
struct oc_watch {
	struct interval_tree_node node;
	struct oc_changes *changes;
	struct mm_struct *mm;
	const struct oc_watch_ops *ops;
	u64 serial;
	unsigned int notifying;
	bool leaving;
};

int oc_watch_begin(struct oc_watch *watch, unsigned long start, unsigned long size,
		   const struct oc_watch_ops *ops, bool locked);
void oc_watch_end(struct oc_watch *watch);
void oc_changes_busy(struct oc_changes *c, unsigned long start, unsigned long end,
		     unsigned long *busy);
int oc_changes_wait(struct oc_changes *c, unsigned long page);
void oc_changes_init(void);
void oc_changes_exit(void);
void oc_notifier_born(void);
void oc_notifier_freed(void);

/**
 * struct oc_own_zap - what a task takes out of an attachment just now
 * @mark: by which the task's notifications find it
 * @mm: the importer's address space
 * @start: first address of the stretch
 * @end: the address behind it
 *
 * On the task's stack. No watch has to be notified of that.
 */
struct oc_own_zap {
	struct oc_mark mark;
	struct mm_struct *mm;
	unsigned long start;
	unsigned long end;
};

void oc_own_zap_begin(struct oc_own_zap *own, struct mm_struct *mm, unsigned long start,
		      unsigned long end);
void oc_own_zap_end(struct oc_own_zap *own);

/* ---- what of an address space may be shown (vma.c) ---- */
int oc_vma_stays(struct vm_area_struct *vma);
bool oc_vma_is_attachment(const struct vm_area_struct *vma);
bool oc_vma_hidden(const struct vm_area_struct *vma);
bool oc_vma_is_anon_or_shmem(struct vm_area_struct *vma);
int oc_owner_vma_check(struct mm_struct *mm, unsigned long addr, bool write);
int oc_fault_in(struct mm_struct *mm, unsigned long addr, bool write, bool owner, int *locked);

/* ---- gates: bytes move within them only (gate.c) ---- */
/**
 * struct oc_gate - where the bytes of a segment or region move
 * @inside: tasks that are within
 * @closed: no task enters any more; never set back
 */
struct oc_gate {
	atomic_t inside;
	bool closed;
};

#define OC_GATE_BYTES SZ_128K /* moved at a time: some 10 microseconds without preemption */

bool oc_gate_enter(struct oc_gate *gate);
void oc_gate_leave(struct oc_gate *gate);
void oc_gate_close(struct oc_gate *gate);
void oc_gate_drain(struct oc_gate *gate);

/* ---- pages that are held (pages.c) ---- */

/**
 * struct oc_deferred - what may not be waited for, so it is tried again until it is done
 * @work: the next attempt
 * @attempt: true: it is done, and this structure may be gone
 * @delay: jiffies before that attempt
 * @holds: this has a reference of the module
 *
 * Owned by its work from oc_deferred_begin() on.
 */
struct oc_deferred {
	struct delayed_work work;
	bool (*attempt)(struct oc_deferred *d);
	unsigned long delay;
	bool holds;
};

int oc_deferred_init(void);
void oc_deferred_exit(void);
void oc_deferred_begin(struct oc_deferred *d, bool (*attempt)(struct oc_deferred *d));

unsigned long oc_unpin_some(struct page **pages, unsigned long n, bool dirty);
void oc_unpin(struct page **pages, unsigned long n, bool dirty);
int oc_copy_gated(struct oc_gate *gate, struct page *const *pages, u64 off, u64 len, u64 user,
		  bool to_user, u64 *done);
void oc_copy_pages(struct page *const *dst, u64 dst_off, struct page *const *src, u64 src_off,
		   u64 len);

/* ---- what commands take and tell; all three devices: is the module ready? (arg.c) ---- */
bool oc_is_ready(void);
void oc_set_ready(void);
int oc_arg_read(void *to, size_t known, const void __user *from, u32 *size);
int oc_arg_write(void __user *to, const void *from, size_t known, u32 size);
int oc_give_fd(struct file *file, void __user *to, void *arg, size_t known, u32 size, s32 *slot);

/* ---- counters and quotas (quota.c) ---- */
/**
 * enum oc_stat - counters of all users
 * @OC_ATTACHES: attachments that were made
 * @OC_FAULTS: faults of attachments
 * @OC_RETRIES: faults that could not be answered at once
 * @OC_MAPPED_SMALL: entries of single pages that were written
 * @OC_MAPPED_HUGE: huge entries that were written
 * @OC_INVALIDATIONS: invalidations of segments
 * @OC_HOLES: faults that found a hole
 * @OC_COPIES: copies of COPY and of /dev/knem
 * @OC_COPIED_BYTES: what these copied
 * @OC_STATS: how many counters there are
 */
enum oc_stat {
	OC_ATTACHES,
	OC_FAULTS,
	OC_RETRIES,
	OC_MAPPED_SMALL,
	OC_MAPPED_HUGE,
	OC_INVALIDATIONS,
	OC_HOLES,
	OC_COPIES,
	OC_COPIED_BYTES,
	OC_STATS
};

/**
 * struct oc_stats - what one CPU counted
 * @v: by enum oc_stat
 */
struct oc_stats {
	u64 v[OC_STATS];
};

DECLARE_PER_CPU(struct oc_stats, oc_stats);

/**
 * oc_count() - add to a counter
 * @what: the counter
 * @n: how much
 */
static inline void oc_count(enum oc_stat what, u64 n)
{
	this_cpu_add(oc_stats.v[what], n);
}

u64 oc_stat_sum(enum oc_stat what);

/**
 * enum oc_quota - what a user may have so many of; each has a module parameter
 * @OC_SEGMENTS: segments
 * @OC_PERMITS: permits of /dev/xpmem
 * @OC_REGIONS: regions of /dev/knem
 * @OC_WORKERS: status arrays of /dev/knem
 * @OC_ATTACHMENT_VMAS: VMAs of attachments
 * @OC_QUOTAS: how many quotas there are
 */
enum oc_quota { OC_SEGMENTS, OC_PERMITS, OC_REGIONS, OC_WORKERS, OC_ATTACHMENT_VMAS, OC_QUOTAS };
extern unsigned long oc_gauge[OC_QUOTAS];
extern atomic_long_t oc_pinned_pages;
extern atomic_long_t oc_attachments;
extern atomic_long_t oc_spaces_held;

struct oc_user;
struct oc_user *oc_charge(enum oc_quota what);
bool oc_may_charge(struct oc_user *user, enum oc_quota what);
void oc_charge_more(struct oc_user *user, enum oc_quota what);
void oc_uncharge(struct oc_user *user, enum oc_quota what);
/**
 * enum oc_zap_class - who causes a zap
 * @OC_ZAP_OWN: a task of the user; the zap takes one of the user's slots
 * @OC_ZAP_RECLAIM: a task of the user that reclaims memory
 * @OC_ZAP_OTHER: the kernel, or another user
 * @OC_ZAP_CLASSES: how many classes there are
 *
 * Each class has a workqueue of its own.
 */
enum oc_zap_class { OC_ZAP_OWN, OC_ZAP_RECLAIM, OC_ZAP_OTHER, OC_ZAP_CLASSES };
enum oc_zap_class oc_zap_class_of(struct oc_user *user, const struct mm_struct *mm);
bool oc_zap_slot_take(struct oc_user *user, struct list_head *waiting);
struct list_head *oc_zap_slot_give(struct oc_user *user);
struct oc_space;
struct oc_space *oc_space_charge(void);
void oc_space_uncharge(struct oc_space *space);

/* ---- a snapshot of the owner's page tables (snapshot.c) ---- */
#define OC_WINDOW_PAGES OC_PAGES_IN(OC_WINDOW_BYTES(PMD_SIZE), PAGE_SIZE)
/*
 * What is known of a page: its number, whether there is one, and whether its owner may write it,
 * in the form of HMM. OC_E_WRITE alone is what is left of a writable page that the owner took away.
 */
#ifdef OC_HMM
#define OC_WINDOW_MAX OC_WINDOW_PAGES
#define OC_E_VALID HMM_PFN_VALID
#define OC_E_WRITE HMM_PFN_WRITE
#define OC_E_FLAGS HMM_PFN_FLAGS
#else
/* Without HMM pages are looked for one by one. */
#define OC_WINDOW_MAX 16UL
#define OC_E_VALID (1UL << (BITS_PER_LONG - 1))
#define OC_E_WRITE (1UL << (BITS_PER_LONG - 2))
#define OC_E_FLAGS (OC_E_VALID | OC_E_WRITE)
#endif

/**
 * struct oc_snap - what the owner's page tables said of a window
 * @seq: invalidations of the segment that had been recorded then
 * @start: the owner's first page
 * @pages: how many
 * @huge: all of it is one entry of the owner's tables, and was not changed since
 * @entry: what page @start + i * PAGE_SIZE was; an allocation by itself, or @one
 * @one: the entry of a single page
 *
 * It is the task's that allocated it, until oc_snap_store(). From then on it is the segment's, and
 * under its lock. What it says may be used under that lock, after oc_snap_refresh() has struck out
 * what was invalidated since.
 */
struct oc_snap {
	u64 seq;
	unsigned long start;
	unsigned int pages;
	bool huge;
	unsigned long *entry;
	unsigned long one;
};

/**
 * oc_snap_end() - where a snapshot ends
 * @s: the snapshot
 *
 * Return: the owner's address behind the last page.
 */
static inline unsigned long oc_snap_end(const struct oc_snap *s)
{
	return s->start + (unsigned long)s->pages * PAGE_SIZE;
}

/**
 * oc_snap_index() - which entry of a snapshot is a page's
 * @s: the snapshot
 * @page: a page of the owner within it
 *
 * Return: the index.
 */
static inline unsigned long oc_snap_index(const struct oc_snap *s, unsigned long page)
{
	return (page - s->start) >> PAGE_SHIFT;
}

/**
 * oc_entry_pfn() - the page of a snapshot's entry
 * @e: the entry, with OC_E_VALID
 *
 * Return: its number.
 */
static inline unsigned long oc_entry_pfn(unsigned long e)
{
	return e & ~OC_E_FLAGS;
}

/**
 * oc_random_id() - an id that cannot be guessed
 *
 * Return: never zero, positive as s64; of 56 bits, since programs print two of them into 32 bytes.
 */
static inline u64 oc_random_id(void)
{
	u64 id;

	do {
		get_random_bytes(&id, sizeof(id));
		id &= GENMASK_ULL(OC_ID_BITS - 1, 0);
	} while (!id);
	return id;
}

/* ---- segment (segment.c) ---- */
#define OC_RING 64 /* invalidations that are remembered: a snapshot older than that is worthless */
#define OC_SNAPS 4 /* snapshots that a segment keeps */
#define OC_VERDICTS 8
#define OC_REFILLS 8
/* pages of the owner that one fault has made present at most */
#define OC_AHEAD_MAX OC_PAGES_IN(SZ_256K, PAGE_SIZE)

/**
 * struct oc_verdict - an error that a task's repeated fault must answer
 * @pid: the task
 * @born: when it began, so that no later one with its number is taken for it
 * @page: the owner's page
 * @err: what the task found while it held no lock of its own; 0: this place is free
 *
 * Under the lock of the segment that has it.
 */
struct oc_verdict {
	pid_t pid;
	u64 born;
	unsigned long page;
	int err;
};

/**
 * struct oc_zap_work - what a worker does for the tasks that wait for it
 * @work: the worker's
 * @waiting: in the queue for one of the user's slots; under the lock of these
 * @user: whose slots these are
 * @class: who causes the zap
 */
struct oc_zap_work {
	struct work_struct work;
	struct list_head waiting;
	struct oc_user *user;
	enum oc_zap_class class;
};

/**
 * struct oc_zap_batch - invalidations of a segment that one worker zaps together
 * @work: the worker's
 * @seg: the segment
 * @pending: ranges of the owner's addresses that changed, for the next batch
 * @pending_until: the last serial number of the stretches that may show them
 * @started: batches that a worker has taken, and so the number of the next one
 * @completed: batches that were zapped; waiting tasks read it unlocked
 * @queued: a worker runs, or waits for a slot; it takes what is pending without help
 *
 * All but the first two are under the segment's lock.
 */
struct oc_zap_batch {
	struct oc_zap_work work;
	struct oc_seg *seg;
	struct oc_ranges pending;
	u64 pending_until;
	u64 started;
	u64 completed;
	bool queued;
};

/**
 * struct oc_seg - a segment: a range of one address space, and what its importers share
 * @ref: held by its files, by its maker, and while it is looked at; the last one ends it
 * @node: published under @id; under oc_table_lock
 * @listed: among all segments; under oc_table_lock
 * @owner: the process that exported it
 * @id: set by oc_seg_publish()
 * @mm: the owner's address space, kept as a structure by @watch, without its users
 * @start: first address
 * @size: in bytes
 * @mode: who may get it, as of a file
 * @uid: the owner's effective uid at the export
 * @gid: its effective gid
 * @ns: its user namespace
 * @user: whose quota this counts against
 * @space: the address space in which it counts
 * @mapping: only what the kernel links its VMAs by, whose page offset is the owner's page number
 * @watch: of the owner's memory
 * @generation: the page of counts that importers may map
 * @reap: work that zaps all of it, for a caller that cannot wait
 * @refills: how often what the owner takes away may come back writable: see oc_refill_seen()
 * @gate: where COPY and debuggers move bytes
 * @zapped: woken when a stretch that leaves is walked no more
 * @batch: zaps that wait, by class; OC_ZAP_OTHER is not batched
 * @batch_done: woken when a batch is done
 * @state: ONECOPY_STATE_*; oc_seg_error() reads it unlocked
 * @seq: invalidations that were recorded; a snapshot reads it unlocked
 * @ring: the last OC_RING of them
 * @snap: snapshots that are kept
 * @snap_hand: which of them goes next
 * @verdict: errors for faults that come again
 * @verdict_hand: which of them goes next
 * @ahead_at: the page that comes next if importers go through memory in order
 * @ahead: how many pages the last fault of that kind wanted
 * @reap_queued: @reap is queued, or was
 * @reap_done: @reap has zapped all of it
 * @stretches: where attachments may have entries, by the owner's address
 * @stretch_serial: serial number of the last one that came
 * @attachments: by when they came, for who lists them
 * @attachment_serial: serial number of the last one that came
 * @attached: how many there are, known without a walk through them
 * @attached_bytes: how long they are, known in the same way
 *
 * Members before @lock that name none are set when it is made and stay as they are.
 */
struct oc_seg {
	struct kref ref;
	struct hlist_node node;
	struct oc_listed listed;
	struct pid *owner;
	u64 id;
	struct mm_struct *mm;
	unsigned long start;
	unsigned long size;
	umode_t mode;
	kuid_t uid;
	kgid_t gid;
	struct user_namespace *ns;
	struct oc_user *user;
	struct oc_space *space;
	struct address_space mapping;
	struct oc_watch watch;
	struct page *generation;

	struct work_struct reap;
	atomic_t refills;
	struct oc_gate gate;
	wait_queue_head_t zapped;
	struct oc_zap_batch batch[OC_ZAP_OTHER];
	wait_queue_head_t batch_done;

	/**
	 * @lock: Guards all that follows. It is taken in invalidation, so nothing is allocated,
	 * faulted or zapped under it.
	 */
	struct mutex lock;
	u32 state;
	u64 seq;
	struct oc_range ring[OC_RING];
	struct oc_snap *snap[OC_SNAPS];
	unsigned int snap_hand;
	struct oc_verdict verdict[OC_VERDICTS];
	unsigned int verdict_hand;
	unsigned long ahead_at;
	unsigned int ahead;
	bool reap_queued;
	bool reap_done;
	struct rb_root_cached stretches;
	u64 stretch_serial;
	struct rb_root_cached attachments;
	unsigned long attachment_serial;
	unsigned long attached;
	unsigned long attached_bytes;
};

/**
 * oc_seg_end() - where a segment ends
 * @seg: the segment
 *
 * Return: the address behind its last byte.
 */
static inline unsigned long oc_seg_end(const struct oc_seg *seg)
{
	return seg->start + seg->size;
}

/**
 * oc_seg_has() - whether an address is of a segment
 * @seg: the segment
 * @addr: an address of the owner
 *
 * Return: true if it is.
 */
static inline bool oc_seg_has(const struct oc_seg *seg, unsigned long addr)
{
	return addr >= seg->start && addr - seg->start < seg->size;
}

struct oc_seg *oc_seg_create(unsigned long start, unsigned long size, umode_t mode,
			     const struct oc_watch_ops *changes, work_func_t run_batch);
void oc_seg_publish(struct oc_seg *seg);
struct oc_seg *oc_seg_find(u64 id);
void oc_seg_die(struct oc_seg *seg, u32 state);
void oc_seg_put(struct oc_seg *seg);
int oc_seg_error(struct oc_seg *seg);
const char *oc_seg_state(const struct oc_seg *seg);
bool oc_seg_allows(struct oc_seg *seg, bool write);
int oc_seg_enter(struct oc_seg *seg);

/**
 * oc_seg_get() - take one more reference of a segment
 * @seg: a segment of which the caller has one
 *
 * Return: @seg.
 */
static inline struct oc_seg *oc_seg_get(struct oc_seg *seg)
{
	kref_get(&seg->ref);
	return seg;
}

/* ---- generation page (generation.c) ---- */
int oc_generation_init(struct oc_seg *seg);
void oc_generation_free(struct oc_seg *seg);
void oc_generation_hole(struct oc_seg *seg);
void oc_generation_invalidated(struct oc_seg *seg);
void oc_generation_state(struct oc_seg *seg);
int oc_generation_mmap(struct oc_seg *seg, struct vm_area_struct *vma);
#define OC_GENERATION_PGOFF (ONECOPY_MMAP_GENERATION >> PAGE_SHIFT)

/* ---- attachments, and how their entries are zapped (zap.c) ---- */
#define OC_VM_FLAGS (VM_PFNMAP | VM_IO | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP)

struct oc_installers;

/**
 * struct oc_attachment - what one mmap() of a segment made
 * @ref: one for each VMA; the VMAs into which the first one was split share it
 * @user: who made it: each VMA counts
 * @seg: the segment, which @file keeps
 * @file: that of its VMAs, which keep it
 * @link: among the segment's, at its serial number; under the segment's lock
 * @importer: the process that made it
 * @start: first address, of the importer
 * @end: the address behind the last one
 * @shows: the owner's address that @start shows
 * @watch: of the importer's memory
 * @scratch: the page for what is written to holes; NULL: nothing was. Set once, by cmpxchg()
 * @installers: locks of faults; NULL: it was never touched. Set once, by cmpxchg()
 * @stretches: where there may be entries, by the importer's address. Under the segment's lock;
 *   whether there are any is read unlocked
 *
 * Members that name no lock are set when it is made and stay as they are.
 */
struct oc_attachment {
	struct kref ref;
	struct oc_user *user;
	struct oc_seg *seg;
	struct file *file;
	struct interval_tree_node link;
	struct pid *importer;
	unsigned long start;
	unsigned long end;
	unsigned long shows;
	struct oc_watch watch;
	struct page *scratch;
	struct oc_installers *installers;
	struct rb_root_cached stretches;
};

struct oc_stretch;
int oc_zap_init(void);
void oc_zap_exit(void);
void oc_zap(struct oc_seg *seg, unsigned long start, unsigned long end);
void oc_zap_run_batch(struct work_struct *work);
void oc_zap_notified(struct oc_seg *seg, unsigned long start, unsigned long end, u64 until);
void oc_zap_later(struct oc_seg *seg);
bool oc_is_shown(struct oc_seg *seg, unsigned long start, unsigned long end);
struct oc_attachment *oc_attachment_after(struct oc_seg *seg, unsigned long serial);
int oc_attachment_create(struct oc_seg *seg, struct vm_area_struct *vma);
int oc_attachment_may_split(struct vm_area_struct *vma, unsigned long addr);
void oc_attachment_open(struct vm_area_struct *vma);
void oc_attachment_close(struct vm_area_struct *vma);
void oc_attachment_clear(struct vm_area_struct *vma);
struct oc_stretch *oc_stretch_alloc(void);
bool oc_stretch_enter(struct vm_area_struct *vma, unsigned long addr, struct oc_stretch **fresh);
bool oc_is_walked(struct vm_area_struct *vma, unsigned long start, unsigned long end);

/* ---- views: open files of a segment (attach.c) ---- */
/**
 * struct oc_view - an open file of a segment
 * @seg: the segment, of which the file has a reference
 * @write: it may be mapped to write
 * @nosignal: a hole is the hole page and a count, not SIGBUS
 * @one: An attachment, for the one at a time that most files have: it takes no memory but this. Its
 *   VMAs keep the file, so it is gone before the view is
 * @one_taken: bit 0: @one is in use
 */
struct oc_view {
	struct oc_seg *seg;
	bool write;
	bool nosignal;
	struct oc_attachment one;
	unsigned long one_taken;
};

struct file *oc_view_open(struct oc_seg *seg, bool write, bool nosignal);
struct oc_view *oc_view_of(struct file *file);
int oc_detach(unsigned long addr);
int oc_detach_file(struct file *file);

/* ---- fault.c ---- */
extern const struct vm_operations_struct oc_vm_ops;
extern bool oc_huge;
int oc_fault_init(void);
void oc_fault_exit(void);
unsigned long oc_window_bytes(void);
void oc_window_of(const struct vm_area_struct *vma, unsigned long addr, struct oc_seg *seg,
		  unsigned long owner, struct oc_window *w);
/**
 * struct oc_quiet - where a task's faults report errors, instead of answering them
 * @mark: by which the faults find it
 * @err: what they found wrong, or 0
 *
 * On the task's stack, from oc_quiet_begin() until oc_quiet_end().
 */
struct oc_quiet {
	struct oc_mark mark;
	int err;
};

void oc_quiet_begin(struct oc_quiet *q);
int oc_quiet_end(struct oc_quiet *q);
bool oc_is_hole_pfn(const struct oc_attachment *att, unsigned long pfn);

/* ---- access.c ---- */
int oc_access(struct vm_area_struct *vma, unsigned long addr, void *buf, int len, int write);

/* ---- snapshot.c ---- */
/**
 * struct oc_want - the access to the owner's memory that a fault or PREFAULT needs
 * @page: the owner's page
 * @write: to be written
 * @lost: To read only. [@page, @lost) was there until the owner took it away, and may be brought
 *   back, too. 0: nothing was
 * @last: PREFAULT: [@page, @last) is asked for, and waited for. 0: @page alone is
 */
struct oc_want {
	unsigned long page;
	bool write;
	unsigned long lost;
	unsigned long last;
};

/**
 * oc_snap_suffices() - whether a snapshot knows enough of a page to map it
 * @snap: the snapshot, up to date
 * @page: a page of the owner within it
 * @write: to be written
 *
 * Return: true if it does.
 */
static inline bool oc_snap_suffices(const struct oc_snap *snap, unsigned long page, bool write)
{
	unsigned long e = snap->entry[oc_snap_index(snap, page)];

	return (e & OC_E_VALID) && (!write || (e & OC_E_WRITE));
}

/*
 * Large snapshots are optional; one page always suffices. In a fault a memory cgroup of version 1
 * whose OOM killer is off notes only one charge that failed, and the page's is to come.
 */
#define OC_GFP_SNAP (GFP_KERNEL_ACCOUNT | __GFP_NORETRY | __GFP_NOWARN)
struct oc_snap *oc_snap_alloc(unsigned long start, unsigned long end, gfp_t gfp);
void oc_snap_free(struct oc_snap *snap);
int oc_snap_take(struct oc_seg *seg, struct oc_snap *snap, unsigned long target, bool write,
		 bool resolved);
void oc_snap_refresh(struct oc_seg *seg, struct oc_snap *snap);
struct oc_snap *oc_snap_cached(struct oc_seg *seg, unsigned long page, bool write);
void oc_snap_gap(struct oc_seg *seg, struct oc_want *want, unsigned long *start,
		 unsigned long *end);
struct oc_snap *oc_snap_store(struct oc_seg *seg, struct oc_snap *snap);

/* ---- invalidate.c ---- */
extern const struct oc_watch_ops oc_owner_ops;

/* ---- export.c ---- */
struct oc_seg *oc_export(unsigned long start, unsigned long size, umode_t mode);
void oc_revoke(struct oc_seg *seg);

/* ---- populate.c ---- */
void oc_refill_seen(struct oc_seg *seg, const struct oc_snap *snap, const struct oc_want *want);
int oc_populate(struct oc_seg *seg, struct oc_snap *snap, const struct oc_want *want, int *locked);
int oc_resolve(struct oc_seg *seg, unsigned long start, unsigned long end,
	       const struct oc_want *want);

/* ---- prefault.c ---- */
long oc_prefault(u64 address, u64 length, bool write, u64 *done);

/* ---- copy.c ---- */
/**
 * struct oc_side - one side of a COPY: memory of one address space
 * @seg: a segment; NULL: the caller's own memory
 * @addr: the first byte, in the owner's address space or the caller's
 */
struct oc_side {
	struct oc_seg *seg;
	u64 addr;
};

int oc_copy(const struct oc_side *dst, const struct oc_side *src, u64 length, u64 *done);

/* ---- devices ---- */
extern struct miscdevice oc_xpmem_device;
extern struct miscdevice oc_knem_device;
extern struct miscdevice oc_onecopy_device;
void oc_knem_exit(void);

#endif
