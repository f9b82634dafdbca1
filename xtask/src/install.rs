// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask install`: what a user of an installed onecopy needs, in the standard folders of a prefix.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::{cargo, metadata, show};
use crate::{Failure, root, say};

mod wrappers;

/// The MPI library as cargo builds it, and its name by the standard.
const MPI: &str = "libmpi_abi.so";
const MPI_INSTALLED: &str = "libmpi_abi.so.1";

/// The packages with something to install: the command, the malloc front, the MPI library.
const PACKAGES: [&str; 3] = ["onecopy-cli", "onecopy-heap", "onecopy-mpi"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder that gets bin/, lib/, include/ and share/
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
}

/// Shell, and where its completions are looked for.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/onecopy"),
    ("zsh", "share/zsh/site-functions/_onecopy"),
    ("fish", "share/fish/vendor_completions.d/onecopy.fish"),
];

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let prefix = std::path::absolute(&args.prefix)
        .map_err(|error| format!("{}: {error}", args.prefix.display()))?;
    say::line("building (release) ...");
    into(prefix)?.report();
    Ok(())
}

/// Builds everything and installs it into a folder.
pub(crate) fn into(prefix: PathBuf) -> Result<Install, Failure> {
    let mut install = Install {
        prefix,
        files: Vec::new(),
    };
    let mut build = cargo();
    build.args(["build", "--release"]);
    for package in PACKAGES {
        build.args(["--package", package]);
    }
    show(&mut build)?;
    let built = target_directory()?.join("release");

    let program = built.join("onecopy");
    install.copy(&program, "bin/onecopy", true)?;
    for library in libraries(&built)? {
        let to = format!("lib/{}", file_name(&library));
        install.copy(&library, &to, true)?;
    }
    for header in files(&root().join("include"), "h")? {
        let to = format!("include/{}", file_name(&header));
        install.copy(&header, &to, false)?;
    }
    install.mpi(&built)?;
    for (shell, to) in COMPLETIONS {
        let text = output(Command::new(&program).args(["completions", shell]))?;
        install.write(&text, to)?;
    }
    install.man_pages(&program, &built)?;
    for page in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        install.copy(
            &root().join(page),
            &format!("share/doc/onecopy/{page}"),
            false,
        )?;
    }
    for page in files(&root().join("docs"), "md")? {
        let to = format!("share/doc/onecopy/{}", file_name(&page));
        install.copy(&page, &to, false)?;
    }
    Ok(install)
}

/// What was installed.
pub(crate) struct Install {
    prefix: PathBuf,
    files: Vec<String>,
}

impl Install {
    /// Puts a file in place in one step, so that a running program or a reader keeps the old one.
    fn write(&mut self, bytes: &[u8], to: &str) -> Result<(), Failure> {
        self.place(to, false, |temporary| fs::write(temporary, bytes))
    }

    fn copy(&mut self, from: &Path, to: &str, executable: bool) -> Result<(), Failure> {
        self.place(to, executable, |temporary| {
            fs::copy(from, temporary).map(|_| ())
        })
        .map_err(|failure| format!("{}: {failure}", from.display()))
    }

    fn place(
        &mut self,
        to: &str,
        executable: bool,
        make: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        use std::os::unix::fs::PermissionsExt;
        let target = self.prefix.join(to);
        let temporary = target.with_file_name(format!(".{}.new", file_name(&target)));
        let mode = if executable { 0o755 } else { 0o644 };
        target
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| make(&temporary))
            .and_then(|()| fs::set_permissions(&temporary, fs::Permissions::from_mode(mode)))
            .and_then(|()| fs::rename(&temporary, &target))
            .map_err(|error| {
                // The temporary file may not exist; the first error is the one to tell.
                let _ = fs::remove_file(&temporary);
                format!("{}: {error}", target.display())
            })?;
        self.files.push(to.to_owned());
        Ok(())
    }

    /// The MPI library, its header, and what builds programs with them, if this version has one.
    fn mpi(&mut self, built: &Path) -> Result<(), Failure> {
        let folder = root().join("mpi");
        if !folder.join("Cargo.toml").exists() {
            return Ok(());
        }
        self.copy(&built.join(MPI), &format!("lib/{MPI_INSTALLED}"), true)?;
        self.link(MPI_INSTALLED, &format!("lib/{MPI}"))?;
        for header in files(&folder.join("include"), "h")? {
            let to = format!("include/{}", file_name(&header));
            self.copy(&header, &to, false)?;
        }
        for (to, text) in wrappers::compilers() {
            self.place(&to, true, |temporary| fs::write(temporary, &text))?;
        }
        self.write(wrappers::pkg_config().as_bytes(), wrappers::PKG_CONFIG)
    }

    /// A link to a name in the same folder.
    fn link(&mut self, name: &str, to: &str) -> Result<(), Failure> {
        let target = self.prefix.join(to);
        let temporary = target.with_file_name(format!(".{}.new", file_name(&target)));
        // Left by an installation that was interrupted, if it is there.
        let _ = fs::remove_file(&temporary);
        std::os::unix::fs::symlink(name, &temporary)
            .and_then(|()| fs::rename(&temporary, &target))
            .map_err(|error| format!("{}: {error}", target.display()))?;
        self.files.push(to.to_owned());
        Ok(())
    }

    fn man_pages(&mut self, program: &Path, built: &Path) -> Result<(), Failure> {
        let dir = built.join("man");
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        show(Command::new(program).arg("man").arg(&dir))?;
        self.copy(
            &root().join("kmod/onecopy.4"),
            "share/man/man4/onecopy.4",
            false,
        )?;
        for page in files(&dir, "1")? {
            self.copy(
                &page,
                &format!("share/man/man1/{}", file_name(&page)),
                false,
            )?;
        }
        Ok(())
    }

    fn report(&self) {
        for file in &self.files {
            say::line(&self.prefix.join(file).display().to_string());
        }
        for (folder, what) in [("lib/", "library"), ("include/", "header")] {
            if !self.files.iter().any(|file| file.starts_with(folder)) {
                say::line(&format!("{folder}: nothing, this version has no C {what}"));
            }
        }
        let prefix = self.prefix.display();
        say::line(&format!("{} files under {prefix}", self.files.len()));
    }
}

/// The shared libraries with a C interface that the build made.
fn libraries(built: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut libraries = files(built, "so")?;
    // The MPI library has a name of its own.
    libraries.retain(|path| file_name(path).starts_with("libonecopy"));
    Ok(libraries)
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// The files in a folder whose names end in `.extension`, sorted; none if there is no such folder.
fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{}: {error}", dir.display())),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| format!("{}: {error}", dir.display()))?
            .path();
        if path.extension() == Some(OsStr::new(extension)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(format!("{command:?}: {}", output.status))
    }
}

pub(crate) fn target_directory() -> Result<PathBuf, Failure> {
    let metadata = metadata(&root())?;
    metadata["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .ok_or_else(|| "cargo metadata names no target folder".to_owned())
}
