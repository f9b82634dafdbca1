// SPDX-License-Identifier: GPL-2.0
/* Settling the owner's side of a window with no lock of ours, and mapping ahead of use. */
#include <linux/log2.h>
#include <linux/magic.h>
#include <linux/pgtable.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "core.h"
#include "inject.h"

/*
 * Memory that its maker wants no other process to see, whatever it shows otherwise: memfd_secret().
 */
static bool oc_vma_secret(const struct vm_area_struct *vma)
{
#ifdef SECRETMEM_MAGIC
	return vma->vm_file && file_inode(vma->vm_file)->i_sb->s_magic == SECRETMEM_MAGIC;
#else
	return false;
#endif
}

/* Is nothing of it to be shown to others? Its map lock is held. */
bool oc_vma_hidden(const struct vm_area_struct *vma)
{
	return (vma->vm_flags & (VM_IO | VM_PFNMAP | VM_SHADOW_STACK)) || oc_vma_secret(vma);
}

/* May the page be shown to others at all? mm's map lock is held. */
int oc_owner_vma_check(struct mm_struct *mm, unsigned long addr, bool write)
{
	struct vm_area_struct *vma = find_vma(mm, addr);

	if (!vma || vma->vm_start > addr)
		return -EFAULT;
	if (oc_vma_ours(vma))
		return -EOPNOTSUPP; /* an attachment: it is its owner's to grant */
	if (oc_vma_hidden(vma) || !(vma->vm_flags & VM_READ))
		return -EFAULT;
	if (write && !(vma->vm_flags & VM_WRITE))
		return -EPERM;
	return 0;
}

/*
 * Have a page faulted in: of the owner, or (owner false) of the caller. Not fixup_user_fault():
 * where the lock was given up for it, that waits for the lock anew in a way that no kill ends. The
 * map lock is held for reading; *locked tells whether it still is. Without `locked` nothing is
 * waited for and the lock is kept: -EAGAIN where that does not do.
 */
int oc_fault_in(struct mm_struct *mm, unsigned long addr, bool write, bool owner, int *locked)
{
	unsigned int flags = FAULT_FLAG_ALLOW_RETRY |
			     (locked ? FAULT_FLAG_KILLABLE : FAULT_FLAG_RETRY_NOWAIT) |
			     (write ? FAULT_FLAG_WRITE : 0) | (owner ? FAULT_FLAG_REMOTE : 0);

	for (;;) {
		struct vm_area_struct *vma = find_vma(mm, addr);
		vm_fault_t ret;
		int err = 0;

		if (fatal_signal_pending(current))
			return -EINTR;
		if (owner)
			err = oc_owner_vma_check(mm, addr, write);
		else if (!vma || vma->vm_start > addr ||
			 !(vma->vm_flags & (write ? VM_WRITE : VM_READ)))
			err = -EFAULT;
		if (err)
			return err;
		ret = handle_mm_fault(vma, addr, flags, NULL);
		if (ret & VM_FAULT_ERROR)
			return vm_fault_to_errno(ret, 0);
		if (!(ret & (VM_FAULT_RETRY | OC_FAULT_COMPLETED)))
			return 0;
		if (!locked)
			return -EAGAIN;
		*locked = 0;
		if (mmap_read_lock_killable(mm))
			return -EINTR;
		*locked = 1;
		if (ret & OC_FAULT_COMPLETED)
			return 0;
		flags |= FAULT_FLAG_TRIED;
	}
}

/*
 * How many pages from `target` on are wanted: one, and twice as many as before for who goes through
 * memory that the owner has not touched, or just mapped anew, page by page.
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

/*
 * A first look, to read, at memory that the owner took away: pages that it may write there are
 * those that it has filled anew itself. One that does so will do it again. To bring such memory
 * back as pages of zeroes would cost: each store of the owner then copies a page and takes it away
 * from everybody once more. One that has stopped pays OC_REFILLS times for what it does not need.
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

/*
 * Make what is wanted of the owner's memory present, and look at what the snapshot covers; of what
 * is wanted beside the page, as far as that goes. Some pages behind it too, but none that has to be
 * waited for: some for who goes on in order (oc_ahead); or, to read, all anonymous memory that was
 * there before. That comes back writable for an owner that fills anew what it takes away, else as
 * pages of zeroes: what nobody writes costs him nothing. The owner's map lock is held; *locked
 * tells whether it still is. Without `locked` nothing is waited for and the lock is kept, -EAGAIN
 * where that does not do; the snapshot has been taken then.
 */
int oc_populate(struct oc_seg *seg, struct oc_snap *snap, const struct oc_want *want, int *locked)
{
	unsigned long addr = want->page, last = want->last;
	bool resolved = locked; /* and no other map lock is held */
	struct mm_struct *mm = seg->mm;
	struct vm_area_struct *vma = find_vma(mm, addr);
	/* A hole of shared memory that is read costs a page. */
	unsigned long lost = vma && vma_is_anonymous(vma) ? want->lost : 0;
	bool write = want->write;
	/*
	 * The owner fills anew what it took away, from its begin on as a rule: from the end on, the
	 * two do not do the same.
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
			break; /* whoever gets there finds out why */
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

/*
 * Populate, and leave the snapshot of [start, end) with the segment. The caller holds no map lock.
 * The owner's is waited for so that a kill ends it; so is whoever answers the owner's faults in
 * user space.
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
	if (!mmget_not_zero(mm))
		return -ESRCH;
	snap = oc_snap_alloc(start, end, GFP_KERNEL_ACCOUNT);
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
	if (!err) {
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

/*
 * The end of what is mapped from addr on, as far as `end`; holes do not count and are taken away.
 * Our map lock is held.
 */
static unsigned long oc_present_until(struct vm_area_struct *vma, struct oc_seg *seg,
				      unsigned long owner, unsigned long addr, unsigned long end,
				      bool write)
{
	struct mm_struct *mm = vma->vm_mm;

	while (addr < end) {
		unsigned long next = pmd_addr_end(addr, end);
		pgd_t *pgd = pgd_offset(mm, addr);
		p4d_t *p4d;
		pud_t *pud;
		pmd_t *pmdp, pmd;

		/* Another thread's fault may fill them just now. */
		if (pgd_none(READ_ONCE(*pgd)))
			break;
		p4d = p4d_offset(pgd, addr);
		if (p4d_none(READ_ONCE(*p4d)))
			break;
		pud = pud_offset(p4d, addr);
		if (pud_none(READ_ONCE(*pud)))
			break;
		pmdp = pmd_offset(pud, addr);
		pmd = READ_ONCE(*pmdp);
		if (pmd_none(pmd))
			break;
		if (pmd_leaf(pmd)) {
			if (!pmd_present(pmd) || (write && !pmd_write(pmd)))
				break;
			owner += next - addr;
			addr = next;
			continue;
		}
		for (; addr < next; addr += PAGE_SIZE, owner += PAGE_SIZE) {
			/* The table stays while the map lock is held; what is in it is a hint. */
			pte_t pte = ptep_get(pte_offset_kernel(pmdp, addr));

			if (!pte_present(pte))
				return addr;
			if (oc_is_hole_pfn(vma->vm_private_data, pte_pfn(pte))) {
				oc_zap(seg, owner, owner + PAGE_SIZE);
				return addr;
			}
			if (write && !pte_write(pte))
				return addr;
		}
	}
	return addr;
}

/*
 * Map [address, address + length) of the caller's attachments. *done bytes are mapped, whatever is
 * returned.
 */
long oc_prefault(u64 address, u64 length, bool write, u64 *done)
{
	struct mm_struct *mm = current->mm;
	unsigned long addr, end, owner;
	struct vm_area_struct *vma;
	struct oc_quiet quiet;
	struct oc_window w;
	struct oc_seg *seg;
	long err = 0;
	int locked;
	u64 last;

	*done = 0;
	if (!length)
		return 0;
	if (check_add_overflow(address, length, &last) || last > TASK_SIZE)
		return -EINVAL;
	addr = address & PAGE_MASK;
	end = PAGE_ALIGN(last);
	while (addr < end) {
		unsigned long next;

		*done = addr > address ? addr - address : 0;
		cond_resched();
		if (fatal_signal_pending(current) || mmap_read_lock_killable(mm))
			return -EINTR;
		vma = find_vma(mm, addr);
		if (!vma || vma->vm_start > addr || !oc_vma_ours(vma))
			err = -EINVAL;
		else if (write && !(vma->vm_flags & VM_WRITE))
			err = -EACCES;
		if (err) {
			mmap_read_unlock(mm);
			return err;
		}
		seg = ((struct oc_view *)vma->vm_file->private_data)->seg;
		owner = (vma->vm_pgoff << PAGE_SHIFT) + (addr - vma->vm_start);
		next = oc_present_until(vma, seg, owner, addr, min(end, vma->vm_end), write);
		if (next > addr) {
			mmap_read_unlock(mm);
			addr = next;
			continue;
		}
		oc_window_of(vma, addr, seg, owner, &w);
		oc_seg_get(seg);
		mmap_read_unlock(mm);
		/* The owner's side at once. What this finds wrong the fault finds too. */
		oc_resolve(seg, w.at, w.at + (w.hi - w.lo),
			   &(struct oc_want){ .page = owner,
					      .write = write,
					      .last = owner + (min(end, w.hi) - addr) });
		oc_seg_put(seg);

		if (mmap_read_lock_killable(mm))
			return -EINTR;
		locked = 1;
		oc_quiet_begin(&quiet);
		err = oc_fault_in(mm, addr, write, false, &locked);
		if (oc_quiet_end(&quiet))
			err = quiet.err;
		if (locked)
			mmap_read_unlock(mm);
		if (err)
			return err;
		addr += PAGE_SIZE;
	}
	*done = length;
	return 0;
}
