// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures have the sizes, members the places and constants the values of the C header, where it is installed
//! (Debian: libibverbs-dev). The header is too large to be read for its names: what is compared is what the crate has.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;

#[path = "../../c_program.rs"]
mod c_program;

use verbs_sys::mask::*;
use verbs_sys::opcode::*;
use verbs_sys::status::*;
use verbs_sys::*;

/// What is compared: an expression of C, and its value here.
#[derive(Default)]
struct Facts(Vec<(String, i128)>);

impl Facts {
    fn add(&mut self, expression: String, value: impl TryInto<i128>) {
        let value = value.try_into().unwrap_or(i128::MIN);
        self.0.push((expression, value));
    }
}

macro_rules! member {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident $other:literal) => {
        $other
    };
}

/// Structures with their names in C, and members; one that is called otherwise in C has that name behind it.
macro_rules! structures {
    ($facts:ident: $($c:literal $name:ident { $($member:ident $(= $other:literal)?),* $(,)? })*) => {$(
        $facts.add(format!("sizeof({})", $c), size_of::<$name>());
        $facts.add(format!("_Alignof({})", $c), align_of::<$name>());
        $($facts.add(format!("offsetof({}, {})", $c, member!($member $($other)?)), offset_of!($name, $member));)*
        // Names every member, so that one which the list above lacks does not compile.
        let _ = |it: &$name| {
            let $name { $($member: _),* } = it;
        };
    )*};
}

macro_rules! constants {
    ($facts:ident: $($name:ident),* $(,)?) => {$(
        $facts.add(stringify!($name).to_owned(), $name);
    )*};
}

fn facts() -> Facts {
    let mut facts = Facts::default();
    plain(&mut facts);
    members_of_unions(&mut facts);
    numbers(&mut facts);
    facts
}

#[rustfmt::skip]
fn plain(facts: &mut Facts) {
    structures! { facts:
        "union ibv_gid" ibv_gid { raw }
        "struct ibv_gid_entry" ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        "struct ibv_device_attr" ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt }
        "struct ibv_query_device_ex_input" ibv_query_device_ex_input { comp_mask }
        "struct ibv_odp_caps" ibv_odp_caps { general_caps, per_transport_caps }
        "struct ibv_tso_caps" ibv_tso_caps { max_tso, supported_qpts }
        "struct ibv_rss_caps" ibv_rss_caps { supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size, rx_hash_fields_mask, rx_hash_function }
        "struct ibv_packet_pacing_caps" ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts }
        "struct ibv_tm_caps" ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge }
        "struct ibv_cq_moderation_caps" ibv_cq_moderation_caps { max_cq_count, max_cq_period }
        "struct ibv_pci_atomic_caps" ibv_pci_atomic_caps { fetch_add, swap, compare_swap }
        "struct ibv_device_attr_ex" ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex }
        "struct ibv_port_attr" ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 }
        "struct ibv_device" ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        "struct ibv_pd" ibv_pd { context, handle }
        "struct ibv_mr" ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        "struct ibv_mw" ibv_mw { context, pd, rkey, handle, type_ = "type" }
        "struct ibv_mw_bind_info" ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        "struct ibv_mw_bind" ibv_mw_bind { wr_id, send_flags, bind_info }
        "struct ibv_global_route" ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        "struct ibv_grh" ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        "struct ibv_ah_attr" ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        "struct ibv_ah" ibv_ah { context, pd, handle }
        "struct ibv_xrcd" ibv_xrcd { context }
        "struct ibv_xrcd_init_attr" ibv_xrcd_init_attr { comp_mask, fd, oflags }
        "struct ibv_async_event" ibv_async_event { element = "element", event_type }
        "struct ibv_comp_channel" ibv_comp_channel { context, fd, refcnt }
        "struct ibv_cq" ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
        "struct ibv_cq_init_attr_ex" ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
        "struct ibv_srq_attr" ibv_srq_attr { max_wr, max_sge, srq_limit }
        "struct ibv_srq_init_attr" ibv_srq_init_attr { srq_context, attr }
        "struct ibv_tm_cap" ibv_tm_cap { max_num_tags, max_ops }
        "struct ibv_srq_init_attr_ex" ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        "struct ibv_srq" ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        "struct ibv_qp_cap" ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        "struct ibv_qp_init_attr" ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        "struct ibv_rx_hash_conf" ibv_rx_hash_conf { rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask }
        "struct ibv_qp_init_attr_ex" ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags }
        "struct ibv_qp_open_attr" ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
        "struct ibv_qp_attr" ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit }
        "struct ibv_qp" ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed }
        "struct ibv_sge" ibv_sge { addr, length, lkey }
        "struct ibv_send_wr" ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, number = "imm_data", wr, remote_srqn = "qp_type.xrc.remote_srqn", more = "bind_mw" }
        "struct ibv_recv_wr" ibv_recv_wr { wr_id, next, sg_list, num_sge }
        "struct ibv_wc" ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits }
        "struct ibv_data_buf" ibv_data_buf { addr, length }
        "struct ibv_qp_ex" ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write }
        "struct ibv_poll_cq_attr" ibv_poll_cq_attr { comp_mask }
        "struct ibv_wc_tm_info" ibv_wc_tm_info { tag, priv_ = "priv" }
        "struct ibv_cq_ex" ibv_cq_ex { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed, comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns }
        "struct ibv_context_ops" ibv_context_ops { _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd, _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw, _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq, _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq, _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp, _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah, _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event }
        "struct ibv_context" ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        "struct verbs_context" verbs_context { query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow, create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp, destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, priv_ = "priv", query_device_ex, ibv_destroy_flow, ABI_placeholder2, ibv_create_flow, ABI_placeholder1, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, _ABI_placeholder3, sz, context }
    }
}

/// Structures without a name in C.
fn members_of_unions(facts: &mut Facts) {
    let wr = offset_of!(ibv_send_wr, wr);
    let more = offset_of!(ibv_send_wr, more);
    for (member, place) in [
        (
            "wr.rdma.remote_addr",
            wr + offset_of!(ibv_send_wr_rdma, remote_addr),
        ),
        ("wr.rdma.rkey", wr + offset_of!(ibv_send_wr_rdma, rkey)),
        (
            "wr.atomic.remote_addr",
            wr + offset_of!(ibv_send_wr_atomic, remote_addr),
        ),
        (
            "wr.atomic.compare_add",
            wr + offset_of!(ibv_send_wr_atomic, compare_add),
        ),
        ("wr.atomic.swap", wr + offset_of!(ibv_send_wr_atomic, swap)),
        ("wr.atomic.rkey", wr + offset_of!(ibv_send_wr_atomic, rkey)),
        ("wr.ud.ah", wr + offset_of!(ibv_send_wr_ud, ah)),
        (
            "wr.ud.remote_qpn",
            wr + offset_of!(ibv_send_wr_ud, remote_qpn),
        ),
        (
            "wr.ud.remote_qkey",
            wr + offset_of!(ibv_send_wr_ud, remote_qkey),
        ),
        ("invalidate_rkey", offset_of!(ibv_send_wr, number)),
        ("bind_mw.mw", more + offset_of!(ibv_send_wr_bind, mw)),
        ("bind_mw.rkey", more + offset_of!(ibv_send_wr_bind, rkey)),
        (
            "bind_mw.bind_info",
            more + offset_of!(ibv_send_wr_bind, bind_info),
        ),
        ("tso.hdr", more + offset_of!(ibv_send_wr_tso, hdr)),
        ("tso.hdr_sz", more + offset_of!(ibv_send_wr_tso, hdr_sz)),
        ("tso.mss", more + offset_of!(ibv_send_wr_tso, mss)),
    ] {
        facts.add(format!("offsetof(struct ibv_send_wr, {member})"), place);
    }
}

#[rustfmt::skip]
fn numbers(facts: &mut Facts) {
    constants! { facts:
        IBV_GID_TYPE_IB,
        IBV_GID_TYPE_ROCE_V1,
        IBV_GID_TYPE_ROCE_V2,
        IBV_DEVICE_XRC,
        IBV_DEVICE_SRQ_RESIZE,
        IBV_DEVICE_PORT_ACTIVE_EVENT,
        IBV_DEVICE_MEM_WINDOW,
        IBV_ATOMIC_NONE,
        IBV_ATOMIC_HCA,
        IBV_ATOMIC_GLOB,
        IBV_NODE_CA,
        IBV_NODE_RNIC,
        IBV_TRANSPORT_IB,
        IBV_ODP_SUPPORT,
        IBV_ODP_SUPPORT_IMPLICIT,
        IBV_MTU_256,
        IBV_MTU_1024,
        IBV_MTU_4096,
        IBV_PORT_DOWN,
        IBV_PORT_INIT,
        IBV_PORT_ARMED,
        IBV_PORT_ACTIVE,
        IBV_LINK_LAYER_INFINIBAND,
        IBV_LINK_LAYER_ETHERNET,
        IBV_ACCESS_LOCAL_WRITE,
        IBV_ACCESS_REMOTE_WRITE,
        IBV_ACCESS_REMOTE_READ,
        IBV_ACCESS_REMOTE_ATOMIC,
        IBV_ACCESS_MW_BIND,
        IBV_ACCESS_ON_DEMAND,
        IBV_MW_TYPE_1,
        IBV_MW_TYPE_2,
        IBV_XRCD_INIT_ATTR_FD,
        IBV_XRCD_INIT_ATTR_OFLAGS,
        IBV_EVENT_CQ_ERR,
        IBV_EVENT_QP_FATAL,
        IBV_EVENT_QP_REQ_ERR,
        IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_COMM_EST,
        IBV_EVENT_DEVICE_FATAL,
        IBV_EVENT_PORT_ACTIVE,
        IBV_EVENT_PORT_ERR,
        IBV_EVENT_SRQ_ERR,
        IBV_EVENT_SRQ_LIMIT_REACHED,
        IBV_EVENT_QP_LAST_WQE_REACHED,
        IBV_EVENT_GID_CHANGE,
        IBV_SRQ_MAX_WR,
        IBV_SRQ_LIMIT,
        IBV_SRQT_BASIC,
        IBV_SRQT_XRC,
        IBV_SRQ_INIT_ATTR_TYPE,
        IBV_SRQ_INIT_ATTR_PD,
        IBV_SRQ_INIT_ATTR_XRCD,
        IBV_SRQ_INIT_ATTR_CQ,
        IBV_QPT_RC,
        IBV_QPT_UC,
        IBV_QPT_UD,
        IBV_QPT_XRC_SEND,
        IBV_QPT_XRC_RECV,
        IBV_QP_INIT_ATTR_PD,
        IBV_QP_INIT_ATTR_XRCD,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        IBV_QP_STATE,
        IBV_QP_CUR_STATE,
        IBV_QP_ACCESS_FLAGS,
        IBV_QP_PKEY_INDEX,
        IBV_QP_PORT,
        IBV_QP_QKEY,
        IBV_QP_AV,
        IBV_QP_PATH_MTU,
        IBV_QP_TIMEOUT,
        IBV_QP_RETRY_CNT,
        IBV_QP_RNR_RETRY,
        IBV_QP_RQ_PSN,
        IBV_QP_MAX_QP_RD_ATOMIC,
        IBV_QP_MIN_RNR_TIMER,
        IBV_QP_SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC,
        IBV_QP_CAP,
        IBV_QP_DEST_QPN,
        IBV_QPS_RESET,
        IBV_QPS_INIT,
        IBV_QPS_RTR,
        IBV_QPS_RTS,
        IBV_QPS_ERR,
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_SEND,
        IBV_WR_SEND_WITH_IMM,
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_LOCAL_INV,
        IBV_WR_BIND_MW,
        IBV_WR_SEND_WITH_INV,
        IBV_SEND_FENCE,
        IBV_SEND_SIGNALED,
        IBV_SEND_SOLICITED,
        IBV_SEND_INLINE,
        IBV_WC_SUCCESS,
        IBV_WC_LOC_LEN_ERR,
        IBV_WC_LOC_QP_OP_ERR,
        IBV_WC_LOC_PROT_ERR,
        IBV_WC_WR_FLUSH_ERR,
        IBV_WC_MW_BIND_ERR,
        IBV_WC_BAD_RESP_ERR,
        IBV_WC_LOC_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR,
        IBV_WC_REM_ACCESS_ERR,
        IBV_WC_REM_OP_ERR,
        IBV_WC_RETRY_EXC_ERR,
        IBV_WC_RNR_RETRY_EXC_ERR,
        IBV_WC_REM_ABORT_ERR,
        IBV_WC_FATAL_ERR,
        IBV_WC_RESP_TIMEOUT_ERR,
        IBV_WC_GENERAL_ERR,
        IBV_WC_SEND,
        IBV_WC_RDMA_WRITE,
        IBV_WC_RDMA_READ,
        IBV_WC_RECV,
        IBV_WC_RECV_RDMA_WITH_IMM,
        IBV_WC_GRH,
        IBV_WC_WITH_IMM,
    }
}

#[test]
fn the_crate_is_the_header() {
    let facts = facts();
    assert!(facts.0.len() > 500, "only {} facts", facts.0.len());
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        // Nothing to compare with. `ci/setup.sh` installs the header.
        return;
    }
    let mut program = "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void)\n{\n".to_owned();
    for (expression, _) in &facts.0 {
        writeln!(program, "\tprintf(\"%lld\\n\", (long long)({expression}));").expect("text");
    }
    program.push_str("\treturn 0;\n}\n");
    let printed = c_program::output_of("verbs", &program, &[OsStr::new("-std=gnu11")]);
    let values: Vec<i128> = printed
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    assert_eq!(values.len(), facts.0.len());
    let mut differences = String::new();
    for ((expression, ours), theirs) in facts.0.iter().zip(values) {
        if *ours != theirs {
            writeln!(differences, "{expression}: {theirs} in C, {ours} in Rust").expect("text");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn every_function_is_in_the_library() {
    match Library::load() {
        Ok(_) => {}
        Err(missing) => {
            let text = missing.to_string();
            assert!(
                text.contains("libibverbs.so.1") && text.contains("install"),
                "{text}"
            );
        }
    }
    assert!(Library::NAMES.len() >= 45);
}
