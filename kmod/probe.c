// SPDX-License-Identifier: GPL-2.0
/*
 * What this kernel has, found out by compiling and not by its version: distributions bring parts of
 * later kernels back. This file is never linked. probe.sh compiles it once. An error under a line
 * `#line 1 "NAME"` says that the kernel lacks what stands there; probed.h defines OC_HAVE_NAME as 1
 * or 0. So an error must concern its own function alone. Unknown names, members and types of
 * arguments do; unbalanced brackets and missing files do not. A function that two probes call is
 * written in brackets, since compilers complain of an implicit declaration once only.
 */
#include <linux/highmem.h>
#include <linux/huge_mm.h>
#include <linux/mm.h>
#include <linux/mm_types.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>

/* Every kernel has this: if it fails, nothing that follows means anything. */
#line 1 "CONTROL_YES"
unsigned long probe_control_yes(struct vm_area_struct *vma);
unsigned long probe_control_yes(struct vm_area_struct *vma)
{
	return vma->vm_start;
}

/* No kernel has this; the compiler must reject it. */
#line 1 "CONTROL_NO"
void probe_control_no(struct vm_area_struct *vma);
void probe_control_no(struct vm_area_struct *vma)
{
	onecopy_has_no_such_function(vma);
}

/* ---- flags of a VMA are changed by functions (6.3) ---- */
#line 1 "VM_FLAGS_SET"
void probe_vm_flags_set(struct vm_area_struct *vma);
void probe_vm_flags_set(struct vm_area_struct *vma)
{
	vm_flags_set(vma, VM_IO);
	vm_flags_clear(vma, VM_EXEC);
}

#line 1 "VM_FLAGS_INIT"
void probe_vm_flags_init(struct vm_area_struct *vma);
void probe_vm_flags_init(struct vm_area_struct *vma)
{
	vm_flags_init(vma, VM_IO);
}

/* ---- the name of zap_vma_ptes() since 7.1 ---- */
#line 1 "ZAP_SPECIAL_VMA_RANGE"
void probe_zap_special_vma_range(struct vm_area_struct *vma);
void probe_zap_special_vma_range(struct vm_area_struct *vma)
{
	zap_special_vma_range(vma, vma->vm_start, PAGE_SIZE);
}

/* ---- pages are taken without faulting them in (5.16) ---- */
#line 1 "FOLL_NOFAULT"
unsigned int probe_foll_nofault(void);
unsigned int probe_foll_nofault(void)
{
	return FOLL_NOFAULT;
}

/* ---- page frame numbers are numbers, no pfn_t (6.17) ---- */
#line 1 "PLAIN_PFN"
vm_fault_t probe_plain_pfn(struct vm_fault *vmf, unsigned long pfn);
vm_fault_t probe_plain_pfn(struct vm_fault *vmf, unsigned long pfn)
{
	return vmf_insert_pfn_pmd(vmf, pfn, true);
}

/* ---- the name of what may refuse to split a VMA, once `split` (5.11) ---- */
#line 1 "MAY_SPLIT"
bool probe_may_split(const struct vm_operations_struct *ops);
bool probe_may_split(const struct vm_operations_struct *ops)
{
	return ops->may_split;
}

/* ---- folios (5.16) ---- */
#line 1 "FOLIO"
void *probe_folio(struct page *page);
void *probe_folio(struct page *page)
{
	return page_folio(page)->mapping;
}

/* ---- a place for a mapping: of an address space named (6.10), of the current one (7.0) ---- */
#line 1 "MM_GET_UNMAPPED_AREA"
unsigned long probe_mm_get_unmapped_area(struct file *file);
unsigned long probe_mm_get_unmapped_area(struct file *file)
{
	return (mm_get_unmapped_area)(current->mm, file, 0, PAGE_SIZE, 0, 0);
}

#line 1 "CURRENT_GET_UNMAPPED_AREA"
unsigned long probe_current_get_unmapped_area(struct file *file);
unsigned long probe_current_get_unmapped_area(struct file *file)
{
	return (mm_get_unmapped_area)(file, 0, PAGE_SIZE, 0, 0);
}

/* ---- a fault that is done and gave its mmap lock up (6.0) ---- */
#line 1 "FAULT_COMPLETED"
vm_fault_t probe_fault_completed(void);
vm_fault_t probe_fault_completed(void)
{
	return VM_FAULT_COMPLETED;
}

/* ---- pages of others are found without a list of their VMAs (6.5) ---- */
#line 1 "PIN_REMOTE_WITHOUT_VMAS"
long probe_pin_remote(struct mm_struct *mm, struct page **pages, int *locked);
long probe_pin_remote(struct mm_struct *mm, struct page **pages, int *locked)
{
	return pin_user_pages_remote(mm, 0, 1, 0, pages, locked);
}

#line 1 "GET_REMOTE_WITHOUT_VMAS"
long probe_get_remote(struct mm_struct *mm, struct page **pages, int *locked);
long probe_get_remote(struct mm_struct *mm, struct page **pages, int *locked)
{
	return get_user_pages_remote(mm, 0, 1, 0, pages, locked);
}

/* ---- mappings of a task alone (5.11) ---- */
#line 1 "KMAP_LOCAL_PAGE"
void probe_kmap_local_page(struct page *page);
void probe_kmap_local_page(struct page *page)
{
	kunmap_local(kmap_local_page(page));
}

/* ---- faults under the lock of the VMA alone (6.4) ---- */
#line 1 "VMA_LOCK"
bool probe_vma_lock(struct vm_fault *vmf);
bool probe_vma_lock(struct vm_fault *vmf)
{
	if (!(vmf->flags & FAULT_FLAG_VMA_LOCK))
		return false;
	vma_end_read(vmf->vma);
	return true;
}
