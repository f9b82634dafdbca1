// SPDX-License-Identifier: GPL-2.0
/* What the owner's page tables say of a window, and how long that may be believed. */
#include <linux/bitmap.h>
#include <linux/slab.h>

#include "core.h"
#include "inject.h"

/*
 * Does the window begin with one entry of the owner's tables that is as large? Its pages are of one
 * piece, with the same permission.
 */
static bool oc_snap_one_entry(const struct oc_snap *snap)
{
#ifdef OC_HMM
	return snap->pages == OC_WINDOW_PAGES && IS_ALIGNED(snap->start, PMD_SIZE) &&
	       (snap->entry[0] & OC_E_VALID) &&
	       hmm_pfn_to_map_order(snap->entry[0]) >= PMD_SHIFT - PAGE_SHIFT &&
	       IS_ALIGNED(oc_entry_pfn(snap->entry[0]), OC_WINDOW_PAGES);
#else
	return false;
#endif
}

/* The same of a snapshot that was put together from looks at different times. */
static bool oc_snap_is_huge(const struct oc_snap *snap)
{
	unsigned int i;

	if (!oc_snap_one_entry(snap))
		return false;
	for (i = 1; i < snap->pages; i++)
		if (snap->entry[i] != snap->entry[0] + i)
			return false;
	return true;
}

/**
 * oc_snap_alloc() - allocate a snapshot, in which nothing is known yet
 * @start: first page of the owner
 * @end: the address behind the last page
 * @gfp: how to allocate
 *
 * Return: the caller's snapshot, or NULL.
 */
struct oc_snap *oc_snap_alloc(unsigned long start, unsigned long end, gfp_t gfp)
{
	unsigned int pages = (end - start) >> PAGE_SHIFT;
	struct oc_snap *snap;

	if (oc_inject(OC_INJECT_ALLOC))
		return NULL;
	snap = kmalloc(sizeof(*snap), gfp);
	if (!snap)
		return NULL;
	snap->start = start;
	snap->pages = pages;
	snap->huge = false;
	snap->entry = pages == 1 ? &snap->one : kmalloc_array(pages, sizeof(*snap->entry), gfp);
	if (!snap->entry) {
		kfree(snap);
		return NULL;
	}
	return snap;
}

/**
 * oc_snap_free() - free a snapshot that no segment has
 * @snap: the snapshot, or NULL
 */
void oc_snap_free(struct oc_snap *snap)
{
	if (snap && snap->entry != &snap->one)
		kfree(snap->entry);
	kfree(snap);
}

/*
 * Begin a look at the owner's tables. Some of the invalidations counted in the snapshot are still
 * under way. What is seen of their pages may be gone at any time: `busy` says which these are. The
 * others have ended, so what is seen is their outcome. Those recorded later are struck out by
 * oc_snap_refresh(). -EBUSY: the target is one of the busy pages.
 */
static int oc_snap_begin(struct oc_seg *seg, struct oc_snap *snap, unsigned long target,
			 unsigned long *busy)
{
	u64 seq = READ_ONCE(seg->seq);

	smp_rmb(); /* pairs with smp_wmb() in oc_invalidate() */
	oc_changes_busy(seg->watch.changes, snap->start, oc_snap_end(snap), busy);
	if (test_bit(oc_snap_index(snap, target), busy))
		return -EBUSY;
	snap->seq = seq;
	return 0;
}

/*
 * What is nobody else's though its entries look like any: a shadow stack's count as writable
 * although its owner cannot write them; secret memory. The mmap lock is held.
 */
static void oc_snap_hide(struct mm_struct *mm, struct oc_snap *snap)
{
	unsigned long addr = snap->start, end = oc_snap_end(snap);
	struct vm_area_struct *vma;

	for (; addr < end && (vma = find_vma(mm, addr)) && vma->vm_start < end;
	     addr = vma->vm_end) {
		unsigned long lo = max(vma->vm_start, snap->start), hi = min(vma->vm_end, end);

		if (oc_vma_hidden(vma)) {
			snap->huge = false;
			memset(&snap->entry[oc_snap_index(snap, lo)], 0,
			       ((hi - lo) >> PAGE_SHIFT) * sizeof(snap->entry[0]));
		}
	}
}

/* What was seen of busy pages is not known. */
static void oc_snap_finish(struct oc_seg *seg, struct oc_snap *snap, const unsigned long *busy)
{
	unsigned int i;

	for_each_set_bit(i, busy, snap->pages) {
		snap->entry[i] &= OC_E_WRITE;
		snap->huge = false;
	}
	oc_snap_hide(seg->mm, snap);
}

#ifdef OC_HMM
/**
 * oc_snap_take() - look at the owner's page tables
 * @seg: the segment
 * @snap: the caller's snapshot, whose entries are set
 * @target: the page that is wanted
 * @write: to be written
 * @resolved: the caller holds no other mmap lock, so pages may be faulted in
 *
 * Nothing is waited for. With HMM nothing is faulted in, and no page is held.
 *
 * Context: the owner's mmap lock is held for reading.
 * Return: 0, or -EBUSY: @target is being changed, for whose end oc_changes_wait() waits, -EAGAIN:
 * this takes @resolved, or another error: there is no such page.
 */
int oc_snap_take(struct oc_seg *seg, struct oc_snap *snap, unsigned long target, bool write,
		 bool resolved)
{
	/* The kernel's way to see changes, which is not used here: it says that there are none. */
	struct mmu_interval_notifier none = { .mm = seg->mm };
	struct hmm_range range = {
		.notifier = &none,
		.notifier_seq = none.invalidate_seq,
		.start = snap->start,
		.end = oc_snap_end(snap),
		.hmm_pfns = snap->entry,
	};
	DECLARE_BITMAP(busy, OC_WINDOW_PAGES);
	int err;

	err = oc_snap_begin(seg, snap, target, busy);
	if (err)
		return err;
	snap->huge = false;
	memset(snap->entry, 0, snap->pages * sizeof(snap->entry[0]));
	err = hmm_range_fault(&range);
	if (err)
		return err;
	snap->huge = oc_snap_one_entry(snap);
	oc_snap_finish(seg, snap, busy);
	return 0;
}
#else
/*
 * Without HMM a look at the tables is a look for pages, which faults them in. So it is done only
 * where the caller holds no other mmap lock (`resolved`), and only for a few pages from the wanted
 * one on. It is done for that one alone where the others are of another VMA, or may have to be
 * waited for. The pages are let go at once. They are valid for the same reason as everywhere: what
 * takes them away calls invalidate_range_start first.
 */
int oc_snap_take(struct oc_seg *seg, struct oc_snap *snap, unsigned long target, bool write,
		 bool resolved)
{
	unsigned int first = oc_snap_index(snap, target);
	unsigned long n = min(snap->pages - first, (unsigned int)OC_WINDOW_MAX);
	struct vm_area_struct *vma = find_vma(seg->mm, target);
	struct page *pages[OC_WINDOW_MAX];
	DECLARE_BITMAP(busy, OC_WINDOW_PAGES);
	long got, i;

	if (!resolved)
		return -EAGAIN;
	got = oc_snap_begin(seg, snap, target, busy);
	if (got)
		return got;
	memset(snap->entry, 0, snap->pages * sizeof(snap->entry[0]));
	if (!vma || vma->vm_start > target || !oc_vma_is_anon_or_shmem(vma))
		n = 1;
	else
		n = min(n, (vma->vm_end - target) >> PAGE_SHIFT);
	/*
	 * It was there just now. What has gone since is not read, nor asked for in user space, here
	 * where no kill would end that: the fault comes again.
	 */
	got = oc_get_remote(seg->mm, target, n, FOLL_NOWAIT | (write ? FOLL_WRITE : 0), pages,
			    NULL);
	if (got <= 0)
		return got ?: -EBUSY;
	for (i = 0; i < got; i++) {
		snap->entry[first + i] = page_to_pfn(pages[i]) | OC_E_VALID |
					 (write ? OC_E_WRITE : 0);
		put_page(pages[i]);
	}
	oc_snap_finish(seg, snap, busy);
	return 0;
}
#endif

static void oc_snap_strike(struct oc_snap *snap, unsigned long start, unsigned long end)
{
	if (start < end)
		snap->huge = false;
	for (; start < end; start += PAGE_SIZE)
		snap->entry[oc_snap_index(snap, start)] &= OC_E_WRITE;
}

/**
 * oc_snap_refresh() - strike out of a snapshot what was invalidated since
 * @seg: the segment
 * @snap: the snapshot
 *
 * Context: under @seg->lock. What remains is true until that is dropped.
 */
void oc_snap_refresh(struct oc_seg *seg, struct oc_snap *snap)
{
	u64 s;

	lockdep_assert_held(&seg->lock);
	if (seg->seq - snap->seq > OC_RING)
		oc_snap_strike(snap, snap->start, oc_snap_end(snap));
	else
		for (s = snap->seq; s != seg->seq; s++) {
			const struct oc_range *r = &seg->ring[s % OC_RING];

			oc_snap_strike(snap, max(r->start, snap->start),
				       min(r->end, oc_snap_end(snap)));
		}
	snap->seq = seg->seq;
}

/**
 * oc_snap_cached() - a segment's snapshot that knows enough of a page
 * @seg: the segment
 * @page: the page
 * @write: to be written
 *
 * Another snapshot may know less of the page and be true, too: a page becomes writable without
 * being announced.
 *
 * Context: under @seg->lock.
 * Return: the segment's snapshot, up to date, or NULL.
 */
struct oc_snap *oc_snap_cached(struct oc_seg *seg, unsigned long page, bool write)
{
	int i;

	for (i = 0; i < OC_SNAPS; i++) {
		struct oc_snap *snap = seg->snap[i];

		if (!snap || page < snap->start || page >= oc_snap_end(snap))
			continue;
		oc_snap_refresh(seg, snap);
		if (oc_snap_suffices(snap, page, write))
			return snap;
	}
	return NULL;
}

/**
 * oc_snap_gap() - which pages around the wanted one the segment knows too little of
 * @seg: the segment
 * @want: what is wanted; @want->lost is set
 * @start: first page of the window; set to that of the gap
 * @end: the address behind the window; set to that behind the gap
 *
 * A look at these pages is enough where the owner changed a part of what the segment knew. Where
 * the segment knows nothing of the surroundings, the gap is the whole window.
 *
 * Context: takes @seg->lock.
 */
void oc_snap_gap(struct oc_seg *seg, struct oc_want *want, unsigned long *start, unsigned long *end)
{
	int i;

	mutex_lock(&seg->lock);
	for (i = 0; i < OC_SNAPS; i++) {
		struct oc_snap *snap = seg->snap[i];
		unsigned long lo = want->page, hi = want->page, lost = want->page;

		if (!snap || *start < snap->start || *end > oc_snap_end(snap))
			continue;
		oc_snap_refresh(seg, snap);
		while (lost < *end && snap->entry[oc_snap_index(snap, lost)] == OC_E_WRITE)
			lost += PAGE_SIZE;
		want->lost = !want->write && lost > want->page ? lost : 0;
		while (lo > *start && !oc_snap_suffices(snap, lo - PAGE_SIZE, want->write))
			lo -= PAGE_SIZE;
		do
			hi += PAGE_SIZE;
		while (hi < *end && !oc_snap_suffices(snap, hi, want->write));
		*start = lo;
		*end = hi;
		break;
	}
	mutex_unlock(&seg->lock);
}

/*
 * A part of what another snapshot shows, later: both are brought up to date, so what either knows
 * is true.
 */
static void oc_snap_merge(struct oc_seg *seg, struct oc_snap *whole, struct oc_snap *part)
{
	unsigned long *e = &whole->entry[oc_snap_index(whole, part->start)];
	unsigned int i;

	oc_snap_refresh(seg, whole);
	oc_snap_refresh(seg, part);
	for (i = 0; i < part->pages; i++)
		if (part->entry[i] & OC_E_VALID)
			e[i] = part->entry[i];
	whole->huge = oc_snap_is_huge(whole);
}

/**
 * oc_snap_store() - keep a snapshot for others, and for this task's next try
 * @seg: the segment
 * @snap: the caller's snapshot, which is given up
 *
 * Context: under @seg->lock.
 * Return: a snapshot, or NULL, that the caller frees after it has dropped the lock.
 */
struct oc_snap *oc_snap_store(struct oc_seg *seg, struct oc_snap *snap)
{
	unsigned int i, at = seg->snap_hand;
	struct oc_snap *old;

	for (i = 0; i < OC_SNAPS; i++) {
		old = seg->snap[i];
		if (old && old->start <= snap->start && oc_snap_end(old) >= oc_snap_end(snap) &&
		    old->pages > snap->pages) {
			oc_snap_merge(seg, old, snap);
			return snap;
		}
	}
	for (i = 0; i < OC_SNAPS; i++)
		if (seg->snap[i] && seg->snap[i]->start == snap->start)
			break;
	if (i < OC_SNAPS)
		at = i;
	else
		seg->snap_hand = (seg->snap_hand + 1) % OC_SNAPS;
	old = seg->snap[at];
	seg->snap[at] = snap;
	return old;
}
