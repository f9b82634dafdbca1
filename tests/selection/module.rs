// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers of the kernel module: why they are refused, and that messages arrive all the same.

use crate::module::variants;
use crate::processes::{Ranks, say};
use crate::traffic::TrafficRun;
use std::path::Path;

fn ranks(role: &str, layers: &str, abi: &str) -> Ranks {
    Ranks::new(2, role)
        .env("ONECOPY_LAYERS", layers)
        .env("ONECOPY_MODULE_ABI", abi)
        .env("ONECOPY_ATTACH_MIN", "0")
}

#[test]
fn without_the_module_the_refusal_names_device_and_remedy() {
    for (layer, device) in [("xpmem", "/dev/xpmem"), ("knem", "/dev/knem")] {
        for abi in ["auto", "onecopy", "plain"] {
            let seen = TrafficRun::of(ranks("none", &format!("{layer},cico"), abi).run(), 2);
            let there = match abi {
                "onecopy" => Path::new("/dev/onecopy").exists(),
                "plain" => Path::new(device).exists(),
                _ => Path::new("/dev/onecopy").exists() || Path::new(device).exists(),
            };
            if there {
                seen.uses(layer);
            } else {
                seen.lacks(layer, "/dev/onecopy");
                seen.lacks(layer, device);
                let reports = seen.ran.reports(&format!("LACKS {layer}"));
                let remedy = "kmod/README.md";
                assert!(
                    reports.iter().all(|line| line.contains(remedy)),
                    "{reports:?}"
                );
            }
            assert_eq!(seen.demotions(), 0);
        }
    }
}

#[test]
fn a_layer_that_is_switched_off_opens_nothing() {
    let seen = TrafficRun::of(ranks("none", "^xpmem,knem", "auto").run(), 2);
    seen.lacks("xpmem", "ONECOPY_LAYERS");
    seen.lacks("knem", "ONECOPY_LAYERS");
}

#[test]
fn a_user_who_may_not_open_xpmem_or_knem_is_told_so() {
    if !nix::unistd::geteuid().is_root() || !Path::new("/dev/xpmem").exists() {
        return say("skipped: needs root and the module");
    }
    let seen = TrafficRun::of(ranks("none nobody", "xpmem,knem,cico", "auto").run(), 2);
    for layer in ["xpmem", "knem"] {
        seen.lacks(layer, "ermission denied");
        let reports = seen.ran.reports(&format!("LACKS {layer}"));
        assert!(
            reports.iter().all(|line| line.contains("udev")),
            "{reports:?}"
        );
    }
}

#[test]
fn xpmem_or_knem_refused_in_use_gives_way() {
    for variant in variants(say) {
        // Few windows: attaching goes on while messages flow.
        let mut ranks = Ranks::new(3, "no-ioctl between all")
            .env("ONECOPY_ATTACH_WINDOW", "2M")
            .env("ONECOPY_ATTACH_BYTES", "2M");
        for (name, value) in variant.knobs {
            ranks = ranks.env(name, value);
        }
        let seen = TrafficRun::of(ranks.run(), 3);
        match variant.name {
            // Windows are mapped without such calls.
            "xpmem, extension" => {
                seen.uses(variant.layer);
                assert_eq!(seen.demotions(), 0, "{seen:?}");
            }
            // The senders expose nothing any more, so the receivers never try.
            "knem, plain" => {}
            _ => {
                assert!(seen.demotions() >= 1, "{}: {seen:?}", variant.name);
                seen.lacks(variant.layer, "not permitted");
            }
        }
    }
}
