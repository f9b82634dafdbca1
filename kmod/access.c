// SPDX-License-Identifier: GPL-2.0
/*
 * A debugger looks at an attachment, which it cannot take references through: /proc/PID/mem,
 * ptrace().
 */
#include <linux/highmem.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>

#include "core.h"

/* ticks of patience with an owner whose mmap lock, or page, is taken, or that swaps in */
#define OC_ACCESS_TRIES 50

/*
 * One page at most. The importer's mmap lock is held. So the owner's is only tried, and nothing
 * here waits for user space.
 */
static int oc_access_page(struct oc_seg *seg, struct mm_struct *held, unsigned long owner,
			  void *buf, int len, bool write)
{
	unsigned int flags = FOLL_NOWAIT | (write ? FOLL_WRITE : 0);
	struct mm_struct *mm = seg->mm;
	struct page *page;
	void *map;
	long got;

	if (!mmget_not_zero(mm))
		return -ESRCH;
	got = -EAGAIN;
	if (mm != held && !mmap_read_trylock(mm))
		goto put;
	got = oc_owner_vma_check(mm, owner & PAGE_MASK, write);
	/* What may wait for a file's server is only looked at where it is present. */
	if (!got && !oc_vma_is_anon_or_shmem(find_vma(mm, owner & PAGE_MASK)))
		got = oc_only_present(&flags);
	if (!got)
		got = oc_get_remote(mm, owner & PAGE_MASK, 1, flags, &page, NULL);
	/* A page's lock is held for as long as a file's server takes, so it is only tried, too. */
	if (got > 0 && write && !trylock_page(page)) {
		put_page(page);
		got = -EAGAIN;
	}
	if (got > 0) {
		got = oc_seg_enter(seg);
		if (!got) {
			map = oc_map_page(page);
			if (write)
				memcpy(map + offset_in_page(owner), buf, len);
			else
				memcpy(buf, map + offset_in_page(owner), len);
			if (write)
				oc_unmap_stored(page, map, offset_in_page(owner), len);
			else
				oc_unmap_page(page, map);
			oc_gate_leave(&seg->gate);
			if (write)
				set_page_dirty(page);
			got = len;
		}
		if (write)
			unlock_page(page);
		put_page(page);
	} else if (!got) {
		got = -EAGAIN;
	}
	if (mm != held)
		mmap_read_unlock(mm);
put:
	mmput_async(mm);
	return got;
}

/**
 * oc_access() - a debugger reads or writes through an attachment
 * @vma: a VMA of the attachment
 * @addr: where in it
 * @buf: the debugger's bytes, in the kernel
 * @len: how many; at most up to the end of the page
 * @write: to write
 *
 * Context: the importer's mmap lock is held for reading.
 * Return: how many bytes, or an error; the debugger sees EIO then.
 */
int oc_access(struct vm_area_struct *vma, unsigned long addr, void *buf, int len, int write)
{
	struct oc_attachment *att = vma->vm_private_data;
	unsigned long owner = (vma->vm_pgoff << PAGE_SHIFT) + (addr - vma->vm_start);
	int tries, n = -EACCES;

	/* Where the importer may not store, its debugger may not either. */
	if (write && !(vma->vm_flags & VM_WRITE))
		return n;
	len = min_t(unsigned long, len, PAGE_SIZE - offset_in_page(owner));
	for (tries = 0; tries < OC_ACCESS_TRIES; tries++) {
		n = oc_access_page(att->seg, vma->vm_mm, owner, buf, len, write);
		if (n != -EAGAIN || fatal_signal_pending(current))
			break;
		schedule_timeout_killable(1);
	}
	return n;
}
