// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the kernel module against a kernel's headers. A warning is a failure.

use std::fs;
use std::path::{Path, PathBuf};

use crate::kernel::Kernel;
use crate::progress::Progress;
use crate::{Error, Result, cache, guest, program};

/// Where the module's sources come from.
#[derive(Clone, Debug)]
pub enum Sources {
    /// The ones that are part of this program.
    Own,
    /// A folder.
    Folder(PathBuf),
}

/// What the build says about the machine it runs on and not about the module.
const ABOUT_THE_HOST: &[&str] = &[
    "warning: pahole version differs from the one used to build the kernel",
    "warning: the compiler differs from the one used to build the kernel",
    "warning: jobserver unavailable",
];

/// Builds the module in a new folder under `run`, with these variables for make, and gives the `.ko` files.
///
/// # Errors
///
/// When it does not build, or builds with warnings.
pub fn build(
    kernel: &Kernel,
    sources: &Sources,
    variables: &[String],
    run: &Path,
    progress: &Progress,
) -> Result<Vec<PathBuf>> {
    progress.step(&format!(
        "{}: building the module with {}",
        kernel.name,
        kernel.toolchain.name()
    ));
    let folder = run.join("kmod");
    match sources {
        Sources::Own => guest::write_module(&folder)?,
        Sources::Folder(from) => copy(from, &folder)?,
    }
    if !folder.join("Kbuild").exists() {
        return Err(Error::Refused(format!(
            "{} has no Kbuild: no module to build",
            folder.display()
        )));
    }
    make(kernel, &folder, variables, run.join("module.log"))?;
    let mut objects = Vec::new();
    find_modules(&folder, &mut objects)?;
    objects.sort();
    if objects.is_empty() {
        return Err(Error::Refused(format!(
            "the build for {} succeeded and left no .ko in {}",
            kernel.release,
            folder.display()
        )));
    }
    Ok(objects)
}

/// Builds what is in `folder`, without a warning. What the build says goes to `log`.
fn make(kernel: &Kernel, folder: &Path, variables: &[String], log: PathBuf) -> Result<()> {
    let mut command = kernel.toolchain.command("make")?;
    command
        .arg("-C")
        .arg(&kernel.headers)
        .arg(format!("M={}", folder.display()))
        // Without it, kernels whose headers hold an image of the kernel ask for a program that nothing else needs.
        .arg("CONFIG_DEBUG_INFO_BTF_MODULES=")
        .arg(format!(
            "-j{}",
            std::thread::available_parallelism().map_or(2, usize::from)
        ))
        .args(&kernel.variables)
        .args(variables)
        .arg("modules")
        .env("LC_ALL", "C");
    let output = program::run(&mut command)?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    cache::write(&log, &text)?;
    if !output.status.success() {
        return Err(Error::Program {
            command: program::line(&command),
            status: output.status.to_string(),
            tail: errors(&text),
        });
    }
    let warnings = warnings(&text);
    if !warnings.is_empty() {
        return Err(Error::Warnings {
            release: kernel.release.clone(),
            warnings: warnings.join("\n"),
            log,
        });
    }
    Ok(())
}

fn find_modules(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for path in cache::entries(folder)? {
        if path.is_dir() {
            find_modules(&path, found)?;
        } else if path.extension().is_some_and(|end| end == "ko") {
            found.push(path);
        }
    }
    Ok(())
}

/// Copies sources without what a build left there.
fn copy(from: &Path, into: &Path) -> Result<()> {
    cache::make(into)?;
    for path in cache::entries(from)? {
        let Some(name) = path.file_name() else {
            continue;
        };
        let place = into.join(name);
        let text = name.to_string_lossy();
        let built = text.starts_with('.')
            || text.starts_with("Module.symvers")
            || text.starts_with("modules.order")
            || [".o", ".ko", ".mod", ".mod.c"]
                .iter()
                .any(|end| text.ends_with(end));
        if path.is_dir() && text != "target" {
            copy(&path, &place)?;
        } else if path.is_file() && !built {
            fs::copy(&path, &place).map_err(Error::io(path.display().to_string()))?;
        }
    }
    Ok(())
}

/// The lines of a build that warn of the module.
fn warnings(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| {
            let lower = line.to_ascii_lowercase();
            lower.contains("warning:") && !ABOUT_THE_HOST.iter().any(|known| lower.contains(known))
        })
        .collect()
}

/// What of a failed build says why.
fn errors(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| {
            let lower = line.to_ascii_lowercase();
            lower.contains("error") || lower.contains("warning:") || lower.contains("undefined")
        })
        .take(40)
        .collect();
    if lines.is_empty() {
        program::tail(text, 30)
    } else {
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_the_module_count_and_those_of_the_host_do_not() {
        let text = "  CC [M]  a.o\n\
            warning: pahole version differs from the one used to build the kernel\n\
            a.c:3:5: warning: unused variable 'x' [-Wunused-variable]\n\
            WARNING: modpost: missing MODULE_DESCRIPTION() in a.o\n\
            a.o: warning: objtool: f() falls through to next function g()\n";
        let found = warnings(text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("a.c:3:5"));
    }

    /// Runs the module's probes with a compiler that says this of them; what they found, or what the script said.
    fn probed(message: &str) -> std::result::Result<String, String> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let place = |name: &str| folder.path().join(name);
        guest::write_module(&place("kmod")).expect("module");
        cache::write(
            &place("cc"),
            format!("cat <<'EOF' >&2\n{message}\nEOF\nexit 1\n"),
        )
        .expect("compiler");
        let mut command = std::process::Command::new("sh");
        command
            .arg(place("kmod/probe.sh"))
            .args([place("kmod/probe.c"), place("probed.h")])
            .arg("sh")
            .arg(place("cc"));
        let output = program::run(&mut command).expect("sh runs");
        let found = fs::read_to_string(place("probed.h"));
        assert_eq!(output.status.success(), found.is_ok(), "{output:?}");
        found.map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
    }

    const NO: &str =
        "CONTROL_NO:4:9: error: implicit declaration of function 'onecopy_has_no_such_function'";

    #[test]
    fn a_probe_that_does_not_compile_is_what_the_kernel_lacks() {
        let text = probed(&format!(
            "FOLIO:3:9: error: request for member 'mapping'\n{NO}"
        ))
        .expect("probed");
        assert!(text.contains("#define OC_HAVE_FOLIO 0\n"), "{text}");
        assert!(text.contains("#define OC_HAVE_VMA_LOCK 1\n"), "{text}");
        assert!(!text.contains("CONTROL"), "{text}");
    }

    #[test]
    fn a_compiler_that_fails_is_no_answer() {
        for (message, why) in [
            ("", "finds no error where there is one"),
            (
                "sh: 1: gcc-99: not found",
                "finds no error where there is one",
            ),
            (
                "cc1: error: unrecognized option '-x'",
                "cannot be compiled (cc1)",
            ),
            (
                "gcc: fatal error: Killed signal terminated program cc1",
                "cannot be compiled (gcc)",
            ),
            (
                "include/linux/mm.h:10:10: fatal error: asm/x.h: No such file",
                "cannot be compiled (include/linux/mm.h)",
            ),
            (
                "CONTROL_YES:4:1: error: 'struct vm_area_struct' has no member",
                "cannot be compiled",
            ),
        ] {
            let result = probed(&format!(
                "{message}\n{}",
                if why.contains("compiled") { NO } else { "" }
            ));
            let text = result.expect_err(message);
            assert!(text.contains(why), "{message}: {text}");
            assert!(text.contains(message), "{text}");
        }
    }

    #[test]
    fn a_failed_build_shows_its_errors_first() {
        let mut text = "a.c:1:1: error: unknown type name 'x'\n".to_owned();
        text.push_str(&"make: noise\n".repeat(100));
        assert_eq!(errors(&text), "a.c:1:1: error: unknown type name 'x'");
        assert_eq!(errors("nothing to see"), "nothing to see");
    }

    #[test]
    fn sources_are_copied_without_what_was_built() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let from = folder.path().join("from");
        cache::make(&from.join("include")).expect("folder");
        cache::make(&from.join("target")).expect("folder");
        for name in [
            "a.c",
            "a.o",
            "a.ko",
            ".a.o.cmd",
            "a.mod.c",
            "include/a.h",
            "target/x",
        ] {
            cache::write(&from.join(name), "x").expect("file");
        }
        let into = folder.path().join("into");
        copy(&from, &into).expect("copy");
        assert!(into.join("a.c").exists() && into.join("include/a.h").exists());
        assert_eq!(cache::entries(&into).expect("entries").len(), 2);
    }
}
