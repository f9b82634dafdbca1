// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams a file from rank 0 to rank 1, with a checksum on both ends.
//!
//! ```text
//! cargo build --release --example stream_file
//! target/release/examples/stream_file some.iso
//! onecopy run -n 2 target/release/examples/stream_file --size 4G --mechanism cma
//! ```
//!
//! Rank 0 reads the file in pieces and sends them, rank 1 receives them, and both hash every byte. With `--size` a file
//! of that many reproducible bytes is written to a temporary directory first, and removed at the end. Without a
//! launcher the program starts its two ranks itself.

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use onecopy::{Comm, HeapBuf, Knobs, Options, Runtime, parse_size};
use onecopy_launch::Job;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::ops::DerefMut;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use xxhash_rust::xxh3::Xxh3;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mechanism {
    /// What the runtime picks for memory from its own allocator
    Auto,
    /// Copy in, copy out
    Cico,
    /// Read in place from memory of the runtime's allocator
    Heap,
    /// Cross-memory attach from memory of malloc
    Cma,
}

impl Mechanism {
    fn layers(self) -> Option<&'static str> {
        match self {
            Self::Auto => None,
            Self::Cico => Some("cico"),
            Self::Heap => Some("cico,heap"),
            Self::Cma => Some("cico,cma"),
        }
    }
}

#[derive(Parser)]
struct Args {
    /// The file to stream
    #[arg(required_unless_present = "size")]
    file: Option<PathBuf>,
    /// Write and stream a file of this size instead (suffixes K, M, G)
    #[arg(long, value_name = "SIZE", conflicts_with = "file")]
    size: Option<String>,
    /// What carries the bytes
    #[arg(long, value_enum, default_value = "auto")]
    mechanism: Mechanism,
    /// Bytes of one message (suffixes K, M, G)
    #[arg(long, value_name = "SIZE", default_value = "4M")]
    piece: String,
}

const LENGTH: i32 = 1;
const PIECE: i32 = 2;
const RESULT: i32 = 3;

/// The kind of memory that a mechanism is for.
enum Piece {
    Heap(HeapBuf),
    Private(Vec<u8>),
}

impl Piece {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(heap) => heap.deref_mut(),
            Self::Private(vec) => vec,
        }
    }
}

/// A file that is removed at the end.
struct Generated(PathBuf);

impl Drop for Generated {
    fn drop(&mut self) {
        // If it cannot be removed there is nothing left to try.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes `bytes` bytes that are the same each time.
fn generate(bytes: usize) -> Result<Generated, Box<dyn Error>> {
    let name = format!("onecopy-stream-{}", std::process::id());
    let generated = Generated(std::env::temp_dir().join(name));
    let mut file = BufWriter::with_capacity(1 << 20, File::create_new(&generated.0)?);
    let mut state = 0x1234_5678_9ABC_DEF0_u64;
    let mut block = vec![0_u8; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let n = left.min(block.len());
        file.write_all(&block[..n])?;
        left -= n;
    }
    file.flush()?;
    Ok(generated)
}

fn bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    let template = "{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} left {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Fills the buffer unless the file ends.
fn read_piece(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read(&mut buffer[have..])? {
            0 => break,
            n => have += n,
        }
    }
    Ok(have)
}

fn send(world: &Comm, path: &Path, piece: &mut Piece) -> Result<(), Box<dyn Error>> {
    let mut file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let length = file.metadata()?.len();
    world.send(&[length], 1, LENGTH)?;
    let progress = bar(length);
    let mut hash = Xxh3::new();
    let mut sent = 0_u64;
    let mut sending = 0.0;
    let start = Instant::now();
    while sent < length {
        let n = read_piece(&mut file, piece.bytes())?;
        if n == 0 {
            return Err(format!("{} ended after {sent} of {length} bytes", path.display()).into());
        }
        let bytes = &piece.bytes()[..n];
        hash.update(bytes);
        let before = Instant::now();
        world.send(bytes, 1, PIECE)?;
        sending += before.elapsed().as_secs_f64();
        sent += n as u64;
        progress.set_position(sent);
    }
    let mut theirs = [0_u64; 2];
    world.recv(&mut theirs, 1, RESULT)?;
    let seconds = start.elapsed().as_secs_f64();
    progress.finish_and_clear();
    let ours = [sent, hash.digest()];
    let mut out = std::io::stdout().lock();
    let rate = |seconds: f64| sent as f64 / seconds.max(1e-9) / 1e9;
    writeln!(
        out,
        "{sent} bytes in {seconds:.3} s: {:.2} GB/s with reading and hashing, {:.2} GB/s while sending",
        rate(seconds),
        rate(sending)
    )?;
    if ours != theirs {
        return Err(format!(
            "sent {:016x}, received {:016x} ({} bytes)",
            ours[1], theirs[1], theirs[0]
        )
        .into());
    }
    writeln!(out, "xxh3 {:016x} on both ends", ours[1])?;
    Ok(())
}

fn send_all(args: &Args, world: &Comm, piece: &mut Piece) -> Result<(), Box<dyn Error>> {
    let generated = match &args.size {
        Some(size) => Some(generate(parse_size(size)?)?),
        None => None,
    };
    let path = match (&args.file, &generated) {
        (Some(file), _) => file,
        (None, Some(generated)) => &generated.0,
        (None, None) => return Err("no file".into()),
    };
    send(world, path, piece)
}

fn receive(world: &Comm, piece: &mut Piece) -> Result<(), Box<dyn Error>> {
    let mut length = [0_u64];
    world.recv(&mut length, 0, LENGTH)?;
    let mut hash = Xxh3::new();
    let mut received = 0;
    while received < length[0] {
        let n = world.recv(piece.bytes(), 0, PIECE)?.bytes;
        hash.update(&piece.bytes()[..n]);
        received += n as u64;
    }
    world.send(&[received, hash.digest()], 0, RESULT)?;
    Ok(())
}

fn rank(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut options = Options::from_env()?;
    if let Some(layers) = args.mechanism.layers() {
        let (knobs, ..) = Knobs::from_iter([("ONECOPY_LAYERS", layers)])?;
        options.knobs.layers = knobs.layers;
    }
    let runtime = Runtime::init_with(options)?;
    let world = runtime.world();
    let bytes = parse_size(&args.piece)?.max(1);
    let mut piece = match args.mechanism {
        Mechanism::Auto | Mechanism::Heap => Piece::Heap(runtime.alloc(bytes)?),
        Mechanism::Cico | Mechanism::Cma => Piece::Private(vec![0; bytes]),
    };
    let result = match (world.rank(), world.size()) {
        (0, 2) => send_all(args, &world, &mut piece),
        (_, 2) => receive(&world, &mut piece),
        (_, ranks) => Err(format!("two ranks are needed, not {ranks}").into()),
    };
    if let Err(error) = result {
        writeln!(std::io::stderr().lock(), "stream_file: {error}")?;
        // The other rank waits for bytes that will not come.
        runtime.abort(1)?;
        return Err(error);
    }
    drop(piece);
    runtime.finalize()?;
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    if std::env::var_os(onecopy::wireup::ENV_RANK).is_none() {
        let outcome = Job::new(std::env::current_exe()?, 2)
            .args(std::env::args_os().skip(1))
            .run()?;
        return Ok(ExitCode::from(u8::try_from(outcome.code).unwrap_or(1)));
    }
    rank(&args)?;
    Ok(ExitCode::SUCCESS)
}
