// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the module guarantees, each a test.

mod apart;
mod async_copy;
mod basic;
mod copy;
mod ends;
mod grant;
mod held;
mod holes;
mod hostile;
mod locks;
mod owner;
mod pages;
mod permission;
mod races;
mod regions;
mod rlimits;
pub(crate) mod shown;
mod storms;
mod waits;

use crate::runner::{Test, tests};

/// All of them, in the order in which they run.
pub(crate) const TESTS: &[Test] = tests! {
    basic: version, bytes_travel, offsets, whole_space, bad_arguments, read_only_permit, release_and_remove,
        munmap_whole, munmap_part, map_over, mremap_of_attachment, detach, attach_at_an_address, many_attachments, importer_of_importer,
        both_ways, state_belongs_to_the_file, closing_ends_all;
    permission: device_modes, other_user, other_user_by_parameter, ids_are_not_guessed, user_namespace, namespace_root, mode_bits,
        quota_of_segments, quota_of_a_process, quota_of_permits, quota_of_regions, quota_of_attachments, quota_of_subordinate_users;
    grant: to_another_user, to_another_namespace, read_only_stays_read_only, restricted, close_on_exec, bad_structures,
        segment_info, descriptor_outlives_device;
    holes: signal_in_legacy_mode, no_signal_in_a_grant, generation_counts, generation_is_read_only,
        generation_is_not_inherited, revoke, owner_gone_state, prefault, prefault_errors;
    apart: detach_of_a_neighbour, attach_over_the_source, holes_are_not_shared, reads_allocate_nothing,
        reads_after_refills_cost_little, debugger;
    copy: between_processes, own_to_own, done_and_errno, direction, lengths_and_alignments, after_revoke, revoke_stops_a_copy, revoke_waits_for_no_slow_copy = 120,
        counters;
    owner: zero_page, pages_ahead_are_of_one_mapping, private_file, read_only_file, read_only_pages, private_file_read_first, fork, fork_storm, store_after_reading, store_beside_an_older_look, mremap,
        maps_over_from_a_thread, maps_over_from_a_sharing_task, gives_pages_back, shared_memory, exit_of_the_importer;
    ends: exec, death_while_read, every_order_of_ends, first_opens_at_once;
    storms: faults_on_each_other = 120, many_change_one_segment = 120, owner_churns = 240, protection_storm = 120, fork_while_attached = 120,
        attach_and_detach_at_once = 120;
    pages: huge_pages, huge_pages_come_while_others_go, huge_zeroes, split_and_collapse = 120, same_page_merging = 120, memory_pressure = 180, many_importers,
        accesses_count_for_the_owner, unload_refused;
    waits: kill_in_fault, fault_keeps_the_module, kill_in_prefault, kill_in_copy, kill_in_region, only_for_what_is_asked, blocked_owner_lets_others_go_on,
        stopped_owner;
    hostile: reaped_while_attached, signal_leaves_no_error, secret_memory, shadow_stack, queue_is_bounded, quota_of_workers,
        kill_while_the_owner_changes = 120, owner_changes_without_a_pause = 120;
    regions: info, read_and_write, vectors, region_to_region, third_process, bounded, direction, any_user, single_use, single_use_within_itself, bad_arguments,
        cookies_are_not_guessed, legacy, after_fork, after_exit, destroy, destroy_stops_a_copy, map_lock_is_left_alone;
    async_copy: worker_stays_in_its_cpuset, worker_comes_with_its_first_copy, status_array, status_array_is_not_executed, notification, notification_by_epoll, notification_without_waiting, notification_ring_is_bounded, bind, exit_while_pending, unmap_while_pending,
        close_while_pending, destroy_while_pending;
    locks: fork_and_export_while_holes_are_punched = 120, register_a_notifier_while_holes_are_punched = 120,
        unmap_while_holes_are_punched = 120;
    held: interval_notifier_while_entries_go, ends_while_a_pinned_page_is_locked,
        destroy_while_a_pinned_page_is_locked = 120, kill_in_copy_to_a_locked_page, faults_hold_up_no_others = 120,
        no_entry_outlasts_an_importer, debugger_meets_a_locked_page,
        changes_outlast_an_address_space = 240;
    shown: exports, many_exports, attachments_one_by_one, pins_and_users, to_whom, to_whom_opened_it, numbers_of_processes, descriptors,
        pages_of_xpmem;
    races: pins_while_regions_come, info_while_revoked, poll_while_copies_end, first_stores_to_holes, descriptors_at_once,
        hundreds_of_threads = 120;
    rlimits: locked_memory, locked_memory_is_given_back, locked_memory_of_children, locked_memory_is_one_account,
        locked_memory_counts_huge_pages_whole, locked_memory_counts_before_a_wait, empty_pieces_are_dropped,
        locked_memory_goes_back_to_its_account, descriptors, memory_cgroup,
        refusals_leave_the_log_alone;
};
