// SPDX-License-Identifier: GPL-2.0
/* Copies between address spaces: a batch of pages of the far side is pinned, copied, let go. */
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "core.h"
#include "inject.h"
#include "trace.h"

#define OC_BATCH OC_PAGES_IN(SZ_256K, PAGE_SIZE) /* pages pinned at a time */

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

/* Between two segments, within both. Bytes copied, at least one, or an error. */
static s64 oc_copy_between(const struct oc_side *dst, struct page *const *to, u64 to_off,
			   const struct oc_side *src, struct page *const *from, u64 from_off,
			   u64 len)
{
	u64 done = 0, n;
	int err = 0;

	while (done < len) {
		n = min_t(u64, len - done, OC_GATE_BYTES);
		err = oc_seg_enter(dst->seg);
		if (err)
			break;
		err = oc_seg_enter(src->seg);
		if (!err) {
			oc_copy_pages(to, to_off + done, from, from_off + done, n);
			oc_gate_leave(&src->seg->gate);
			done += n;
		}
		oc_gate_leave(&dst->seg->gate);
		if (err)
			break;
		cond_resched();
	}
	return done ?: err;
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
	s64 copied_both;
	int err;

	got = oc_pin(side, addr, n, !to_user, far);
	if (got < 0)
		return got;
	n = min_t(u64, n, ((u64)got << PAGE_SHIFT) - (addr & ~PAGE_MASK));
	if (!both) {
		u64 copied;

		err = oc_copy_gated(side->seg ? &side->seg->gate : NULL, far, addr & ~PAGE_MASK, n,
				    to_user ? to : from, to_user, &copied);
		if (err == -ESRCH)
			err = oc_seg_error(side->seg);
		oc_unpin(far, got, !to_user);
		return copied ?: err;
	}
	more = oc_pin(src, from, n, false, near);
	if (more < 0) {
		oc_unpin(far, got, false);
		return more;
	}
	n = min_t(u64, n, ((u64)more << PAGE_SHIFT) - (from & ~PAGE_MASK));
	copied_both = oc_copy_between(dst, far, to & ~PAGE_MASK, src, near, from & ~PAGE_MASK, n);
	oc_unpin(near, more, false);
	oc_unpin(far, got, copied_both > 0);
	return copied_both;
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

/**
 * oc_copy() - copy between two address spaces
 * @dst: where to; the caller checked rights and bounds
 * @src: where from; the same
 * @length: bytes
 * @done: bytes that were copied, whatever is returned
 *
 * Context: may sleep. The caller holds no mmap lock.
 * Return: 0 or the error that ended the copy.
 */
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
