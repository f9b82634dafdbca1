// SPDX-License-Identifier: GPL-2.0
/*
 * An attachment is touched. Two mmap locks are never waited for at once: the owner's is only tried.
 * With both, anonymous memory of the owner is faulted in at once, where that waits for nothing.
 * Else the fault gives up the importer's mmap lock. It has the owner's page faulted in with only
 * the owner's lock, and leaves what it found with the segment. Then it is retried. A fault that
 * finds an answer with the segment needs no lock of the owner.
 */
#include <linux/file.h>
#include <linux/hash.h>
#include <linux/moduleparam.h>
#include <linux/pgtable.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <linux/userfaultfd_k.h>

#include "core.h"
#include "inject.h"
#include "trace.h"

/*
 * No memory for the importer's side (page table, stretch, locks), unlike -ENOMEM: none for the
 * owner's page just now.
 */
#define OC_NO_IMPORTER_MEMORY (-ENOBUFS)

#define OC_LOCK_TRIES 256 /* looks at the owner's mmap lock before a fault gives up */
/*
 * and at a page that is being changed: each is a walk through all changes, under their lock. Eight
 * to sixteen are enough where waiting for it is not better anyway.
 */
#define OC_BUSY_TRIES 32

bool oc_huge = true;
module_param_named(huge, oc_huge, bool, 0644);
MODULE_PARM_DESC(huge, "Map 2 MiB at once where the source is huge (default: yes)");
static unsigned int fault_around = OC_WINDOW_PAGES;
module_param(fault_around, uint, 0644);
MODULE_PARM_DESC(fault_around, "Pages that one fault may map, rounded down to a power of two: at most 2 MiB worth, 16 without HMM (default: the most)");

static struct page *oc_hole_page; /* all zeroes, never writable */
static struct oc_marks oc_quiet;

/*
 * Four mutexes of an attachment, chosen by the address of the PMD's entry. The holder alone turns
 * an empty PMD into a table or a huge entry. Taken with the importer's mmap lock held for reading
 * and before the segment's lock. Page tables are allocated under it, and it is never taken in
 * reclaim. It is the attachment's, since a huge entry lies within one VMA. Where one may come, no
 * fault of another attachment can be about the same PMD.
 */
#define OC_INSTALL_BITS 2
struct oc_installers {
	struct mutex lock[1 << OC_INSTALL_BITS];
};

/* Of an attachment that is touched: one that never is costs less without. */
static struct oc_installers *oc_installers_of(struct oc_attachment *att)
{
	struct oc_installers *all = READ_ONCE(att->installers), *other;
	int i;

	if (all)
		return all;
	all = kmalloc(sizeof(*all), GFP_KERNEL_ACCOUNT);
	if (!all)
		return NULL;
	for (i = 0; i < ARRAY_SIZE(all->lock); i++)
		mutex_init(&all->lock[i]);
	other = cmpxchg(&att->installers, NULL, all);
	if (!other)
		return all;
	kfree(all); /* another thread was faster */
	return other;
}

/* NULL: there is no memory for it. */
static struct mutex *oc_install_lock_of(struct vm_fault *vmf)
{
	struct oc_installers *all = oc_installers_of(vmf->vma->vm_private_data);

	return all ? &all->lock[hash_long((unsigned long)vmf->pmd, OC_INSTALL_BITS)] : NULL;
}

/**
 * oc_fault_init() - make the hole page, when the module is loaded
 *
 * Return: 0 or -ENOMEM.
 */
int oc_fault_init(void)
{
	oc_marks_init(&oc_quiet);
	oc_hole_page = alloc_page(GFP_KERNEL | __GFP_ZERO);
	return oc_hole_page ? 0 : -ENOMEM;
}

/**
 * oc_fault_exit() - free the hole page, when the module is unloaded
 */
void oc_fault_exit(void)
{
	__free_page(oc_hole_page);
}

/**
 * oc_quiet_begin() - have this task's faults report errors instead of answering them
 * @q: gets the error, on the caller's stack; stays until oc_quiet_end()
 */
void oc_quiet_begin(struct oc_quiet *q)
{
	q->err = 0;
	oc_mark_set(&oc_quiet, &q->mark);
}

/**
 * oc_quiet_end() - let this task's faults answer errors again
 * @q: what oc_quiet_begin() was given
 *
 * Return: 0, or what a fault found wrong.
 */
int oc_quiet_end(struct oc_quiet *q)
{
	oc_mark_clear(&oc_quiet, &q->mark);
	return q->err;
}

/**
 * oc_is_hole_pfn() - whether a page stands for a hole
 * @att: the attachment in which it is mapped
 * @pfn: its number
 *
 * Return: true if it is the hole page, or the scratch page of @att.
 */
bool oc_is_hole_pfn(const struct oc_attachment *att, unsigned long pfn)
{
	struct page *scratch = READ_ONCE(att->scratch);

	return pfn == page_to_pfn(oc_hole_page) || (scratch && pfn == page_to_pfn(scratch));
}

/**
 * oc_window_bytes() - what one fault may map
 *
 * Return: bytes, a power of two.
 */
unsigned long oc_window_bytes(void)
{
	unsigned long pages = clamp_t(unsigned long, READ_ONCE(fault_around), 1, OC_WINDOW_MAX);

	return rounddown_pow_of_two(pages) * PAGE_SIZE;
}

/**
 * oc_window_of() - the window around a page of an attachment
 * @vma: a VMA of the attachment
 * @addr: the page
 * @seg: the segment
 * @owner: the owner's page there
 * @w: gets the window
 */
void oc_window_of(const struct vm_area_struct *vma, unsigned long addr, struct oc_seg *seg,
		  unsigned long owner, struct oc_window *w)
{
	oc_window_around(w, addr, owner, vma->vm_start, vma->vm_end, seg->start, oc_seg_end(seg),
			 oc_window_bytes());
}

/* To what has to be looked at: a part of it is known. */
static void oc_window_narrow(struct oc_window *w, struct oc_seg *seg, struct oc_want *want)
{
	unsigned long start = w->at, end = w->at + (w->hi - w->lo);

	oc_snap_gap(seg, want, &start, &end);
	w->lo += start - w->at;
	w->hi = w->lo + (end - start);
	w->at = start;
}

/* ---- page table entries ---- */
struct oc_fill {
	struct vm_area_struct *vma;
	struct oc_snap *snap;
	unsigned long lo; /* importer's address of ... */
	unsigned long at; /* ... this one of the owner */
	unsigned long target;
	pgprot_t rw;
	pgprot_t ro;
	bool writable;
	unsigned int filled;
	bool conflict; /* what is mapped at the target has to go first */
};

static int oc_no_entry(pte_t *ptep, unsigned long addr, void *data)
{
	return 0;
}

/*
 * The importer's entry has a dirty bit that the kernel ignores: the page counts as dirty from the
 * moment that it may be written.
 */
static void oc_dirty(unsigned long pfn)
{
	struct page *page = pfn_to_page(pfn);

	if (!PageDirty(page))
		set_page_dirty(page);
}

static bool oc_set_entry(struct oc_fill *f, pte_t *ptep, unsigned long addr, unsigned long pfn,
			 bool write)
{
	pte_t old = ptep_get(ptep), pte;

	if (pte_present(old)) {
		if (pte_pfn(old) != pfn) {
			f->conflict |= addr == f->target;
			return false;
		}
		if (!write || pte_write(old))
			return false;
		if (!OC_ENTRY_MAY_GROW) {
			f->conflict |= addr == f->target;
			return false;
		}
	} else if (!pte_none(old)) {
		return false;
	}
	pte = pte_mkspecial(pte_mkyoung(pfn_pte(pfn, write ? f->rw : f->ro)));
	if (write)
		pte = pte_mkdirty(pte);
	/* No update_mmu_cache(): it does nothing on the processors that compat.h lets in. */
	set_pte_at(f->vma->vm_mm, addr, ptep, pte);
	f->filled++;
	return true;
}

static int oc_fill_entry(pte_t *ptep, unsigned long addr, void *data)
{
	struct oc_fill *f = data;
	unsigned long e = f->snap->entry[oc_snap_index(f->snap, f->at + (addr - f->lo))];
	bool write = f->writable && (e & OC_E_WRITE);

	if (!(e & OC_E_VALID))
		return 0;
	if (!oc_set_entry(f, ptep, addr, oc_entry_pfn(e), write))
		return 0;
	if (write)
		oc_dirty(oc_entry_pfn(e));
	/*
	 * The kernel ignores its accessed bit, too: reclaim would take what only importers use.
	 * Later use is not seen, nor that of the pages around it.
	 */
	if (addr == f->target)
		mark_page_accessed(pfn_to_page(oc_entry_pfn(e)));
	return 0;
}

struct oc_hole_fill {
	struct oc_fill fill;
	unsigned long pfn;
	bool write;
};

static int oc_fill_hole(pte_t *ptep, unsigned long addr, void *data)
{
	struct oc_hole_fill *h = data;

	oc_set_entry(&h->fill, ptep, addr, h->pfn, h->write);
	return 0;
}

static void oc_fill_init(struct oc_fill *f, struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;

	*f = (struct oc_fill){
		.vma = vma,
		.target = vmf->address & PAGE_MASK,
		/* vma->vm_page_prot never allows writing here, since the VMA has pfn_mkwrite(). */
		.rw = vm_get_page_prot(vma->vm_flags),
		.ro = vm_get_page_prot(vma->vm_flags & ~VM_SHARED),
		.writable = vma->vm_flags & VM_WRITE,
	};
}

/* ---- verdicts: what a task learned without its own mmap lock ---- */
static void oc_verdict_leave(struct oc_seg *seg, unsigned long page, int err)
{
	mutex_lock(&seg->lock);
	seg->verdict[seg->verdict_hand] = (struct oc_verdict){
		.pid = current->pid,
		.born = current->start_time,
		.page = page,
		.err = err,
	};
	seg->verdict_hand = (seg->verdict_hand + 1) % OC_VERDICTS;
	mutex_unlock(&seg->lock);
}

/*
 * Answered only to the fault that is retried (`again`). A handler of a signal may have kept that
 * from coming: what is found by another fault is of another time, and forgotten.
 */
static int oc_verdict_take(struct oc_seg *seg, unsigned long page, bool again)
{
	int i, err;

	for (i = 0; i < OC_VERDICTS; i++) {
		struct oc_verdict *v = &seg->verdict[i];

		if (v->err && v->page == page && v->pid == current->pid &&
		    v->born == current->start_time) {
			err = v->err;
			v->err = 0;
			return again ? err : 0;
		}
	}
	return 0;
}

/* ---- installing ---- */
/* What has to be done, without the segment's lock, before the window can be looked at again. */
enum oc_install_next {
	OC_INSTALL_OVER, /* nothing: the error says how it went */
	OC_INSTALL_STRETCH, /* make a stretch, which will say what is mapped */
	OC_INSTALL_TABLE, /* make a page table */
	OC_INSTALL_ZAP, /* zap what is mapped at the target */
};

/* A fault that maps what a snapshot knows. */
struct oc_install {
	struct vm_fault *vmf;
	struct oc_seg *seg;
	struct oc_window w;
	unsigned long owner;
	struct oc_snap *fresh; /* a snapshot that the segment is to have */
	struct oc_snap *old; /* what it had in its place */
	struct oc_stretch *stretch;
	struct oc_fill fill;
	bool huge; /* mapped at once */
	int err;
};

static bool oc_install_writes(const struct oc_install *in)
{
	return in->vmf->flags & FAULT_FLAG_WRITE;
}

/* The segment's snapshot of the window, if it knows enough. Else the error says why not. */
static struct oc_snap *oc_install_snap(struct oc_install *in)
{
	struct oc_seg *seg = in->seg;
	struct oc_snap *snap;

	in->err = oc_seg_error(seg);
	if (!in->err)
		in->err = oc_verdict_take(seg, in->owner, in->vmf->flags & FAULT_FLAG_TRIED);
	if (in->err)
		return NULL;
	if (in->fresh) {
		in->old = oc_snap_store(seg, in->fresh);
		in->fresh = NULL;
	}
	snap = oc_snap_cached(seg, in->owner, oc_install_writes(in));
	if (snap && !oc_inject(OC_INJECT_RETRY))
		return snap;
	in->err = -EAGAIN;
	return NULL;
}

/* To the part of the window that the snapshot covers. */
static void oc_window_clip(struct oc_window *w, const struct oc_snap *snap)
{
	if (w->at < snap->start) {
		w->lo += snap->start - w->at;
		w->at = snap->start;
	}
	w->hi = min(w->hi, w->lo + (oc_snap_end(snap) - w->at));
}

/* Maps the window by one huge entry, if it is one huge piece. Says whether it is. */
static bool oc_install_huge(struct oc_install *in, struct oc_snap *snap)
{
#ifdef OC_HUGE
	const struct oc_window *w = &in->w;
	unsigned long e = snap->entry[oc_snap_index(snap, w->at)];
	bool writable = in->fill.writable && (e & OC_E_WRITE);

	if (!READ_ONCE(oc_huge) || arch_needs_pgtable_deposit() || (w->lo & ~PMD_MASK) ||
	    w->hi - w->lo != PMD_SIZE || !snap->huge ||
	    !oc_may_be_huge(oc_entry_pfn(e)) || oc_is_walked(in->vmf->vma, w->lo, w->hi))
		return false;
	if (writable)
		oc_dirty(oc_entry_pfn(e));
	in->err = 0;
	if (oc_insert_pmd(in->vmf, oc_entry_pfn(e), writable) & VM_FAULT_ERROR) {
		in->err = OC_NO_IMPORTER_MEMORY;
	} else {
		in->huge = true;
		mark_page_accessed(pfn_to_page(oc_entry_pfn(e)));
	}
	return true;
#else
	return false;
#endif
}

/* With the segment's lock: maps what can be mapped now, and says what is missing. */
static enum oc_install_next oc_install_look(struct oc_install *in)
{
	struct vm_area_struct *vma = in->vmf->vma;
	struct oc_snap *snap = oc_install_snap(in);
	struct oc_fill *f = &in->fill;
	pmd_t pmd;

	if (!snap)
		return OC_INSTALL_OVER;
	if (!oc_stretch_enter(vma, f->target, &in->stretch))
		return OC_INSTALL_STRETCH;
	oc_window_clip(&in->w, snap);
	pmd = READ_ONCE(*in->vmf->pmd);
	if (pmd_none(pmd))
		return oc_install_huge(in, snap) ? OC_INSTALL_OVER : OC_INSTALL_TABLE;
	in->err = 0;
	if (pmd_leaf(pmd))
		/* another thread was faster; should it not suffice, the fault comes again */
		return OC_INSTALL_OVER;
	f->snap = snap;
	f->lo = in->w.lo;
	f->at = in->w.at;
	f->conflict = false;
	apply_to_page_range(vma->vm_mm, f->lo, in->w.hi - f->lo, oc_fill_entry, f);
	return f->conflict ? OC_INSTALL_ZAP : OC_INSTALL_OVER;
}

/* What is missing is made, without the segment's lock since it allocates, or looks at mappings. */
static int oc_install_prepare(struct oc_install *in, enum oc_install_next next)
{
	switch (next) {
	case OC_INSTALL_STRETCH:
		in->stretch = oc_stretch_alloc();
		return in->stretch ? 0 : OC_NO_IMPORTER_MEMORY;
	case OC_INSTALL_TABLE:
		return apply_to_page_range(in->vmf->vma->vm_mm, in->fill.target, PAGE_SIZE,
					   oc_no_entry, NULL) ? OC_NO_IMPORTER_MEMORY : 0;
	case OC_INSTALL_ZAP:
		/*
		 * The hole page stood for a hole that has been filled since, or the page may be
		 * written since: see OC_ENTRY_MAY_GROW.
		 */
		oc_zap(in->seg, in->owner, in->owner + PAGE_SIZE);
		return 0;
	default:
		return 0;
	}
}

/*
 * Map what a snapshot knows of the window. The snapshot is the given one, which then belongs to the
 * segment or is freed, or one that the segment has. Returns 0: the page is mapped. -EAGAIN: too
 * little is known. -EINTR: killed. OC_NO_IMPORTER_MEMORY. Another error: there is no such page.
 */
static int oc_install(struct vm_fault *vmf, struct oc_seg *seg, struct oc_window w,
		      unsigned long owner, struct oc_snap *fresh)
{
	struct oc_install in = {
		.vmf = vmf,
		.seg = seg,
		.w = w,
		.owner = owner,
		.fresh = fresh,
	};
	struct mutex *install = oc_install_lock_of(vmf);
	enum oc_install_next next;

	if (!install || mutex_lock_killable(install)) {
		oc_snap_free(fresh);
		return install ? -EINTR : OC_NO_IMPORTER_MEMORY;
	}
	oc_fill_init(&in.fill, vmf);
	do {
		mutex_lock(&seg->lock);
		next = oc_install_look(&in);
		mutex_unlock(&seg->lock);
		if (next != OC_INSTALL_OVER) {
			in.err = oc_install_prepare(&in, next);
			if (in.err)
				break;
		}
	} while (next != OC_INSTALL_OVER);
	oc_count(OC_MAPPED_SMALL, in.fill.filled);
	oc_count(OC_MAPPED_HUGE, in.huge);
	mutex_unlock(install);
	kfree(in.stretch);
	oc_snap_free(in.fresh);
	oc_snap_free(in.old);
	trace_onecopy_fault(seg, vmf->address, owner, oc_install_writes(&in),
			    in.fill.filled + (in.huge ? OC_WINDOW_PAGES : 0), in.err,
			    pid_nr(seg->owner));
	return in.err;
}

/* Gives up our mmap lock; nothing of the VMA may be used afterwards. */
static vm_fault_t oc_fault_anew(struct vm_fault *vmf)
{
	if (!(vmf->flags & FAULT_FLAG_RETRY_NOWAIT))
		mmap_read_unlock(vmf->vma->vm_mm);
	return VM_FAULT_RETRY;
}

/* A wait was ended by a kill, which comes first. */
static vm_fault_t oc_fault_killed(struct vm_fault *vmf)
{
	return vmf->flags & FAULT_FLAG_ALLOW_RETRY ? oc_fault_anew(vmf) : VM_FAULT_SIGBUS;
}

/*
 * What is stored to holes goes into one page of the attachment, so that no other attachment shows
 * it. The importer itself may see it, as it may see zeroes where the owner has filled a hole since.
 */
static struct page *oc_scratch(struct oc_attachment *att)
{
	struct page *page = READ_ONCE(att->scratch), *other;

	if (page)
		return page;
	page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!page)
		return NULL;
	other = cmpxchg(&att->scratch, NULL, page);
	if (!other)
		return page;
	__free_page(page); /* another thread was faster */
	return other;
}

/*
 * Map a page that is not the owner's at the faulting address, with the attachment's lock of the
 * PMD held. What is mapped there instead goes first.
 */
static vm_fault_t oc_hole_install(struct vm_fault *vmf, struct oc_seg *seg, unsigned long owner,
				  struct oc_hole_fill *h)
{
	struct oc_stretch *stretch = NULL;
	vm_fault_t ret = VM_FAULT_NOPAGE;

	for (;;) {
		pmd_t pmd = READ_ONCE(*vmf->pmd);

		if (!pmd_none(pmd) && pmd_leaf(pmd))
			break;
		h->fill.conflict = false;
		if (!stretch)
			stretch = oc_stretch_alloc();
		/* Allocates, hence without the segment's lock. */
		if (!stretch || apply_to_page_range(vmf->vma->vm_mm, h->fill.target, PAGE_SIZE,
						    oc_no_entry, NULL)) {
			ret = VM_FAULT_OOM;
			break;
		}
		mutex_lock(&seg->lock);
		if (oc_stretch_enter(vmf->vma, h->fill.target, &stretch))
			apply_to_page_range(vmf->vma->vm_mm, h->fill.target, PAGE_SIZE,
					    oc_fill_hole, h);
		mutex_unlock(&seg->lock);
		if (!h->fill.conflict)
			break;
		oc_zap(seg, owner, owner + PAGE_SIZE);
	}
	kfree(stretch);
	return ret;
}

/* Map the hole page to read, or the attachment's scratch page to write. */
static vm_fault_t oc_hole_map(struct vm_fault *vmf, struct oc_seg *seg, unsigned long owner)
{
	bool write = vmf->flags & FAULT_FLAG_WRITE;
	struct mutex *install = oc_install_lock_of(vmf);
	struct page *page = oc_hole_page;
	struct oc_hole_fill h;
	vm_fault_t ret;

	oc_fill_init(&h.fill, vmf);
	h.write = write;
	if (write)
		page = oc_scratch(vmf->vma->vm_private_data);
	if (!page || !install)
		return VM_FAULT_OOM;
	h.pfn = page_to_pfn(page);
	if (mutex_lock_killable(install))
		return oc_fault_killed(vmf);
	if (write)
		memset(page_address(page), 0, PAGE_SIZE);
	ret = oc_hole_install(vmf, seg, owner, &h);
	mutex_unlock(install);
	return ret;
}

/* There is no memory of the owner behind the page, or it may not be used so. */
static vm_fault_t oc_hole(struct vm_fault *vmf, struct oc_view *view, unsigned long owner, int err)
{
	struct oc_mark *mark = oc_mark_find(&oc_quiet);

	if (mark) {
		container_of(mark, struct oc_quiet, mark)->err = err;
		return VM_FAULT_SIGBUS;
	}
	oc_count(OC_HOLES, 1);
	if (!view->nosignal)
		return err == -EPERM ? VM_FAULT_SIGSEGV : VM_FAULT_SIGBUS;
	oc_generation_hole(view->seg);
	return oc_hole_map(vmf, view->seg, owner);
}

/*
 * Most changes of mappings take some microseconds: not so long as to sleep and retry. Tried, never
 * waited for, and no longer than another task might want this CPU.
 */
static bool oc_try_owner(struct mm_struct *mm)
{
	int i;

	for (i = 0; i < OC_LOCK_TRIES; i++) {
		if (mmap_read_trylock(mm))
			return true;
		if (need_resched())
			break;
		cpu_relax();
	}
	return false;
}

/* Most changes of the page itself do not take longer either. */
static int oc_snap_try(struct oc_seg *seg, struct oc_snap *snap, const struct oc_want *want)
{
	int i, err;

	for (i = 0; i < OC_BUSY_TRIES; i++) {
		err = oc_snap_take(seg, snap, want->page, want->write, false);
		if (err != -EBUSY || need_resched())
			break;
		cpu_relax();
	}
	return err;
}

/* The page, and what was there behind it. */
static bool oc_snap_all(const struct oc_snap *snap, const struct oc_want *want)
{
	unsigned long page = want->page, last = min(want->lost, oc_snap_end(snap));

	do {
		if (!oc_snap_suffices(snap, page, want->write))
			return false;
		page += PAGE_SIZE;
	} while (page < last);
	return true;
}

/*
 * The owner's tables under both mmap locks, if its can be had without waiting. NULL with *err 0:
 * not to be had.
 */
static struct oc_snap *oc_look(struct oc_seg *seg, struct vm_fault *vmf, const struct oc_window *w,
			       const struct oc_want *want, int *err)
{
	struct mm_struct *mm = seg->mm;
	bool same = mm == vmf->vma->vm_mm;
	struct oc_snap *snap = NULL;

	*err = 0;
	if (!mmget_not_zero(mm)) {
		*err = -ESRCH;
		return NULL;
	}
	if (!same && (oc_inject(OC_INJECT_OWNER_LOCK) || !oc_try_owner(mm)))
		goto put;
	*err = oc_owner_vma_check(mm, want->page, want->write);
	if (!*err) {
		snap = oc_snap_alloc(w->at, w->at + (w->hi - w->lo), OC_GFP_SNAP);
		if (!snap)
			snap = oc_snap_alloc(want->page, want->page + PAGE_SIZE, GFP_KERNEL);
		if (snap)
			*err = oc_snap_try(seg, snap, want);
		if (snap && !*err)
			oc_refill_seen(seg, snap, want);
		/*
		 * What only needs the owner's kernel is done at once, as a fault of one's own is;
		 * whatever has to be waited for is not.
		 */
		if (snap && !*err && !oc_snap_all(snap, want) &&
		    vma_is_anonymous(find_vma(mm, want->page)))
			*err = oc_populate(seg, snap, want, NULL);
		if (*err) {
			oc_snap_free(snap);
			snap = NULL;
		}
	}
	if (!same)
		mmap_read_unlock(mm);
put:
	/* Not mmput(): the last user's exit would unmap the owner's memory under our mmap lock. */
	mmput_async(mm);
	return snap;
}

/* Can this VMA have entries at the faulting address at all? */
static bool oc_fault_possible(const struct vm_fault *vmf, const struct oc_seg *seg)
{
	/* Never outside: mmap() checked it, and such a VMA cannot grow or move. */
	if (!oc_seg_has(seg, vmf->pgoff << PAGE_SHIFT))
		return false;
	/*
	 * Some kernels from 6.7 on let userfaultfd write-protect such a VMA. Its markers stand
	 * where entries should, and its page tables come without our locks.
	 */
	return !userfaultfd_armed(vmf->vma);
}

/*
 * Map what the segment's snapshots know of the window. If that is too little, look at the owner's
 * tables, and map what these say. The window and `want` are left as they were looked at. Returns
 * what oc_install() does, or why the tables cannot be looked at.
 */
static int oc_fault_map(struct vm_fault *vmf, struct oc_seg *seg, struct oc_window *w,
			struct oc_want *want)
{
	int err = oc_install(vmf, seg, *w, want->page, NULL);
	struct oc_snap *snap;

	if (err != -EAGAIN)
		return err;
	oc_window_narrow(w, seg, want);
	snap = oc_look(seg, vmf, w, want, &err);
	if (snap)
		return oc_install(vmf, seg, *w, want->page, snap);
	return err ?: -EAGAIN;
}

/*
 * Have the owner's pages faulted in, and leave what that finds with the segment. The caller holds
 * no mmap lock. `err` says why the fault could not be answered.
 */
static void oc_fault_resolve(struct oc_seg *seg, const struct oc_window *w,
			     const struct oc_want *want, int err)
{
	/*
	 * Not asked for twice in a fault: a memory cgroup of version 1 whose OOM killer is off
	 * notes only one such charge that failed.
	 */
	if (err != -ENOMEM)
		err = oc_resolve(seg, w->at, w->at + (w->hi - w->lo), want);
	if (err == -ENOMEM)
		schedule_timeout_killable(1);
	else if (err && err != -EINTR)
		oc_verdict_leave(seg, want->page, err);
}

/* Gives up the importer's mmap lock and resolves what the fault lacks, so that it comes again. */
static vm_fault_t oc_fault_retry(struct vm_fault *vmf, struct oc_seg *seg,
				 const struct oc_window *w, const struct oc_want *want, int err)
{
	struct file *file;
	vm_fault_t ret;

	oc_count(OC_RETRIES, 1);
	if (!(vmf->flags & FAULT_FLAG_ALLOW_RETRY))
		/*
		 * Only callers within the kernel who cannot wait. Most cannot use such a mapping
		 * anyway; stores of the kernel to private futexes can, and answer EFAULT.
		 */
		return VM_FAULT_SIGBUS;
	if (vmf->flags & FAULT_FLAG_RETRY_NOWAIT)
		return VM_FAULT_RETRY;
	/* Keeps the segment, and the module, while the VMA may go. */
	file = get_file(vmf->vma->vm_file);
	ret = oc_fault_anew(vmf);
	oc_fault_resolve(seg, w, want, err);
	fput(file);
	return ret;
}

static vm_fault_t oc_fault(struct vm_fault *vmf)
{
	struct oc_view *view = vmf->vma->vm_file->private_data;
	struct oc_want want = {
		.page = vmf->pgoff << PAGE_SHIFT,
		.write = vmf->flags & FAULT_FLAG_WRITE,
	};
	struct oc_seg *seg = view->seg;
	struct oc_window w;
	int err;

	if (oc_under_vma_lock(vmf))
		return VM_FAULT_RETRY;
	oc_count(OC_FAULTS, 1);
	if (!oc_fault_possible(vmf, seg))
		return VM_FAULT_SIGBUS;
	oc_window_of(vmf->vma, vmf->address & PAGE_MASK, seg, want.page, &w);
	err = oc_fault_map(vmf, seg, &w, &want);
	switch (err) {
	case 0:
		return VM_FAULT_NOPAGE;
	case OC_NO_IMPORTER_MEMORY:
		return VM_FAULT_OOM;
	case -ENOMEM: /* none for the owner's page, which may be had once there is memory */
	case -EBUSY: /* the owner changes it just now */
	case -EAGAIN:
		return oc_fault_retry(vmf, seg, &w, &want, err);
	case -EINTR:
		return oc_fault_killed(vmf);
	default:
		return oc_hole(vmf, view, want.page, err);
	}
}

/*
 * A store to a page that is mapped to read. The caller does not expect VM_FAULT_RETRY alone and
 * would go on without the lock.
 */
static vm_fault_t oc_mkwrite(struct vm_fault *vmf)
{
	vm_fault_t ret = oc_fault(vmf);

	return ret & VM_FAULT_RETRY ? ret | VM_FAULT_NOPAGE : ret;
}

const struct vm_operations_struct oc_vm_ops = {
	.OC_MAY_SPLIT = oc_attachment_may_split,
	.open = oc_attachment_open,
	.close = oc_attachment_close,
	.fault = oc_fault,
	.pfn_mkwrite = oc_mkwrite,
	.access = oc_access,
	.mremap = oc_vma_stays,
};
