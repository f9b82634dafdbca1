// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jacobi iterations on a square grid that is cut into blocks, one per rank, with a halo exchange before each step.
//!
//! Rows of a block are contiguous and go as they are. Columns are not. They go as a list of one-cell pieces, which the
//! receiver places cell by cell: no packing on either side. The result is compared bit for bit with a run of one
//! process.
//!
//! ```text
//! cargo build --release --example halo
//! onecopy run -n 4 target/release/examples/halo --size 512 --steps 200
//! ```
//!
//! Without a launcher it starts its ranks itself.

use clap::Parser;
use onecopy::{Comm, Runtime};
use onecopy_launch::Job;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
struct Args {
    /// Cells along one side of the grid
    #[arg(long, default_value_t = 512)]
    size: usize,
    /// Iterations
    #[arg(long, default_value_t = 200)]
    steps: usize,
    /// Ranks, when no launcher started us
    #[arg(short = 'n', long, default_value_t = 4)]
    ranks: usize,
}

const NORTH: i32 = 1;
const SOUTH: i32 = 2;
const WEST: i32 = 3;
const EAST: i32 = 4;

/// One rank's part of the grid, with a border of one cell. A cell is kept as its bytes, so that pieces can be sent as
/// they lie.
struct Block {
    rows: usize,
    columns: usize,
    cells: Vec<[u8; 8]>,
}

impl Block {
    fn new(rows: usize, columns: usize) -> Self {
        Self {
            rows,
            columns,
            cells: vec![[0; 8]; (rows + 2) * (columns + 2)],
        }
    }

    fn at(&self, row: usize, column: usize) -> usize {
        row * (self.columns + 2) + column
    }

    fn get(&self, row: usize, column: usize) -> f64 {
        f64::from_ne_bytes(self.cells[self.at(row, column)])
    }

    fn set(&mut self, row: usize, column: usize, value: f64) {
        let at = self.at(row, column);
        self.cells[at] = value.to_ne_bytes();
    }

    /// Each inner cell becomes the mean of its four neighbours.
    fn step(&self, next: &mut Self) {
        for row in 1..=self.rows {
            for column in 1..=self.columns {
                let sum = (self.get(row - 1, column) + self.get(row + 1, column))
                    + (self.get(row, column - 1) + self.get(row, column + 1));
                next.set(row, column, 0.25 * sum);
            }
        }
    }
}

/// Where a rank's block lies in the grid.
struct BlockPlace {
    down: usize,
    across: usize,
    row: usize,
    column: usize,
}

impl BlockPlace {
    /// The most square arrangement of `ranks` blocks.
    fn new(rank: usize, ranks: usize) -> Self {
        let root = ranks.isqrt();
        let down = (1..=root)
            .rev()
            .find(|d| ranks.is_multiple_of(*d))
            .unwrap_or(1);
        let across = ranks / down;
        Self {
            down,
            across,
            row: rank / across,
            column: rank % across,
        }
    }

    fn neighbour(&self, rows: isize, columns: isize) -> Option<usize> {
        let row = self.row.checked_add_signed(rows)?;
        let column = self.column.checked_add_signed(columns)?;
        (row < self.down && column < self.across).then(|| row * self.across + column)
    }
}

/// First and last cell (exclusive) of part `index` of `parts`.
fn share(size: usize, parts: usize, index: usize) -> (usize, usize) {
    (size * index / parts, size * (index + 1) / parts)
}

fn initial(row: usize, column: usize) -> f64 {
    let x = (row as u64).wrapping_mul(0x9E37_79B9) ^ (column as u64).wrapping_mul(0x85EB_CA6B);
    (x % 1000) as f64 / 1000.0
}

fn filled(rows: (usize, usize), columns: (usize, usize)) -> Block {
    let mut block = Block::new(rows.1 - rows.0, columns.1 - columns.0);
    for row in 0..block.rows {
        for column in 0..block.columns {
            let value = initial(rows.0 + row, columns.0 + column);
            block.set(row + 1, column + 1, value);
        }
    }
    block
}

/// Brings the neighbours' border cells into this block's halo.
fn exchange(world: &Comm, place: &BlockPlace, block: &mut Block) -> onecopy::Result<()> {
    let (rows, columns) = (block.rows, block.columns);
    let width = columns + 2;
    // What is sent is copied out of the way first only in the sense of the borrow checker: split the block by rows.
    let (north_halo, rest) = block.cells.split_at_mut(width);
    let (inner, south_halo) = rest.split_at_mut(rows * width);

    // Columns: the pieces of one column lie a row apart.
    let mut west_halo = Vec::with_capacity(rows);
    let mut west_cells = Vec::with_capacity(rows);
    let mut east_cells = Vec::with_capacity(rows);
    let mut east_halo = Vec::with_capacity(rows);
    let mut first_row: &[[u8; 8]] = &[];
    let mut last_row: &[[u8; 8]] = &[];
    for (index, row) in inner.chunks_exact_mut(width).enumerate() {
        let (west, rest) = row.split_at_mut(1);
        let (middle, east) = rest.split_at_mut(columns);
        west_halo.push(west[0].as_mut_slice());
        east_halo.push(east[0].as_mut_slice());
        let middle: &[[u8; 8]] = middle;
        west_cells.push(middle[0].as_slice());
        east_cells.push(middle[columns - 1].as_slice());
        if index == 0 {
            first_row = middle;
        }
        if index + 1 == rows {
            last_row = middle;
        }
    }

    world.scope(|scope| {
        if let Some(north) = place.neighbour(-1, 0) {
            scope.irecv(north_halo[1..=columns].as_flattened_mut(), north, SOUTH)?;
            scope.isend(first_row.as_flattened(), north, NORTH)?;
        }
        if let Some(south) = place.neighbour(1, 0) {
            scope.irecv(south_halo[1..=columns].as_flattened_mut(), south, NORTH)?;
            scope.isend(last_row.as_flattened(), south, SOUTH)?;
        }
        if let Some(west) = place.neighbour(0, -1) {
            scope.irecv_iov(west_halo, west, EAST)?;
            scope.isend_iov(&west_cells, west, WEST)?;
        }
        if let Some(east) = place.neighbour(0, 1) {
            scope.irecv_iov(east_halo, east, WEST)?;
            scope.isend_iov(&east_cells, east, EAST)?;
        }
        scope.wait_all()
    })?;
    Ok(())
}

fn solve(
    size: usize,
    steps: usize,
    place: &BlockPlace,
    world: Option<&Comm>,
) -> onecopy::Result<Block> {
    let rows = share(size, place.down, place.row);
    let columns = share(size, place.across, place.column);
    let mut now = filled(rows, columns);
    let mut next = Block::new(now.rows, now.columns);
    for _ in 0..steps {
        if let Some(world) = world {
            exchange(world, place, &mut now)?;
        }
        now.step(&mut next);
        std::mem::swap(&mut now, &mut next);
    }
    Ok(now)
}

fn rank(args: &Args) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::init()?;
    let world = runtime.world();
    let place = BlockPlace::new(world.rank(), world.size());
    if args.size < place.down.max(place.across) {
        return Err(format!("a grid of {} cells is too small", args.size).into());
    }
    world.barrier()?;
    let start = Instant::now();
    let block = solve(args.size, args.steps, &place, Some(&world))?;
    world.barrier()?;
    let elapsed = start.elapsed();

    // Each rank compares its own part with what one process finds.
    let alone = BlockPlace::new(0, 1);
    let whole = solve(args.size, args.steps, &alone, None)?;
    let (top, _) = share(args.size, place.down, place.row);
    let (left, _) = share(args.size, place.across, place.column);
    let mut different = 0_u64;
    for row in 1..=block.rows {
        for column in 1..=block.columns {
            let same = block.cells[block.at(row, column)]
                == whole.cells[whole.at(top + row, left + column)];
            different += u64::from(!same);
        }
    }
    if world.rank() == 0 {
        let mut total = different;
        for source in 1..world.size() {
            let mut theirs = [0_u64];
            world.recv(&mut theirs, source, 0)?;
            total += theirs[0];
        }
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "{0} x {0} cells on {1} x {2} ranks, {3} steps: {4:.2} us a step",
            args.size,
            place.down,
            place.across,
            args.steps,
            elapsed.as_secs_f64() * 1e6 / args.steps.max(1) as f64
        )?;
        if total > 0 {
            return Err(format!("{total} cells differ from the serial run").into());
        }
        writeln!(out, "every cell is bit for bit that of the serial run")?;
    } else {
        world.send(&[different], 0, 0)?;
    }
    runtime.finalize()?;
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    if std::env::var_os(onecopy::wireup::ENV_RANK).is_none() && args.ranks > 1 {
        let outcome = Job::new(std::env::current_exe()?, args.ranks)
            .args(std::env::args_os().skip(1))
            .run()?;
        return Ok(ExitCode::from(u8::try_from(outcome.code).unwrap_or(1)));
    }
    rank(&args)?;
    Ok(ExitCode::SUCCESS)
}
