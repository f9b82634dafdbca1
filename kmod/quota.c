// SPDX-License-Identifier: GPL-2.0
/*
 * Counters without shared cache lines; how much a user, and a process, may have; a user's places in
 * the queue of zaps.
 */
#include <linux/hash.h>
#include <linux/moduleparam.h>
#include <linux/sched/mm.h>
#include <linux/semaphore.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/user_namespace.h>

#include "core.h"
#include "show.h"

DEFINE_PER_CPU(struct oc_stats, oc_stats);
unsigned long oc_gauge[OC_QUOTAS];
atomic_long_t oc_pinned_pages;
atomic_long_t oc_attachments;
atomic_long_t oc_spaces_held;

/**
 * oc_stat_sum() - the sum of a counter
 * @what: the counter
 *
 * Return: what all CPUs have counted.
 */
u64 oc_stat_sum(enum oc_stat what)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(oc_stats, cpu).v[what]);
	return sum;
}

static unsigned int max_segments = 16384;
module_param(max_segments, uint, 0644);
MODULE_PARM_DESC(max_segments, "Segments that a user may export at a time (xpmem and onecopy)");
static unsigned int max_process_segments = 1024;
module_param(max_process_segments, uint, 0644);
MODULE_PARM_DESC(max_process_segments, "Segments that a process may export at a time: each makes changes of its memory dearer");
static unsigned int max_permits = 65536;
module_param(max_permits, uint, 0644);
MODULE_PARM_DESC(max_permits, "xpmem access permits that a user may hold at a time");
static unsigned int max_regions = 65536;
module_param(max_regions, uint, 0644);
MODULE_PARM_DESC(max_regions, "knem regions that a user may have at a time");
static unsigned int max_workers = 1024;
module_param(max_workers, uint, 0644);
MODULE_PARM_DESC(max_workers, "knem status arrays that a user may have mapped at a time; each has a kernel thread from its first copy on");
static unsigned int max_attachments = 1 << 20;
module_param(max_attachments, uint, 0644);
MODULE_PARM_DESC(max_attachments, "Attachments, and pieces into which they are split, that a user may have at a time: each makes changes of its owner's memory dearer");

#define OC_USER_BITS 6
/**
 * struct oc_user - a user that has something; one that has nothing any more is freed
 * @node: by @uid; under oc_users_lock
 * @uid: the user
 * @total: sum of @count; under oc_users_lock
 * @count: how many of each quota; under oc_users_lock, and read unlocked
 * @zapping: slots for zaps that are taken
 * @zaps: zaps that wait for a slot
 */
struct oc_user {
	struct hlist_node node;
	kuid_t uid;
	unsigned long total;
	unsigned long count[OC_QUOTAS];
	/** @zap_lock: guards what follows */
	spinlock_t zap_lock;
	unsigned int zapping;
	struct list_head zaps;
};

static struct hlist_head oc_users[1 << OC_USER_BITS];
static DEFINE_SPINLOCK(oc_users_lock);

#define OC_SPACE_BITS 8
/**
 * struct oc_space - an address space that has segments
 * @node: by @mm
 * @mm: the address space, kept as a structure
 * @segments: how many it has
 *
 * All of it is under oc_users_lock.
 */
struct oc_space {
	struct hlist_node node;
	struct mm_struct *mm;
	unsigned long segments;
};

static struct hlist_head oc_spaces[1 << OC_SPACE_BITS];

static unsigned int oc_limit(enum oc_quota what)
{
	switch (what) {
	case OC_SEGMENTS:
		return READ_ONCE(max_segments);
	case OC_PERMITS:
		return READ_ONCE(max_permits);
	case OC_WORKERS:
		return READ_ONCE(max_workers);
	case OC_ATTACHMENT_VMAS:
		return READ_ONCE(max_attachments);
	case OC_REGIONS:
		return READ_ONCE(max_regions);
	default:
		return 0; /* a kind without a parameter: none, which its first test finds */
	}
}

/*
 * The user that a task counts against: its real uid. One with a range of subordinate uids counts
 * for all of them. So a task in user namespaces counts against the owner of the outermost one.
 * Namespaces of root are left out, since root makes them for others.
 */
static kuid_t oc_payer(void)
{
	struct user_namespace *ns;
	kuid_t uid = current_uid();

	for (ns = current_user_ns(); ns != &init_user_ns; ns = ns->parent)
		if (!uid_eq(ns->owner, GLOBAL_ROOT_UID))
			uid = ns->owner;
	return uid;
}

/* Of the user, and of all: what is read without the lock. */
static void oc_user_add(struct oc_user *user, enum oc_quota what, long n)
{
	lockdep_assert_held(&oc_users_lock);
	WRITE_ONCE(user->count[what], user->count[what] + n);
	WRITE_ONCE(oc_gauge[what], oc_gauge[what] + n);
	user->total += n;
}

static struct oc_user *oc_user_find(struct hlist_head *head, kuid_t uid)
{
	struct oc_user *user;

	lockdep_assert_held(&oc_users_lock);
	hlist_for_each_entry(user, head, node)
		if (uid_eq(user->uid, uid))
			return user;
	return NULL;
}

/*
 * How many zaps of a user run at once. Few: the workers' time is on no cgroup's account. Each slot
 * is a processor that a user can keep busy in that way.
 */
static unsigned int oc_zap_slots(void)
{
	return clamp(DIV_ROUND_UP(num_online_cpus(), 4U), 1U, 8U);
}

/**
 * oc_zap_class_of() - the class of a zap for the task that changes an address space just now
 * @user: the user that has a segment or an attachment there
 * @mm: the address space
 *
 * A task that reclaims may hold locks that other users wait for, so it does not wait for zaps of
 * this user.
 *
 * Return: the class.
 */
enum oc_zap_class oc_zap_class_of(struct oc_user *user, const struct mm_struct *mm)
{
	if (current->flags & PF_KTHREAD ||
	    (current->mm != mm && !uid_eq(user->uid, oc_payer())))
		return OC_ZAP_OTHER;
	return current->flags & PF_MEMALLOC ? OC_ZAP_RECLAIM : OC_ZAP_OWN;
}

/**
 * oc_zap_slot_take() - take one of a user's slots for a zap, or queue up
 * @user: the user
 * @waiting: link of the zap in the queue
 *
 * Return: true if the zap may run now. False: it is queued, and the worker that frees a slot begins
 * it.
 */
bool oc_zap_slot_take(struct oc_user *user, struct list_head *waiting)
{
	bool taken;

	spin_lock(&user->zap_lock);
	taken = user->zapping < oc_zap_slots();
	if (taken)
		user->zapping++;
	else
		list_add_tail(waiting, &user->zaps);
	spin_unlock(&user->zap_lock);
	return taken;
}

/**
 * oc_zap_slot_give() - give a slot back, or to the next zap
 * @user: the user
 *
 * Return: link of the zap that has the slot now and has to be begun, or NULL: none waits.
 */
struct list_head *oc_zap_slot_give(struct oc_user *user)
{
	struct list_head *next = NULL;

	spin_lock(&user->zap_lock);
	if (list_empty(&user->zaps)) {
		user->zapping--;
	} else {
		next = user->zaps.next;
		list_del_init(next);
	}
	spin_unlock(&user->zap_lock);
	return next;
}

/**
 * oc_charge() - charge the caller's user with one more
 * @what: the quota
 *
 * Return: the user, which oc_uncharge() is given later, or ERR_PTR() of -EDQUOT or -ENOMEM.
 */
struct oc_user *oc_charge(enum oc_quota what)
{
	kuid_t uid = oc_payer();
	struct hlist_head *head = &oc_users[hash_32(__kuid_val(uid), OC_USER_BITS)];
	struct oc_user *user, *fresh = NULL;

	spin_lock(&oc_users_lock);
	user = oc_user_find(head, uid);
	if (!user) {
		spin_unlock(&oc_users_lock);
		fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT);
		if (!fresh)
			return ERR_PTR(-ENOMEM);
		fresh->uid = uid;
		spin_lock_init(&fresh->zap_lock);
		INIT_LIST_HEAD(&fresh->zaps);
		spin_lock(&oc_users_lock);
		user = oc_user_find(head, uid); /* another thread may have been faster */
	}
	if ((user ? user->count[what] : 0) >= oc_limit(what)) {
		spin_unlock(&oc_users_lock);
		kfree(fresh);
		return ERR_PTR(-EDQUOT);
	}
	if (!user) {
		user = fresh;
		fresh = NULL;
		hlist_add_head(&user->node, head);
	}
	oc_user_add(user, what, 1);
	spin_unlock(&oc_users_lock);
	kfree(fresh);
	return user;
}

/**
 * oc_may_charge() - whether one more is within the limit
 * @user: a user that has something
 * @what: the quota
 *
 * Return: true if it is.
 */
bool oc_may_charge(struct oc_user *user, enum oc_quota what)
{
	return READ_ONCE(user->count[what]) < oc_limit(what);
}

/**
 * oc_charge_more() - charge one more, whatever the limit is
 * @user: a user that has something
 * @what: the quota
 */
void oc_charge_more(struct oc_user *user, enum oc_quota what)
{
	spin_lock(&oc_users_lock);
	oc_user_add(user, what, 1);
	spin_unlock(&oc_users_lock);
}

/**
 * oc_uncharge() - one less; a user that has nothing any more is freed
 * @user: the user
 * @what: the quota
 */
void oc_uncharge(struct oc_user *user, enum oc_quota what)
{
	struct oc_user *none = NULL;

	spin_lock(&oc_users_lock);
	oc_user_add(user, what, -1);
	if (!user->total) {
		hlist_del(&user->node);
		none = user;
	}
	spin_unlock(&oc_users_lock);
	kfree(none);
}

/**
 * oc_users_each() - show all users
 * @m: where to show them
 * @show: shows one user; called under a spinlock
 */
void oc_users_each(struct seq_file *m, oc_user_show_t *show)
{
	struct oc_user *user;
	unsigned int i;

	spin_lock(&oc_users_lock);
	for (i = 0; i < ARRAY_SIZE(oc_users); i++)
		hlist_for_each_entry(user, &oc_users[i], node)
			show(m, user->uid, user->count);
	spin_unlock(&oc_users_lock);
}

/**
 * oc_space_charge() - charge the caller's address space with one more segment
 *
 * Return: the space, which oc_space_uncharge() is given later, or ERR_PTR() of -EDQUOT or -ENOMEM.
 */
struct oc_space *oc_space_charge(void)
{
	struct mm_struct *mm = current->mm;
	struct hlist_head *head = &oc_spaces[hash_ptr(mm, OC_SPACE_BITS)];
	struct oc_space *space, *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT);

	if (!fresh)
		return ERR_PTR(-ENOMEM);
	fresh->mm = mm;
	spin_lock(&oc_users_lock);
	hlist_for_each_entry(space, head, node)
		if (space->mm == mm)
			goto found;
	space = fresh;
	fresh = NULL;
	mmgrab(mm);
	atomic_long_inc(&oc_spaces_held);
	hlist_add_head(&space->node, head);
found:
	/* The first one is always let in, so there is no entry without any. */
	if (space->segments && space->segments >= READ_ONCE(max_process_segments))
		space = ERR_PTR(-EDQUOT);
	else
		space->segments++;
	spin_unlock(&oc_users_lock);
	kfree(fresh);
	return space;
}

/**
 * oc_space_uncharge() - one segment less; the last one lets the address space go
 * @space: the space
 */
void oc_space_uncharge(struct oc_space *space)
{
	bool none;

	spin_lock(&oc_users_lock);
	none = !--space->segments;
	if (none)
		hlist_del(&space->node);
	spin_unlock(&oc_users_lock);
	if (none) {
		mmdrop(space->mm);
		atomic_long_dec(&oc_spaces_held);
		kfree(space);
	}
}
