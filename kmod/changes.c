// SPDX-License-Identifier: GPL-2.0
/*
 * Changes of an address space: who watches which part of it, and which changes are under way. Each
 * address space that has ever been watched has one such object, and no notifier for each part. The
 * kernel itself reports only that no change at all is under way. A wait for that lasts as long as
 * an owner with several threads likes. docs/kernel-module.md, Waits.
 */
#include <linux/bitmap.h>
#include <linux/hash.h>
#include <linux/hashtable.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "core.h"

#define OC_CHANGES 64 /* changes under way that need no allocation */
#define OC_CHANGE_BITS 6

/**
 * struct oc_change - an invalidation that is under way
 * @node: by @range, in under_way of its address space
 * @range: the kernel's, on the changing task's stack: the end is notified with the same one
 * @start: first address
 * @end: the address behind the last one
 * @serial: a task that waits passes over later ones
 * @awaited: a task waits for its end
 *
 * All of it is under the lock of its struct oc_changes.
 */
struct oc_change {
	struct hlist_node node;
	const struct mmu_notifier_range *range;
	unsigned long start;
	unsigned long end;
	u64 serial;
	bool awaited;
};

/**
 * struct oc_changes - changes of an address space, and who watches them
 * @node: by @mm, while the address space lives; under oc_changes_lock
 * @mm: the address space, kept as a structure by the notifiers
 * @blocking: notified of blockable changes
 * @nonblocking: refuses changes that are not blockable. The kernel allows no notifier that has
 *   invalidate_range_end to refuse an invalidate_range_start, so there are two
 * @held: by notifiers that the kernel has not freed, and by who makes them
 * @users: watches, and the living address space; under oc_changes_lock
 * @lives: the address space is found; under oc_changes_lock
 * @ended: woken when a change ends that a task waits for
 * @left: woken when a watch that leaves was notified for the last time
 * @watches: by the part that they watch
 * @joined: serial number of the last watch
 * @over: the address space ended: no end is notified any more
 * @reaped: its memory is taken away by the OOM reaper, which notifies no end
 * @begun: serial number of the last change
 * @listed: changes in @under_way: mostly none, and none to search then
 * @under_way: changes, by their ranges
 * @used: which of @change are in use
 * @change: changes that need no allocation
 * @more: changes for which there was no memory; they are known together only
 * @more_start: first address of all of these
 * @more_end: the address behind the last one
 * @more_over: how often @more came back to 0, by which such times are distinguished
 * @more_awaited: a task waits for that
 */
struct oc_changes {
	struct hlist_node node;
	struct mm_struct *mm;
	struct mmu_notifier blocking;
	struct mmu_notifier nonblocking;
	refcount_t held;
	unsigned long users;
	bool lives;
	wait_queue_head_t ended;
	wait_queue_head_t left;

	/** @lock: Guards all that follows. Nothing is waited for under it. */
	spinlock_t lock;
	struct rb_root_cached watches;
	u64 joined;
	bool over;
	bool reaped;
	u64 begun;
	unsigned int listed;
	struct hlist_head under_way[1 << OC_CHANGE_BITS];
	DECLARE_BITMAP(used, OC_CHANGES);
	struct oc_change change[OC_CHANGES];
	unsigned long more;
	unsigned long more_start;
	unsigned long more_end;
	u64 more_over;
	bool more_awaited;
};

static DEFINE_HASHTABLE(oc_changes_table, 8);
static DEFINE_SPINLOCK(oc_changes_lock);
static struct oc_marks oc_own_zaps;

/* Notifiers that are not freed yet: the kernel does that some time after the last user has gone. */
static atomic_t oc_notifiers = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(oc_notifiers_gone);

/**
 * oc_notifier_born() - count a notifier that the module's end has to wait for
 */
void oc_notifier_born(void)
{
	atomic_inc(&oc_notifiers);
}

/**
 * oc_notifier_freed() - the kernel has freed a notifier, whose last callback this is
 */
void oc_notifier_freed(void)
{
	if (atomic_dec_and_test(&oc_notifiers))
		wake_up_all(&oc_notifiers_gone);
}

/* ---- what the module itself zaps ---- */

/**
 * oc_own_zap_begin() - the caller begins to take entries out of an attachment
 * @own: the note, on the caller's stack; stays until oc_own_zap_end()
 * @mm: the importer's address space
 * @start: first address of the stretch
 * @end: the address behind it
 */
void oc_own_zap_begin(struct oc_own_zap *own, struct mm_struct *mm, unsigned long start,
		      unsigned long end)
{
	own->mm = mm;
	own->start = start;
	own->end = end;
	oc_mark_set(&oc_own_zaps, &own->mark);
}

/**
 * oc_own_zap_end() - the caller has taken the entries out
 * @own: what oc_own_zap_begin() was given
 */
void oc_own_zap_end(struct oc_own_zap *own)
{
	oc_mark_clear(&oc_own_zaps, &own->mark);
}

/*
 * Is this notified since the task takes an attachment apart just now? Nothing was ever derived from
 * one, so nothing has to go. A huge entry that is split is notified as a whole; it is within the
 * stretch, too.
 */
static bool oc_is_own_zap(const struct mmu_notifier_range *range)
{
	struct oc_mark *mark = oc_mark_find(&oc_own_zaps);
	struct oc_own_zap *own = container_of(mark, struct oc_own_zap, mark);

	return mark && own->mm == range->mm && own->start <= range->start && range->end <= own->end;
}

/* ---- which are under way ---- */
static struct hlist_head *oc_changes_of(struct oc_changes *c,
					const struct mmu_notifier_range *range)
{
	return &c->under_way[hash_ptr(range, OC_CHANGE_BITS)];
}

static struct oc_change *oc_change_find(struct oc_changes *c,
					const struct mmu_notifier_range *range)
{
	struct oc_change *change;

	hlist_for_each_entry(change, oc_changes_of(c, range), node) {
		if (change->range == range)
			return change;
	}
	return NULL;
}

static struct oc_change *oc_change_alloc(struct oc_changes *c)
{
	unsigned int i = find_first_zero_bit(c->used, OC_CHANGES);

	if (i < OC_CHANGES) {
		__set_bit(i, c->used);
		return &c->change[i];
	}
	/* A task that reclaims memory may be here, and must not wait. */
	return kmalloc(sizeof(struct oc_change), GFP_NOWAIT | __GFP_NOWARN);
}

static void oc_change_free(struct oc_changes *c, struct oc_change *change)
{
	hlist_del(&change->node);
	c->listed--;
	if (change->awaited)
		wake_up_all(&c->ended);
	if (change >= c->change && change < c->change + OC_CHANGES)
		__clear_bit(change - c->change, c->used);
	else
		kfree(change);
}

static void oc_change_begin(struct oc_changes *c, const struct mmu_notifier_range *range)
{
	struct oc_change *change;

	lockdep_assert_held(&c->lock);
	/* One that starts again has ended: the kernel notifies no end of memory at address 0. */
	change = oc_change_find(c, range);
	if (change)
		oc_change_free(c, change);
	c->begun++;
	change = oc_change_alloc(c);
	if (change) {
		change->range = range;
		change->start = range->start;
		change->end = range->end;
		change->serial = c->begun;
		change->awaited = false;
		hlist_add_head(&change->node, oc_changes_of(c, range));
		c->listed++;
		return;
	}
	c->more_start = c->more ? min(c->more_start, range->start) : range->start;
	c->more_end = c->more ? max(c->more_end, range->end) : range->end;
	c->more++;
}

static void oc_change_end(struct oc_changes *c, const struct mmu_notifier_range *range)
{
	struct oc_change *change;

	lockdep_assert_held(&c->lock);
	change = oc_change_find(c, range);
	if (change) {
		oc_change_free(c, change);
		return;
	}
	if (!c->more || --c->more)
		return;
	c->more_over++;
	if (c->more_awaited)
		wake_up_all(&c->ended);
	c->more_awaited = false;
}

static void oc_changes_busy_part(unsigned long *busy, unsigned long start, unsigned long end,
				 unsigned long lo, unsigned long hi)
{
	lo = max(lo, start) & PAGE_MASK;
	hi = min(hi, end);
	if (lo < hi)
		bitmap_set(busy, (lo - start) >> PAGE_SHIFT, oc_pages_of(lo, hi - lo));
}

/**
 * oc_changes_busy() - which pages are being changed
 * @c: changes of the address space
 * @start: first page
 * @end: the address behind the last page
 * @busy: gets a bit for each page of [@start, @end), set while the page is being changed
 */
void oc_changes_busy(struct oc_changes *c, unsigned long start, unsigned long end,
		     unsigned long *busy)
{
	struct oc_change *change;
	unsigned int i;

	bitmap_zero(busy, (end - start) >> PAGE_SHIFT);
	spin_lock(&c->lock);
	for (i = 0; c->listed && i < ARRAY_SIZE(c->under_way); i++)
		hlist_for_each_entry(change, &c->under_way[i], node)
			oc_changes_busy_part(busy, start, end, change->start, change->end);
	if (c->more)
		oc_changes_busy_part(busy, start, end, c->more_start, c->more_end);
	spin_unlock(&c->lock);
}

/* Is the page being changed by what had begun then? Who asks is woken when that ends. */
static bool oc_is_changing(struct oc_changes *c, unsigned long page, u64 begun, u64 more_over)
{
	struct oc_change *change;
	bool changing = false;
	unsigned int i;

	spin_lock(&c->lock);
	for (i = 0; c->listed && i < ARRAY_SIZE(c->under_way); i++) {
		hlist_for_each_entry(change, &c->under_way[i], node) {
			if (change->serial <= begun && change->start < page + PAGE_SIZE &&
			    page < change->end) {
				change->awaited = true;
				changing = true;
			}
		}
	}
	if (c->more && c->more_over == more_over && c->more_start < page + PAGE_SIZE &&
	    page < c->more_end) {
		c->more_awaited = true;
		changing = true;
	}
	changing &= !c->over;
	spin_unlock(&c->lock);
	return changing;
}

/**
 * oc_changes_wait() - wait for changes of a page that are under way
 * @c: changes of the address space
 * @page: the page
 *
 * This does not wait for changes that begin meanwhile, nor for those of other pages.
 *
 * Context: the caller holds no lock.
 * Return: 0, or -EINTR: killed.
 */
int oc_changes_wait(struct oc_changes *c, unsigned long page)
{
	u64 begun, more_over;

	spin_lock(&c->lock);
	begun = c->begun;
	more_over = c->more_over;
	spin_unlock(&c->lock);
	return wait_event_killable(c->ended, !oc_is_changing(c, page, begun, more_over)) ? -EINTR :
											   0;
}

/* ---- notifying ---- */
/*
 * Notifies the watches of a part of the range, one after the other. A watch that has joined since
 * is left out: it knows of a change that was under way. So new watches do not keep this going.
 */
static void oc_changes_notify(struct oc_changes *c, const struct mmu_notifier_range *range)
	__must_hold(&c->lock)
{
	struct interval_tree_node *n;
	u64 until = c->joined;

	lockdep_assert_held(&c->lock);
	n = interval_tree_iter_first(&c->watches, range->start, range->end - 1);
	while (n) {
		struct oc_watch *watch = container_of(n, struct oc_watch, node);
		bool notify = watch->serial <= until && !watch->leaving;

		if (notify) {
			/* It stays in the tree. */
			WRITE_ONCE(watch->notifying, watch->notifying + 1);
			spin_unlock(&c->lock);
			watch->ops->invalidate(watch, range);
			spin_lock(&c->lock);
		}
		n = interval_tree_iter_next(n, range->start, range->end - 1);
		if (notify) {
			WRITE_ONCE(watch->notifying, watch->notifying - 1);
			if (watch->leaving && !watch->notifying)
				wake_up_all(&c->left);
		}
	}
}

static int oc_blocking_start(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct oc_changes *c = container_of(notifier, struct oc_changes, blocking);

	if (!mmu_notifier_range_blockable(range) || oc_is_own_zap(range))
		return 0;
	spin_lock(&c->lock);
	oc_change_begin(c, range);
	oc_changes_notify(c, range);
	spin_unlock(&c->lock);
	return 0;
}

static void oc_blocking_end(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct oc_changes *c = container_of(notifier, struct oc_changes, blocking);

	if (!mmu_notifier_range_blockable(range) || oc_is_own_zap(range))
		return;
	spin_lock(&c->lock);
	oc_change_end(c, range);
	spin_unlock(&c->lock);
}

/*
 * A change that is not blockable: of memory that no task will ever use again. The first refusal
 * ends it, and the caller comes again. Such a change is not counted as being under way: kernels
 * differ in whether they call invalidate_range_end of a refused one. Its watches take the memory
 * for gone instead, and no watch joins any more.
 */
static int oc_nonblocking_start(struct mmu_notifier *notifier,
				const struct mmu_notifier_range *range)
{
	struct oc_changes *c = container_of(notifier, struct oc_changes, nonblocking);
	struct interval_tree_node *n;
	int err = 0;

	if (mmu_notifier_range_blockable(range))
		return 0;
	spin_lock(&c->lock);
	c->reaped = true;
	n = interval_tree_iter_first(&c->watches, range->start, range->end - 1);
	for (; n; n = interval_tree_iter_next(n, range->start, range->end - 1)) {
		struct oc_watch *watch = container_of(n, struct oc_watch, node);

		if (!watch->ops->invalidate(watch, range))
			err = -EAGAIN;
	}
	spin_unlock(&c->lock);
	return err;
}

static void oc_changes_put(struct oc_changes *c)
{
	bool last;

	spin_lock(&oc_changes_lock);
	last = !--c->users;
	spin_unlock(&oc_changes_lock);
	if (last) {
		mmu_notifier_put(&c->nonblocking);
		mmu_notifier_put(&c->blocking);
	}
}

/* The address space, or the module, ends: no search finds it from here on. */
static bool oc_changes_bury(struct oc_changes *c)
{
	lockdep_assert_held(&oc_changes_lock);
	if (!c->lives)
		return false;
	c->lives = false;
	hash_del(&c->node);
	return true;
}

/* All memory goes, and no task is left that could change it. */
static void oc_blocking_release(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	struct oc_changes *c = container_of(notifier, struct oc_changes, blocking);
	struct mmu_notifier_range range = {
		.flags = MMU_NOTIFIER_RANGE_BLOCKABLE,
		.event = MMU_NOTIFY_RELEASE,
		.mm = mm,
		.start = 0,
		.end = ULONG_MAX,
	};
	bool lived;

	spin_lock(&c->lock);
	oc_changes_notify(c, &range);
	c->over = true;
	wake_up_all(&c->ended);
	spin_unlock(&c->lock);

	spin_lock(&oc_changes_lock);
	lived = oc_changes_bury(c);
	spin_unlock(&oc_changes_lock);
	if (lived)
		oc_changes_put(c);
}

static void oc_changes_drop(struct oc_changes *c)
{
	struct oc_change *change;
	struct hlist_node *next;
	unsigned int i;

	if (!refcount_dec_and_test(&c->held))
		return;
	/* What was under way when the kernel let the notifiers go: its end was not notified. */
	for (i = 0; i < ARRAY_SIZE(c->under_way); i++)
		hlist_for_each_entry_safe(change, next, &c->under_way[i], node)
			oc_change_free(c, change);
	kfree(c);
}

static void oc_blocking_free(struct mmu_notifier *notifier)
{
	oc_changes_drop(container_of(notifier, struct oc_changes, blocking));
	oc_notifier_freed();
}

static void oc_nonblocking_free(struct mmu_notifier *notifier)
{
	oc_changes_drop(container_of(notifier, struct oc_changes, nonblocking));
	oc_notifier_freed();
}

static const struct mmu_notifier_ops oc_blocking_ops = {
	.invalidate_range_start = oc_blocking_start,
	.invalidate_range_end = oc_blocking_end,
	.release = oc_blocking_release,
	.free_notifier = oc_blocking_free,
};

static const struct mmu_notifier_ops oc_nonblocking_ops = {
	.invalidate_range_start = oc_nonblocking_start,
	.free_notifier = oc_nonblocking_free,
};

/* ---- watching ---- */
static struct oc_changes *oc_changes_find(struct mm_struct *mm)
{
	struct oc_changes *c;

	spin_lock(&oc_changes_lock);
	hash_for_each_possible(oc_changes_table, c, node, (unsigned long)mm) {
		if (c->mm == mm) {
			c->users++;
			break;
		}
	}
	spin_unlock(&oc_changes_lock);
	return c;
}

static int oc_changes_register(struct oc_changes *c, struct mmu_notifier *notifier,
			       const struct mmu_notifier_ops *ops)
{
	int err;

	notifier->ops = ops;
	err = __mmu_notifier_register(notifier, c->mm);
	if (err)
		return err;
	refcount_inc(&c->held);
	oc_notifier_born();
	return 0;
}

/*
 * The mmap lock is held for writing. To register a notifier takes the locks of all mappings. So no
 * change by the kernel is under way then, and what begins later is notified, with its end.
 *
 * Our own zaps hold none of these locks. Another driver's first interval notifier could be
 * registered between a zap's invalidate_range_start and its invalidate_range_end. The kernel would
 * then count an end without its beginning. So it counts from the first watch on, as that driver
 * makes it do.
 */
static struct oc_changes *oc_changes_make(struct mm_struct *mm)
{
	struct oc_changes *c = oc_changes_find(mm);
	int err;

	if (c)
		return c;
	c = kzalloc(sizeof(*c), GFP_KERNEL_ACCOUNT);
	if (!c)
		return ERR_PTR(-ENOMEM);
	c->mm = mm;
	spin_lock_init(&c->lock);
	c->watches = RB_ROOT_CACHED;
	init_waitqueue_head(&c->ended);
	init_waitqueue_head(&c->left);
	refcount_set(&c->held, 1);
	c->users = 2;
	c->lives = true;
	/* No notifier: this alone has the kernel count changes. */
	err = __mmu_notifier_register(NULL, mm);
	if (!err)
		err = oc_changes_register(c, &c->nonblocking, &oc_nonblocking_ops);
	if (!err) {
		err = oc_changes_register(c, &c->blocking, &oc_blocking_ops);
		if (err)
			mmu_notifier_put(&c->nonblocking);
	}
	if (!err) {
		spin_lock(&oc_changes_lock);
		hash_add(oc_changes_table, &c->node, (unsigned long)mm);
		spin_unlock(&oc_changes_lock);
	}
	oc_changes_drop(c);
	/* Any signal interrupts it; nothing was done. */
	return err ? ERR_PTR(err == -EINTR ? -ERESTARTNOINTR : err) : c;
}

/**
 * oc_watch_begin() - subscribe to changes of a part of the caller's address space
 * @watch: the subscription, valid until oc_watch_end()
 * @start: first address
 * @size: in bytes
 * @ops: called for each change that begins from here on
 * @locked: the caller holds its mmap lock for writing
 *
 * Context: may sleep. Without @locked the mmap lock is taken for the first watch of an address
 * space.
 * Return: 0, or -EINTR: killed, -ERESTARTNOINTR: interrupted by a signal, -ENOMEM, -ESRCH: the
 * memory is being reaped.
 */
int oc_watch_begin(struct oc_watch *watch, unsigned long start, unsigned long size,
		   const struct oc_watch_ops *ops, bool locked)
{
	struct mm_struct *mm = current->mm;
	struct oc_changes *c = oc_changes_find(mm);

	if (!c) {
		if (!locked && mmap_write_lock_killable(mm))
			return -EINTR;
		c = oc_changes_make(mm);
		if (!locked)
			mmap_write_unlock(mm);
		if (IS_ERR(c))
			return PTR_ERR(c);
	}
	watch->changes = c;
	watch->mm = mm;
	watch->ops = ops;
	watch->notifying = 0;
	watch->leaving = false;
	watch->node.start = start;
	watch->node.last = start + size - 1;
	spin_lock(&c->lock);
	if (c->reaped) {
		spin_unlock(&c->lock);
		oc_changes_put(c);
		return -ESRCH;
	}
	watch->serial = ++c->joined;
	interval_tree_insert(&watch->node, &c->watches);
	spin_unlock(&c->lock);
	return 0;
}

/**
 * oc_watch_end() - end a subscription
 * @watch: the subscription
 *
 * Waits for notifications of this watch that run just now, which are work of the kernel's alone. It
 * waits neither for their changes nor for other ones.
 *
 * Context: may sleep. The caller holds no lock that a notification of the watch takes.
 */
void oc_watch_end(struct oc_watch *watch)
{
	struct oc_changes *c = watch->changes;

	spin_lock(&c->lock);
	watch->leaving = true;
	while (watch->notifying) {
		spin_unlock(&c->lock);
		wait_event(c->left, !READ_ONCE(watch->notifying));
		spin_lock(&c->lock);
	}
	interval_tree_remove(&watch->node, &c->watches);
	spin_unlock(&c->lock);
	oc_changes_put(c);
}

/**
 * oc_changes_init() - prepare for watches, when the module is loaded
 */
void oc_changes_init(void)
{
	oc_marks_init(&oc_own_zaps);
}

/**
 * oc_changes_exit() - take back the notifiers of all address spaces, when the module is unloaded
 *
 * No watch is left. Waits until all notifiers are freed, and the last free has returned.
 */
void oc_changes_exit(void)
{
	struct hlist_node *next;
	struct oc_changes *c;
	HLIST_HEAD(dead);
	unsigned int i;

	spin_lock(&oc_changes_lock);
	hash_for_each_safe(oc_changes_table, i, next, c, node) {
		oc_changes_bury(c);
		hlist_add_head(&c->node, &dead);
	}
	spin_unlock(&oc_changes_lock);
	hlist_for_each_entry_safe(c, next, &dead, node)
		oc_changes_put(c);
	wait_event(oc_notifiers_gone, !atomic_read(&oc_notifiers));
	/*
	 * Not mmu_notifier_synchronize(): that waits for a grace period, not for the callbacks that
	 * free. The last of those may still be within oc_notifier_freed(). The kernel calls it with
	 * bottom halves disabled, which counts as a reader of RCU.
	 */
	synchronize_rcu();
}
