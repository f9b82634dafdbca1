// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results as graphs: logarithmic axes, one line per mechanism, the limit dashed.

use super::record::{Record, Run};
use super::table::gigabytes;
use super::{machine, sizes};
use onecopy_bench::{BenchError, Mechanism, Mode, Pattern};
use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::prelude::*;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

const SIZE: (u32, u32) = (960, 600);
const INK: RGBColor = RGBColor(40, 44, 52);
const GRID: RGBColor = RGBColor(228, 230, 235);
const FAINT: RGBColor = RGBColor(244, 245, 247);

/// What the vertical axis shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Microseconds per message.
    Latency,
    /// Gigabytes per second of one direction.
    Bandwidth,
}

/// A colour: red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shade(pub u8, pub u8, pub u8);

impl Shade {
    fn rgb(self) -> RGBColor {
        RGBColor(self.0, self.1, self.2)
    }
}

/// One line of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name, which stands beside its end.
    pub name: String,
    /// Its colour.
    pub shade: Shade,
    /// Whether it is a limit.
    pub dashed: bool,
    /// Message size in bytes, and the quantity.
    pub points: Vec<(f64, f64)>,
}

/// A graph: the quantity over the message size, both axes logarithmic.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What a reader must know, in small letters under the title.
    pub under: String,
    /// What the vertical axis shows.
    pub quantity: Quantity,
    /// Its lines, each with at least one point.
    pub lines: Vec<Line>,
}

impl Chart {
    /// Whether there is anything to be drawn: values of two sizes make a line.
    #[must_use]
    pub fn has_line(&self) -> bool {
        let [sizes, values] = self.bounds();
        sizes.start < sizes.end && values.start > 0.0
    }

    /// The graph as text.
    ///
    /// # Errors
    ///
    /// If it cannot be drawn.
    pub fn svg(&self) -> Result<String, BenchError> {
        // The axes of such a graph would have ticks without end.
        if !self.has_line() {
            return Err(BenchError::Graph {
                what: self.title.clone(),
                reason: "fewer than two sizes were measured".to_owned(),
            });
        }
        let mut text = String::new();
        {
            let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            paint(&root, self).map_err(|reason| BenchError::Graph {
                what: self.title.clone(),
                reason,
            })?;
        }
        Ok(text)
    }
}

fn colour(mechanism: Mechanism) -> Shade {
    match mechanism {
        Mechanism::Cico => Shade(0, 107, 164),
        Mechanism::Heap => Shade(200, 82, 0),
        Mechanism::Cma => Shade(44, 140, 80),
        Mechanism::CmaHuge => Shade(132, 90, 170),
        Mechanism::Xpmem => Shade(190, 150, 0),
        Mechanism::Knem => Shade(0, 150, 160),
        Mechanism::Auto => Shade(190, 40, 80),
        Mechanism::Unix | Mechanism::All => Shade(120, 120, 120),
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
fn place(record: &Record, us: f64, quantity: Quantity) -> (f64, f64) {
    let value = match quantity {
        Quantity::Latency => us,
        Quantity::Bandwidth => gigabytes(record.size, us),
    };
    (record.size as f64, value)
}

/// Lines of all mechanisms; of the limits, one for those that share it.
fn lines(records: &[&Record], quantity: Quantity) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut limits: Vec<Line> = Vec::new();
    for record in records.iter().filter(|record| record.size > 0) {
        let median = match record.ratio_of.as_str() {
            "near" => record.near.median_us,
            "far" => record.far.median_us,
            _ => record.all.median_us,
        };
        if let Some(us) = median {
            let name = record.mechanism.name();
            let point = place(record, us, quantity);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line {
                    name: name.to_owned(),
                    shade: colour(record.mechanism),
                    dashed: false,
                    points: vec![point],
                }),
            }
        }
        if let Some(us) = record.limit_us {
            let (name, shade) = match record.mechanism {
                Mechanism::Cma | Mechanism::Knem => ("limit, cma", Shade(150, 195, 165)),
                Mechanism::CmaHuge => ("limit, cma-huge", Shade(190, 170, 205)),
                _ => ("limit, one-core copy", Shade(130, 130, 130)),
            };
            let point = place(record, us, quantity);
            match limits.iter_mut().find(|line| line.name == name) {
                Some(line) if line.points.iter().all(|p| p.0 < point.0) => line.points.push(point),
                Some(_) => {}
                None => limits.push(Line {
                    name: name.to_owned(),
                    shade,
                    dashed: true,
                    points: vec![point],
                }),
            }
        }
    }
    limits.extend(lines);
    limits
}

/// Draws all graphs of a run into a directory and gives their paths.
///
/// # Errors
///
/// If the directory or a file cannot be written.
pub fn write(run: &Run, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    fs::create_dir_all(directory).map_err(BenchError::io(directory.display().to_string()))?;
    let records = run.records();
    let mut written = Vec::new();
    for pattern in Pattern::EACH.into_iter().chain(Pattern::COLLECTIVES) {
        for mode in Mode::EACH {
            let group: Vec<&Record> = records
                .iter()
                .filter(|record| record.pattern == pattern && record.mode == mode)
                .filter(|record| record.size > 0)
                .collect();
            for quantity in [Quantity::Latency, Quantity::Bandwidth] {
                let windowed = matches!(pattern, Pattern::Bw | Pattern::BiBw | Pattern::Rate);
                let unfit = if pattern.is_collective() {
                    quantity == Quantity::Bandwidth
                } else {
                    windowed && quantity == Quantity::Latency
                };
                if unfit {
                    continue;
                }
                let (what, title) = title(pattern, mode, quantity);
                let path = directory.join(format!("{}-{}-{what}.svg", pattern.name(), mode.name()));
                let lines = lines(&group, quantity);
                let chart = Chart {
                    title,
                    under: under(run, &lines),
                    quantity,
                    lines,
                };
                // There may be one size alone.
                if !chart.has_line() {
                    continue;
                }
                let text = chart.svg()?;
                fs::write(&path, text).map_err(BenchError::io(path.display().to_string()))?;
                written.push(path);
            }
        }
    }
    Ok(written)
}

fn under(run: &Run, lines: &[Line]) -> String {
    let mut under = format!(
        "medians, {} ranks; raw hand-off floor {:.0} ns",
        run.ranks, run.gate.floor_ns
    );
    if lines.iter().any(|line| line.name == Mechanism::Heap.name()) {
        under.push_str("; heap: memory from alloc, all others: memory of the program");
    }
    under
}

fn title(pattern: Pattern, mode: Mode, quantity: Quantity) -> (&'static str, String) {
    let (what, quantity) = match quantity {
        Quantity::Latency => ("latency", "time"),
        Quantity::Bandwidth => ("bandwidth", "bandwidth"),
    };
    let pattern = match pattern {
        Pattern::PingPong => "Ping-pong",
        Pattern::SendRecv => "Sendrecv",
        Pattern::Bw => "One way, windowed",
        Pattern::BiBw => "Two ways, windowed",
        Pattern::Rate => "Message rate",
        collective => collective.name(),
    };
    let mode = match mode {
        Mode::Same | Mode::All => "same buffers",
        Mode::OffCache => "off-cache",
        Mode::Rewrite => "sender rewrites",
    };
    (
        what,
        format!("{pattern}: {quantity} by message size, {mode}"),
    )
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What lines are drawn in: both axes are logarithmic.
type Field<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<LogCoord<f64>, LogCoord<f64>>>;

fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn fail(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn paint(root: &Area<'_>, chart: &Chart) -> Result<(), String> {
    root.fill(&WHITE).map_err(fail)?;
    paint_head(root, chart)?;
    let mut field = paint_axes(root, chart)?;
    for line in &chart.lines {
        paint_line(&mut field, line)?;
    }
    paint_names(root, &field, &chart.lines)?;
    root.present().map_err(fail)
}

fn paint_head(root: &Area<'_>, chart: &Chart) -> Result<(), String> {
    let text = |text: &str, size, y| root.draw_text(text, &font(size), (24, y)).map_err(fail);
    text(&chart.title, 22, 18)?;
    text(&chart.under, 13, 46)?;
    if machine::is_translated() {
        // Nobody should read such a graph without this.
        text(machine::TRANSLATED, 13, 62)?;
    }
    Ok(())
}

impl Chart {
    /// The least and the most of all points: of sizes, and of values.
    fn bounds(&self) -> [Range<f64>; 2] {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let bounds = |pick: fn(&(f64, f64)) -> f64| {
            let values = || points().map(pick);
            values().fold(f64::INFINITY, f64::min)..values().fold(0.0, f64::max)
        };
        [bounds(|point| point.0), bounds(|point| point.1)]
    }

    /// What the upright axis shows: from a power of ten on, and some room above.
    fn values(&self, bounds: &Range<f64>) -> Range<f64> {
        let decade = 10_f64.powf((bounds.start * 0.8).log10().floor());
        let low = match self.quantity {
            Quantity::Bandwidth => decade.max(0.01),
            Quantity::Latency => decade,
        };
        low..bounds.end * 1.6
    }
}

fn paint_axes<'a>(root: &Area<'a>, chart: &Chart) -> Result<Field<'a>, String> {
    let [sizes, values] = chart.bounds();
    // The strip on the right holds the names of the lines.
    let mut field = ChartBuilder::on(root)
        .margin_top(82)
        .margin_right(150)
        .margin_left(16)
        .margin_bottom(14)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(
            sizes.log_scale().base(2.0),
            chart.values(&values).log_scale().base(10.0),
        )
        .map_err(fail)?;
    field
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(FAINT)
        .axis_style(INK)
        .label_style(font(13))
        .axis_desc_style(font(14))
        .x_labels(14)
        .y_labels(10)
        .x_desc("message size, bytes")
        .y_desc(match chart.quantity {
            Quantity::Latency => "microseconds",
            Quantity::Bandwidth => "GB/s",
        })
        .x_label_formatter(&|size| tick_size(*size))
        .y_label_formatter(&|value| tick_value(*value))
        .draw()
        .map_err(fail)?;
    Ok(field)
}

fn paint_line(field: &mut Field<'_>, line: &Line) -> Result<(), String> {
    let low = field.y_range().start;
    let visible = || line.points.iter().copied().filter(|point| point.1 >= low);
    let colour = line.shade.rgb();
    if line.dashed {
        let series = DashedLineSeries::new(visible(), 7, 5, colour.stroke_width(2));
        field.draw_series(series).map_err(fail)?;
    } else {
        let series = LineSeries::new(visible(), colour.stroke_width(3));
        field.draw_series(series).map_err(fail)?;
        let dots = visible().map(|point| Circle::new(point, 3, colour.filled()));
        field.draw_series(dots).map_err(fail)?;
    }
    Ok(())
}

/// Writes each line's name beside its end, pushed down where names would meet.
fn paint_names(root: &Area<'_>, field: &Field<'_>, lines: &[Line]) -> Result<(), String> {
    let ends = lines.iter().filter_map(|line| {
        let (_, y) = field.backend_coord(line.points.last()?);
        Some((y, line))
    });
    let mut names: Vec<(i32, &Line)> = ends.collect();
    names.sort_by_key(|(y, _)| *y);
    let across = i32::try_from(SIZE.0).unwrap_or(0) - 142;
    let mut free = 0;
    for (y, line) in names {
        let y = (y - 7).max(free);
        free = y + 17;
        let font = ("sans-serif", 14).into_font().color(&line.shade.rgb());
        root.draw_text(&line.name, &font, (across, y))
            .map_err(fail)?;
    }
    Ok(())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "ticks of the axis are sizes"
)]
fn tick_size(size: f64) -> String {
    sizes::format(size.round() as usize)
}

fn tick_value(value: f64) -> String {
    if value >= 1.0 {
        format!("{value:.0}")
    } else {
        let text = format!("{value:.4}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::gate::Gate;
    use super::super::record::{Contestant, Point, Sample, Subject};
    use super::*;

    fn run() -> Run {
        let contestant = |who: Subject, us: f64| Contestant {
            who,
            samples: vec![Sample {
                us,
                before_ns: 60.0,
                after_ns: 60.0,
            }],
            checked_bytes: 0,
            pool_bytes: 0,
            refused: None,
        };
        let point = |size: usize| Point {
            pattern: Pattern::PingPong,
            mode: Mode::Same,
            size,
            window: 1,
            contestants: vec![
                contestant(Subject::Mechanism(Mechanism::Cico), 0.1 + size as f64 / 1e4),
                contestant(Subject::Mechanism(Mechanism::Heap), 0.1 + size as f64 / 2e4),
                contestant(
                    Subject::Limit("direct".into(), false),
                    0.06 + size as f64 / 3e4,
                ),
                contestant(Subject::Limit("hand-off".into(), false), 0.06),
            ],
        };
        Run {
            gate: Gate::new(60.0),
            ranks: 2,
            missing: Vec::new(),
            points: [0, 8, 1024, 1 << 20].map(point).to_vec(),
        }
    }

    /// Every element is closed, in order, and text has no bare markup.
    fn well_formed(text: &str) -> bool {
        let mut open = Vec::new();
        for part in text.split('<').skip(1) {
            let Some((tag, _)) = part.split_once('>') else {
                return false;
            };
            if tag.starts_with(['?', '!']) || tag.ends_with('/') {
                continue;
            }
            if let Some(name) = tag.strip_prefix('/') {
                if open.pop() != Some(name.trim()) {
                    return false;
                }
            } else {
                open.push(tag.split_whitespace().next().unwrap_or_default());
            }
        }
        open.is_empty()
    }

    #[test]
    fn a_graph_has_one_line_per_mechanism() {
        let directory = std::env::temp_dir().join(format!("onecopy-svg-{}", std::process::id()));
        let written = write(&run(), &directory).unwrap();
        assert_eq!(written.len(), 2);
        for path in &written {
            let text = fs::read_to_string(path).unwrap();
            assert!(well_formed(&text), "{}", path.display());
            for (mechanism, lines) in [
                (Mechanism::Cico, 1),
                (Mechanism::Heap, 1),
                (Mechanism::Cma, 0),
            ] {
                let Shade(r, g, b) = colour(mechanism);
                let stroke = format!("stroke=\"#{r:02X}{g:02X}{b:02X}\"");
                let found = text
                    .split('<')
                    .filter(|part| part.starts_with("polyline") && part.contains(&stroke))
                    .count();
                assert_eq!(found, lines, "{mechanism} in {}", path.display());
            }
            for word in ["cico", "heap", "limit, one-core copy", "message size"] {
                assert!(text.contains(word), "{word}");
            }
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    /// A machine may never have been in the state that a graph is of.
    #[test]
    fn a_graph_without_a_line_is_refused() {
        let chart = |points: &[(f64, f64)]| Chart {
            title: "title".to_owned(),
            under: String::new(),
            quantity: Quantity::Latency,
            lines: vec![Line {
                name: "line".to_owned(),
                shade: Shade(0, 0, 0),
                dashed: false,
                points: points.to_vec(),
            }],
        };
        for points in [&[][..], &[(8.0, 1.0)], &[(8.0, 0.0), (16.0, 1.0)]] {
            assert!(chart(points).svg().is_err(), "{points:?}");
        }
        assert!(chart(&[(8.0, 1.0), (16.0, 2.0)]).svg().is_ok());
    }

    #[test]
    fn ticks_are_readable() {
        assert_eq!(tick_size(1_048_576.0), "1M");
        assert_eq!(tick_value(0.1), "0.1");
        assert_eq!(tick_value(100.0), "100");
    }
}
