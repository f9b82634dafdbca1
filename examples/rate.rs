//! scratch
fn main() {
    let rt = onecopy::Runtime::init().unwrap();
    let w = rt.world();
    let peer = 1 - w.rank();
    let n: usize = std::env::args()
        .nth(1)
        .map_or(20000, |v| v.parse().unwrap());
    for _ in 0..5 {
        let t = std::time::Instant::now();
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
}
