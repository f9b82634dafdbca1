// SPDX-License-Identifier: GPL-2.0
/*
 * Which tasks are in the middle of something: a note that a callback, which gets no argument of
 * ours, can look for.
 */
#include <linux/hash.h>
#include <linux/sched.h>

#include "core.h"

static struct oc_mark_bucket *oc_bucket(struct oc_marks *marks)
{
	return &marks->bucket[hash_ptr(current, ilog2(OC_MARK_BUCKETS))];
}

/**
 * oc_marks_init() - make an empty set of marks
 * @marks: the set
 */
void oc_marks_init(struct oc_marks *marks)
{
	int i;

	for (i = 0; i < OC_MARK_BUCKETS; i++) {
		spin_lock_init(&marks->bucket[i].lock);
		INIT_HLIST_HEAD(&marks->bucket[i].head);
	}
}

/**
 * oc_mark_set() - note that the caller is in the middle of something
 * @marks: the set
 * @mark: the note, on the caller's stack as a rule; stays until oc_mark_clear()
 */
void oc_mark_set(struct oc_marks *marks, struct oc_mark *mark)
{
	struct oc_mark_bucket *b = oc_bucket(marks);

	mark->task = current;
	spin_lock(&b->lock);
	hlist_add_head(&mark->node, &b->head);
	spin_unlock(&b->lock);
}

/**
 * oc_mark_clear() - take a note of the caller back
 * @marks: the set
 * @mark: what oc_mark_set() added
 */
void oc_mark_clear(struct oc_marks *marks, struct oc_mark *mark)
{
	struct oc_mark_bucket *b = oc_bucket(marks);

	spin_lock(&b->lock);
	hlist_del(&mark->node);
	spin_unlock(&b->lock);
}

/**
 * oc_mark_find() - the caller's own mark
 * @marks: the set
 *
 * Return: the mark, or NULL. Only the caller adds or removes it, so it stays valid.
 */
struct oc_mark *oc_mark_find(struct oc_marks *marks)
{
	struct oc_mark_bucket *b = oc_bucket(marks);
	struct oc_mark *m, *found = NULL;

	/* A mark of ours was added by us: an empty bucket holds none. */
	if (!READ_ONCE(b->head.first))
		return NULL;
	spin_lock(&b->lock);
	hlist_for_each_entry(m, &b->head, node) {
		if (m->task == current) {
			found = m;
			break;
		}
	}
	spin_unlock(&b->lock);
	return found;
}
