// SPDX-License-Identifier: GPL-2.0
/* What of an address space may be shown to others, and having it faulted in. */
#include <linux/magic.h>
#include <linux/sched/signal.h>

#include "core.h"

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

/**
 * oc_vma_stays() - refuse mremap() of an attachment
 * @vma: the attachment
 *
 * oc_vma_is_attachment() knows attachments by this operation, so this file need not know oc_vm_ops
 * of fault.c.
 *
 * Return: -EINVAL.
 */
int oc_vma_stays(struct vm_area_struct *vma)
{
	return -EINVAL;
}

/**
 * oc_vma_is_attachment() - whether a VMA shows a segment
 * @vma: the VMA
 *
 * Context: the VMA's mmap lock is held.
 * Return: true if it does.
 */
bool oc_vma_is_attachment(const struct vm_area_struct *vma)
{
	return vma->vm_ops && vma->vm_ops->mremap == oc_vma_stays;
}

/**
 * oc_vma_hidden() - whether nothing of a VMA may be shown to others
 * @vma: the VMA
 *
 * Context: the VMA's mmap lock is held.
 * Return: true if it is a device's, a shadow stack or secret memory.
 */
bool oc_vma_hidden(const struct vm_area_struct *vma)
{
	return (vma->vm_flags & (VM_IO | VM_PFNMAP | VM_SHADOW_STACK)) || oc_vma_secret(vma);
}

/**
 * oc_vma_is_anon_or_shmem() - whether the kernel alone brings the pages of a VMA
 * @vma: the VMA
 *
 * A page of another file system may wait for a server or a program. So it is never faulted in while
 * a lock is held that others need.
 *
 * Context: the VMA's mmap lock is held.
 * Return: true if the kernel alone does.
 */
bool oc_vma_is_anon_or_shmem(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) ||
	       (vma->vm_file && file_inode(vma->vm_file)->i_sb->s_magic == TMPFS_MAGIC);
}

/**
 * oc_owner_vma_check() - whether a page may be shown to others at all
 * @mm: the owner's address space
 * @addr: the page
 * @write: to be written, too
 *
 * Context: @mm's mmap lock is held.
 * Return: 0, or -EFAULT: there is no memory that may be shown. -EOPNOTSUPP: it is an attachment,
 * which is its owner's to grant. -EPERM: the owner itself may not write there.
 */
int oc_owner_vma_check(struct mm_struct *mm, unsigned long addr, bool write)
{
	struct vm_area_struct *vma = find_vma(mm, addr);

	if (!vma || vma->vm_start > addr)
		return -EFAULT;
	if (oc_vma_is_attachment(vma))
		return -EOPNOTSUPP; /* an attachment: it is its owner's to grant */
	if (oc_vma_hidden(vma) || !(vma->vm_flags & VM_READ))
		return -EFAULT;
	if (write && !(vma->vm_flags & VM_WRITE))
		return -EPERM;
	return 0;
}

/**
 * oc_fault_in() - have a page faulted in
 * @mm: the address space
 * @addr: the page
 * @write: to be written
 * @owner: the memory is an owner's, which is checked; otherwise the caller's own
 * @locked: says whether the mmap lock is still held afterwards. NULL: nothing is waited for, and
 *   the lock is kept
 *
 * Not fixup_user_fault(): where the lock was given up, that waits for it anew in a way that no kill
 * ends.
 *
 * Context: @mm's mmap lock is held for reading.
 * Return: 0, or -EINTR: killed, -EAGAIN: without @locked it would have to wait, or another error:
 * there is no such page.
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
