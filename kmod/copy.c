// SPDX-License-Identifier: GPL-2.0
/* Copies between address spaces: a batch of pages of the far side is pinned, copied, let go. */
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "core.h"
#include "inject.h"
#include "trace.h"

#define OC_BATCH OC_PAGES_IN(SZ_256K, PAGE_SIZE) /* pages pinned at a time */

/*
 * The caller's own memory is not there, or not as it is wanted: fault it in. A caller that misses
 * page after page gets some of what follows, too. A kill ends the wait for whoever answers the
 * faults.
 */
static int oc_copy_fault(unsigned long addr, u64 len, bool write, unsigned int pages)
{
	struct mm_struct *mm = current->mm;
	int err, locked = 1;
	unsigned int i;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	pages = min_t(u64, pages, oc_pages_of(addr, len));
	addr &= PAGE_MASK;
	err = oc_fault_in(mm, addr, write, false, &locked);
	for (i = 1; !err && locked && i < pages; i++)
		if (oc_fault_in(mm, addr + i * PAGE_SIZE, write, false, NULL))
			break;
	if (locked)
		mmap_read_unlock(mm);
	return err;
}

/* Faults in a row that succeed without progress, after which it is EFAULT. */
#define OC_COPY_TRIES 1000
#define OC_COPY_AHEAD 16

/*
 * Between byte `off` of a segment's pages and the current address space. *done bytes were copied,
 * whatever is returned. Bytes move with faults disabled, so that a revocation need not wait for
 * whoever answers the faults of the caller.
 */
static int oc_copy_gated(struct oc_seg *seg, struct page *const *pages, u64 off, u64 len, u64 user,
			 bool to_user, u64 *done)
{
	unsigned int tries = 0, ahead = 1;
	bool missing;
	int err;

	*done = 0;
	if (!access_ok(u64_to_user_ptr(user), len))
		return -EFAULT;
	while (*done < len) {
		u64 before = *done;

		if (fatal_signal_pending(current))
			return -EINTR;
		err = oc_copy_begin(seg);
		if (err)
			return err;
		pagefault_disable();
		missing = !oc_copy_present(pages, off, len, user, to_user, done);
		pagefault_enable();
		oc_copy_end(seg);
		cond_resched();
		if (!missing)
			continue;
		/* Page after page is missing: more at once. */
		ahead = *done - before <= ahead * PAGE_SIZE ?
				min(ahead * 2, (unsigned int)OC_COPY_AHEAD) :
				1;
		tries = *done == before ? tries + 1 : 0;
		if (tries > OC_COPY_TRIES)
			return -EFAULT;
		err = oc_copy_fault(user + *done, len - *done, to_user, ahead);
		if (err)
			return err == -EINTR ? err : -EFAULT;
	}
	return 0;
}

/* Up to OC_BATCH pages from the one of addr on; fewer where the next cannot be had. */
static long oc_pin(const struct oc_side *side, u64 addr, u64 len, bool write, struct page **pages)
{
	struct mm_struct *mm = side->seg ? side->seg->mm : current->mm;
	unsigned long n = min_t(u64, oc_pages_of(addr, len), OC_BATCH);
	int locked = 1;
	long got;

	got = side->seg ? oc_seg_error(side->seg) : 0;
	if (got)
		return got;
	if (oc_inject(OC_INJECT_PIN))
		return -ENOMEM;
	if (!mmget_not_zero(mm))
		return -ESRCH;
	if (mmap_read_lock_killable(mm)) {
		got = -EINTR;
	} else {
		got = oc_owner_vma_check(mm, addr & PAGE_MASK, write);
		/* The next mapping may be nobody else's: it is looked at in a batch of its own. */
		if (!got)
			n = min_t(unsigned long, n,
				  (find_vma(mm, addr)->vm_end - (addr & PAGE_MASK)) >> PAGE_SHIFT);
		if (!got)
			got = oc_pin_remote(mm, addr & PAGE_MASK, n, write ? FOLL_WRITE : 0, pages,
					    &locked);
		if (locked)
			mmap_read_unlock(mm);
	}
	mmput_async(mm);
	return got ?: -EFAULT;
}

static void oc_unpin(struct page **pages, long n, bool dirty)
{
	if (n > 0)
		unpin_user_pages_dirty_lock(pages, n, dirty);
}

/* One batch. Bytes copied, at least one, or an error. */
static s64 oc_copy_batch(const struct oc_side *dst, const struct oc_side *src, u64 done, u64 len)
{
	u64 from = src->addr + done, to = dst->addr + done, n = len - done;
	struct page *far[OC_BATCH], *near[OC_BATCH];
	bool both = dst->seg && src->seg, to_user = !dst->seg;
	const struct oc_side *side = to_user ? src : dst;
	u64 addr = to_user ? from : to;
	long got, more;
	int err;

	got = oc_pin(side, addr, n, !to_user, far);
	if (got < 0)
		return got;
	n = min_t(u64, n, ((u64)got << PAGE_SHIFT) - (addr & ~PAGE_MASK));
	if (!both) {
		u64 copied;

		if (side->seg) {
			err = oc_copy_gated(side->seg, far, addr & ~PAGE_MASK, n,
					    to_user ? to : from, to_user, &copied);
		} else {
			copied = oc_copy_user(far, addr & ~PAGE_MASK, n, to_user ? to : from,
					      to_user);
			err = fatal_signal_pending(current) ? -EINTR : -EFAULT;
		}
		oc_unpin(far, got, !to_user);
		return copied ?: err;
	}
	more = oc_pin(src, from, n, false, near);
	if (more <= 0) {
		oc_unpin(far, got, false);
		return more;
	}
	n = min_t(u64, n, ((u64)more << PAGE_SHIFT) - (from & ~PAGE_MASK));
	err = oc_copy_begin(dst->seg);
	if (!err) {
		err = oc_copy_begin(src->seg);
		if (!err) {
			oc_copy_pages(far, to & ~PAGE_MASK, near, from & ~PAGE_MASK, n);
			oc_copy_end(src->seg);
		}
		oc_copy_end(dst->seg);
	}
	oc_unpin(near, more, false);
	oc_unpin(far, got, !err);
	return err ?: n;
}

/*
 * The side of the process that the caller copies from or to; the source, if neither is the
 * caller. A side without a segment is the caller's own memory.
 */
static const struct oc_side *oc_copy_far(const struct oc_side *dst, const struct oc_side *src)
{
	if (dst->seg && (!src->seg || src->seg->owner == task_tgid(current)))
		return dst;
	return src;
}

/* The caller checked rights and bounds. *done bytes were copied, whatever is returned. */
int oc_copy(const struct oc_side *dst, const struct oc_side *src, u64 length, u64 *done)
{
	const struct oc_side *far = oc_copy_far(dst, src);
	s64 n = 0;
	int err;

	*done = 0;
	while (*done < length) {
		if (fatal_signal_pending(current)) {
			n = -EINTR;
			break;
		}
		n = oc_copy_batch(dst, src, *done, length);
		if (n < 0)
			break;
		*done += n;
		cond_resched();
	}
	oc_count(OC_COPIES, 1);
	oc_count(OC_COPIED_BYTES, *done);
	err = min_t(s64, n, 0);
	trace_onecopy_copy(dst->addr, src->addr, length, *done, err,
			   far->seg ? pid_nr(far->seg->owner) : 0, far == dst);
	return err;
}
