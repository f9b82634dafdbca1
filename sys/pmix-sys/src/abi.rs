// SPDX-License-Identifier: MIT OR Apache-2.0
//! Types and constants of the PMIx standard, as C has them.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(missing_docs, reason = "the standard describes them")]

use std::ffi::{c_char, c_int};

pub const PMIX_MAX_NSLEN: usize = 255;
pub const PMIX_MAX_KEYLEN: usize = 511;

pub type pmix_status_t = c_int;
pub type pmix_rank_t = u32;
pub type pmix_data_type_t = u16;
pub type pmix_scope_t = u8;
pub type pmix_info_directives_t = u32;
pub type pmix_nspace_t = [c_char; PMIX_MAX_NSLEN + 1];
pub type pmix_key_t = [c_char; PMIX_MAX_KEYLEN + 1];

pub const PMIX_SUCCESS: pmix_status_t = 0;
pub const PMIX_ERR_TIMEOUT: pmix_status_t = -24;
pub const PMIX_ERR_UNREACH: pmix_status_t = -25;
pub const PMIX_ERR_NOT_FOUND: pmix_status_t = -46;

/// All ranks of a job.
pub const PMIX_RANK_WILDCARD: pmix_rank_t = u32::MAX - 1;

pub const PMIX_UNDEF: pmix_data_type_t = 0;
pub const PMIX_BOOL: pmix_data_type_t = 1;
pub const PMIX_STRING: pmix_data_type_t = 3;
pub const PMIX_INT: pmix_data_type_t = 6;
pub const PMIX_UINT32: pmix_data_type_t = 14;

/// For ranks of this node and of all others.
pub const PMIX_GLOBAL: pmix_scope_t = 3;

/// Of a job: how many ranks it has (`PMIX_UINT32`).
pub const PMIX_JOB_SIZE: &str = "pmix.job.size";
/// Of a fence: whether what was put travels with it (`PMIX_BOOL`).
pub const PMIX_COLLECT_DATA: &str = "pmix.collect";
/// Of a call: after how many seconds the server ends it (`PMIX_INT`).
pub const PMIX_TIMEOUT: &str = "pmix.timeout";

/// Which process: of which job, and which of its ranks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmix_proc_t {
    pub nspace: pmix_nspace_t,
    pub rank: pmix_rank_t,
}

impl Default for pmix_proc_t {
    fn default() -> Self {
        Self {
            nspace: [0; PMIX_MAX_NSLEN + 1],
            rank: 0,
        }
    }
}

/// The members of the union that are used here, and `longest`, which has the size and alignment of all of them.
#[repr(C)]
#[derive(Clone, Copy)]
pub union pmix_value_data {
    pub flag: bool,
    pub string: *mut c_char,
    pub integer: c_int,
    pub uint32: u32,
    pub longest: [u64; 3],
}

/// A value, and which member of the union it is.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(
    missing_debug_implementations,
    reason = "a union says nothing of itself"
)]
pub struct pmix_value_t {
    pub type_: pmix_data_type_t,
    pub data: pmix_value_data,
}

impl Default for pmix_value_t {
    fn default() -> Self {
        Self {
            type_: PMIX_UNDEF,
            data: pmix_value_data { longest: [0; 3] },
        }
    }
}

/// An option or attribute of a call.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(
    missing_debug_implementations,
    reason = "a union says nothing of itself"
)]
pub struct pmix_info_t {
    pub key: pmix_key_t,
    pub flags: pmix_info_directives_t,
    pub value: pmix_value_t,
}

impl Default for pmix_info_t {
    fn default() -> Self {
        Self {
            key: [0; PMIX_MAX_KEYLEN + 1],
            flags: 0,
            value: pmix_value_t::default(),
        }
    }
}
