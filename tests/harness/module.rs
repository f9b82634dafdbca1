// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which layers of the kernel module can be tested here, and by which interfaces.
#![allow(dead_code, reason = "each test program uses a part")]

use onecopy_btl::module::Module;
use onecopy_obs::ModuleAbi;

/// A layer and an interface of the module, with the knobs that make all larger messages go that way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) layer: &'static str,
    abi: ModuleAbi,
    pub(crate) knobs: &'static [(&'static str, &'static str)],
}

const XPMEM: &str = "cico,xpmem";
const KNEM: &str = "cico,knem";

/// All of them.
const VARIANTS: [Variant; 4] = [
    Variant {
        name: "xpmem, extension",
        layer: "xpmem",
        abi: ModuleAbi::Onecopy,
        knobs: &[
            ("ONECOPY_LAYERS", XPMEM),
            ("ONECOPY_MODULE_ABI", "onecopy"),
            ("ONECOPY_XPMEM_MIN", "16K"),
            ("ONECOPY_ATTACH_MIN", "0"),
            ("ONECOPY_COOP_MIN", "64K"),
        ],
    },
    Variant {
        name: "xpmem, plain",
        layer: "xpmem",
        abi: ModuleAbi::Plain,
        knobs: &[
            ("ONECOPY_LAYERS", XPMEM),
            ("ONECOPY_MODULE_ABI", "plain"),
            ("ONECOPY_XPMEM_MIN", "16K"),
            ("ONECOPY_ATTACH_MIN", "0"),
            ("ONECOPY_COOP_MIN", "64K"),
        ],
    },
    Variant {
        name: "knem, extension",
        layer: "knem",
        abi: ModuleAbi::Onecopy,
        knobs: &[
            ("ONECOPY_LAYERS", KNEM),
            ("ONECOPY_MODULE_ABI", "onecopy"),
            ("ONECOPY_KNEM_MIN", "16K"),
            ("ONECOPY_COOP_MIN", "64K"),
        ],
    },
    Variant {
        name: "knem, plain",
        layer: "knem",
        abi: ModuleAbi::Plain,
        knobs: &[
            ("ONECOPY_LAYERS", KNEM),
            ("ONECOPY_MODULE_ABI", "plain"),
            ("ONECOPY_KNEM_MIN", "16K"),
            ("ONECOPY_COOP_MIN", "64K"),
        ],
    },
];

/// Those that this machine has. One that it lacks is named by `say`; if its layer is in the list `TEST_REQUIRE`, that
/// fails.
#[track_caller]
pub(crate) fn variants(say: impl Fn(&str)) -> Vec<Variant> {
    let required = std::env::var("TEST_REQUIRE").unwrap_or_default();
    VARIANTS
        .into_iter()
        .filter(|variant| {
            let module = Module::open(true, true, variant.abi);
            let behind = match variant.layer {
                "xpmem" => module.behind_xpmem(),
                _ => module.behind_knem(),
            };
            let Err(refusal) = behind else { return true };
            let needed = required.split(',').any(|layer| layer == variant.layer);
            assert!(
                !needed,
                "{}: {refusal}; TEST_REQUIRE={required}",
                variant.name
            );
            say(&format!("skipped: {}: {refusal}", variant.name));
            false
        })
        .collect()
}
