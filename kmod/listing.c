// SPDX-License-Identifier: GPL-2.0
/* What lists show, by serial number. */
#include "listing.h"

/**
 * oc_listing_add() - add an entry as the last one
 * @listing: the listing
 * @listed: the entry, which gets its serial number
 *
 * Context: under the lock of the listing's owner.
 */
void oc_listing_add(struct oc_listing *listing, struct oc_listed *listed)
{
	struct rb_node **at = &listing->root.rb_node, *parent = NULL;

	listed->serial = listing->serial++;
	while (*at) {
		parent = *at;
		at = &parent->rb_right;
	}
	rb_link_node(&listed->node, parent, at);
	rb_insert_color(&listed->node, &listing->root);
}

/**
 * oc_listing_del() - remove an entry, if it is in the listing
 * @listing: the listing
 * @listed: the entry
 *
 * Context: under the lock of the listing's owner.
 */
void oc_listing_del(struct oc_listing *listing, struct oc_listed *listed)
{
	if (RB_EMPTY_NODE(&listed->node))
		return;
	rb_erase(&listed->node, &listing->root);
	RB_CLEAR_NODE(&listed->node);
}

/**
 * oc_listing_from() - find where a reader goes on
 * @listing: the listing
 * @serial: the least serial number
 *
 * Context: under the lock of the listing's owner.
 * Return: the first entry that has at least that number, or NULL: none.
 */
struct oc_listed *oc_listing_from(struct oc_listing *listing, u64 serial)
{
	struct rb_node *at = listing->root.rb_node;
	struct oc_listed *found = NULL, *here;

	while (at) {
		here = rb_entry(at, struct oc_listed, node);
		if (here->serial >= serial) {
			found = here;
			at = at->rb_left;
		} else {
			at = at->rb_right;
		}
	}
	return found;
}
