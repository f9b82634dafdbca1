// SPDX-License-Identifier: GPL-2.0
/*
 * Pages that are held: bytes between them and the current address space, and letting them go.
 * Unpinning that would wait is tried again later.
 */
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "core.h"

/* ---- what is tried again until it is done ---- */
/* Its work never waits, so no item can keep the others from being done. */
static struct workqueue_struct *oc_deferred_queue;
static atomic_t oc_deferred_open = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(oc_deferred_done);

#define OC_DEFERRED_FIRST 1 /* jiffies; doubled each time ... */
#define OC_DEFERRED_LAST HZ /* ... up to this */

/**
 * oc_deferred_init() - make the queue of deferred work, when the module is loaded
 *
 * Return: 0 or -ENOMEM.
 */
int oc_deferred_init(void)
{
	oc_deferred_queue = alloc_workqueue("onecopy-unpin", WQ_UNBOUND, 0);
	return oc_deferred_queue ? 0 : -ENOMEM;
}

/**
 * oc_deferred_exit() - wait for all deferred work, when the module is unloaded
 */
void oc_deferred_exit(void)
{
	wait_event(oc_deferred_done, !atomic_read(&oc_deferred_open));
	destroy_workqueue(oc_deferred_queue);
}

static void oc_deferred_run(struct work_struct *work)
{
	struct oc_deferred *d = container_of(to_delayed_work(work), struct oc_deferred, work);
	bool holds = d->holds;

	if (!d->attempt(d)) {
		d->delay = min_t(unsigned long, 2 * d->delay, OC_DEFERRED_LAST);
		queue_delayed_work(oc_deferred_queue, &d->work, d->delay);
		return;
	}
	if (holds)
		module_put(THIS_MODULE); /* whose end waits for this to return */
	if (atomic_dec_and_test(&oc_deferred_open))
		wake_up_all(&oc_deferred_done);
}

/**
 * oc_deferred_begin() - have something tried again until it is done
 * @d: the caller's; @attempt may free it when it is done
 * @attempt: tries without waiting; true: it is done
 *
 * The module stays until it is done. If the module is going already, its end waits.
 */
void oc_deferred_begin(struct oc_deferred *d, bool (*attempt)(struct oc_deferred *d))
{
	INIT_DELAYED_WORK(&d->work, oc_deferred_run);
	d->attempt = attempt;
	d->delay = OC_DEFERRED_FIRST;
	d->holds = try_module_get(THIS_MODULE);
	atomic_inc(&oc_deferred_open);
	queue_delayed_work(oc_deferred_queue, &d->work, d->delay);
}

/* ---- letting go ---- */
/**
 * oc_unpin_some() - unpin pages as far as that waits for nothing
 * @pages: the pages; those that are left come to the front
 * @n: how many
 * @dirty: others stored to them, which the kernel has to learn under their locks
 *
 * Return: how many are still pinned, since another task has their lock.
 */
unsigned long oc_unpin_some(struct page **pages, unsigned long n, bool dirty)
{
	unsigned long i, left = 0;

	for (i = 0; dirty && i < n; i++) {
		struct page *page = pages[i];

		if (PageDirty(page))
			continue;
		if (trylock_page(page)) {
			set_page_dirty(page);
			unlock_page(page);
		} else {
			pages[i] = pages[left];
			pages[left++] = page;
		}
	}
	if (left < n)
		unpin_user_pages(pages + left, n - left);
	return left;
}

struct oc_unpin_deferred {
	struct oc_deferred deferred;
	unsigned long n;
	struct page *pages[];
};

static bool oc_unpin_deferred(struct oc_deferred *d)
{
	struct oc_unpin_deferred *u = container_of(d, struct oc_unpin_deferred, deferred);

	u->n = oc_unpin_some(u->pages, u->n, true);
	if (u->n)
		return false;
	kfree(u);
	return true;
}

/**
 * oc_unpin() - unpin few pages, and wait for their locks
 * @pages: the pages
 * @n: how many
 * @dirty: others stored to them
 *
 * The lock of a page may be held for as long as the server of a file system likes. A kill ends the
 * wait for it, and the rest is done later.
 *
 * Context: may sleep. The caller holds no mmap lock.
 */
void oc_unpin(struct page **pages, unsigned long n, bool dirty)
{
	unsigned long left = oc_unpin_some(pages, n, dirty), i;
	struct oc_unpin_deferred *u;

	for (i = 0; i < left && !oc_lock_page_killable(pages[i]); i++) {
		set_page_dirty(pages[i]);
		unlock_page(pages[i]);
		unpin_user_page(pages[i]);
	}
	if (i == left)
		return;
	/* One for a task that was killed, and a part of a page. */
	u = kmalloc(struct_size(u, pages, left - i), GFP_KERNEL | __GFP_NOFAIL);
	u->n = left - i;
	memcpy(u->pages, pages + i, u->n * sizeof(*pages));
	oc_deferred_begin(&u->deferred, oc_unpin_deferred);
}

/* ---- copying ---- */

/*
 * How many bytes, up to len, lie behind one another in memory from byte `off` of the pages on.
 * Within a compound page the kernel's own mapping is contiguous, and one copy of it passes the
 * checks for copies to users.
 */
static u64 oc_run(struct page *const *pages, u64 off, u64 len)
{
	unsigned long i = off >> PAGE_SHIFT;
	u64 run = PAGE_SIZE - (off & ~PAGE_MASK);

	/* There each page is mapped alone. */
	if (IS_ENABLED(CONFIG_DEBUG_KMAP_LOCAL_FORCE_MAP))
		return min(run, len);
	while (run < len && pages[i + 1] == pages[i] + 1 &&
	       compound_head(pages[i + 1]) == compound_head(pages[i])) {
		run += PAGE_SIZE;
		i++;
	}
	return min(run, len);
}

static void oc_unmap_copied(struct page *page, void *map, u64 off, u64 n, bool to_user)
{
	if (to_user)
		oc_unmap_page(page, map);
	else
		oc_unmap_stored(page, map, off & ~PAGE_MASK, n);
}

/*
 * With faults disabled. False: something is missing. True: all is done, or another task wants this
 * CPU.
 */
static bool oc_copy_present(struct page *const *pages, u64 off, u64 len, u64 user, bool to_user,
			    u64 *done)
{
	do {
		struct page *page = pages[(off + *done) >> PAGE_SHIFT];
		u64 n = oc_run(pages, off + *done, len - *done);
		void __user *u = u64_to_user_ptr(user + *done);
		void *map = oc_map_page(page), *k = map + ((off + *done) & ~PAGE_MASK);
		unsigned long left;

		/*
		 * Not copy_from_user(): after a bad address that clears the rest of the page, which
		 * belongs to a process here.
		 */
		if (to_user)
			left = __copy_to_user_inatomic(u, k, n);
		else
			left = __copy_from_user_inatomic(k, u, n);
		oc_unmap_copied(page, map, off + *done, n - left, to_user);
		*done += n - left;
		if (left)
			return false;
	} while (*done < len && !need_resched());
	return true;
}

/*
 * The caller's own memory is not there, or not as it is wanted: fault it in. A caller that misses
 * page after page gets some of what follows, too. A kill ends the wait for a handler of the faults
 * in user space.
 */
static int oc_copy_fault(unsigned long addr, u64 len, bool write, unsigned int pages)
{
	struct mm_struct *mm = current->mm;
	int err, locked = 1;
	unsigned int i;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	pages = min_t(u64, pages, oc_pages_of(addr, len));
	addr &= PAGE_MASK;
	err = oc_fault_in(mm, addr, write, false, &locked);
	for (i = 1; !err && locked && i < pages; i++)
		if (oc_fault_in(mm, addr + i * PAGE_SIZE, write, false, NULL))
			break;
	if (locked)
		mmap_read_unlock(mm);
	return err;
}

/* Faults in a row that succeed without progress, after which it is EFAULT. */
#define OC_COPY_TRIES 1000
#define OC_COPY_AHEAD 16

/**
 * oc_copy_gated() - copy between pages and the current address space
 * @gate: the gate of what the pages belong to, or NULL
 * @pages: the pages, looked at within @gate only
 * @off: first byte in them
 * @len: bytes
 * @user: address of the caller's
 * @to_user: from the pages to the caller, else the other way
 * @done: bytes that were copied, whatever is returned
 *
 * Bytes move within the gate only, with faults disabled. So a task that closes it waits for no
 * handler of the caller's faults.
 *
 * Context: may sleep. The caller holds no mmap lock.
 * Return: 0, or -EFAULT: @user cannot be used so, -EINTR: killed, -ESRCH: the gate is closed.
 */
int oc_copy_gated(struct oc_gate *gate, struct page *const *pages, u64 off, u64 len, u64 user,
		  bool to_user, u64 *done)
{
	unsigned int tries = 0, ahead = 1;
	bool missing;
	int err;

	*done = 0;
	if (!access_ok(u64_to_user_ptr(user), len))
		return -EFAULT;
	while (*done < len) {
		u64 before = *done, upto = min_t(u64, len, before + OC_GATE_BYTES);

		if (fatal_signal_pending(current))
			return -EINTR;
		if (gate && !oc_gate_enter(gate))
			return -ESRCH;
		pagefault_disable();
		missing = !oc_copy_present(pages, off, upto, user, to_user, done);
		pagefault_enable();
		if (gate)
			oc_gate_leave(gate);
		cond_resched();
		if (!missing)
			continue;
		/* Page after page is missing: more at once. */
		ahead = *done - before <= ahead * PAGE_SIZE ?
				min(ahead * 2, (unsigned int)OC_COPY_AHEAD) :
				1;
		tries = *done == before ? tries + 1 : 0;
		if (tries > OC_COPY_TRIES)
			return -EFAULT;
		err = oc_copy_fault(user + *done, len - *done, to_user, ahead);
		if (err)
			return err == -EINTR ? err : -EFAULT;
	}
	return 0;
}

/**
 * oc_copy_pages() - copy between pages
 * @dst: pages to copy to
 * @dst_off: first byte in them
 * @src: pages to copy from
 * @src_off: first byte in them
 * @len: bytes
 *
 * Context: within the gates of both.
 */
void oc_copy_pages(struct page *const *dst, u64 dst_off, struct page *const *src, u64 src_off,
		   u64 len)
{
	while (len) {
		struct page *d = dst[dst_off >> PAGE_SHIFT], *s = src[src_off >> PAGE_SHIFT];
		u64 n = min3(len, (u64)(PAGE_SIZE - (dst_off & ~PAGE_MASK)),
			     (u64)(PAGE_SIZE - (src_off & ~PAGE_MASK)));
		void *from = oc_map_page(s), *to = oc_map_page(d);

		memmove(to + (dst_off & ~PAGE_MASK), from + (src_off & ~PAGE_MASK), n);
		oc_unmap_stored(d, to, dst_off & ~PAGE_MASK, n);
		oc_unmap_page(s, from);
		dst_off += n;
		src_off += n;
		len -= n;
	}
}
