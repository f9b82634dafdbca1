//! scratch
fn main() {
    let rt = onecopy::Runtime::init().unwrap();
    let w = rt.world();
    let peer = 1 - w.rank();
    let mode = std::env::args().nth(1).unwrap_or("plain".into());
    let sizes: Vec<usize> = std::env::args()
        .nth(2)
        .map(|s| s.split(',').map(|x| x.parse().unwrap()).collect())
        .unwrap_or(vec![
            0,
            8,
            64,
            256,
            1024,
            2048,
            4096,
            8192,
            16384,
            32768,
            65536,
            131072,
            262144,
            524288,
            1 << 20,
            4 << 20,
            16 << 20,
            64 << 20,
        ]);
    let max = *sizes.iter().max().unwrap();
    let mut hs;
    let mut hr;
    let mut ps;
    let mut pr;
    let (s, r): (&mut [u8], &mut [u8]) = if mode == "heap" {
        hs = rt.alloc(max).unwrap();
        hr = rt.alloc(max).unwrap();
        (&mut hs, &mut hr)
    } else {
        ps = vec![1u8; max];
        pr = vec![2u8; max];
        (&mut ps, &mut pr)
    };
    s.fill(1);
    r.fill(2);
    for &n in &sizes {
        let iters = (3_000_000 / (200 + n / 20)).clamp(3, 20000);
        let mut best = f64::MAX;
        let mut all = vec![];
        for _ in 0..15 {
            w.barrier().unwrap();
            let t = std::time::Instant::now();
            for _ in 0..iters {
                if w.rank() == 0 {
                    w.send(&s[..n], peer, 1).unwrap();
                    w.recv(&mut r[..n], peer, 1).unwrap();
                } else {
                    w.recv(&mut r[..n], peer, 1).unwrap();
                    w.send(&s[..n], peer, 1).unwrap();
                }
            }
            let e = t.elapsed().as_secs_f64() * 1e6 / iters as f64 / 2.0;
            best = best.min(e);
            all.push(e);
        }
        all.sort_by(f64::total_cmp);
        if w.rank() == 0 {
            println!(
                "{mode:6} {n:9} min {best:9.3} med {:9.3}",
                all[all.len() / 2]
            );
        }
    }
    // rate
    let t = std::time::Instant::now();
    let n = 20000;
    for _ in 0..n {
        if w.rank() == 0 {
            for _ in 0..64 {
                w.send(&[1u64], peer, 2).unwrap();
            }
            w.recv(&mut [0u8], peer, 3).unwrap();
        } else {
            for _ in 0..64 {
                w.recv(&mut [0u64], peer, 2).unwrap();
            }
            w.send(&[0u8], peer, 3).unwrap();
        }
    }
    if w.rank() == 0 {
        println!(
            "rate {:.1} M/s",
            n as f64 * 64.0 / t.elapsed().as_secs_f64() / 1e6
        );
    }
}
