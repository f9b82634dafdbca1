// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls that fail from now on, for this thread and those that it starts.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;

pub(crate) fn refuse(calls: &[i64], errno: i32) {
    let rules: BTreeMap<i64, Vec<_>> = calls.iter().map(|&call| (call, Vec::new())).collect();
    let errno = u32::try_from(errno).expect("an error number");
    let arch = std::env::consts::ARCH.try_into().expect("x86_64");
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno),
        arch,
    )
    .expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    seccompiler::apply_filter(&program).expect("seccomp");
}
