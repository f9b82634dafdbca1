/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What lists show, by serial number. A reader goes on where it was, at the cost of a search. So no
 * lock is kept for as long as a walk through all of it.
 */
#ifndef OC_LISTING_H
#define OC_LISTING_H

#include <linux/rbtree.h>
#include <linux/types.h>

/**
 * struct oc_listing - objects of a kind
 * @root: the objects, by serial number
 * @serial: serial number of the next that comes
 *
 * All of it is under a lock of its owner.
 */
struct oc_listing {
	struct rb_root root;
	u64 serial;
};

/**
 * struct oc_listed - the part of an object by which it is listed
 * @node: in the listing
 * @serial: its serial number, which no later one has
 *
 * Under the lock of the listing's owner. @serial stays as it is while the object is listed.
 */
struct oc_listed {
	struct rb_node node;
	u64 serial;
};

#define OC_LISTING_INIT { .root = RB_ROOT }

/**
 * oc_listed_init() - note that an object is in no listing yet
 * @listed: of the object
 *
 * From here on oc_listing_del() may be called.
 */
static inline void oc_listed_init(struct oc_listed *listed)
{
	RB_CLEAR_NODE(&listed->node);
}

void oc_listing_add(struct oc_listing *listing, struct oc_listed *listed);
void oc_listing_del(struct oc_listing *listing, struct oc_listed *listed);
struct oc_listed *oc_listing_from(struct oc_listing *listing, u64 serial);

/**
 * oc_listed_next() - the entry behind another one
 * @listed: the other one, in its listing
 *
 * Context: under the lock of the listing's owner.
 * Return: the entry, or NULL: none.
 */
static inline struct oc_listed *oc_listed_next(struct oc_listed *listed)
{
	return rb_entry_safe(rb_next(&listed->node), struct oc_listed, node);
}

#endif
