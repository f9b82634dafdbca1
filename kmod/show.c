// SPDX-License-Identifier: GPL-2.0
/*
 * /proc/onecopy: processes that export, attach and pin. A process that only holds a permit or a
 * descriptor is not shown. A list shows what is of the opener's own user in the opener's user
 * namespace. It also shows what is of an owner over which the opener has CAP_SYS_PTRACE. Processes
 * have their numbers in the reader's own pid namespace, and 0 where they have none. No id or cookie
 * is shown: a task that knows one may use it.
 */
#include <linux/cred.h>
#include <linux/pid.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/user_namespace.h>

#include "core.h"
#include "show.h"

static struct proc_dir_entry *oc_proc, *oc_proc_xpmem;

/*
 * Not the reader's rights. The descriptor may have been handed to a process with more of them that
 * copies its input, or that has it as its output.
 */
static bool oc_opener_capable(const struct seq_file *m, struct user_namespace *ns)
{
	const struct cred *old = override_creds(m->file->f_cred);
	bool capable = ns_capable_noaudit(ns, CAP_SYS_PTRACE);

	revert_creds(old);
	return capable;
}

static bool oc_show_allowed(const struct seq_file *m, kuid_t uid, struct user_namespace *ns)
{
	const struct cred *opener = m->file->f_cred;

	if (uid_eq(uid, opener->euid) && ns == opener->user_ns)
		return true;
	return oc_opener_capable(m, ns);
}

/* ---- exports ---- */
/*
 * Where a reader is. A line is a record of its own, for which the segment's lock is held once. So
 * the segment's owner waits for one line at most, however many attachments the list has to show.
 */
struct oc_exports {
	struct oc_seg *seg; /* while it reads */
	u64 serial; /* its serial number */
	unsigned long attachment; /* that of its attachment; 0: the line of the segment itself */
	bool allowed; /* it may be shown to the reader */
	loff_t pos; /* which line this is */
};

/* To a segment's own line. Its reference is the reader's; NULL: there is no more. */
static void *oc_exports_at(struct seq_file *m, struct oc_seg *seg)
{
	struct oc_exports *e = m->private;

	e->seg = seg;
	e->serial = seg ? seg->listed.serial : U64_MAX;
	e->attachment = 0;
	e->allowed = seg && oc_show_allowed(m, seg->uid, seg->ns);
	return seg ? e : NULL;
}

static void *oc_exports_start(struct seq_file *m, loff_t *pos)
{
	struct oc_exports *e = m->private;
	unsigned long attachment = e->attachment;
	u64 serial = e->serial;
	void *v;

	if (!*pos) {
		e->pos = 0;
		return SEQ_START_TOKEN;
	}
	if (*pos != e->pos)
		return NULL;
	v = oc_exports_at(m, oc_seg_next(NULL, serial));
	/* Else the segment is gone, and this is the one after it. */
	if (e->serial == serial)
		e->attachment = attachment;
	return v;
}

static void *oc_exports_next(struct seq_file *m, void *v, loff_t *pos)
{
	struct oc_exports *e = m->private;
	struct oc_attachment *att = NULL;

	*pos = ++e->pos;
	if (v == SEQ_START_TOKEN)
		return oc_exports_at(m, oc_seg_next(NULL, 0));
	if (e->allowed) {
		mutex_lock(&e->seg->lock);
		att = oc_attachment_after(e->seg, e->attachment);
		if (att)
			e->attachment = att->link.start;
		mutex_unlock(&e->seg->lock);
	}
	return att ? e : oc_exports_at(m, oc_seg_next(e->seg, 0));
}

static void oc_exports_stop(struct seq_file *m, void *v)
{
	struct oc_exports *e = m->private;

	if (e->seg)
		oc_seg_put(e->seg);
	e->seg = NULL;
}

static int oc_exports_show(struct seq_file *m, void *v)
{
	struct oc_exports *e = m->private;
	struct oc_attachment *att;
	struct oc_seg *seg = e->seg;

	if (v == SEQ_START_TOKEN) {
		seq_puts(m, "# export OWNER uid UID ADDRESS BYTES mode MODE STATE");
		seq_puts(m, " | attached IMPORTER BYTES at OWNER-ADDRESS\n");
		return 0;
	}
	if (!e->allowed)
		return 0;
	if (!e->attachment) {
		seq_printf(m, "export %d uid %u 0x%lx %lu mode %04o %s\n",
			   oc_show_pid(seg->owner), from_kuid_munged(seq_user_ns(m), seg->uid),
			   seg->start, seg->size, seg->mode, oc_seg_state(seg));
		return 0;
	}
	mutex_lock(&seg->lock);
	att = oc_attachment_after(seg, e->attachment - 1);
	/* It may be gone meanwhile; what came after it has a line of its own. */
	if (att && att->link.start == e->attachment)
		seq_printf(m, "attached %d %lu at 0x%lx\n", oc_show_pid(att->importer),
			   att->end - att->start, att->shows);
	mutex_unlock(&seg->lock);
	return 0;
}

static const struct seq_operations oc_exports_ops = {
	.start = oc_exports_start,
	.next = oc_exports_next,
	.stop = oc_exports_stop,
	.show = oc_exports_show,
};

/* ---- pins ---- */
static void *oc_pins_start(struct seq_file *m, loff_t *pos)
{
	return *pos ? oc_region_next(NULL, *pos - 1) : SEQ_START_TOKEN;
}

static void *oc_pins_next(struct seq_file *m, void *v, loff_t *pos)
{
	struct oc_region *region = oc_region_next(v == SEQ_START_TOKEN ? NULL : v, 0);

	*pos = region ? region->listed.serial + 1 : *pos + 1;
	return region;
}

static void oc_pins_stop(struct seq_file *m, void *v)
{
	if (v && v != SEQ_START_TOKEN)
		oc_region_drop(v);
}

static int oc_pins_show(struct seq_file *m, void *v)
{
	struct oc_region *r = v;

	if (v == SEQ_START_TOKEN) {
		seq_puts(m, "# pinned OWNER uid UID PAGES BYTES PIECES RIGHTS\n");
		return 0;
	}
	if (READ_ONCE(r->unpinned) || !oc_show_allowed(m, r->uid, r->ns))
		return 0;
	seq_printf(m, "pinned %d uid %u %lu %llu %u %s%s%s%s\n", oc_show_pid(r->creator),
		   from_kuid_munged(seq_user_ns(m), r->uid), r->pinned, r->total, r->n,
		   r->read ? "r" : "-", r->write ? "w" : "-", r->single_use ? " once" : "",
		   r->any_user ? " any-user" : "");
	return 0;
}

static const struct seq_operations oc_pins_ops = {
	.start = oc_pins_start,
	.next = oc_pins_next,
	.stop = oc_pins_stop,
	.show = oc_pins_show,
};

/* ---- users ---- */
static void oc_user_show(struct seq_file *m, kuid_t uid, const unsigned long *count)
{
	/* Users are the machine's, whatever namespace they live in. */
	if (!uid_eq(uid, m->file->f_cred->uid) && !oc_opener_capable(m, &init_user_ns))
		return;
	seq_printf(m, "uid %u segments %lu permits %lu regions %lu workers %lu attachments %lu\n",
		   from_kuid_munged(seq_user_ns(m), uid), count[OC_SEGMENTS], count[OC_PERMITS],
		   count[OC_REGIONS], count[OC_WORKERS], count[OC_ATTACHMENT_VMAS]);
}

static int oc_users_show(struct seq_file *m, void *v)
{
	seq_puts(m, "# uid UID segments N permits N regions N workers N attachments N\n");
	oc_users_each(m, oc_user_show);
	return 0;
}

/* ---- what scripts of the other xpmem module read ---- */
static int oc_xpmem_pages_show(struct seq_file *m, void *v)
{
	/* Attachments pin nothing, so whatever was pinned is unpinned. */
	seq_puts(m, "all pages pinned by XPMEM: 0\nall pages unpinned by XPMEM: 0\n");
	return 0;
}

/**
 * oc_show_init() - make the lists in /proc, when the module is loaded
 *
 * The files are for people. Without them the module does what it is for, so no error is returned.
 */
void oc_show_init(void)
{
	oc_proc = proc_mkdir("onecopy", NULL);
	if (oc_proc) {
		proc_create_seq_private("exports", 0444, oc_proc, &oc_exports_ops,
					sizeof(struct oc_exports), NULL);
		proc_create_seq("pins", 0444, oc_proc, &oc_pins_ops);
		proc_create_single("users", 0444, oc_proc, oc_users_show);
	}
	oc_proc_xpmem = proc_mkdir("xpmem", NULL);
	if (oc_proc_xpmem)
		proc_create_single("global_pages", 0444, oc_proc_xpmem, oc_xpmem_pages_show);
}

/**
 * oc_show_exit() - remove the lists, when the module is unloaded; waits for their readers
 */
void oc_show_exit(void)
{
	proc_remove(oc_proc_xpmem);
	proc_remove(oc_proc);
}
