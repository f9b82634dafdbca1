// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask new-layer NAME`: a layer that compiles and refuses every peer, and its row in the registry.

use std::path::Path;

use crate::{Failure, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The layer's name, as users will write it: small letters and digits
    name: String,
}

const TEMPLATE: &str = include_str!("new_layer/layer.txt");
const ROW: &str = include_str!("new_layer/row.txt");

const REGISTRY: &str = "btl/src/registry.rs";
const MODULES: &str = "btl/src/layers.rs";
const NAMES: &str = "btl/obs/src/stats.rs";
const OBSERVED: &str = "ebpf/src/observed.rs";

/// What a person has to do still.
const REMAINS: &[&str] = &[
    "the code: prove, get and put in btl/src/layers/NAME.rs; power, writes and exposes in its row of btl/src/registry.rs",
    "a knob ONECOPY_NAME_MIN: its line in btl/obs/src/knobs.rs, and `min` in the row",
    "what `auto` means of it: a rule in btl/obs/src/knobs/auto.rs",
    "a counter of its bytes: its line in btl/obs/src/counters.rs, and `bytes` in the row",
    "its name among the mechanisms in docs/tracing.md and docs/trace-json.md",
    "the pages that come from these tables: cargo xtask docs",
    "its line in the tables of btl/src/lib.rs and ARCHITECTURE.md; CHANGELOG.md",
    "its cases in tests/conformance/cases.rs and in suite! of tests/conformance.rs",
    "its counter, and its name in lists, in tests/explained.rs and cli/tests/commands.rs",
    "its name in lists of btl/obs/src/knobs/tests.rs and cli/src/command/info/layers.rs, whose tests fail without it",
];

pub(crate) fn run(args: &Args, root: &Path) -> Result<(), Failure> {
    add(root, &args.name)?;
    say::line(&format!(
        "new-layer: made btl/src/layers/{}.rs, with a row in {REGISTRY}. What remains (docs/adding-a-layer.md):",
        args.name
    ));
    for line in REMAINS {
        let line = line.replace(
            "ONECOPY_NAME",
            &format!("ONECOPY_{}", args.name.to_uppercase()),
        );
        say::line(&format!("- {}", line.replace("NAME", &args.name)));
    }
    Ok(())
}

/// Makes the layer's file and enters it where layers are listed.
fn add(root: &Path, name: &str) -> Result<(), Failure> {
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !begins || !name.chars().all(good) {
        return Err(format!(
            "'{name}': small letters and digits, a letter first"
        ));
    }
    let (first, rest) = name.split_at(1);
    let variant = format!("{}{rest}", first.to_uppercase());
    let filled = |text: &str| text.replace("NAME", name).replace("TYPE", &variant);
    let path = root.join(format!("btl/src/layers/{name}.rs"));
    if path.exists() {
        return Err(format!("{} is there already", path.display()));
    }
    let registry = read(root, REGISTRY)?;
    let registry = before(
        &registry,
        "    /// Copy in, copy out.\n    Cico,\n",
        &format!("    /// By `{name}`.\n    {variant},\n"),
    )?;
    let registry = before(
        &registry,
        "    Layer {\n        id: LayerId::Cico,\n",
        &filled(ROW),
    )?;
    let registry = before(
        &registry,
        "use crate::layers::{cico",
        &format!("use crate::layers::{name};\n"),
    )?;
    let modules = before(
        &read(root, MODULES)?,
        "pub mod cico;\n",
        &format!("pub mod {name};\n"),
    )?;
    let names = before(
        &read(root, NAMES)?,
        r#""cico", "verbs""#,
        &format!("\"{name}\", "),
    )?;
    let observed = before(
        &read(root, OBSERVED)?,
        "        /// onecopy: in slots and chunks of shared memory.\n",
        &format!("        /// onecopy: by `{name}`.\n        {variant} = \"{name}\",\n"),
    )?;
    write(
        root,
        &format!("btl/src/layers/{name}.rs"),
        &filled(TEMPLATE),
    )?;
    write(root, REGISTRY, &registry)?;
    write(root, MODULES, &modules)?;
    write(root, NAMES, &names)?;
    write(root, OBSERVED, &observed)
}

fn read(root: &Path, path: &str) -> Result<String, Failure> {
    std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))
}

/// Writes a source file as rustfmt has it.
fn write(root: &Path, path: &str, text: &str) -> Result<(), Failure> {
    let full = root.join(path);
    std::fs::write(&full, text).map_err(|error| format!("{path}: {error}"))?;
    let formatted = std::process::Command::new("rustfmt")
        .args(["--edition", "2024"])
        .arg(&full)
        .output();
    // `cargo xtask tidy` tells what is not formatted, with or without rustfmt.
    drop(formatted);
    Ok(())
}

/// The text with `more` before the one place where `mark` stands.
fn before(text: &str, mark: &str, more: &str) -> Result<String, Failure> {
    match text.matches(mark).count() {
        1 => Ok(text.replace(mark, &format!("{more}{mark}"))),
        count => Err(format!("{REGISTRY}: `{mark}` stands there {count} times")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    /// A copy of the files that git tracks.
    fn copy(root: &Path, to: &Path) {
        let listed = Command::new("git")
            .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached"])
            .args(["--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .expect("git");
        assert!(listed.status.success(), "needs the repository");
        for path in String::from_utf8_lossy(&listed.stdout).split('\0') {
            let (from, to) = (root.join(path), to.join(path));
            // A file that was deleted is listed still.
            if from.is_file() {
                std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
                std::fs::copy(from, to).expect("copied");
            }
        }
    }

    /// The first block of code in the page that begins as a source file does.
    fn example(page: &str) -> &str {
        let (_, rest) = page.split_once("```rust\n// SPDX").expect("a block");
        let (block, _) = rest.split_once("```").expect("its end");
        block
    }

    fn check(tree: &Path, target: &Path) {
        // The packages that have a table of layers, or a use of one.
        let checked = Command::new(env!("CARGO"))
            .args(["check", "--offline", "-p", "onecopy-btl", "-p", "onecopy"])
            .args(["-p", "onecopy-trace"])
            .env("CARGO_TARGET_DIR", target)
            .env("RUSTFLAGS", "-D warnings")
            .current_dir(tree)
            .output()
            .expect("cargo");
        let text = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{text}");
    }

    #[test]
    fn a_new_layer_and_the_example_of_the_page_compile() {
        let root = crate::root();
        // It goes with its owner, also when a check fails.
        let folder = tempfile::tempdir().expect("a folder");
        let tree = folder.path();
        let target: PathBuf = root.join("target/new-layer");
        copy(&root, tree);
        let added = add(tree, "pipe");
        added.expect("a layer");
        assert!(add(tree, "pipe").is_err(), "there already");
        assert!(add(tree, "Pipe").is_err(), "no name");
        check(tree, &target);
        let page = read(&root, "docs/adding-a-layer.md").expect("the page");
        let text = format!("// SPDX{}", example(&page));
        std::fs::write(tree.join("btl/src/layers/pipe.rs"), text).expect("written");
        check(tree, &target);
    }
}
