// SPDX-License-Identifier: GPL-2.0
/* The page that tells an importer, without a system call, whether what it read was the owner's. */
#include <linux/gfp.h>

#include "core.h"

static struct onecopy_generation *oc_generation(struct oc_seg *seg)
{
	return page_address(seg->generation);
}

/**
 * oc_generation_init() - make a segment's generation page
 * @seg: a new segment
 *
 * Return: 0 or -ENOMEM.
 */
int oc_generation_init(struct oc_seg *seg)
{
	seg->generation = alloc_page(OC_GFP_SHOWN | __GFP_ZERO);
	return seg->generation ? 0 : -ENOMEM;
}

/**
 * oc_generation_free() - drop a segment's reference of its generation page
 * @seg: the segment; mappings of the page have their own references
 */
void oc_generation_free(struct oc_seg *seg)
{
	/* Mappings of it hold their own references. */
	if (seg->generation)
		put_page(seg->generation);
}

/**
 * oc_generation_hole() - count a hole, before it can be read
 * @seg: the segment
 *
 * Context: takes @seg->lock.
 */
void oc_generation_hole(struct oc_seg *seg)
{
	mutex_lock(&seg->lock);
	WRITE_ONCE(oc_generation(seg)->holes, oc_generation(seg)->holes + 1);
	mutex_unlock(&seg->lock);
}

/**
 * oc_generation_invalidated() - show how many invalidations were recorded
 * @seg: the segment
 *
 * Context: under @seg->lock, before anything is zapped.
 */
void oc_generation_invalidated(struct oc_seg *seg)
{
	WRITE_ONCE(oc_generation(seg)->invalidations, seg->seq);
}

/**
 * oc_generation_state() - show a segment's state
 * @seg: the segment
 *
 * Context: under @seg->lock, before anything is zapped.
 */
void oc_generation_state(struct oc_seg *seg)
{
	WRITE_ONCE(oc_generation(seg)->state, seg->state);
}

/**
 * oc_generation_mmap() - map the generation page to read
 * @seg: the segment
 * @vma: the new VMA
 *
 * Context: the caller's mmap lock is held for writing.
 * Return: 0, or -EINVAL: not that page, -EACCES: to write, or -ENOMEM.
 */
int oc_generation_mmap(struct oc_seg *seg, struct vm_area_struct *vma)
{
	if (vma->vm_end - vma->vm_start != PAGE_SIZE || vma->vm_pgoff != OC_GENERATION_PGOFF)
		return -EINVAL;
	if (vma->vm_flags & VM_WRITE)
		return -EACCES;
	/* Never writable later either; VM_SHARED would let a shared mapping become so. */
	vm_flags_clear(vma, VM_MAYWRITE | VM_MAYEXEC | VM_EXEC);
	/* As attachments, it is not inherited. */
	vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	/* The entry is made before the kernel computes this anew. */
	vma->vm_page_prot = vm_get_page_prot(vma->vm_flags);
	return vm_insert_page(vma, vma->vm_start, seg->generation);
}
