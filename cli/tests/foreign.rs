// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that other launchers start: hydra of MPICH and of Intel MPI, Open MPI's mpirun, and Slurm where it is there.
//! This program itself plays what a launcher leaves in the environment. What a machine lacks is skipped, and printed.

#[path = "../../tests/harness/between_nodes.rs"]
mod between_nodes;
#[path = "foreign/launchers.rs"]
mod launchers;
#[path = "../../tests/harness/processes.rs"]
mod processes;

#[path = "foreign/ends.rs"]
mod ends;
#[path = "foreign/guests.rs"]
mod guests;
#[path = "foreign/hosts.rs"]
mod hosts;
#[path = "foreign/lanes.rs"]
mod lanes;
#[path = "foreign/library.rs"]
mod library;
#[path = "foreign/meeting.rs"]
mod meeting;
#[path = "foreign/namespaces.rs"]
mod namespaces;
#[path = "foreign/netem.rs"]
mod netem;
#[path = "foreign/nodes.rs"]
mod nodes;
#[path = "foreign/pmix.rs"]
mod pmix;
#[path = "foreign/points.rs"]
mod points;
#[path = "foreign/profile.rs"]
mod profile;
#[path = "foreign/slurm.rs"]
mod slurm;
#[path = "foreign/table.rs"]
mod table;
#[path = "foreign/traced.rs"]
mod traced;

use onecopy::Runtime;
use processes::{body, say};

/// What a rank does; see the tests for what each is for.
#[test]
fn as_rank() {
    let Some(body) = body() else { return };
    if body == "squat" {
        return ends::squat();
    }
    if body == "claim" {
        return profile::claim();
    }
    if let Some(what) = body.strip_prefix("nodes-") {
        return nodes::as_rank(what);
    }
    let runtime = match Runtime::init() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("init failed: {error}"));
            std::process::exit(3);
        }
    };
    if let Some(what) = body.strip_prefix("hosts-") {
        return hosts::as_rank(what, runtime);
    }
    if body == "lanes" {
        return lanes::as_rank(&runtime);
    }
    if let Some(rails) = body.strip_prefix("netem-") {
        return netem::as_rank(rails.parse().expect("a number"), runtime);
    }
    if body == "points" {
        return points::as_rank(runtime);
    }
    let world = runtime.world();
    let (rank, size) = (runtime.rank(), runtime.size());
    match body.as_str() {
        "ring" => {
            let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
            let mut got = [0_u64; 1];
            if size > 1 {
                world
                    .sendrecv(&[rank as u64], next, 1, &mut got, before, 1)
                    .expect("sendrecv");
            } else {
                got[0] = before as u64;
            }
            assert_eq!(got[0], before as u64);
            world.barrier().expect("barrier");
            runtime.finalize().expect("finalize");
            say(&format!("ring {rank} of {size}"));
        }
        "abort" | "abort-256" => {
            world.barrier().expect("barrier");
            if rank == size - 1 {
                let code = if body == "abort" { 7 } else { 256 };
                runtime.abort(code).expect("abort");
            }
            // The launcher ends us, or the word of the abort does.
            let mut never = [0_u8; 1];
            let ended = world.recv(&mut never, size - 1, 9);
            say(&format!("recv: {ended:?}"));
            std::process::exit(if body == "abort" { 7 } else { 1 });
        }
        "means" => {
            world.barrier().expect("barrier");
            say(&format!("by PMIx: {}", pmix::is_loaded()));
            runtime.finalize().expect("finalize");
        }
        "desert" => {
            world.barrier().expect("barrier");
            if rank == 1 {
                std::process::exit(0);
            }
            let mut never = [0_u8; 1];
            let ended = world.recv(&mut never, 1, 9);
            say(&format!("recv: {ended:?}"));
            std::process::exit(4);
        }
        "sleep" => {
            world.barrier().expect("barrier");
            say(&format!("waiting {rank}"));
            std::thread::sleep(processes::limit::limit());
        }
        other => panic!("no such body: {other}"),
    }
}
