/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What lists show, by serial number. A reader goes on where it was, at the cost of a search. So no
 * lock is kept for as long as a walk through all of it.
 */
#ifndef OC_LISTING_H
#define OC_LISTING_H

#include <linux/rbtree.h>
#include <linux/types.h>

/* All of it is under a lock of who has it. */
struct oc_listing {
	struct rb_root root;
	u64 serial; /* of the next that comes */
};

struct oc_listed {
	struct rb_node node;
	u64 serial;
};

#define OC_LISTING_INIT { .root = RB_ROOT }

/* Not in a listing yet, so that oc_listing_del() may be called. */
static inline void oc_listed_init(struct oc_listed *listed)
{
	RB_CLEAR_NODE(&listed->node);
}

void oc_listing_add(struct oc_listing *listing, struct oc_listed *listed);
void oc_listing_del(struct oc_listing *listing, struct oc_listed *listed);
struct oc_listed *oc_listing_from(struct oc_listing *listing, u64 serial);

static inline struct oc_listed *oc_listed_next(struct oc_listed *listed)
{
	return rb_entry_safe(rb_next(&listed->node), struct oc_listed, node);
}

#endif
