// SPDX-License-Identifier: GPL-2.0
/*
 * Bytes of a segment or region move within its gate only, so the task that ends it can wait for
 * them. A region's pages are looked at there only, too, since its end lets them go. No task is long
 * within: it takes no fault and no lock there, and is not preempted. If it were, one of low
 * priority could delay the task that ends the segment or region.
 */
#include <linux/delay.h>
#include <linux/preempt.h>

#include "core.h"

/**
 * oc_gate_enter() - enter a gate, to move bytes
 * @gate: the gate
 *
 * Context: until oc_gate_leave() the caller is not preempted, and takes no fault and no lock.
 * Return: false if the gate is closed.
 */
bool oc_gate_enter(struct oc_gate *gate)
{
	preempt_disable();
	atomic_inc(&gate->inside);
	/* either this sees that it is closed, or oc_gate_drain() sees this */
	smp_mb__after_atomic();
	/* Pairs with oc_gate_close(): a task that sees it closed sees why. */
	if (!smp_load_acquire(&gate->closed))
		return true;
	oc_gate_leave(gate);
	return false;
}

/**
 * oc_gate_leave() - leave a gate
 * @gate: the gate that oc_gate_enter() let the caller in
 */
void oc_gate_leave(struct oc_gate *gate)
{
	/* A task that sees this sees all that was done within. */
	smp_mb__before_atomic();
	atomic_dec(&gate->inside);
	preempt_enable();
}

/**
 * oc_gate_close() - let no task enter any more
 * @gate: the gate
 */
void oc_gate_close(struct oc_gate *gate)
{
	smp_store_release(&gate->closed, true); /* pairs with oc_gate_enter() */
}

#define OC_GATE_SPINS 1000

/**
 * oc_gate_drain() - wait until all tasks have left a closed gate
 * @gate: the gate
 *
 * Context: may sleep, for no longer than a copy of OC_GATE_BYTES takes.
 */
void oc_gate_drain(struct oc_gate *gate)
{
	unsigned int spins;

	smp_mb(); /* see oc_gate_enter() */
	for (spins = 0; atomic_read_acquire(&gate->inside); spins++)
		/* The hypervisor may have taken the processor of a task that is within. */
		if (spins < OC_GATE_SPINS)
			cpu_relax();
		else
			usleep_range(10, 100);
}
