// SPDX-License-Identifier: GPL-2.0
/* Mapping ahead of use. */
#include <linux/pgtable.h>
#include <linux/sched/signal.h>

#include "core.h"

/*
 * The end of what is mapped from addr on, as far as `end`; holes do not count and are zapped.
 * Our mmap lock is held.
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
			/* The table stays while the mmap lock is held; what is in it is a hint. */
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

/* The caller's attachment at addr, if it allows that access. The caller's mmap lock is held. */
static struct vm_area_struct *oc_prefault_vma(struct mm_struct *mm, unsigned long addr, bool write)
{
	struct vm_area_struct *vma = find_vma(mm, addr);

	if (!vma || vma->vm_start > addr || !oc_vma_is_attachment(vma))
		return ERR_PTR(-EINVAL);
	if (write && !(vma->vm_flags & VM_WRITE))
		return ERR_PTR(-EACCES);
	return vma;
}

/* A quiet fault of the caller at addr. The caller holds no mmap lock. */
static int oc_prefault_touch(struct mm_struct *mm, unsigned long addr, bool write)
{
	struct oc_quiet quiet;
	int err, locked = 1;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	oc_quiet_begin(&quiet);
	err = oc_fault_in(mm, addr, write, false, &locked);
	if (oc_quiet_end(&quiet))
		err = quiet.err;
	if (locked)
		mmap_read_unlock(mm);
	return err;
}

/*
 * Pass what is mapped from *addr on, up to `end`. If nothing is, have the page of *addr mapped, and
 * the owner's pages of its window made present.
 */
static int oc_prefault_step(struct mm_struct *mm, unsigned long *addr, unsigned long end,
			    bool write)
{
	struct oc_want want = { .write = write };
	struct vm_area_struct *vma;
	unsigned long next;
	struct oc_window w;
	struct oc_seg *seg;
	int err;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = oc_prefault_vma(mm, *addr, write);
	if (IS_ERR(vma)) {
		mmap_read_unlock(mm);
		return PTR_ERR(vma);
	}
	seg = ((struct oc_view *)vma->vm_file->private_data)->seg;
	want.page = (vma->vm_pgoff << PAGE_SHIFT) + (*addr - vma->vm_start);
	next = oc_present_until(vma, seg, want.page, *addr, min(end, vma->vm_end), write);
	if (next > *addr) {
		mmap_read_unlock(mm);
		*addr = next;
		return 0;
	}
	oc_window_of(vma, *addr, seg, want.page, &w);
	want.last = want.page + (min(end, w.hi) - *addr);
	oc_seg_get(seg);
	mmap_read_unlock(mm);
	/* The owner's pages at once. What this finds wrong the fault finds too. */
	oc_resolve(seg, w.at, w.at + (w.hi - w.lo), &want);
	oc_seg_put(seg);

	err = oc_prefault_touch(mm, *addr, write);
	if (!err)
		*addr += PAGE_SIZE;
	return err;
}

/**
 * oc_prefault() - map a range of the caller's attachments
 * @address: first byte
 * @length: bytes
 * @write: to be written
 * @done: bytes that are mapped, whatever is returned
 *
 * Context: may sleep. The caller holds no mmap lock.
 * Return: 0, or -EINVAL: no attachment, -EACCES: not to be written, -EINTR: killed, or what a fault
 * there finds wrong.
 */
long oc_prefault(u64 address, u64 length, bool write, u64 *done)
{
	unsigned long addr, end;
	u64 last;
	int err;

	*done = 0;
	if (!length)
		return 0;
	if (check_add_overflow(address, length, &last) || last > TASK_SIZE)
		return -EINVAL;
	addr = address & PAGE_MASK;
	end = PAGE_ALIGN(last);
	while (addr < end) {
		*done = addr > address ? addr - address : 0;
		cond_resched();
		if (fatal_signal_pending(current))
			return -EINTR;
		err = oc_prefault_step(current->mm, &addr, end, write);
		if (err)
			return err;
	}
	*done = length;
	return 0;
}
