// SPDX-License-Identifier: GPL-2.0
/* Segments: a range of one address space, who may reach it, and its end. */
#include <linux/hashtable.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>

#include "core.h"
#include "inject.h"
#include "show.h"

static bool other_users;
module_param(other_users, bool, 0644);
MODULE_PARM_DESC(other_users, "Let the group and other bits of an xpmem segment's mode count: other users may then reach it (default: no)");

static DEFINE_HASHTABLE(oc_table, 10);
static DEFINE_SPINLOCK(oc_table_lock);
static struct oc_listing oc_segments = OC_LISTING_INIT; /* all of them; the table's lock */

static void oc_batches_init(struct oc_seg *seg, work_func_t run_batch)
{
	enum oc_zap_class class;

	init_waitqueue_head(&seg->batch_done);
	for (class = 0; class < OC_ZAP_OTHER; class++) {
		struct oc_zap_batch *batch = &seg->batch[class];

		INIT_WORK(&batch->work.work, run_batch);
		INIT_LIST_HEAD(&batch->work.waiting);
		batch->work.user = seg->user;
		batch->work.class = class;
		batch->seg = seg;
	}
}

/* No task waits for them any more, but a worker may not have returned. The segment goes next. */
static void oc_batches_end(struct oc_seg *seg)
{
	enum oc_zap_class class;

	for (class = 0; class < OC_ZAP_OTHER; class++)
		flush_work(&seg->batch[class].work.work);
}

static void oc_seg_free(struct kref *ref)
{
	struct oc_seg *seg = container_of(ref, struct oc_seg, ref);
	int i;

	spin_lock(&oc_table_lock);
	oc_listing_del(&oc_segments, &seg->listed);
	spin_unlock(&oc_table_lock);
	if (seg->mm)
		oc_watch_end(&seg->watch);
	oc_batches_end(seg);
	for (i = 0; i < OC_SNAPS; i++)
		oc_snap_free(seg->snap[i]);
	oc_generation_free(seg);
	put_user_ns(seg->ns);
	put_pid(seg->owner);
	if (seg->space)
		oc_space_uncharge(seg->space);
	oc_uncharge(seg->user, OC_SEGMENTS);
	kfree(seg);
}

/**
 * oc_seg_put() - drop a reference of a segment
 * @seg: the segment
 *
 * Context: the caller holds no lock. The last reference waits until running notifications of the
 * segment, and workers of its batches, have returned.
 */
void oc_seg_put(struct oc_seg *seg)
{
	kref_put(&seg->ref, oc_seg_free);
}

/**
 * oc_seg_create() - make a segment of the caller's memory
 * @start: first address; the range was checked
 * @size: in bytes
 * @mode: who may get it, as of a file
 * @changes: called when that memory changes
 * @run_batch: zaps what has changed
 *
 * Context: may sleep. The caller holds no lock.
 * Return: the segment with one reference, which no id names yet. Or ERR_PTR() of -ENOMEM, or of the
 * error of oc_charge(), oc_space_charge() or oc_watch_begin().
 */
struct oc_seg *oc_seg_create(unsigned long start, unsigned long size, umode_t mode,
			     const struct oc_watch_ops *changes, work_func_t run_batch)
{
	struct oc_user *user;
	struct oc_seg *seg;
	int err = -ENOMEM;

	user = oc_charge(OC_SEGMENTS);
	if (IS_ERR(user))
		return ERR_CAST(user);
	seg = oc_may_fail(kzalloc(sizeof(*seg), GFP_KERNEL_ACCOUNT));
	if (!seg) {
		oc_uncharge(user, OC_SEGMENTS);
		return ERR_PTR(-ENOMEM);
	}
	kref_init(&seg->ref);
	mutex_init(&seg->lock);
	init_waitqueue_head(&seg->zapped);
	seg->stretches = RB_ROOT_CACHED;
	oc_listed_init(&seg->listed);
	seg->attachments = RB_ROOT_CACHED;
	INIT_HLIST_NODE(&seg->node);
	address_space_init_once(&seg->mapping);
	seg->mapping.a_ops = &empty_aops;
	seg->user = user;
	oc_batches_init(seg, run_batch);
	seg->start = start;
	seg->size = size;
	seg->mode = mode;
	seg->uid = current_euid();
	seg->gid = current_egid();
	seg->ns = get_user_ns(current_user_ns());
	seg->state = ONECOPY_STATE_ALIVE;
	seg->owner = get_pid(task_tgid(current));
	seg->space = oc_space_charge();
	if (IS_ERR(seg->space)) {
		err = PTR_ERR(seg->space);
		seg->space = NULL;
		goto fail;
	}
	if (oc_generation_init(seg))
		goto fail;
	err = oc_watch_begin(&seg->watch, start, size, changes, false);
	if (err)
		goto fail;
	seg->mm = current->mm;
	spin_lock(&oc_table_lock);
	oc_listing_add(&oc_segments, &seg->listed);
	spin_unlock(&oc_table_lock);
	return seg;
fail:
	oc_seg_put(seg);
	return ERR_PTR(err);
}

/**
 * oc_seg_next() - go through all segments
 * @seg: the last one, whose reference is dropped; or NULL
 * @serial: without @seg: the least serial number
 *
 * Context: as oc_seg_put().
 * Return: the next one, referenced, or NULL: none.
 */
struct oc_seg *oc_seg_next(struct oc_seg *seg, u64 serial)
{
	struct oc_seg *next, *found = NULL;
	struct oc_listed *at;

	spin_lock(&oc_table_lock);
	/* What is referenced stays listed. */
	at = seg ? oc_listed_next(&seg->listed) : oc_listing_from(&oc_segments, serial);
	for (; at && !found; at = oc_listed_next(at)) {
		next = container_of(at, struct oc_seg, listed);
		if (kref_get_unless_zero(&next->ref))
			found = next;
	}
	spin_unlock(&oc_table_lock);
	if (seg)
		oc_seg_put(seg);
	return found;
}

/**
 * oc_seg_publish() - give a segment an id by which others find it
 * @seg: the segment
 *
 * Called last, when nothing can fail any more.
 */
void oc_seg_publish(struct oc_seg *seg)
{
	struct oc_seg *other;
	bool taken;
	u64 id;

	do {
		id = oc_random_id();
		taken = false;
		spin_lock(&oc_table_lock);
		hash_for_each_possible(oc_table, other, node, id)
			taken |= other->id == id;
		if (!taken) {
			seg->id = id;
			hash_add(oc_table, &seg->node, id);
		}
		spin_unlock(&oc_table_lock);
	} while (taken);
}

/**
 * oc_seg_find() - look a segment up
 * @id: its id
 *
 * Return: the segment, referenced, or NULL.
 */
struct oc_seg *oc_seg_find(u64 id)
{
	struct oc_seg *seg, *found = NULL;

	spin_lock(&oc_table_lock);
	hash_for_each_possible(oc_table, seg, node, id) {
		if (seg->id == id && kref_get_unless_zero(&seg->ref)) {
			found = seg;
			break;
		}
	}
	spin_unlock(&oc_table_lock);
	return found;
}

/**
 * oc_seg_die() - end a segment: it is unpublished, and no use of it begins any more
 * @seg: the segment
 * @state: why; of several calls the first one's reason stays
 *
 * Attachments still show pages: see oc_revoke().
 *
 * Context: takes @seg->lock.
 */
void oc_seg_die(struct oc_seg *seg, u32 state)
{
	spin_lock(&oc_table_lock);
	if (!hlist_unhashed(&seg->node))
		hash_del(&seg->node);
	spin_unlock(&oc_table_lock);

	mutex_lock(&seg->lock);
	if (seg->state == ONECOPY_STATE_ALIVE) {
		WRITE_ONCE(seg->state, state); /* oc_seg_error() reads it without the lock */
		oc_gate_close(&seg->gate);
		oc_generation_state(seg);
	}
	mutex_unlock(&seg->lock);
}

/**
 * oc_seg_state() - the state of a segment in a word
 * @seg: the segment
 *
 * Return: the word, for lists.
 */
const char *oc_seg_state(const struct oc_seg *seg)
{
	switch (READ_ONCE(seg->state)) {
	case ONECOPY_STATE_ALIVE:
		return "alive";
	case ONECOPY_STATE_REVOKED:
		return "revoked";
	default:
		return "owner-gone";
	}
}

/**
 * oc_seg_error() - why a segment cannot be used any more
 * @seg: the segment
 *
 * Return: 0: it can; -EKEYREVOKED or -ESRCH.
 */
int oc_seg_error(struct oc_seg *seg)
{
	switch (READ_ONCE(seg->state)) {
	case ONECOPY_STATE_ALIVE:
		return 0;
	case ONECOPY_STATE_REVOKED:
		return -EKEYREVOKED;
	default:
		return -ESRCH;
	}
}

/**
 * oc_seg_enter() - enter a segment's gate
 * @seg: the segment
 *
 * Context: as oc_gate_enter().
 * Return: 0, or why the segment has ended.
 */
int oc_seg_enter(struct oc_seg *seg)
{
	return oc_gate_enter(&seg->gate) ? 0 : oc_seg_error(seg);
}

/**
 * oc_seg_allows() - whether the caller may have access
 * @seg: the segment
 * @write: to write, too
 *
 * The owner agreed by exporting with a mode. That counts for the same user in the same user
 * namespace; for others only where the administrator said so. Capabilities count where the owner
 * lives.
 *
 * Return: true if the caller may.
 */
bool oc_seg_allows(struct oc_seg *seg, bool write)
{
	bool same = current_user_ns() == seg->ns && uid_eq(current_euid(), seg->uid);
	unsigned int want = write ? 6 : 4;

	if ((same || READ_ONCE(other_users)) &&
	    (oc_mode_bits(seg->mode, uid_eq(current_euid(), seg->uid), in_egroup_p(seg->gid)) &
	     want) == want)
		return true;
	return ns_capable(seg->ns, CAP_SYS_PTRACE) || ns_capable(seg->ns, CAP_IPC_OWNER);
}
