// SPDX-License-Identifier: GPL-2.0
/* Having the owner's pages faulted in, and looking at them; mostly without the importer's lock. */
#include <linux/log2.h>
#include <linux/pgtable.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "core.h"
#include "inject.h"

/*
 * How many pages from `target` on are wanted: one as a rule. An importer may go page by page
 * through memory that the owner has not touched, or has just mapped anew. Then twice as many as
 * before are wanted each time.
 */
static unsigned int oc_ahead(struct oc_seg *seg, unsigned long target)
{
	unsigned int ahead;

	mutex_lock(&seg->lock);
	ahead = target == seg->ahead_at ? min(seg->ahead * 2, (unsigned int)OC_AHEAD_MAX) : 1;
	seg->ahead = ahead;
	seg->ahead_at = target + ahead * PAGE_SIZE;
	mutex_unlock(&seg->lock);
	return ahead;
}

/**
 * oc_refill_seen() - learn whether the owner fills anew what it takes away
 * @seg: the segment
 * @snap: a first look, to read
 * @want: what is wanted; @want->lost says what was taken away
 *
 * If the owner may write pages there, it has filled them anew itself, and will do so again. Then
 * zero pages would be dear: each store of the owner copies a page and takes it away from all
 * importers once more. An owner that has stopped pays OC_REFILLS times for pages that it does not
 * need.
 */
void oc_refill_seen(struct oc_seg *seg, const struct oc_snap *snap, const struct oc_want *want)
{
	unsigned long page, end = min(want->lost, oc_snap_end(snap));

	for (page = want->page; page < end; page += PAGE_SIZE) {
		if (oc_snap_suffices(snap, page, true)) {
			atomic_set(&seg->refills, OC_REFILLS);
			return;
		}
	}
}

/**
 * oc_populate() - make pages of the owner present, and look at them
 * @seg: the segment
 * @snap: the caller's snapshot, which is taken anew
 * @want: what is wanted
 * @locked: says whether the owner's mmap lock is still held. NULL: nothing is waited for, and the
 *   lock is kept
 *
 * Some pages behind the wanted one are made present too, up to OC_AHEAD_MAX in all, but none that
 * has to be waited for. If the importer goes on in order, these are as many as oc_ahead() says. If
 * it reads, they are the anonymous memory that was there before. That memory comes back writable
 * for an owner that fills anew what it takes away. Else it comes back as zero pages: a page that no
 * task writes costs the owner nothing. What is not waited for beside the wanted page is of the same
 * VMA, and of one of the kernel's own: see oc_vma_is_anon_or_shmem().
 *
 * Context: the owner's mmap lock is held for reading.
 * Return: 0, or -EAGAIN: it would have to wait, and the snapshot was taken. -EBUSY: the page is
 * being changed. -EINTR: killed. Another error: there is no such page.
 */
int oc_populate(struct oc_seg *seg, struct oc_snap *snap, const struct oc_want *want, int *locked)
{
	unsigned long addr = want->page, last = want->last;
	bool resolved = locked; /* and no other mmap lock is held */
	struct mm_struct *mm = seg->mm;
	struct vm_area_struct *vma = find_vma(mm, addr);
	/* A hole of shared memory that is read costs a page. */
	unsigned long lost = vma && vma_is_anonymous(vma) ? want->lost : 0;
	bool write = want->write;
	/*
	 * As a rule the owner fills anew what it took away from its beginning on. This goes from
	 * the end on, so that the two do not do the same work.
	 */
	bool backwards = lost && !last;
	unsigned int faults = 0, i, n;
	int err;

	if (lost && (vma->vm_flags & VM_WRITE) && atomic_add_unless(&seg->refills, -1, 0))
		write = true;
	if (resolved || !oc_snap_suffices(snap, addr, want->write)) {
		err = oc_fault_in(mm, addr, write, true, locked);
		if (!err)
			err = oc_snap_take(seg, snap, addr, want->write, resolved);
		if (err)
			return err;
	}
	if (!last) {
		last = lost ? min(lost, addr + OC_AHEAD_MAX * PAGE_SIZE) :
			      addr + oc_ahead(seg, addr) * PAGE_SIZE;
		locked = NULL;
		/* Another one, perhaps, if the lock was given up. */
		vma = find_vma(mm, addr);
		if (!vma || vma->vm_start > addr || !oc_vma_is_anon_or_shmem(vma))
			return 0;
		last = min(last, vma->vm_end);
	}
	n = (min(last, oc_snap_end(snap)) - addr) >> PAGE_SHIFT;
	for (i = 1; i < n && !fatal_signal_pending(current); i++) {
		addr = want->page + (backwards ? n - i : i) * PAGE_SIZE;
		if (oc_snap_suffices(snap, addr, want->write))
			continue;
		err = oc_fault_in(mm, addr, write, true, locked);
		if (err == -EFAULT && lost)
			continue; /* gone for good */
		if (err)
			break; /* a fault there finds out why */
		/*
		 * One fault of the owner may bring many pages: look anew after the first, the
		 * second, the fourth ...
		 */
		if (is_power_of_2(++faults) && oc_snap_take(seg, snap, addr, want->write, resolved))
			break;
	}
	if (locked && !*locked)
		return -EINTR;
	return faults ? oc_snap_take(seg, snap, want->page, want->write, resolved) : 0;
}

/**
 * oc_resolve() - as oc_populate(), and leave the snapshot with the segment
 * @seg: the segment
 * @start: first page of the snapshot
 * @end: the address behind the last page
 * @want: what is wanted, within these
 *
 * A kill ends the waits for the owner's mmap lock, and for a handler of its faults in user space.
 *
 * Context: may sleep. The caller holds no mmap lock.
 * Return: 0: a repeated fault finds the page, or comes again. Else as oc_populate(), or why the
 * segment has ended.
 */
int oc_resolve(struct oc_seg *seg, unsigned long start, unsigned long end,
	       const struct oc_want *want)
{
	struct mm_struct *mm = seg->mm;
	struct oc_snap *snap, *old;
	int err, locked = 1;

	err = oc_seg_error(seg);
	if (err)
		return err;
	/* Before the memory is held: a killed owner's would stay for as long. */
	err = oc_changes_wait(seg->watch.changes, want->page);
	if (err)
		return err;
	if (!mmget_not_zero(mm))
		return -ESRCH;
	snap = oc_snap_alloc(start, end, OC_GFP_SNAP);
	if (!snap)
		snap = oc_snap_alloc(want->page, want->page + PAGE_SIZE, GFP_KERNEL);
	if (!snap) {
		mmput_async(mm);
		return -EINTR; /* no verdict: the fault comes again */
	}
	if (mmap_read_lock_killable(mm)) {
		err = -EINTR;
		goto out;
	}
	err = oc_populate(seg, snap, want, &locked);
	if (locked)
		mmap_read_unlock(mm);
	if (err == -EBUSY) {
		err = 0; /* changed anew: the fault comes again, and waits again */
	} else if (!err) {
		mutex_lock(&seg->lock);
		old = oc_snap_store(seg, snap);
		mutex_unlock(&seg->lock);
		snap = old;
	}
out:
	oc_snap_free(snap);
	mmput_async(mm);
	return err;
}
