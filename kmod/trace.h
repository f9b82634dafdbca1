/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM onecopy

#if !defined(OC_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define OC_TRACE_H

#include <linux/tracepoint.h>

#include "core.h"

/*
 * What observes by raw tracepoints takes arguments by their place: new ones come last. `owner_addr`
 * is an address of the owner. `owner_tgid` and `peer` are ids of processes in the outermost
 * namespace.
 */
TRACE_EVENT(onecopy_make,
	TP_PROTO(struct oc_seg *seg),
	TP_ARGS(seg),
	TP_STRUCT__entry(
		__field(const void *, seg)
		__field(unsigned long, start)
		__field(unsigned long, size)
		__field(unsigned int, mode)
	),
	TP_fast_assign(
		__entry->seg = seg;
		__entry->start = seg->start;
		__entry->size = seg->size;
		__entry->mode = seg->mode;
	),
	TP_printk("seg=%p start=%#lx size=%#lx mode=%#o", __entry->seg, __entry->start,
		  __entry->size, __entry->mode)
);

TRACE_EVENT(onecopy_get,
	TP_PROTO(struct oc_seg *seg, bool write, int err),
	TP_ARGS(seg, write, err),
	TP_STRUCT__entry(
		__field(const void *, seg)
		__field(bool, write)
		__field(int, err)
	),
	TP_fast_assign(
		__entry->seg = seg;
		__entry->write = write;
		__entry->err = err;
	),
	TP_printk("seg=%p write=%d err=%d", __entry->seg, __entry->write, __entry->err)
);

TRACE_EVENT(onecopy_attach,
	TP_PROTO(struct oc_seg *seg, unsigned long addr, unsigned long len,
		 unsigned long owner_addr, bool write, pid_t owner_tgid),
	TP_ARGS(seg, addr, len, owner_addr, write, owner_tgid),
	TP_STRUCT__entry(
		__field(const void *, seg)
		__field(unsigned long, addr)
		__field(unsigned long, len)
		__field(unsigned long, owner_addr)
		__field(bool, write)
		__field(pid_t, owner_tgid)
	),
	TP_fast_assign(
		__entry->seg = seg;
		__entry->addr = addr;
		__entry->len = len;
		__entry->owner_addr = owner_addr;
		__entry->write = write;
		__entry->owner_tgid = owner_tgid;
	),
	TP_printk("seg=%p addr=%#lx len=%#lx owner_addr=%#lx write=%d owner_tgid=%d", __entry->seg,
		  __entry->addr, __entry->len, __entry->owner_addr, __entry->write,
		  __entry->owner_tgid)
);

TRACE_EVENT(onecopy_detach,
	TP_PROTO(unsigned long addr, unsigned long len),
	TP_ARGS(addr, len),
	TP_STRUCT__entry(
		__field(unsigned long, addr)
		__field(unsigned long, len)
	),
	TP_fast_assign(
		__entry->addr = addr;
		__entry->len = len;
	),
	TP_printk("addr=%#lx len=%#lx", __entry->addr, __entry->len)
);

TRACE_EVENT(onecopy_fault,
	TP_PROTO(struct oc_seg *seg, unsigned long addr, unsigned long owner_addr, bool write,
		 unsigned int pages, int err, pid_t owner_tgid),
	TP_ARGS(seg, addr, owner_addr, write, pages, err, owner_tgid),
	TP_STRUCT__entry(
		__field(const void *, seg)
		__field(unsigned long, addr)
		__field(unsigned long, owner_addr)
		__field(bool, write)
		__field(unsigned int, pages)
		__field(int, err)
		__field(pid_t, owner_tgid)
	),
	TP_fast_assign(
		__entry->seg = seg;
		__entry->addr = addr;
		__entry->owner_addr = owner_addr;
		__entry->write = write;
		__entry->pages = pages;
		__entry->err = err;
		__entry->owner_tgid = owner_tgid;
	),
	TP_printk("seg=%p addr=%#lx owner_addr=%#lx write=%d pages=%u err=%d owner_tgid=%d",
		  __entry->seg, __entry->addr, __entry->owner_addr, __entry->write, __entry->pages,
		  __entry->err, __entry->owner_tgid)
);

TRACE_EVENT(onecopy_invalidate,
	TP_PROTO(struct oc_seg *seg, unsigned long start, unsigned long end, int event),
	TP_ARGS(seg, start, end, event),
	TP_STRUCT__entry(
		__field(const void *, seg)
		__field(unsigned long, start)
		__field(unsigned long, end)
		__field(int, event)
	),
	TP_fast_assign(
		__entry->seg = seg;
		__entry->start = start;
		__entry->end = end;
		__entry->event = event;
	),
	TP_printk("seg=%p start=%#lx end=%#lx event=%d", __entry->seg, __entry->start,
		  __entry->end, __entry->event)
);

TRACE_EVENT(onecopy_copy,
	TP_PROTO(unsigned long dst, unsigned long src, unsigned long len, unsigned long done,
		 int err, pid_t peer, bool to_peer),
	TP_ARGS(dst, src, len, done, err, peer, to_peer),
	TP_STRUCT__entry(
		__field(unsigned long, dst)
		__field(unsigned long, src)
		__field(unsigned long, len)
		__field(unsigned long, done)
		__field(int, err)
		__field(pid_t, peer)
		__field(bool, to_peer)
	),
	TP_fast_assign(
		__entry->dst = dst;
		__entry->src = src;
		__entry->len = len;
		__entry->done = done;
		__entry->err = err;
		__entry->peer = peer;
		__entry->to_peer = to_peer;
	),
	TP_printk("dst=%#lx src=%#lx len=%lu done=%lu err=%d peer=%d to_peer=%d", __entry->dst,
		  __entry->src, __entry->len, __entry->done, __entry->err, __entry->peer,
		  __entry->to_peer)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
