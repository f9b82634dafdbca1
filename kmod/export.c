// SPDX-License-Identifier: GPL-2.0
/* A process grants a part of its memory, and takes that back. */
#include "core.h"

/*
 * An attachment is its owner's to grant, not the importer's. One VMA is looked at: in a range of
 * several, such as the pieces of an attachment, what is attached is a hole.
 */
static int oc_may_export(unsigned long start, unsigned long len)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	bool attachment;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = find_vma(mm, start);
	attachment = vma && vma->vm_start <= start && start + len <= vma->vm_end &&
		     oc_vma_is_attachment(vma);
	mmap_read_unlock(mm);
	return attachment ? -EOPNOTSUPP : 0;
}

/**
 * oc_export() - grant a range of the caller's memory
 * @start: first address; the range was checked
 * @size: in bytes
 * @mode: who may get it, as of a file
 *
 * Context: as oc_seg_create().
 * Return: as oc_seg_create(), or ERR_PTR() of -EOPNOTSUPP: it is an attachment, or -EINTR: killed.
 */
struct oc_seg *oc_export(unsigned long start, unsigned long size, umode_t mode)
{
	int err = oc_may_export(start, size);

	return err ? ERR_PTR(err) :
		     oc_seg_create(start, size, mode, &oc_owner_ops, oc_zap_run_batch);
}

/**
 * oc_revoke() - take a segment back from all holders
 * @seg: the segment, of which the caller has a reference
 *
 * No byte moves afterwards, and no attachment shows a page.
 *
 * Context: may sleep. The caller holds no lock.
 */
void oc_revoke(struct oc_seg *seg)
{
	oc_seg_die(seg, ONECOPY_STATE_REVOKED);
	oc_zap(seg, seg->start, oc_seg_end(seg));
	oc_gate_drain(&seg->gate);
}
