// SPDX-License-Identifier: GPL-2.0
/* Settling the owner's side of a window with no lock of ours, and mapping ahead of use. */
#include <linux/log2.h>
#include <linux/pgtable.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "core.h"
#include "inject.h"

/* May the page be shown to others at all? mm's map lock is held. */
int oc_owner_vma_check(struct mm_struct *mm, unsigned long addr, bool write)
{
	struct vm_area_struct *vma = find_vma(mm, addr);

	if (!vma || vma->vm_start > addr)
		return -EFAULT;
	if (oc_vma_ours(vma))
		return -EOPNOTSUPP; /* an attachment: it is its owner's to grant */
	if ((vma->vm_flags & (VM_IO | VM_PFNMAP)) || !(vma->vm_flags & VM_READ))
		return -EFAULT;
	if (write && !(vma->vm_flags & VM_WRITE))
		return -EPERM;
	return 0;
}

/*
 * Make the owner's page `target` present, and writable where asked for, and leave a snapshot of [start, end) with the segment. With `all`, the
 * other pages too, as far as that goes. The caller holds no map lock. The owner's is waited for so that a kill ends it; so is whoever answers the
 * owner's faults in user space.
 */
int oc_resolve(struct oc_seg *seg, unsigned long start, unsigned long end, unsigned long target, bool write, bool all)
{
	unsigned int flags = FAULT_FLAG_REMOTE | (write ? FAULT_FLAG_WRITE : 0);
	struct mm_struct *mm = seg->mm;
	struct oc_snap *snap, *old;
	unsigned long addr;
	int err;

	err = oc_seg_error(seg);
	if (err)
		return err;
	if (!mmget_not_zero(mm))
		return -ESRCH;
	snap = oc_snap_alloc(start, end, GFP_KERNEL_ACCOUNT);
	if (!snap)
		snap = oc_snap_alloc(target, target + PAGE_SIZE, GFP_KERNEL);
	if (!snap) {
		mmput_async(mm);
		return -EINTR; /* no verdict: the fault comes again */
	}
	if (mmap_read_lock_killable(mm)) {
		err = -EINTR;
		goto out;
	}
	err = oc_owner_vma_check(mm, target, write);
	if (!err)
		err = fixup_user_fault(mm, target, flags, &(bool){ false });
	if (!err)
		err = oc_snap_take(seg, snap, target, write, true);
	if (!err && all) {
		unsigned int faults = 0;

		for (addr = snap->start; addr < oc_snap_end(snap) && !fatal_signal_pending(current); addr += PAGE_SIZE) {
			unsigned long e = snap->entry[(addr - snap->start) >> PAGE_SHIFT];

			if ((e & OC_E_VALID) && (!write || (e & OC_E_WRITE)))
				continue;
			if (oc_owner_vma_check(mm, addr, write) || fixup_user_fault(mm, addr, flags, &(bool){ false }))
				break; /* whoever gets there finds out why */
			/* One fault of the owner may bring many pages: look anew after the first, the second, the fourth ... */
			if (is_power_of_2(++faults) && oc_snap_take(seg, snap, addr, write, true))
				break;
		}
		if (faults)
			err = oc_snap_take(seg, snap, target, write, true);
	}
	mmap_read_unlock(mm);
	if (!err) {
		mutex_lock(&seg->lock);
		old = oc_snap_store(seg, snap);
		mutex_unlock(&seg->lock);
		snap = old;
	}
out:
	kfree(snap);
	mmput_async(mm);
	return err;
}

/* The end of what is mapped from addr on, as far as `end`; holes do not count and are taken away. Our map lock is held. */
static unsigned long oc_present_until(struct mm_struct *mm, struct oc_seg *seg, unsigned long owner, unsigned long addr, unsigned long end,
				      bool write)
{
	while (addr < end) {
		unsigned long next = pmd_addr_end(addr, end);
		pgd_t *pgd = pgd_offset(mm, addr);
		p4d_t *p4d;
		pud_t *pud;
		pmd_t *pmdp, pmd;

		if (pgd_none(*pgd))
			break;
		p4d = p4d_offset(pgd, addr);
		if (p4d_none(*p4d))
			break;
		pud = pud_offset(p4d, addr);
		if (pud_none(*pud))
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
			if (oc_is_hole_pfn(seg, pte_pfn(pte))) {
				oc_zap(seg, owner, owner + PAGE_SIZE);
				return addr;
			}
			if (write && !pte_write(pte))
				return addr;
		}
	}
	return addr;
}

/* Map [address, address + length) of the caller's attachments. *done bytes are mapped, whatever is returned. */
long oc_prefault(u64 address, u64 length, bool write, u64 *done)
{
	struct mm_struct *mm = current->mm;
	unsigned long addr, end, owner;
	struct vm_area_struct *vma;
	struct oc_quiet quiet;
	struct oc_window w;
	struct oc_seg *seg;
	long err = 0;
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
		next = oc_present_until(mm, seg, owner, addr, min(end, vma->vm_end), write);
		if (next > addr) {
			mmap_read_unlock(mm);
			addr = next;
			continue;
		}
		oc_window_of(vma, addr, seg, owner, &w);
		oc_seg_get(seg);
		mmap_read_unlock(mm);
		/* The owner's side at once. What this finds wrong the fault finds too. */
		if (w.at + (w.hi - w.lo) > owner)
			oc_resolve(seg, w.at, w.at + (w.hi - w.lo), owner, write, true);
		oc_seg_put(seg);

		if (mmap_read_lock_killable(mm))
			return -EINTR;
		oc_quiet_begin(&quiet);
		err = fixup_user_fault(mm, addr, write ? FAULT_FLAG_WRITE : 0, &(bool){ false });
		if (oc_quiet_end(&quiet))
			err = quiet.err;
		mmap_read_unlock(mm);
		if (err)
			return err;
		addr += PAGE_SIZE;
	}
	*done = length;
	return 0;
}
