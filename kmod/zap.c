// SPDX-License-Identifier: GPL-2.0
/*
 * Where attachments may have page table entries, and how these are zapped. A notifier calls for
 * that, with any lock of memory management held. So nothing here waits for an mmap lock or for the
 * lock of a file's mappings (i_mmap_rwsem). What keeps the importer's page tables in place instead
 * is a notifier of its own: docs/kernel-module.md, Zapping.
 */
#include <linux/completion.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "core.h"

/**
 * struct oc_stretch - a part of an attachment in which there may be entries
 * @att: the attachment
 * @shown: in the segment's tree, by the owner's address
 * @here: in the attachment's tree, by the importer's address
 * @serial: by when it came into the segment's tree
 * @zaps: how many zaps walk its page tables now; a waiting task reads it unlocked
 * @may_have_entries: entries were written since the last zap of all of it began
 * @in_tree: it is in the segment's tree; else there is nothing to zap
 * @unmapping: no more entries are written
 *
 * One VMA, as it was when it was first touched. VMAs of ours split and shrink, but never grow,
 * merge or move. All of it is under the segment's lock. oc_stretches_leave() frees it.
 *
 * EMPTY: no entry. It stays in the segment's tree until the next invalidation passes it.
 * UNLISTED: no entry, and not in that tree, so that no invalidation passes it.
 * MAPPED: may_have_entries. It is in that tree, and each later invalidation of its addresses zaps
 * it.
 * ZAPPING: zaps > 0. The lock is dropped while page tables are walked; the stretch is neither
 * unlisted nor freed meanwhile. Invalidations zap it again, since a walk may not be over.
 *
 * unmapping may be added to each state: no new entry is written. The stretch is freed once it is
 * EMPTY or UNLISTED, without zaps.
 */
struct oc_stretch {
	struct oc_attachment *att;
	struct interval_tree_node shown;
	struct interval_tree_node here;
	u64 serial;
	unsigned int zaps;
	bool may_have_entries;
	bool in_tree;
	bool unmapping;
};

/* What tells the kernel that a VMA is not anonymous memory, and nothing else. */
static const struct vm_operations_struct oc_not_anonymous = {};

/*
 * One queue for each class, so that none waits behind another. Kernel threads wait for
 * OC_ZAP_OTHER, which goes first. And one for the OOM reaper, which waits for none of its zaps.
 */
static struct workqueue_struct *oc_zap_queue[OC_ZAP_CLASSES], *oc_reap_queue;

static struct workqueue_struct *oc_zap_queue_new(enum oc_zap_class class)
{
	const unsigned int flags = WQ_MEM_RECLAIM | WQ_UNBOUND;

	switch (class) {
	case OC_ZAP_OWN:
		return alloc_workqueue("onecopy-zap", flags, WQ_UNBOUND_MAX_ACTIVE);
	case OC_ZAP_RECLAIM:
		return alloc_workqueue("onecopy-reclaim", flags, WQ_UNBOUND_MAX_ACTIVE);
	default:
		return alloc_workqueue("onecopy-kernel", flags | WQ_HIGHPRI,
				       WQ_UNBOUND_MAX_ACTIVE);
	}
}

/**
 * oc_zap_init() - make the workqueues, when the module is loaded
 *
 * Return: 0 or -ENOMEM.
 */
int oc_zap_init(void)
{
	enum oc_zap_class class;

	for (class = 0; class < OC_ZAP_CLASSES; class++) {
		oc_zap_queue[class] = oc_zap_queue_new(class);
		if (!oc_zap_queue[class])
			goto fail;
	}
	oc_reap_queue = alloc_workqueue("onecopy-reap", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	if (oc_reap_queue)
		return 0;
fail:
	oc_zap_exit();
	return -ENOMEM;
}

/**
 * oc_zap_exit() - end the workqueues, when the module is unloaded
 */
void oc_zap_exit(void)
{
	enum oc_zap_class class;

	if (oc_reap_queue)
		destroy_workqueue(oc_reap_queue);
	for (class = 0; class < OC_ZAP_CLASSES; class++)
		if (oc_zap_queue[class])
			destroy_workqueue(oc_zap_queue[class]);
}

/*
 * Under the segment's lock, which is given up meanwhile. Zaps [lo, hi) of the importer's addresses.
 * The stretch is in the trees afterwards too.
 */
static void oc_zap_stretch(struct oc_seg *seg, struct oc_stretch *s, unsigned long lo,
			   unsigned long hi)
{
	struct oc_attachment *att = s->att;
	struct vm_area_struct vma;
	struct oc_own_zap own;

	lockdep_assert_held(&seg->lock);
	if (lo == s->here.start && hi == s->here.last + 1)
		s->may_have_entries = false; /* entries written from here on set it anew */
	WRITE_ONCE(s->zaps, s->zaps + 1);
	mutex_unlock(&seg->lock);

	/*
	 * The importer's VMA may be looked at under its mmap lock only, which is not held. So what
	 * it says is copied to one made here.
	 */
	memset(&vma, 0, sizeof(vma));
	vma.vm_mm = att->watch.mm;
	vma.vm_start = s->here.start;
	vma.vm_end = s->here.last + 1;
	vma.vm_pgoff = s->shown.start >> PAGE_SHIFT;
	vma.vm_file = att->file;
	vma.vm_ops = &oc_not_anonymous;
	oc_vm_flags_init(&vma, OC_VM_FLAGS | VM_SHARED | VM_MAYSHARE | VM_READ | VM_MAYREAD);
	oc_own_zap_begin(&own, vma.vm_mm, vma.vm_start, vma.vm_end);
	oc_zap_special(&vma, lo, hi - lo);
	oc_own_zap_end(&own);

	mutex_lock(&seg->lock);
	WRITE_ONCE(s->zaps, s->zaps - 1);
	if (!s->zaps && s->unmapping)
		wake_up_all(&seg->zapped);
}

/*
 * Under the segment's lock: EMPTY becomes UNLISTED, so that changes of the owner's memory need not
 * pass it. One whose tables are walked stays: the walk has given the lock up, but needs it.
 */
static void oc_stretch_unlist_if_empty(struct oc_seg *seg, struct oc_stretch *s)
{
	if (!s->in_tree || s->may_have_entries || s->zaps)
		return;
	interval_tree_remove(&s->shown, &seg->stretches);
	s->in_tree = false;
}

static bool oc_stretch_needs_zap(const struct oc_stretch *s, u64 until)
{
	return s->serial <= until && (s->may_have_entries || s->zaps);
}

static struct oc_stretch *oc_stretch_first(struct oc_seg *seg, unsigned long start,
					   unsigned long end, u64 until)
{
	struct interval_tree_node *n = interval_tree_iter_first(&seg->stretches, start, end - 1);

	for (; n; n = interval_tree_iter_next(n, start, end - 1)) {
		struct oc_stretch *s = container_of(n, struct oc_stretch, shown);

		if (oc_stretch_needs_zap(s, until))
			return s;
	}
	return NULL;
}

/**
 * oc_is_shown() - whether attachments may have entries for addresses of the owner
 * @seg: the segment
 * @start: first address
 * @end: the address behind the last one
 *
 * Context: under @seg->lock.
 * Return: true if they may.
 */
bool oc_is_shown(struct oc_seg *seg, unsigned long start, unsigned long end)
{
	lockdep_assert_held(&seg->lock);
	return oc_stretch_first(seg, start, end, U64_MAX);
}

/*
 * Under the segment's lock, which is given up meanwhile. Only stretches that had come until then:
 * an importer that makes new ones all the time does not keep this going.
 */
static void oc_zap_until(struct oc_seg *seg, unsigned long start, unsigned long end, u64 until)
{
	struct interval_tree_node *n;

	lockdep_assert_held(&seg->lock);
	n = interval_tree_iter_first(&seg->stretches, start, end - 1);
	while (n) {
		struct oc_stretch *s = container_of(n, struct oc_stretch, shown);
		unsigned long from = max(start, n->start), to = min(end - 1, n->last) + 1;

		if (oc_stretch_needs_zap(s, until))
			oc_zap_stretch(seg, s, s->here.start + (from - n->start),
				       s->here.start + (to - n->start));
		n = interval_tree_iter_next(n, start, end - 1);
		oc_stretch_unlist_if_empty(seg, s);
	}
}

/**
 * oc_zap() - take pages of the owner out of every attachment
 * @seg: the segment
 * @start: first page
 * @end: the address behind the last page
 *
 * Context: takes @seg->lock, and drops it while it walks page tables. Not within a notification:
 * this raises notifications for the importers' address spaces.
 */
void oc_zap(struct oc_seg *seg, unsigned long start, unsigned long end)
{
	mutex_lock(&seg->lock);
	oc_zap_until(seg, start, end, seg->stretch_serial);
	mutex_unlock(&seg->lock);
}

/*
 * Each zap goes through all importers. So a user, whose memory changes, has few slots for what its
 * own tasks change. A zap that waits for one is begun by the worker that is done. No task has a
 * slot, since it may not run for a while.
 */
static void oc_zap_begin(struct oc_zap_work *w)
{
	if (w->class != OC_ZAP_OWN || oc_zap_slot_take(w->user, &w->waiting))
		queue_work(oc_zap_queue[w->class], &w->work);
}

/* In the worker, before it wakes the waiting tasks: the user may go then. */
static void oc_zap_done(struct oc_zap_work *w)
{
	struct list_head *next;

	if (w->class != OC_ZAP_OWN)
		return;
	next = oc_zap_slot_give(w->user);
	if (next)
		queue_work(oc_zap_queue[w->class],
			   &list_entry(next, struct oc_zap_work, waiting)->work);
}

/* Of one task, which waits for it. */
struct oc_zap_once {
	struct oc_zap_work work;
	struct completion done;
	struct oc_seg *seg;
	struct oc_stretch *stretch; /* all of it; or, NULL, of all stretches ... */
	unsigned long start; /* ... these of the owner's addresses ... */
	unsigned long end;
	u64 until; /* ... and serial numbers up to this */
};

static void oc_zap_run_once(struct work_struct *work)
{
	struct oc_zap_once *once = container_of(work, struct oc_zap_once, work.work);
	struct oc_stretch *s = once->stretch;

	mutex_lock(&once->seg->lock);
	if (s)
		oc_zap_stretch(once->seg, s, s->here.start, s->here.last + 1);
	else
		oc_zap_until(once->seg, once->start, once->end, once->until);
	mutex_unlock(&once->seg->lock);
	oc_zap_done(&once->work);
	complete(&once->done);
}

static void oc_zap_wait(struct oc_zap_once *once, struct oc_user *user, enum oc_zap_class class)
{
	once->work.user = user;
	once->work.class = class;
	INIT_WORK_ONSTACK(&once->work.work, oc_zap_run_once);
	init_completion(&once->done);
	oc_zap_begin(&once->work);
	wait_for_completion(&once->done);
	destroy_work_on_stack(&once->work.work);
}

/**
 * oc_zap_run_batch() - zap a batch, and queue the next one if there is something again
 * @work: the batch's
 *
 * Context: a worker.
 */
void oc_zap_run_batch(struct work_struct *work)
{
	struct oc_zap_batch *batch = container_of(work, struct oc_zap_batch, work.work);
	struct oc_seg *seg = batch->seg;
	struct oc_ranges ranges;
	unsigned int i;
	u64 until;
	bool more;

	mutex_lock(&seg->lock);
	ranges = batch->pending;
	until = batch->pending_until;
	batch->pending.n = 0;
	batch->pending_until = 0;
	batch->started++;
	for (i = 0; i < ranges.n; i++)
		oc_zap_until(seg, ranges.range[i].start, ranges.range[i].end, until);
	WRITE_ONCE(batch->completed, batch->started);
	more = batch->pending.n;
	batch->queued = more;
	mutex_unlock(&seg->lock);
	oc_zap_done(&batch->work);
	wake_up_all(&seg->batch_done);
	/* Behind what else waits for a slot. */
	if (more)
		oc_zap_begin(&batch->work);
}

/*
 * For tasks of the user's that change a segment. However many there are, each waits for two batches
 * at most: one that is under way, and one for all that came meanwhile. More than OC_RANGES ranges
 * are known with what lies between, which importers fault in again.
 */
static void oc_zap_batched(struct oc_seg *seg, unsigned long start, unsigned long end, u64 until,
			   enum oc_zap_class class)
{
	struct oc_zap_batch *batch = &seg->batch[class];
	bool first;
	u64 seq;

	mutex_lock(&seg->lock);
	oc_ranges_add(&batch->pending, start, end);
	batch->pending_until = max(batch->pending_until, until);
	seq = batch->started;
	first = !batch->queued;
	batch->queued = true;
	mutex_unlock(&seg->lock);
	if (first)
		oc_zap_begin(&batch->work);
	wait_event(seg->batch_done, READ_ONCE(batch->completed) > seq);
}

/**
 * oc_zap_notified() - as oc_zap(), but within a notification
 * @seg: the segment
 * @start: first page
 * @end: the address behind the last page
 * @until: serial number of the last stretch that came before the invalidation was recorded
 *
 * A worker zaps, since notifications do not nest. Later stretches know of the invalidation.
 *
 * Context: within a blockable notification; waits for the worker.
 */
void oc_zap_notified(struct oc_seg *seg, unsigned long start, unsigned long end, u64 until)
{
	enum oc_zap_class class = oc_zap_class_of(seg->user, seg->mm);
	struct oc_zap_once once = { .seg = seg, .start = start, .end = end, .until = until };

	/* Must not wait for what the user's own tasks have asked for. */
	if (class == OC_ZAP_OTHER)
		oc_zap_wait(&once, seg->user, class);
	else
		oc_zap_batched(seg, start, end, until, class);
}

static void oc_reap_run(struct work_struct *work)
{
	struct oc_seg *seg = container_of(work, struct oc_seg, reap);

	oc_zap(seg, seg->start, oc_seg_end(seg));
	mutex_lock(&seg->lock);
	seg->reap_done = true;
	mutex_unlock(&seg->lock);
	oc_seg_put(seg);
}

/**
 * oc_zap_later() - have a worker zap all of a dead segment
 * @seg: the segment
 *
 * For a caller that cannot wait and will come again.
 *
 * Context: under @seg->lock.
 */
void oc_zap_later(struct oc_seg *seg)
{
	lockdep_assert_held(&seg->lock);
	if (seg->reap_queued || !kref_get_unless_zero(&seg->ref))
		return;
	seg->reap_queued = true;
	INIT_WORK(&seg->reap, oc_reap_run);
	queue_work(oc_reap_queue, &seg->reap);
}

/* ---- attachments ---- */

/* Under the segment's lock. */
static void oc_stretch_remove(struct oc_seg *seg, struct oc_stretch *s)
{
	if (s->in_tree)
		interval_tree_remove(&s->shown, &seg->stretches);
	interval_tree_remove(&s->here, &s->att->stretches);
	kfree(s);
}

static struct oc_stretch *oc_stretch_at(struct oc_attachment *att, unsigned long lo,
					unsigned long hi, bool even_unmapping)
{
	struct interval_tree_node *n = interval_tree_iter_first(&att->stretches, lo, hi - 1);

	for (; n; n = interval_tree_iter_next(n, lo, hi - 1)) {
		struct oc_stretch *s = container_of(n, struct oc_stretch, here);

		if (even_unmapping || !s->unmapping)
			return s;
	}
	return NULL;
}

/*
 * [lo, hi) of the importer is being unmapped, or moved, or ends with everything: its page tables
 * may go as soon as this returns. No entry may be left, since it could not be zapped, and no zap
 * may walk those tables. The mmap lock is held for writing, or was when the VMAs were taken out. Or
 * everything ends, and no task is left that could use an entry. But a device may walk the same
 * tables until its own driver is notified of the end. What is zapped here the kernel finds gone.
 *
 * The segment's lock is dropped while this waits for a stretch, also for a worker that zaps it. The
 * stretch is not freed meanwhile. Only this function frees stretches, and no other call of it finds
 * the same one:
 *
 * - munmap() and mremap() take the mmap lock for writing. They keep it, downgraded at most, until
 *   they have notified. So two of them never notify at once.
 * - The end of the address space comes when it has no users, so none of them runs then.
 * - Some kernels notify MMU_NOTIFY_UNMAP with less: the OOM reaper and process_mrelease() hold the
 *   lock for reading, changes of hugetlbfs files do not hold it. Their VMAs have no VM_PFNMAP. Such
 *   a VMA shares no address with a stretch: what it replaced was unmapped first, and that freed the
 *   whole stretch.
 *
 * Other walks of its page tables do not free a stretch, and s->zaps keeps it until they are over.
 */
static bool oc_stretches_leave(struct oc_attachment *att, unsigned long lo, unsigned long hi,
			       const struct mmu_notifier_range *range)
{
	bool release = range->event == MMU_NOTIFY_RELEASE;
	struct oc_seg *seg = att->seg;
	struct oc_stretch *s;

	if (mmu_notifier_range_blockable(range))
		mutex_lock(&seg->lock);
	else if (!mutex_trylock(&seg->lock))
		return false;
	while ((s = oc_stretch_at(att, lo, hi, true))) {
		bool mapped = s->may_have_entries;

		s->unmapping = true;
		if (release && mapped) {
			/* Not within a notification. */
			oc_zap_stretch(seg, s, s->here.start, s->here.last + 1);
			continue;
		}
		if (!mapped && !s->zaps) {
			oc_stretch_remove(seg, s);
			continue;
		}
		mutex_unlock(&seg->lock);
		if (!mmu_notifier_range_blockable(range))
			return false;
		if (mapped) {
			struct oc_zap_once once = { .seg = seg, .stretch = s };

			oc_zap_wait(&once, att->user,
				    oc_zap_class_of(att->user, att->watch.mm));
		} else {
			wait_event(seg->zapped, !READ_ONCE(s->zaps));
		}
		mutex_lock(&seg->lock);
	}
	mutex_unlock(&seg->lock);
	return true;
}

static bool oc_importer_changes(struct oc_watch *watch, const struct mmu_notifier_range *range)
{
	struct oc_attachment *att = container_of(watch, struct oc_attachment, watch);

	/* Whatever else changes entries leaves the tables. */
	if (range->event != MMU_NOTIFY_UNMAP && range->event != MMU_NOTIFY_RELEASE)
		return true;
	/*
	 * Never touched. Stretches of what is being unmapped come under its mmap lock only, so what
	 * is missing here does not come any more.
	 */
	if (!READ_ONCE(att->stretches.rb_root.rb_node))
		return true;
	return oc_stretches_leave(att, max(range->start, att->start), min(range->end, att->end),
				  range);
}

static const struct oc_watch_ops oc_importer_ops = {
	.invalidate = oc_importer_changes,
};

/**
 * oc_attachment_after() - go through the attachments of a segment
 * @seg: the segment
 * @serial: serial number of the last one; 0: the first is wanted
 *
 * Context: under @seg->lock, which keeps the attachment.
 * Return: the next one, or NULL: none.
 */
struct oc_attachment *oc_attachment_after(struct oc_seg *seg, unsigned long serial)
{
	struct interval_tree_node *n;

	lockdep_assert_held(&seg->lock);
	n = interval_tree_iter_first(&seg->attachments, serial + 1, ULONG_MAX);
	return n ? container_of(n, struct oc_attachment, link) : NULL;
}

/* The view's own one, if no attachment has it. */
static struct oc_attachment *oc_attachment_take(struct oc_view *view)
{
	if (!test_and_set_bit_lock(0, &view->one_taken))
		return &view->one;
	return kmalloc(sizeof(struct oc_attachment), GFP_KERNEL_ACCOUNT);
}

static void oc_attachment_give(struct oc_view *view, struct oc_attachment *att)
{
	if (att == &view->one)
		clear_bit_unlock(0, &view->one_taken);
	else
		kfree(att);
}

/**
 * oc_attachment_create() - make the attachment of a VMA that mmap() makes
 * @seg: the segment, which the VMA holds through its file
 * @vma: the new VMA, whose private data it becomes
 *
 * Context: the caller's mmap lock is held for writing.
 * Return: 0, or -ENOMEM, or the error of oc_charge() or oc_watch_begin().
 */
int oc_attachment_create(struct oc_seg *seg, struct vm_area_struct *vma)
{
	struct oc_view *view = vma->vm_file->private_data;
	struct oc_attachment *att = oc_attachment_take(view);
	int err;

	if (!att)
		return -ENOMEM;
	att->user = oc_charge(OC_ATTACHMENT_VMAS);
	if (IS_ERR(att->user)) {
		err = PTR_ERR(att->user);
		goto free;
	}
	kref_init(&att->ref);
	att->seg = seg; /* which the VMA holds, through its file */
	att->file = vma->vm_file;
	att->start = vma->vm_start;
	att->end = vma->vm_end;
	att->shows = seg->start + (vma->vm_pgoff << PAGE_SHIFT);
	att->scratch = NULL;
	att->installers = NULL;
	att->stretches = RB_ROOT_CACHED;
	err = oc_watch_begin(&att->watch, att->start, att->end - att->start, &oc_importer_ops,
			     true);
	if (err)
		goto uncharge;
	atomic_long_inc(&oc_attachments);
	att->importer = get_pid(task_tgid(current));
	mutex_lock(&seg->lock);
	att->link.start = ++seg->attachment_serial;
	att->link.last = att->link.start;
	interval_tree_insert(&att->link, &seg->attachments);
	seg->attached++;
	seg->attached_bytes += att->end - att->start;
	mutex_unlock(&seg->lock);
	vma->vm_private_data = att;
	return 0;
uncharge:
	oc_uncharge(att->user, OC_ATTACHMENT_VMAS);
free:
	oc_attachment_give(view, att);
	return err;
}

/**
 * oc_attachment_may_split() - whether a VMA may be split
 * @vma: a VMA of an attachment
 * @addr: where
 *
 * Each piece is a stretch, which each change of the owner's memory has to pass. So it counts like
 * an attachment.
 *
 * Return: 0, or -ENOMEM: the error for more mappings than a process may have.
 */
int oc_attachment_may_split(struct vm_area_struct *vma, unsigned long addr)
{
	struct oc_attachment *att = vma->vm_private_data;

	return oc_may_charge(att->user, OC_ATTACHMENT_VMAS) ? 0 : -ENOMEM;
}

/**
 * oc_attachment_open() - an attachment has one VMA more
 * @vma: the VMA
 */
void oc_attachment_open(struct vm_area_struct *vma)
{
	struct oc_attachment *att = vma->vm_private_data;

	oc_charge_more(att->user, OC_ATTACHMENT_VMAS);
	kref_get(&att->ref);
}

static void oc_attachment_free(struct kref *ref)
{
	struct oc_attachment *att = container_of(ref, struct oc_attachment, ref);
	struct oc_seg *seg = att->seg;

	mutex_lock(&seg->lock);
	interval_tree_remove(&att->link, &seg->attachments);
	seg->attached--;
	seg->attached_bytes -= att->end - att->start;
	mutex_unlock(&seg->lock);
	put_pid(att->importer);
	oc_watch_end(&att->watch);
	WARN_ON_ONCE(!RB_EMPTY_ROOT(&att->stretches.rb_root));
	if (att->scratch)
		__free_page(att->scratch);
	kfree(att->installers);
	atomic_long_dec(&oc_attachments);
	oc_attachment_give(att->file->private_data, att);
}

/**
 * oc_attachment_close() - an attachment has one VMA less; the last one ends it
 * @vma: the VMA
 */
void oc_attachment_close(struct vm_area_struct *vma)
{
	struct oc_attachment *att = vma->vm_private_data;

	oc_uncharge(att->user, OC_ATTACHMENT_VMAS);
	kref_put(&att->ref, oc_attachment_free);
}

/**
 * oc_stretch_alloc() - allocate a stretch for oc_stretch_enter()
 *
 * Context: may sleep, so without the segment's lock.
 * Return: the caller's stretch, or NULL. One that was not taken is freed by kfree().
 */
struct oc_stretch *oc_stretch_alloc(void)
{
	return kzalloc(sizeof(struct oc_stretch), GFP_KERNEL_ACCOUNT);
}

/**
 * oc_stretch_enter() - note that entries are about to be written into a VMA
 * @vma: a VMA of an attachment
 * @addr: where in it
 * @fresh: a stretch of the caller; taken, and set to NULL, where there is none yet
 *
 * Context: under the segment's lock and the importer's mmap lock. The entries are written under the
 * same hold of the segment's lock.
 * Return: false if there is no stretch, nor a fresh one.
 */
bool oc_stretch_enter(struct vm_area_struct *vma, unsigned long addr, struct oc_stretch **fresh)
{
	struct oc_attachment *att = vma->vm_private_data;
	struct oc_stretch *s = oc_stretch_at(att, addr, addr + PAGE_SIZE, false);
	struct oc_seg *seg = att->seg;

	lockdep_assert_held(&seg->lock);
	if (!s) {
		s = *fresh;
		if (!s)
			return false;
		*fresh = NULL;
		s->att = att;
		s->here.start = vma->vm_start;
		s->here.last = vma->vm_end - 1;
		s->shown.start = vma->vm_pgoff << PAGE_SHIFT;
		s->shown.last = s->shown.start + (vma->vm_end - vma->vm_start) - 1;
		interval_tree_insert(&s->here, &att->stretches);
	}
	if (!s->in_tree) {
		s->serial = ++seg->stretch_serial;
		interval_tree_insert(&s->shown, &seg->stretches);
		s->in_tree = true;
	}
	s->may_have_entries = true;
	return true;
}

/**
 * oc_is_walked() - whether a zap walks page tables of the importer
 * @vma: a VMA of an attachment
 * @start: first address of the importer
 * @end: the address behind the last one
 *
 * Kernels before 6.5 look twice whether there is a table. Between the two looks no huge entry may
 * come: they would take it for a broken one, and clear it without telling the CPUs.
 *
 * Context: under the segment's lock.
 * Return: true if one does.
 */
bool oc_is_walked(struct vm_area_struct *vma, unsigned long start, unsigned long end)
{
	struct oc_attachment *att = vma->vm_private_data;
	struct interval_tree_node *n = interval_tree_iter_first(&att->stretches, start, end - 1);

	lockdep_assert_held(&att->seg->lock);
	for (; n; n = interval_tree_iter_next(n, start, end - 1))
		if (container_of(n, struct oc_stretch, here)->zaps)
			return true;
	return false;
}

/**
 * oc_attachment_clear() - zap a VMA that its own process is about to unmap
 * @vma: a VMA of an attachment
 *
 * What is zapped now needs no worker then.
 *
 * Context: the mmap lock of the VMA is held for reading. Takes the segment's lock.
 */
void oc_attachment_clear(struct vm_area_struct *vma)
{
	struct oc_attachment *att = vma->vm_private_data;
	struct interval_tree_node *n;
	struct oc_seg *seg = att->seg;

	mutex_lock(&seg->lock);
	n = interval_tree_iter_first(&att->stretches, vma->vm_start, vma->vm_end - 1);
	for (; n; n = interval_tree_iter_next(n, vma->vm_start, vma->vm_end - 1)) {
		struct oc_stretch *s = container_of(n, struct oc_stretch, here);

		if (s->may_have_entries)
			oc_zap_stretch(seg, s, n->start, n->last + 1);
		oc_stretch_unlist_if_empty(seg, s);
	}
	mutex_unlock(&seg->lock);
}
