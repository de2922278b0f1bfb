use forebay_policy::simulate::*;
fn main() {
    let a: Vec<f64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let s = Scenario {
        samples: a[0] as u64,
        pool: a[1],
        mixing: a[2],
        warmup: 0,
        epochs: 2.0,
        workers: a[4] as u32,
        prepare: if a[4] > 0.0 { a[4] / 8000.0 } else { 0.0 },
        jobs: vec![Group { count: a[3] as u32, stagger: 1.0 / a[3], epochs: Some(1), ..Group::default() }],
        ..Scenario::default()
    };
    let t = std::time::Instant::now();
    let rep = run(&s, Policy::Forebay, &mut |_| ()).unwrap();
    println!(
        "{:.4} bound {:.4} {:?} deliveries {} neg {} missed {} in {:?}: {:.0} ns per delivery",
        rep.ratio,
        rep.bound,
        rep.quality,
        rep.deliveries,
        rep.neglected,
        rep.missed,
        t.elapsed(),
        t.elapsed().as_nanos() as f64 / rep.deliveries as f64
    );
}
