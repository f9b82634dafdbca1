// SPDX-License-Identifier: GPL-2.0
/* The owner's memory changes: nobody may keep a view of what it was. */
#include <linux/lockdep.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>

#include "core.h"
#include "trace.h"

static struct oc_marks oc_zapping;

void oc_invalidate_init(void)
{
	oc_marks_init(&oc_zapping);
}

/*
 * Take the pages [start, end) of the owner's addresses out of every attachment. Never under the segment's lock: two processes that show each
 * other their memory would wait for each other.
 */
void oc_zap(struct oc_seg *seg, unsigned long start, unsigned long end)
{
	struct oc_mark mark;

	if (!mapping_mapped(&seg->mapping))
		return;
	oc_mark_set(&oc_zapping, &mark);
	/*
	 * This raises notifications for the importers' address spaces, perhaps within one for the owner's, and takes the lock of our mapping, perhaps
	 * within that of a file whose pages the owner maps: lockdep takes both for recursion. But ours answers such a notification at once (below),
	 * and whoever holds our mapping's lock waits for no other mapping's.
	 */
	lockdep_off();
	unmap_mapping_range(&seg->mapping, start, end - start, 1);
	lockdep_on();
	oc_mark_clear(&oc_zapping, &mark);
}

static bool oc_invalidate(struct mmu_interval_notifier *notifier, const struct mmu_notifier_range *range, unsigned long seq)
{
	struct oc_seg *seg = container_of(notifier, struct oc_seg, notifier);
	unsigned long start = max(range->start, seg->start), end = min(range->end, oc_seg_end(seg));
	bool blockable = mmu_notifier_range_blockable(range), mapped;

	/* Our own zap of attachments: nothing was ever derived from an attachment, so nothing has to go. */
	if (oc_mark_find(&oc_zapping))
		return true;

	if (blockable)
		mutex_lock(&seg->lock);
	else if (!mutex_trylock(&seg->lock))
		return false; /* the OOM reaper comes again */
	mmu_interval_set_seq(notifier, seq);
	smp_wmb(); /* pairs with smp_rmb() in oc_snap_begin(): who sees it counted sees it begun */
	seg->ring[seg->seq % OC_RING] = (struct oc_range){ start, end };
	WRITE_ONCE(seg->seq, seg->seq + 1);
	if (range->event == MMU_NOTIFY_RELEASE && seg->state == ONECOPY_STATE_ALIVE) {
		seg->state = ONECOPY_STATE_OWNER_GONE;
		oc_generation_state(seg);
	}
	oc_generation_invalidated(seg);
	mapped = mapping_mapped(&seg->mapping);
	mutex_unlock(&seg->lock);

	oc_count(OC_INVALIDATIONS, 1);
	trace_onecopy_invalidate(seg, start, end, range->event);
	if (mapped) {
		if (!blockable)
			return false;
		oc_zap(seg, start, end);
	}
	return true;
}

const struct mmu_interval_notifier_ops oc_notifier_ops = { .invalidate = oc_invalidate };

/*
 * The end of a subscription. Where a change is under way the kernel unlinks the notifier at that change's end, under the lock of the subscriptions.
 * Kernels before that was mended in their stable series let the remover go as soon as the change counts as ended, which is before: its notifier
 * must not be freed then. So the lock is taken once more, by a look that has nothing to wait for, since the notifier's last phase is over.
 */
void oc_unsubscribe(struct mmu_interval_notifier *notifier)
{
	struct mm_struct *mm = notifier->mm;

	mmgrab(mm);
	mmu_interval_notifier_remove(notifier);
	mmu_interval_read_begin(notifier);
	mmdrop(mm);
}

static bool oc_nothing_to_invalidate(struct mmu_interval_notifier *notifier, const struct mmu_notifier_range *range, unsigned long seq)
{
	mmu_interval_set_seq(notifier, seq);
	return true;
}

/*
 * The first subscription of an address space takes the locks of all its mappings, in no order: ours before a file's, while elsewhere a walk of that
 * file's mappings, in the owner, waits for ours. So every address space has its first before it has a mapping of ours. Its map lock is
 * held for writing and the VMA is not yet in it. A pending signal interrupts this; nothing was done then, so the call begins anew after it.
 */
int oc_subscribe_early(struct vm_area_struct *vma)
{
	static const struct mmu_interval_notifier_ops ops = { .invalidate = oc_nothing_to_invalidate };
	struct mmu_interval_notifier none = {};
	int err;

	err = mmu_interval_notifier_insert_locked(&none, vma->vm_mm, vma->vm_start, PAGE_SIZE, &ops);
	if (err)
		return err == -EINTR ? -ERESTARTNOINTR : err;
	oc_unsubscribe(&none);
	return 0;
}
