// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask picture`: what `onecopy top` shows of a real job, drawn into a file.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::steps::{cargo, show};
use crate::{Failure, install, root, say};

/// The terminal's size, in characters: as much as fits beside text.
const ROWS: u16 = 22;
const COLUMNS: u16 = 116;
/// How long it is looked at: until rates and percentiles are those of a job at work.
const LOOK: Duration = Duration::from_secs(15);
/// How long `top` may take to end.
const END: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the picture goes
    #[arg(long, value_name = "FILE", default_value = "docs/top.svg")]
    out: PathBuf,
    /// Ranks of the job that is looked at
    #[arg(short = 'n', long, default_value_t = 4)]
    ranks: u32,
}

/// A program that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let id = i32::try_from(self.0.id()).map(Pid::from_raw);
        if let Ok(id) = id {
            let _ = kill(id, Signal::SIGTERM);
        }
        let _ = self.0.wait();
    }
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| format!("{what}: {error}")
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    say::line("building (release) ...");
    show(cargo().args(["build", "--release", "--package", "onecopy-cli"]))?;
    show(cargo().args([
        "build",
        "--release",
        "--package",
        "onecopy",
        "--example",
        "halo",
    ]))?;
    let built = install::target_directory()?.join("release");
    let onecopy = built.join("onecopy");
    // Its rows are long enough to be read out of the other's memory, its columns are not.
    let job = Command::new(&onecopy)
        .args(["run", "-n", &args.ranks.to_string()])
        .arg(built.join("examples/halo"))
        .args(["--size", "8192", "--steps", "1000000"])
        .envs([("ONECOPY_LAYERS", "cma,cico"), ("ONECOPY_EAGER_MAX", "16K")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed("onecopy run cannot be started"))?;
    let job = Running(job);
    let screen = look(Command::new(&onecopy).arg("top"))?;
    drop(job);
    let out = root().join(&args.out);
    let svg = anstyle_svg::Term::new().min_width_px(0).render_svg(&screen);
    fs::write(&out, svg).map_err(failed("the picture cannot be written"))?;
    say::line(&format!("{} is written", out.display()));
    Ok(())
}

/// What the program shows after a while on a terminal of its own, with its colours.
fn look(program: &mut Command) -> Result<String, Failure> {
    let size = Winsize {
        ws_row: ROWS,
        ws_col: COLUMNS,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let OpenptyResult { master, slave } =
        openpty(&size, None).map_err(failed("no pseudo-terminal"))?;
    let end = || slave.try_clone().map_err(failed("a pseudo-terminal"));
    let mut child = program
        .env("TERM", "xterm-256color")
        .stdin(end()?)
        .stdout(end()?)
        .stderr(end()?)
        .spawn()
        .map_err(failed("onecopy top cannot be started"))?;
    drop(slave);
    // The command keeps what its program was given: then no end of it would be seen.
    program
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut keys = File::from(master);
    let mut shown = keys.try_clone().map_err(failed("a pseudo-terminal"))?;
    let reader = thread::spawn(move || {
        let mut parser = vt100::Parser::new(ROWS, COLUMNS, 0);
        let mut screen = String::new();
        let mut bytes = [0; 4096];
        loop {
            match shown.read(&mut bytes) {
                Ok(n) if n > 0 => parser.process(&bytes[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The other end is closed.
                _ => return screen,
            }
            // It leaves that screen when it ends: this is the last before.
            if parser.screen().alternate_screen() {
                screen = lines(parser.screen());
            }
        }
    });
    thread::sleep(LOOK);
    keys.write_all(b"q").map_err(failed("onecopy top"))?;
    let begin = Instant::now();
    while child.try_wait().map_err(failed("onecopy top"))?.is_none() {
        if begin.elapsed() > END {
            drop(Running(child));
            return Err("onecopy top does not end".to_owned());
        }
        thread::sleep(Duration::from_millis(20));
    }
    let screen = reader.join().unwrap_or_default();
    if screen.trim().is_empty() {
        return Err("onecopy top showed nothing".to_owned());
    }
    Ok(screen)
}

/// The rows with their colours, as text without movements.
fn lines(screen: &vt100::Screen) -> String {
    let mut text = String::new();
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            let Some(cell) = screen.cell(row, column) else {
                continue;
            };
            let mut style = "0".to_owned();
            for (is, code) in [
                (cell.bold(), ";1"),
                (cell.dim(), ";2"),
                (cell.inverse(), ";7"),
            ] {
                style += if is { code } else { "" };
            }
            for (color, from) in [(cell.fgcolor(), 38), (cell.bgcolor(), 48)] {
                match color {
                    vt100::Color::Default => {}
                    vt100::Color::Idx(index) => style += &format!(";{from};5;{index}"),
                    vt100::Color::Rgb(r, g, b) => style += &format!(";{from};2;{r};{g};{b}"),
                }
            }
            let shown = if cell.has_contents() {
                cell.contents()
            } else {
                " "
            };
            text += &format!("\x1b[{style}m{shown}");
        }
        text += "\x1b[0m\n";
    }
    text
}
