// SPDX-License-Identifier: MIT OR Apache-2.0
//! From batches to a curve.

use onecopy::Curve;
use onecopy_bench::curve::Batch;

/// Batches count whose probes are at most this many times the floor, as for near in `cli/src/bench/gate.rs`. Chosen by
/// magnitude: far takes at least twice as long as near (docs/performance.md, the machines).
const NEAR: f64 = 1.4;

/// One time for each size.
pub(super) struct Points {
    /// Bytes and nanoseconds, ascending.
    pub(super) points: Vec<(u64, f64)>,
    /// Batches that counted.
    pub(super) kept: usize,
}

/// What disturbs a copy only makes it slower, and a long batch is more likely to be disturbed between its probes: so
/// not the middle.
fn lower_quartile(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 4]
}

/// Lower quartiles of the batches during which the machine was fast. A size that has fewer than three of them is left
/// out.
pub(super) fn points(batches: &[Batch], floor: f64) -> Points {
    let near: Vec<&Batch> = batches
        .iter()
        .filter(|batch| batch.before_ns.max(batch.after_ns) <= NEAR * floor)
        .collect();
    let mut sizes: Vec<u64> = near.iter().map(|batch| batch.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let points = sizes
        .into_iter()
        .filter_map(|size| {
            let mut times: Vec<f64> = near
                .iter()
                .filter(|batch| batch.size == size)
                .map(|batch| batch.ns)
                .collect();
            (times.len() >= 3).then(|| (size, lower_quartile(&mut times)))
        })
        .collect();
    Points {
        points,
        kept: near.len(),
    }
}

/// Solves three linear equations. `None`: they do not determine the unknowns.
fn solve(mut m: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    for column in 0..3 {
        let pivot =
            (column..3).max_by(|&a, &b| m[a][column].abs().total_cmp(&m[b][column].abs()))?;
        m.swap(column, pivot);
        if m[column][column].abs() < 1e-12 {
            return None;
        }
        for row in 0..3 {
            if row != column {
                let factor = m[row][column] / m[column][column];
                let above = m[column];
                for (cell, above) in m[row].iter_mut().zip(above).skip(column) {
                    *cell -= factor * above;
                }
            }
        }
    }
    Some([m[0][3] / m[0][0], m[1][3] / m[1][1], m[2][3] / m[2][2]])
}

/// The curve with its knee at `knee` that misses the points by the least relative squares, and by how much.
fn at_knee(points: &[(u64, f64)], knee: u64) -> Option<(Curve, f64)> {
    let mut sums = [[0.0; 4]; 3];
    for &(size, ns) in points {
        let near = size.min(knee) as f64 / 1024.0;
        let far = size.saturating_sub(knee) as f64 / 1024.0;
        let terms = [1.0 / ns, near / ns, far / ns];
        for row in 0..3 {
            for column in 0..3 {
                sums[row][column] += terms[row] * terms[column];
            }
            sums[row][3] += terms[row];
        }
    }
    let [setup_ns, per_kib_ns, per_kib_far_ns] = solve(sums)?;
    let curve = Curve {
        setup_ns,
        per_kib_ns,
        knee,
        per_kib_far_ns,
    };
    let miss = points
        .iter()
        .map(|&(size, ns)| (curve.estimate(size) / ns - 1.0).powi(2))
        .sum();
    (setup_ns > 0.0 && per_kib_ns > 0.0 && per_kib_far_ns > 0.0).then_some((curve, miss))
}

/// The curve that fits best; the knee is one of the measured sizes.
pub(super) fn curve(points: &[(u64, f64)]) -> Option<Curve> {
    if points.len() < 5 {
        return None;
    }
    points[1..points.len() - 2]
        .iter()
        .filter_map(|&(knee, _)| at_knee(points, knee))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(curve, _)| curve)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_found_again() {
        let truth = Curve {
            setup_ns: 300.0,
            per_kib_ns: 20.0,
            knee: 256 << 10,
            per_kib_far_ns: 35.0,
        };
        let points: Vec<(u64, f64)> = (9..=24)
            .map(|power| 1u64 << power)
            .map(|size| (size, truth.estimate(size)))
            .collect();
        let found = curve(&points).expect("a curve");
        assert_eq!(found.knee, truth.knee);
        assert!((found.setup_ns - 300.0).abs() < 1e-3, "{found:?}");
        assert!((found.per_kib_far_ns - 35.0).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn batches_of_a_slow_machine_do_not_count() {
        let batch = |ns, probe| Batch {
            size: 64,
            ns,
            before_ns: probe,
            after_ns: 100.0,
        };
        let mut batches = vec![batch(9999.0, 300.0); 20];
        batches.extend([batch(10.0, 100.0), batch(11.0, 120.0), batch(500.0, 139.0)]);
        let points = points(&batches, 100.0);
        assert_eq!((points.kept, points.points), (3, vec![(64, 10.0)]));
    }

    #[test]
    fn few_points_give_no_curve() {
        assert!(curve(&[(64, 1.0), (128, 2.0)]).is_none());
    }
}
