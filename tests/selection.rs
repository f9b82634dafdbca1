// SPDX-License-Identifier: MIT OR Apache-2.0
//! A refused layer never fails a message. Every cause that refuses one is made, before the start and in the middle, in
//! ranks that are processes.

#[path = "harness/bytes.rs"]
mod bytes;
#[path = "harness/processes.rs"]
mod processes;
#[path = "harness/refuse.rs"]
mod refuse;

#[path = "harness/module.rs"]
mod module;

#[path = "selection/causes.rs"]
mod causes;
#[path = "selection/knobs.rs"]
mod knobs;
#[path = "selection/limits.rs"]
mod limits;
#[path = "selection/module.rs"]
mod modules;
#[path = "selection/namespaces.rs"]
mod namespaces;
#[path = "selection/traffic.rs"]
mod traffic;

use onecopy::{Options, Runtime};

/// What a rank does. Not a test of its own: outside of a job it does nothing.
#[test]
fn as_rank() {
    let Some(role) = processes::body() else {
        return;
    };
    let mut words = role.split(' ');
    let first = words.next().expect("a role");
    let rest: Vec<_> = words.collect();
    if rest.contains(&"nobody") {
        causes::become_nobody();
    }
    let before = rest.first() == Some(&"before");
    let cause = || causes::named(first).make();
    if before {
        cause();
    }
    let options = match Options::from_env() {
        Ok(options) => options,
        Err(error) => return processes::say(&format!("ERROR {error}")),
    };
    let rt = match Runtime::init_with(options) {
        Ok(rt) => rt,
        Err(error) => {
            processes::say(&format!("ERROR {error}"));
            // The launcher is not told to end the job: the others must find out.
            return;
        }
    };
    if rest.contains(&"connect")
        && let Err(error) = rt.layers(1 - rt.rank())
    {
        processes::say(&format!("ERROR {error}"));
        std::process::exit(0);
    }
    traffic::run(&rt, &rest, cause);
    traffic::report(&rt);
    rt.finalize().expect("finalize");
    // Without futexes the test harness would wait for this thread forever.
    std::process::exit(0);
}
