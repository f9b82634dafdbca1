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

/*
 * mremap() is refused. oc_vma_is_attachment() knows attachments by this operation, so this file
 * need not know fault.c's oc_vm_ops.
 */
int oc_vma_stays(struct vm_area_struct *vma)
{
	return -EINVAL;
}

bool oc_vma_is_attachment(const struct vm_area_struct *vma)
{
	return vma->vm_ops && vma->vm_ops->mremap == oc_vma_stays;
}

/* Is nothing of it to be shown to others? Its mmap lock is held. */
bool oc_vma_hidden(const struct vm_area_struct *vma)
{
	return (vma->vm_flags & (VM_IO | VM_PFNMAP | VM_SHADOW_STACK)) || oc_vma_secret(vma);
}

/*
 * Does the kernel alone bring its pages? A page of another file system may wait for a server or a
 * program. So it is never faulted in while a lock is held that others need.
 */
bool oc_vma_is_anon_or_shmem(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) ||
	       (vma->vm_file && file_inode(vma->vm_file)->i_sb->s_magic == TMPFS_MAGIC);
}

/* May the page be shown to others at all? mm's mmap lock is held. */
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

/*
 * Have a page faulted in: of the owner, or (owner false) of the caller. Not fixup_user_fault():
 * where the lock was given up for it, that waits for the lock anew in a way that no kill ends. The
 * mmap lock is held for reading; *locked tells whether it still is. Without `locked` nothing is
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
