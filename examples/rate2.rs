//! scratch
use std::time::Instant;
fn main() {
    let rt = onecopy::Runtime::init().unwrap();
    let w = rt.world();
    let peer = 1 - w.rank();
    let (mut ts, mut tr) = (0.0, 0.0);
    let n = 20000;
    for _ in 0..n {
        w.barrier().unwrap();
        if w.rank() == 0 {
            let t = Instant::now();
            for _ in 0..64 {
                w.send(&[1u64], peer, 2).unwrap();
            }
            ts += t.elapsed().as_secs_f64();
            w.recv(&mut [0u8], peer, 3).unwrap();
        } else {
            let t = Instant::now();
            while t.elapsed().as_nanos() < 12000 {}
            let t = Instant::now();
            for _ in 0..64 {
                w.recv(&mut [0u64], peer, 2).unwrap();
            }
            tr += t.elapsed().as_secs_f64();
            w.send(&[0u8], peer, 3).unwrap();
        }
    }
    println!(
        "{} send {:.1} ns recv {:.1} ns",
        w.rank(),
        ts / n as f64 / 64.0 * 1e9,
        tr / n as f64 / 64.0 * 1e9
    );
}
