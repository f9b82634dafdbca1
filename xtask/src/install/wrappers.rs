// SPDX-License-Identifier: MIT OR Apache-2.0
//! What builds a program against the installed MPI library: compiler wrappers and a pkg-config file. None of them holds
//! a path: each finds the prefix from its own place, so an installation can be moved.

/// Where `pkg-config` looks, below the prefix.
pub(super) const PKG_CONFIG: &str = "lib/pkgconfig/onecopy-mpi.pc";

/// The compiler wrappers: where they go, and their text.
pub(super) fn compilers() -> [(String, String); 2] {
    [
        ("onecopy-mpicc", "ONECOPY_CC", "cc", "C"),
        ("onecopy-mpicxx", "ONECOPY_CXX", "c++", "C++"),
    ]
    .map(|(name, variable, compiler, language)| {
        let text = include_str!("mpicc.sh")
            .replace("@NAME@", name)
            .replace("@VARIABLE@", variable)
            .replace("@COMPILER@", compiler)
            .replace("@LANGUAGE@", language);
        (format!("bin/{name}"), text)
    })
}

/// The pkg-config file.
pub(super) fn pkg_config() -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/lib\n\n\
         Name: onecopy-mpi\n\
         Description: The standard ABI of MPI 5.0 over the onecopy runtime\n\
         Version: {}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lmpi_abi\n",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output};

    /// An installation with a library of one function.
    fn prefix() -> PathBuf {
        // With a blank: no part may be split.
        let name = format!("onecopy wrappers {}", std::process::id());
        let prefix = std::env::temp_dir().join(name);
        for folder in ["bin", "include", "lib/pkgconfig"] {
            fs::create_dir_all(prefix.join(folder)).expect("folder");
        }
        for (to, text) in compilers() {
            let to = prefix.join(to);
            fs::write(&to, text).expect("write");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("mode");
        }
        fs::write(prefix.join(PKG_CONFIG), pkg_config()).expect("write");
        let header = "#ifdef __cplusplus\nextern \"C\"\n#endif\nint MPI_Answer(void);\n";
        fs::write(prefix.join("include/mpi.h"), header).expect("write");
        let source = prefix.join("mpi.c");
        fs::write(&source, "int MPI_Answer(void) { return 42; }\n").expect("write");
        let library = prefix.join("lib/libmpi_abi.so.1");
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libmpi_abi.so.1", "-o"];
        let output = Command::new("cc")
            .args(flags)
            .arg(&library)
            .arg(&source)
            .output();
        succeeded(&output.expect("cc"));
        symlink("libmpi_abi.so.1", prefix.join("lib/libmpi_abi.so")).expect("link");
        prefix
    }

    #[track_caller]
    fn succeeded(output: &Output) -> String {
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(output.status.success(), "{text}");
        text
    }

    fn run(program: &Path, args: &[&str], folder: &Path) -> Output {
        let mut command = Command::new(program);
        command.args(args).current_dir(folder);
        for name in ["ONECOPY_CC", "ONECOPY_CXX", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        command.output().expect("start")
    }

    #[test]
    fn programs_are_built_and_find_their_library() {
        let prefix = prefix();
        let program = "#include <mpi.h>\nint main() { return MPI_Answer() - 42; }\n";
        for (wrapper, source) in [("onecopy-mpicc", "a b.c"), ("onecopy-mpicxx", "a b.cc")] {
            fs::write(prefix.join(source), program).expect("write");
            // Called by a link from elsewhere, as package managers make them.
            let link = prefix.join(wrapper);
            symlink(prefix.join("bin").join(wrapper), &link).expect("link");
            succeeded(&run(
                &link,
                &["-Wall", "-Werror", source, "-o", "whole"],
                &prefix,
            ));
            succeeded(&run(&prefix.join("whole"), &[], &prefix));
            succeeded(&run(&link, &["-c", source, "-o", "part.o"], &prefix));
            succeeded(&run(&link, &["part.o", "-o", "linked"], &prefix));
            succeeded(&run(&prefix.join("linked"), &[], &prefix));
            let shown = succeeded(&run(&link, &["-show", "x.c"], &prefix));
            assert!(
                shown.contains("x.c") && shown.contains("-lmpi_abi"),
                "{shown}"
            );
            let shown = succeeded(&run(&link, &["-show", "-c", "x.c"], &prefix));
            assert!(
                !shown.contains("-lmpi_abi") && shown.contains("include"),
                "{shown}"
            );
        }
        fs::remove_dir_all(&prefix).expect("clean up");
    }
}
