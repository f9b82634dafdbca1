// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: pinned memory that others name by a cookie. The pins count against RLIMIT_MEMLOCK of the
 * owner's user, as those of io_uring do, and end with the owner's address space.
 */
#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/rculist.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/user_namespace.h>

#include "inject.h"
#include "knem.h"
#include "show.h"

static DEFINE_HASHTABLE(oc_regions, 12);
static DEFINE_SPINLOCK(oc_regions_lock); /* of changes; look-ups are under RCU */

static struct oc_listing oc_region_list = OC_LISTING_INIT; /* all of them; the same lock */

#define OC_PIN_BATCH OC_PAGES_IN((unsigned long)SZ_2M, PAGE_SIZE)

/* Within the limit of the user that is charged, if any is. */
static int oc_account_more(struct oc_region *r, unsigned long pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (r->account) {
		atomic_long_t *locked = &r->account->user->locked_vm;

		if (atomic_long_add_return(pages, locked) > limit) {
			atomic_long_sub(pages, locked);
			return -ENOMEM;
		}
	}
	atomic64_add(pages, &r->mm->pinned_vm);
	r->pinned += pages;
	atomic_long_add(pages, &oc_pinned_pages);
	return 0;
}

static int oc_account(struct oc_region *r, unsigned long pages)
{
	/*
	 * More than there is, or than one array of pages can name: not even for a user without a
	 * limit.
	 */
	if (pages > totalram_pages() || pages > INT_MAX / sizeof(struct page *))
		return -ENOMEM;
	if (!capable(CAP_IPC_LOCK))
		r->account = get_current_cred(); /* and with it the user */
	return oc_account_more(r, pages);
}

/* What has been pinned of a region so far. */
struct oc_pinning {
	struct oc_region *region;
	struct page *last; /* the head of the last page */
	unsigned long held; /* pages, with those that are kept by them */
};

/*
 * A pinned page keeps all of the compound page that it is of, so that counts, as for io_uring.
 * Parts that follow one another count once. Counted before anything is waited for.
 */
static int oc_account_compound(struct oc_pinning *p, struct page **pages, unsigned long n)
{
	struct oc_region *r = p->region;
	unsigned long i;

	for (i = 0; i < n; i++) {
		struct page *head = compound_head(pages[i]);

		if (head != p->last)
			p->held += oc_compound_pages(head);
		p->last = head;
	}
	return p->held > r->pinned ? oc_account_more(r, p->held - r->pinned) : 0;
}

static void oc_pinner_put(struct oc_pinner *pinner)
{
	bool last;

	spin_lock(&oc_regions_lock);
	last = !--pinner->users;
	spin_unlock(&oc_regions_lock);
	if (last)
		mmu_notifier_put(&pinner->notifier);
}

/* ---- the end of a region ---- */
static void oc_region_free(struct kref *held)
{
	struct oc_region *r = container_of(held, struct oc_region, held);

	spin_lock(&oc_regions_lock);
	oc_listing_del(&oc_region_list, &r->listed);
	if (r->pinner)
		list_del(&r->pinned_by);
	spin_unlock(&oc_regions_lock);
	if (r->pinner)
		oc_pinner_put(r->pinner);
	put_user_ns(r->ns);
	put_pid(r->creator);
	kvfree(r->piece);
	kvfree(r->iov);
	oc_uncharge(r->user, OC_REGIONS);
	kfree_rcu(r, rcu);
}

/**
 * oc_region_drop() - let go of a region's structure
 * @region: the region, held by oc_region_next()
 */
void oc_region_drop(struct oc_region *region)
{
	kref_put(&region->held, oc_region_free);
}

/* Nothing is pinned any more: nor do pages count, or take arrays. */
static void oc_region_uncharge(struct oc_region *r)
{
	u32 i;

	for (i = 0; r->piece && i < r->n; i++)
		kvfree(r->piece[i].pages);
	if (r->pinned) {
		atomic64_sub(r->pinned, &r->mm->pinned_vm);
		atomic_long_sub(r->pinned, &oc_pinned_pages);
	}
	if (r->account) {
		atomic_long_sub(r->pinned, &r->account->user->locked_vm);
		put_cred(r->account);
	}
	WRITE_ONCE(r->unpinned, true);
}

/* False: another task has the lock of a page that others stored to. */
static bool oc_region_unpin(struct oc_region *r)
{
	unsigned long left = 0;
	u32 i;

	for (i = 0; r->piece && i < r->n; i++) {
		struct oc_piece *p = &r->piece[i];

		p->n = oc_unpin_some(p->pages, p->n, r->write);
		left += p->n;
		cond_resched();
	}
	return !left;
}

static bool oc_region_unpin_later(struct oc_deferred *d)
{
	struct oc_region *r = container_of(d, struct oc_region, deferred);

	if (!oc_region_unpin(r))
		return false;
	oc_region_uncharge(r);
	oc_region_drop(r);
	return true;
}

/* No task enters its gate any more. False: another task ends it. */
static bool oc_region_close(struct oc_region *r)
{
	bool first;

	spin_lock(&oc_regions_lock);
	first = !r->ended;
	WRITE_ONCE(r->ended, true);
	spin_unlock(&oc_regions_lock);
	if (first)
		oc_gate_close(&r->gate);
	return first;
}

/* Unpins a closed region when no task is within any more. The caller has a reference. */
static void oc_region_finish(struct oc_region *r)
{
	bool unpinned;

	oc_gate_drain(&r->gate);
	/*
	 * A file system may hold the lock of a page for as long as its server likes. It is not
	 * waited for here. An exit would hold up all tasks that end a notifier, and the other side
	 * may not hold up a task that destroys the region.
	 */
	unpinned = oc_region_unpin(r);
	if (unpinned)
		oc_region_uncharge(r);
	complete_all(&r->over);
	if (unpinned)
		oc_region_drop(r);
	else
		oc_deferred_begin(&r->deferred, oc_region_unpin_later);
}

/* Another task may have begun the end. A caller that needs all bytes at rest waits for `over`. */
static void oc_region_end(struct oc_region *r)
{
	if (oc_region_close(r))
		oc_region_finish(r);
}

/* Under the lock. True: the caller has the reference of being published then. */
static bool oc_region_unpublish(struct oc_region *region)
{
	bool published = region->published;

	lockdep_assert_held(&oc_regions_lock);
	region->published = false;
	if (!hlist_unhashed(&region->node)) {
		hlist_del_init_rcu(&region->node);
		list_del_init(&region->link);
		region->file->n--;
		region->file->pinned -= region->pinned;
	}
	return published;
}

/**
 * oc_region_put() - drop a reference of a region; the last one ends it
 * @region: the region
 *
 * Context: may sleep until no byte of the region moves, as oc_gate_drain().
 */
void oc_region_put(struct oc_region *region)
{
	if (!refcount_dec_and_test(&region->users))
		return;
	spin_lock(&oc_regions_lock);
	oc_region_unpublish(region);
	spin_unlock(&oc_regions_lock);
	oc_region_end(region);
	oc_region_drop(region);
}

/* ---- whose memory it is ---- */
static struct mmu_notifier *oc_pinner_alloc(struct mm_struct *mm)
{
	struct oc_pinner *pinner = kzalloc(sizeof(*pinner), GFP_KERNEL_ACCOUNT);

	if (!pinner)
		return ERR_PTR(-ENOMEM);
	INIT_LIST_HEAD(&pinner->regions);
	oc_notifier_born();
	return &pinner->notifier;
}

static void oc_pinner_free(struct mmu_notifier *notifier)
{
	kfree(container_of(notifier, struct oc_pinner, notifier));
	oc_notifier_freed();
}

/* The address space ends. What still copies to or from a region stops soon. */
static void oc_pinner_release(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	struct oc_pinner *pinner = container_of(notifier, struct oc_pinner, notifier);
	bool published, mine;
	struct oc_region *r;

	do {
		published = false;
		mine = false;
		spin_lock(&oc_regions_lock);
		r = list_first_entry_or_null(&pinner->regions, struct oc_region, pinned_by);
		if (r) {
			list_del_init(&r->pinned_by);
			mine = refcount_inc_not_zero(&r->users);
			published = oc_region_unpublish(r);
		}
		spin_unlock(&oc_regions_lock);
		/* Else the task that put the last reference does that. No wait for `over` here. */
		if (mine)
			oc_region_end(r);
		if (published)
			oc_region_put(r);
		if (mine)
			oc_region_put(r);
	} while (r);
}

static const struct mmu_notifier_ops oc_pinner_ops = {
	.alloc_notifier = oc_pinner_alloc,
	.free_notifier = oc_pinner_free,
	.release = oc_pinner_release,
};

static void oc_region_join(struct oc_region *r, struct oc_pinner *pinner)
{
	lockdep_assert_held(&oc_regions_lock);
	pinner->users++;
	r->pinner = pinner;
	r->mm = pinner->notifier.mm;
	list_add(&r->pinned_by, &pinner->regions);
}

/* The address space that made the last region of a file makes another one. */
static bool oc_region_own_again(struct oc_region *r, struct oc_pinner **kept)
{
	bool same;

	spin_lock(&oc_regions_lock);
	same = *kept && (*kept)->notifier.mm == current->mm;
	if (same)
		oc_region_join(r, *kept);
	spin_unlock(&oc_regions_lock);
	return same;
}

/*
 * The kernel looks for a notifier, and registers one, with the mmap lock held for writing, which
 * keeps all faults of the process waiting. So a file keeps what it found.
 */
static int oc_region_own(struct oc_region *r, struct oc_pinner **kept)
{
	struct oc_pinner *pinner, *old = NULL;
	struct mm_struct *mm = current->mm;
	struct mmu_notifier *notifier;
	bool surplus;

	if (oc_region_own_again(r, kept))
		return 0;
	/* Not mmu_notifier_get(): that waits for the lock in a way that no kill ends. */
	if (mmap_write_lock_killable(mm))
		return -EINTR;
	notifier = mmu_notifier_get_locked(&oc_pinner_ops, mm);
	mmap_write_unlock(mm);
	if (IS_ERR(notifier)) /* any signal interrupts the first one; nothing was done */
		return PTR_ERR(notifier) == -EINTR ? -ERESTARTNOINTR : PTR_ERR(notifier);
	pinner = container_of(notifier, struct oc_pinner, notifier);
	spin_lock(&oc_regions_lock);
	/* All users together have one reference of the notifier. */
	surplus = pinner->users;
	oc_region_join(r, pinner);
	if (*kept != pinner) {
		old = *kept;
		*kept = pinner;
		pinner->users++;
	}
	spin_unlock(&oc_regions_lock);
	if (surplus)
		mmu_notifier_put(notifier);
	if (old)
		oc_pinner_put(old);
	return 0;
}

/**
 * oc_pinner_forget() - a file ends, and keeps no pinner any more
 * @kept: where the file kept it
 */
void oc_pinner_forget(struct oc_pinner **kept)
{
	if (*kept)
		oc_pinner_put(*kept);
}

/* Pages at addr up to `max`, of one mapping, and how to pin them for long: -errno or flags. */
static int oc_pin_flags(unsigned long addr, unsigned long *max, bool write)
{
	struct vm_area_struct *vma;
	int flags = FOLL_LONGTERM | (write ? FOLL_WRITE : 0);

	if (mmap_read_lock_killable(current->mm))
		return -EINTR;
	vma = find_vma(current->mm, addr);
	if (!vma || vma->vm_start > addr) {
		flags = -EFAULT;
	} else {
		*max = min(*max, (vma->vm_end - addr) >> PAGE_SHIFT);
		/*
		 * What its owner may write privately must be its own page now: a shared one would
		 * be left behind by the next write. Not every kernel sees to that for every long
		 * pin; those that do make the page its own, too.
		 */
		if ((vma->vm_flags & (VM_WRITE | VM_SHARED)) == VM_WRITE)
			flags |= FOLL_WRITE;
	}
	mmap_read_unlock(current->mm);
	return flags;
}

/* How often a page may go again between the two looks of a pin. */
#define OC_PIN_TRIES 3

/*
 * A pin takes only what is there. Else it would wait, for user space too (userfaultfd), while it
 * holds pages that are not counted yet. Old kernels have no flag for that; they do not wait. This
 * waits for the page instead, and a kill ends the wait.
 */
static int oc_wait_for_page(unsigned long addr, bool write)
{
	int err, locked = 1;

	if (mmap_read_lock_killable(current->mm))
		return -EINTR;
	err = oc_fault_in(current->mm, addr, write, false, &locked);
	if (locked)
		mmap_read_unlock(current->mm);
	return err;
}

static int oc_pin_piece(struct oc_pinning *pinning, struct oc_piece *p, const struct oc_iovec *iov,
			bool write)
{
	unsigned long n = oc_pages_of(iov->base, iov->len), addr = iov->base & PAGE_MASK;
	unsigned int tries = 0;

	if (!n)
		return 0;
	p->pages = kvmalloc_array(n, sizeof(*p->pages), OC_GFP_ASKED);
	if (!p->pages)
		return -ENOMEM;
	while (p->n < n) {
		unsigned long batch = min(n - p->n, OC_PIN_BATCH);
		unsigned int pin;
		int flags, got, err;

		if (fatal_signal_pending(current))
			return -EINTR;
		if (oc_inject(OC_INJECT_PIN))
			return -ENOMEM;
		flags = oc_pin_flags(addr, &batch, write);
		if (flags < 0)
			return flags;
		pin = flags;
		/* A page that is there, and has to be copied for a pin: alone, by the kernel. */
		if (tries == OC_PIN_TRIES)
			batch = 1;
		else
			(void)oc_only_present(&pin);
		got = pin_user_pages_fast(addr, batch, pin, p->pages + p->n);
		if (got == -EFAULT && tries < OC_PIN_TRIES) {
			got = oc_wait_for_page(addr, flags & FOLL_WRITE);
			if (got)
				return got;
			tries++;
			continue;
		}
		if (got <= 0)
			return got ?: -EFAULT;
		tries = 0;
		p->n += got;
		err = oc_account_compound(pinning, p->pages + p->n - got, got);
		if (err)
			return err;
		addr += (unsigned long)got << PAGE_SHIFT;
		cond_resched();
	}
	return 0;
}

/**
 * oc_iovec_read() - copy and check a vector of the caller
 * @array: its address
 * @n: how many pieces to read; set to how many are left, since empty ones are dropped
 *
 * Return: the vector, which the caller frees by kvfree(). Or ERR_PTR() of -EINVAL: no pieces, too
 * many, or beyond the address space, or of -EFAULT or -ENOMEM.
 */
struct oc_iovec *oc_iovec_read(u64 array, u32 *n)
{
	struct oc_iovec *iov;
	u32 i, full;
	s64 total;

	BUILD_BUG_ON(sizeof(struct oc_iovec) != sizeof(struct knem_cmd_param_iovec));
	if (!*n || *n > OC_KNEM_MAX_PIECES)
		return ERR_PTR(-EINVAL);
	iov = kvmalloc_array(*n, sizeof(*iov), OC_GFP_ASKED);
	if (!iov)
		return ERR_PTR(-ENOMEM);
	if (copy_from_user(iov, u64_to_user_ptr(array), *n * sizeof(*iov))) {
		kvfree(iov);
		return ERR_PTR(-EFAULT);
	}
	total = oc_iovec_total(iov, *n, TASK_SIZE);
	if (total < 0) {
		kvfree(iov);
		return ERR_PTR(total);
	}
	/* What is kept of a piece is paid for by the pages that it pins: empty ones are dropped. */
	for (i = 0, full = 0; i < *n; i++)
		if (iov[i].len)
			iov[full++] = iov[i];
	*n = max(full, 1U);
	return iov;
}

/* A region that pins nothing yet. Consumes iov, a checked vector of the caller's memory. */
static struct oc_region *oc_region_alloc(struct oc_iovec *iov, u32 n, bool read, bool write,
					 u32 flags)
{
	struct oc_region *r;
	struct oc_user *user;

	user = oc_charge(OC_REGIONS);
	if (IS_ERR(user)) {
		kvfree(iov);
		return ERR_CAST(user);
	}
	r = oc_may_fail(kzalloc(sizeof(*r), GFP_KERNEL_ACCOUNT));
	if (!r) {
		kvfree(iov);
		oc_uncharge(user, OC_REGIONS);
		return ERR_PTR(-ENOMEM);
	}
	refcount_set(&r->users, 1);
	kref_init(&r->held); /* by its users ... */
	kref_get(&r->held); /* ... and while it is pinned */
	init_completion(&r->over);
	INIT_HLIST_NODE(&r->node);
	INIT_LIST_HEAD(&r->link);
	INIT_LIST_HEAD(&r->pinned_by);
	r->user = user;
	r->creator = get_pid(task_tgid(current));
	oc_listed_init(&r->listed);
	r->iov = iov;
	r->n = n;
	r->read = read;
	r->write = write;
	r->single_use = flags & KNEM_FLAG_SINGLEUSE;
	r->any_user = flags & KNEM_FLAG_ANY_USER_ACCESS;
	r->uid = current_euid();
	r->ns = get_user_ns(current_user_ns());
	r->total = oc_iovec_total(iov, n, TASK_SIZE);
	return r;
}

/* Pin the memory that a new region's vector names. After an error the caller puts the region. */
static int oc_region_pin(struct oc_region *r, struct oc_pinner **kept)
{
	struct oc_pinning pinning = { .region = r };
	unsigned long pages = 0;
	int err;
	u32 i;

	for (i = 0; i < r->n; i++)
		pages += oc_pages_of(r->iov[i].base, r->iov[i].len);
	r->piece = kvcalloc(r->n, sizeof(*r->piece), OC_GFP_ASKED);
	if (!r->piece)
		return -ENOMEM;
	err = oc_region_own(r, kept);
	/* Before the first pin: what may not be pinned never is. */
	if (!err)
		err = oc_account(r, pages);
	for (i = 0; !err && i < r->n; i++)
		err = oc_pin_piece(&pinning, &r->piece[i], &r->iov[i], r->write);
	return err;
}

/**
 * oc_region_create() - pin the caller's memory as a region
 * @kept: where the file keeps the pinner
 * @iov: a checked vector of the caller's memory; consumed
 * @n: its pieces
 * @read: others may copy out of it
 * @write: others may copy into it
 * @flags: KNEM_FLAG_*
 *
 * Lists show the region from here on, before it is published, so nothing that is shown changes
 * later.
 *
 * Context: may sleep. The caller holds no lock.
 * Return: the region with one reference. Or ERR_PTR() of -EDQUOT, -ENOMEM, -EINTR: killed,
 * -ERESTARTNOINTR: a signal interrupted it, or an error of the memory.
 */
struct oc_region *oc_region_create(struct oc_pinner **kept, struct oc_iovec *iov, u32 n, bool read,
				   bool write, u32 flags)
{
	struct oc_region *r = oc_region_alloc(iov, n, read, write, flags);
	int err;

	if (IS_ERR(r))
		return r;
	err = oc_region_pin(r, kept);
	if (err) {
		oc_region_put(r);
		return ERR_PTR(err);
	}
	spin_lock(&oc_regions_lock);
	oc_listing_add(&oc_region_list, &r->listed);
	spin_unlock(&oc_regions_lock);
	return r;
}

/**
 * oc_region_publish() - give a region a cookie that cannot be guessed
 * @region: the region; the caller's reference becomes that of being published
 * @file: the regions of the file that owns it
 *
 * Called last, when nothing can fail any more.
 */
void oc_region_publish(struct oc_region *region, struct oc_file_regions *file)
{
	struct oc_region *other;
	bool taken;
	u64 cookie;

	do {
		cookie = oc_random_id();
		taken = false;
		spin_lock(&oc_regions_lock);
		hash_for_each_possible(oc_regions, other, node, cookie)
			taken |= other->cookie == cookie;
		if (!taken) {
			region->cookie = cookie;
			hash_add_rcu(oc_regions, &region->node, cookie);
			region->file = file;
			region->published = true;
			list_add(&region->link, &file->list);
			file->n++;
			file->pinned += region->pinned;
		}
		spin_unlock(&oc_regions_lock);
	} while (taken);
}

/**
 * oc_region_next() - go through all regions
 * @region: the last one, which is dropped; or NULL
 * @serial: without @region: the least serial number
 *
 * Return: the next one, or NULL: none. Only its structure is held, until oc_region_drop(), not what
 * it pins.
 */
struct oc_region *oc_region_next(struct oc_region *region, u64 serial)
{
	struct oc_region *next, *found = NULL;
	struct oc_listed *at;

	spin_lock(&oc_regions_lock);
	/* What is referenced stays listed. */
	at = region ? oc_listed_next(&region->listed) : oc_listing_from(&oc_region_list, serial);
	for (; at && !found; at = oc_listed_next(at)) {
		next = container_of(at, struct oc_region, listed);
		if (kref_get_unless_zero(&next->held))
			found = next;
	}
	spin_unlock(&oc_regions_lock);
	if (region)
		oc_region_drop(region);
	return found;
}

/**
 * oc_region_destroy() - end a region of a file
 * @file: the regions of the file
 * @cookie: the region's cookie
 *
 * No byte of it moves afterwards. Copies that had begun before end at their next step.
 *
 * Context: may sleep until no byte of the region moves, as oc_gate_drain().
 * Return: 0, or -EINVAL: the file has no such region.
 */
int oc_region_destroy(struct oc_file_regions *file, u64 cookie)
{
	struct oc_region *r, *found = NULL;
	bool published = false;

	spin_lock(&oc_regions_lock);
	hash_for_each_possible(oc_regions, r, node, cookie) {
		if (r->cookie == cookie && r->file == file &&
		    refcount_inc_not_zero(&r->users)) {
			published = oc_region_unpublish(r);
			found = r;
			break;
		}
	}
	spin_unlock(&oc_regions_lock);
	if (!found)
		return -EINVAL;
	oc_region_end(found);
	wait_for_completion(&found->over);
	if (published)
		oc_region_put(found);
	oc_region_put(found);
	return 0;
}

/**
 * oc_region_destroy_all() - end all regions of a file
 * @file: the regions of the file
 *
 * All are closed before the first is waited for, so that copies end at once.
 *
 * Context: may sleep until no byte of them moves, as oc_gate_drain().
 */
void oc_region_destroy_all(struct oc_file_regions *file)
{
	struct oc_region *r, *next;
	bool published, mine;
	LIST_HEAD(closed);
	LIST_HEAD(ended);

	do {
		published = false;
		mine = false;
		spin_lock(&oc_regions_lock);
		r = list_first_entry_or_null(&file->list, struct oc_region, link);
		if (r) {
			mine = refcount_inc_not_zero(&r->users);
			published = oc_region_unpublish(r);
		}
		spin_unlock(&oc_regions_lock);
		/* Unpublished, so of one of these lists alone. */
		if (mine)
			list_add(&r->link, oc_region_close(r) ? &closed : &ended);
		if (published)
			oc_region_put(r);
	} while (r);
	list_for_each_entry_safe(r, next, &closed, link) {
		oc_region_finish(r);
		list_move(&r->link, &ended);
	}
	list_for_each_entry_safe(r, next, &ended, link) {
		wait_for_completion(&r->over);
		list_del_init(&r->link);
		oc_region_put(r);
	}
}

/**
 * oc_region_sum() - how much a file has pinned
 * @file: the regions of the file
 * @regions: gets how many
 * @pinned: gets the pages that they pin
 */
void oc_region_sum(struct oc_file_regions *file, unsigned long *regions, unsigned long *pinned)
{
	spin_lock(&oc_regions_lock);
	*regions = file->n;
	*pinned = file->pinned;
	spin_unlock(&oc_regions_lock);
}

/**
 * oc_region_use() - look a region up, to copy
 * @cookie: its cookie
 * @write: to copy into it, else out of it
 *
 * Return: the region, referenced. Or ERR_PTR() of -EINVAL: none, or it has ended, -EPERM: it is
 * another user's, or -EACCES: not in that direction.
 */
struct oc_region *oc_region_use(u64 cookie, bool write)
{
	struct oc_region *r, *found = NULL;
	int err = 0;

	rcu_read_lock();
	hash_for_each_possible_rcu(oc_regions, r, node, cookie) {
		if (r->cookie == cookie && refcount_inc_not_zero(&r->users)) {
			found = r;
			break;
		}
	}
	rcu_read_unlock();
	/* A dead process's memory has no users any more, also before it has been taken apart. */
	if (!found || READ_ONCE(found->ended) || !atomic_read(&found->mm->mm_users))
		err = -EINVAL;
	else if (!found->any_user &&
		 !(uid_eq(current_euid(), found->uid) && current_user_ns() == found->ns))
		err = -EPERM;
	else if (write ? !found->write : !found->read)
		err = -EACCES;
	if (!err)
		return found;
	if (found)
		oc_region_put(found);
	return ERR_PTR(err);
}

static bool oc_region_is_used(const struct oc_region *region)
{
	return region && region->single_use && !region->published;
}

/* Under the lock. True: the caller has the reference of being published then. */
static bool oc_region_use_up(struct oc_region *region)
{
	bool published = region->single_use && region->published;

	lockdep_assert_held(&oc_regions_lock);
	if (published)
		region->published = false;
	return published;
}

/**
 * oc_region_claim() - use up the regions of a copy that are for one use
 * @dst: referenced by the caller, or NULL
 * @src: the same; may be @dst
 *
 * A region for one use ends with the copy, and a second caller finds it gone. If one side is gone,
 * the other stays as it was. The owner can destroy it meanwhile, so it keeps its cookie.
 *
 * Return: 0, or -EINVAL: another copy has used one of them.
 */
int oc_region_claim(struct oc_region *dst, struct oc_region *src)
{
	bool end_dst = false, end_src = false;
	int err = 0;

	spin_lock(&oc_regions_lock);
	if (oc_region_is_used(dst) || oc_region_is_used(src)) {
		err = -EINVAL;
	} else {
		end_dst = dst && oc_region_use_up(dst);
		end_src = src && oc_region_use_up(src);
	}
	spin_unlock(&oc_regions_lock);
	/* That of being published; the caller has its own. */
	if (end_dst)
		oc_region_put(dst);
	if (end_src)
		oc_region_put(src);
	return err;
}

/* The pages and the offset of a cursor. The caller is within the gate. */
static struct page *const *oc_place(const struct oc_region *r, const struct oc_cursor *c, u64 *off)
{
	*off = (r->iov[c->index].base & ~PAGE_MASK) + c->offset;
	return r->piece[c->index].pages;
}

/**
 * oc_knem_exit() - wait for callbacks of RCU, when the module is unloaded
 *
 * Regions go by kfree_rcu(), which calls nothing of this module, so nothing needs this. It is for a
 * callback of RCU that may come to the module.
 */
void oc_knem_exit(void)
{
	rcu_barrier();
}

static void oc_regions_leave(struct oc_region *dst, struct oc_region *src)
{
	oc_gate_leave(&src->gate);
	oc_gate_leave(&dst->gate);
}

/* Into the gates of both, which may be the same. */
static int oc_regions_enter(struct oc_region *dst, struct oc_region *src)
{
	if (!oc_gate_enter(&dst->gate))
		return -ESRCH;
	if (oc_gate_enter(&src->gate))
		return 0;
	oc_gate_leave(&dst->gate);
	return -ESRCH;
}

/**
 * oc_region_copy() - copy between two regions
 * @dst: where to; may be @src
 * @dst_off: first byte in it; the caller checked bounds
 * @src: where from
 * @src_off: first byte in it
 * @len: bytes
 * @stop: ends the copy when it becomes true; or NULL
 *
 * Context: may sleep.
 * Return: 0, or -EINTR: killed or stopped, -ESRCH: a region has ended.
 */
int oc_region_copy(struct oc_region *dst, u64 dst_off, struct oc_region *src, u64 src_off, u64 len,
		   const bool *stop)
{
	struct oc_cursor d, s;
	u64 left = len, n;
	int err;

	oc_iovec_seek(&d, dst->iov, dst->n, dst_off);
	oc_iovec_seek(&s, src->iov, src->n, src_off);
	while (left) {
		struct page *const *to, *const *from;
		u64 d_at, s_at;

		if (fatal_signal_pending(current) || (stop && READ_ONCE(*stop)))
			return -EINTR;
		n = min3(left, oc_iovec_left(&d, dst->iov, dst->n),
			 oc_iovec_left(&s, src->iov, src->n));
		n = min_t(u64, n, OC_GATE_BYTES);
		err = oc_regions_enter(dst, src);
		if (err)
			return err;
		to = oc_place(dst, &d, &d_at);
		from = oc_place(src, &s, &s_at);
		oc_copy_pages(to, d_at, from, s_at, n);
		oc_regions_leave(dst, src);
		oc_iovec_advance(&d, dst->iov, dst->n, n);
		oc_iovec_advance(&s, src->iov, src->n, n);
		left -= n;
		cond_resched();
	}
	oc_count(OC_COPIES, 1);
	oc_count(OC_COPIED_BYTES, len);
	return 0;
}

/**
 * oc_region_copy_user() - copy between a region and the caller's memory
 * @region: the region
 * @off: first byte in it; the caller checked bounds
 * @iov: a checked vector of the caller's memory
 * @n: its pieces
 * @len: bytes
 * @to_user: from the region to the caller, else the other way
 *
 * Context: may sleep. The caller holds no mmap lock.
 * Return: 0, or as oc_copy_gated().
 */
int oc_region_copy_user(struct oc_region *region, u64 off, const struct oc_iovec *iov, u32 n,
			u64 len, bool to_user)
{
	struct oc_cursor r, u;
	u64 left = len;
	int err;

	oc_iovec_seek(&r, region->iov, region->n, off);
	oc_iovec_seek(&u, iov, n, 0);
	while (left) {
		struct page *const *pages;
		u64 at, done, step;

		step = min3(left, oc_iovec_left(&r, region->iov, region->n),
			    oc_iovec_left(&u, iov, n));
		step = min_t(u64, step, SZ_1M);
		pages = oc_place(region, &r, &at);
		err = oc_copy_gated(&region->gate, pages, at, step, iov[u.index].base + u.offset,
				    to_user, &done);
		if (err)
			return err;
		oc_iovec_advance(&r, region->iov, region->n, step);
		oc_iovec_advance(&u, iov, n, step);
		left -= step;
	}
	oc_count(OC_COPIES, 1);
	oc_count(OC_COPIED_BYTES, len);
	return 0;
}
