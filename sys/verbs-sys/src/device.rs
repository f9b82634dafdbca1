// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices, ports, addresses: what a query tells.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// An address of a port.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid {
    /// Its bytes: for RoCE v2 an IPv6 address, or `::ffff:a.b.c.d`.
    pub raw: [u8; 16],
}

/// The kind of an address.
pub const IBV_GID_TYPE_IB: u32 = 0;
/// RoCE in Ethernet frames.
pub const IBV_GID_TYPE_ROCE_V1: u32 = 1;
/// RoCE in UDP.
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// A row of a port's table of addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_gid_entry {
    /// The address.
    pub gid: ibv_gid,
    /// Its place in the table.
    pub gid_index: u32,
    /// The port.
    pub port_num: u32,
    /// `IBV_GID_TYPE_*`.
    pub gid_type: u32,
    /// The network interface behind it.
    pub ndev_ifindex: u32,
}

/// The device offers extended reliable connections.
pub const IBV_DEVICE_XRC: c_uint = 1 << 20;
/// A queue of receives can be resized.
pub const IBV_DEVICE_SRQ_RESIZE: c_uint = 1 << 13;
/// The port tells when it comes up.
pub const IBV_DEVICE_PORT_ACTIVE_EVENT: c_uint = 1 << 10;
/// Memory windows.
pub const IBV_DEVICE_MEM_WINDOW: c_uint = 1 << 17;

/// No atomic operation.
pub const IBV_ATOMIC_NONE: u32 = 0;
/// Atomic among the device's own operations.
pub const IBV_ATOMIC_HCA: u32 = 1;
/// Atomic with the processor, too.
pub const IBV_ATOMIC_GLOB: u32 = 2;

/// A channel adapter.
pub const IBV_NODE_CA: c_int = 1;
/// An iWARP adapter.
pub const IBV_NODE_RNIC: c_int = 4;
/// InfiniBand, or RoCE.
pub const IBV_TRANSPORT_IB: c_int = 0;

/// What a device can do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the manual of the library explains each limit")]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// Input of `ibv_query_device_ex`: nothing yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_query_device_ex_input {
    /// Zero.
    pub comp_mask: u32,
}

/// The device faults pages in by itself.
pub const IBV_ODP_SUPPORT: u64 = 1;
/// For the whole address space.
pub const IBV_ODP_SUPPORT_IMPLICIT: u64 = 2;

/// Which operations may touch memory that is not resident.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_odp_caps {
    /// `IBV_ODP_SUPPORT*`.
    pub general_caps: u64,
    /// By kind of queue pair: RC, UC, UD.
    pub per_transport_caps: [u32; 3],
}

/// Segmentation by the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "not used by us")]
pub struct ibv_tso_caps {
    pub max_tso: u32,
    pub supported_qpts: u32,
}

/// Spreading of receives.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "not used by us")]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}

/// Pacing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "not used by us")]
pub struct ibv_packet_pacing_caps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}

/// Matching of tags by the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "not used by us")]
pub struct ibv_tm_caps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
}

/// Moderation of completion events.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "not used by us")]
pub struct ibv_cq_moderation_caps {
    pub max_cq_count: u16,
    pub max_cq_period: u16,
}

/// Atomic operations over the bus.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "not used by us")]
pub struct ibv_pci_atomic_caps {
    pub fetch_add: u16,
    pub swap: u16,
    pub compare_swap: u16,
}

/// What a device can do, with what came later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the manual of the library explains each limit")]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: ibv_tso_caps,
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: ibv_packet_pacing_caps,
    pub raw_packet_caps: u32,
    pub tm_caps: ibv_tm_caps,
    pub cq_mod_caps: ibv_cq_moderation_caps,
    pub max_dm_size: u64,
    pub pci_atomic_caps: ibv_pci_atomic_caps,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

/// 256 bytes in a packet; each further value doubles it.
pub const IBV_MTU_256: u32 = 1;
/// 1024 bytes in a packet.
pub const IBV_MTU_1024: u32 = 3;
/// 4096 bytes in a packet.
pub const IBV_MTU_4096: u32 = 5;

/// No link.
pub const IBV_PORT_DOWN: u32 = 1;
/// A link that is being configured.
pub const IBV_PORT_INIT: u32 = 2;
/// A link that is nearly configured.
pub const IBV_PORT_ARMED: u32 = 3;
/// A link that carries messages.
pub const IBV_PORT_ACTIVE: u32 = 4;

/// The port is one of InfiniBand.
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
/// The port is one of Ethernet.
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

/// A port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the manual of the library explains each field")]
pub struct ibv_port_attr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// A device that could be opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_device {
    /// Obsolete.
    pub _ops: [*mut c_void; 2],
    /// `IBV_NODE_*`.
    pub node_type: c_int,
    /// `IBV_TRANSPORT_*`.
    pub transport_type: c_int,
    /// As the kernel calls it: `mlx5_0`.
    pub name: [c_char; 64],
    /// Its character device: `uverbs0`.
    pub dev_name: [c_char; 64],
    /// That device in sysfs.
    pub dev_path: [c_char; 256],
    /// The device in sysfs.
    pub ibdev_path: [c_char; 256],
}
