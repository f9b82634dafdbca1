/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions, flags and types that differ between kernels. Which of two the kernel has is found out
 * by compiling probe.c (OC_HAVE_*), or is told by its headers; never by its version. Elsewhere only
 * optional parts are asked for: main.c (page table checks) and vma.c (secret memory).
 */
#ifndef OC_COMPAT_H
#define OC_COMPAT_H

#include <linux/highmem.h>
#include <linux/huge_mm.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>

#include "probed.h"

#if !IS_ENABLED(CONFIG_MMU_NOTIFIER)
#error "onecopy needs a kernel with CONFIG_MMU_NOTIFIER"
#endif

/*
 * Other processors may have page tables that the kernel does not always map (CONFIG_HIGHPTE of
 * 32-bit ones). Or they need update_mmu_cache() for each new entry, which is not for modules.
 */
#if !IS_ENABLED(CONFIG_X86_64) && !IS_ENABLED(CONFIG_ARM64)
#error "onecopy is for x86-64 and arm64; for others look at oc_set_entry() first"
#endif

/*
 * ONECOPY_NO_HMM (make NO_HMM=1) builds the fallback on a kernel that has HMM, so that it can be
 * tested.
 */
#if IS_ENABLED(CONFIG_HMM_MIRROR) && !defined(ONECOPY_NO_HMM)
#define OC_HMM 1
#include <linux/hmm.h>
#endif

/* Memory tags, of arm64. */
#ifndef VM_MTE
#define VM_MTE VM_NONE
#endif

#if !OC_HAVE_VM_FLAGS_SET
static inline void vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/* For a VMA that is in no address space. */
static inline void oc_vm_flags_init(struct vm_area_struct *vma, unsigned long flags)
{
#if OC_HAVE_VM_FLAGS_INIT
	vm_flags_init(vma, flags);
#else
	vma->vm_flags = flags;
#endif
}

static inline void oc_zap_special(struct vm_area_struct *vma, unsigned long addr, unsigned long len)
{
#if OC_HAVE_ZAP_SPECIAL_VMA_RANGE
	zap_special_vma_range(vma, addr, len);
#else
	zap_vma_ptes(vma, addr, len);
#endif
}

#ifndef VM_SHADOW_STACK
#define VM_SHADOW_STACK 0UL
#endif

/*
 * A 2 MiB mapping of ordinary memory that get_user_pages() must refuse, fast path included. Where
 * the kernel can, such an entry is marked special; before, an entry of a device does that, since no
 * device owns the page. Where it can do neither there are no such mappings.
 */
#if IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE)
#if OC_HAVE_PLAIN_PFN
#ifdef CONFIG_ARCH_SUPPORTS_PMD_PFNMAP
#define OC_HUGE 1
static inline vm_fault_t oc_insert_pmd(struct vm_fault *vmf, unsigned long pfn, bool write)
{
	return vmf_insert_pfn_pmd(vmf, pfn, write);
}
#endif
#elif defined(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP) || defined(CONFIG_ARCH_HAS_PTE_DEVMAP)
#define OC_HUGE 1
#ifndef CONFIG_ARCH_SUPPORTS_PMD_PFNMAP
#define OC_HUGE_AS_DEVICE 1
#endif
#include <linux/pfn_t.h>
static inline vm_fault_t oc_insert_pmd(struct vm_fault *vmf, unsigned long pfn, bool write)
{
#ifdef CONFIG_ARCH_SUPPORTS_PMD_PFNMAP
	return vmf_insert_pfn_pmd(vmf, pfn_to_pfn_t(pfn), write);
#else
	return vmf_insert_pfn_pmd(vmf, __pfn_to_pfn_t(pfn, PFN_DEV | PFN_MAP), write);
#endif
}
#endif
#endif

/*
 * Whether an entry of 2 MiB may show the page, which the owner's entry maps. The huge page of
 * zeroes may not be shown: it is the one large page that belongs to nothing. Where its entry goes,
 * kernels from 7.0 on also take away a page table. Anonymous memory keeps one beside such an entry,
 * but here it would be another entry's. An entry as of a device refuses get_user_pages() only where
 * no device owns the page: memory of DAX has one.
 */
static inline bool oc_may_be_huge(unsigned long pfn)
{
#ifdef OC_HUGE_AS_DEVICE
	if (is_zone_device_page(pfn_to_page(pfn)))
		return false;
#endif
#if OC_HAVE_FOLIO
	return READ_ONCE(page_folio(pfn_to_page(pfn))->mapping);
#else
	return READ_ONCE(compound_head(pfn_to_page(pfn))->mapping);
#endif
}

/* Pages of the compound page of which this is the first; 1 for any other. */
static inline unsigned long oc_compound_pages(struct page *head)
{
#if OC_HAVE_FOLIO
	return folio_nr_pages(page_folio(head));
#else
	return compound_nr(head);
#endif
}

/*
 * Whether an entry that allows reading may come to allow storing as it stands. An x86 CPU looks at
 * the tables once more before it faults. Other CPUs may keep what they know of the entry. On arm64
 * a store would fault again and again. Kernels before 6.19 flush no TLB of an entry that
 * already allows what a fault is about. The function that would do so is not for modules.
 */
#define OC_ENTRY_MAY_GROW IS_ENABLED(CONFIG_X86)

static inline unsigned long oc_get_unmapped_area(unsigned long addr, unsigned long len,
						 unsigned long flags)
{
#if OC_HAVE_CURRENT_GET_UNMAPPED_AREA
	return mm_get_unmapped_area(NULL, addr, len, 0, flags);
#elif OC_HAVE_MM_GET_UNMAPPED_AREA
	return mm_get_unmapped_area(current->mm, NULL, addr, len, 0, flags);
#else
	return current->mm->get_unmapped_area(NULL, addr, len, 0, flags);
#endif
}

/*
 * For pages that users map with vm_insert_page(). Before 5.11 a page that was charged to a memory
 * cgroup had a page type, and such a page cannot be mapped so.
 */
#ifdef PG_kmemcg
#define OC_GFP_SHOWN GFP_KERNEL
#else
#define OC_GFP_SHOWN GFP_KERNEL_ACCOUNT
#endif

/* A fault that is done and gave its mmap lock up. */
#if OC_HAVE_FAULT_COMPLETED
#define OC_FAULT_COMPLETED VM_FAULT_COMPLETED
#else
#define OC_FAULT_COMPLETED 0
#endif

/* The operation that may refuse to have a VMA split. */
#if OC_HAVE_MAY_SPLIT
#define OC_MAY_SPLIT may_split
#else
#define OC_MAY_SPLIT split
#endif

/* Called with mm's mmap lock held for reading; *locked tells whether it still is. */
static inline long oc_pin_remote(struct mm_struct *mm, unsigned long start, unsigned long nr,
				 unsigned int flags, struct page **pages, int *locked)
{
#if OC_HAVE_PIN_REMOTE_WITHOUT_VMAS
	return pin_user_pages_remote(mm, start, nr, flags, pages, locked);
#else
	return pin_user_pages_remote(mm, start, nr, flags, pages, NULL, locked);
#endif
}

static inline long oc_get_remote(struct mm_struct *mm, unsigned long start, unsigned long nr,
				 unsigned int flags, struct page **pages, int *locked)
{
#if OC_HAVE_GET_REMOTE_WITHOUT_VMAS
	return get_user_pages_remote(mm, start, nr, flags, pages, locked);
#else
	return get_user_pages_remote(mm, start, nr, flags, pages, NULL, locked);
#endif
}

/* To take no page that would have to be faulted in; -EFAULT where the kernel has no such flag. */
static inline int oc_only_present(unsigned int *flags)
{
#if OC_HAVE_FOLL_NOFAULT
	*flags |= FOLL_NOFAULT;
	return 0;
#else
	return -EFAULT;
#endif
}

/* Not 0: killed meanwhile. */
static inline int oc_lock_page_killable(struct page *page)
{
#if OC_HAVE_FOLIO
	return folio_lock_killable(page_folio(page));
#else
	return lock_page_killable(page);
#endif
}

#if OC_HAVE_KMAP_LOCAL_PAGE
static inline void *oc_map_page(struct page *page)
{
	return kmap_local_page(page);
}

static inline void oc_unmap_page(struct page *page, void *addr)
{
	kunmap_local(addr);
}
#else
static inline void *oc_map_page(struct page *page)
{
	return kmap_atomic(page);
}

static inline void oc_unmap_page(struct page *page, void *addr)
{
	kunmap_atomic(addr);
}
#endif

/*
 * After a store of n bytes from byte `off` of the page on. They may lie in further pages of the
 * same compound one. Some CPUs (arm64) do not fetch instructions from where they store. There
 * the kernel notes that the page has to be made good before anybody runs what lies in it.
 */
static inline void oc_unmap_stored(struct page *page, void *map, unsigned long off, u64 n)
{
	unsigned long i, pages = (off + n + PAGE_SIZE - 1) >> PAGE_SHIFT;

	for (i = 0; i < pages; i++)
		flush_dcache_page(page + i);
	oc_unmap_page(page, map);
}

/*
 * A handler that needs the mmap lock was called under the lock of the VMA alone: true when the
 * fault must be retried.
 */
static inline bool oc_under_vma_lock(struct vm_fault *vmf)
{
#if OC_HAVE_VMA_LOCK
	if (vmf->flags & FAULT_FLAG_VMA_LOCK) {
		vma_end_read(vmf->vma);
		return true;
	}
#endif
	return false;
}

#endif
