use forebay_policy::simulate::*;
fn group(count: u32, speed: f64, stagger: f64) -> Group {
    Group { count, speed, stagger, ..Group::default() }
}
fn main() {
    let rows: Vec<(&str, Vec<Group>)> = vec![
        //("1", vec![group(1, 1000.0, 0.0)]),
        ("4 same", vec![group(4, 1000.0, 0.0)]),
        ("4 staggered", vec![group(4, 1000.0, 0.25)]),
        ("8 staggered", vec![group(8, 1000.0, 0.125)]),
        ("1,1,2,4", vec![group(2, 500.0, 0.0), group(1, 1000.0, 0.0), group(1, 2000.0, 0.0)]),
        ("3:1", vec![group(1, 1500.0, 0.0), group(1, 500.0, 0.0)]),
    ];
    let args: Vec<f64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let mixing = args.first().copied().unwrap_or(0.0);
    let workers = args.get(1).copied().unwrap_or(0.0);
    let seeds = 5;
    for (name, jobs) in rows {
        print!("{name:12}");
        for pool in [0.01, 0.05, 0.5] {
            let (mut r, mut b, mut c, mut w, mut neg, mut bad) = (0.0, 0.0, 0.0, 0.0, 0, 0);
            for seed in 0..seeds {
                let total: f64 = jobs.iter().map(|g| g.speed).fold(0.0, f64::max);
                let s = Scenario {
                    name: name.into(),
                    pool,
                    mixing,
                    seed,
                    jobs: jobs.clone(),
                    workers: workers as u32,
                    prepare: if workers > 0.0 {
                        workers / (args.get(2).copied().unwrap_or(1.2) * total)
                    } else {
                        0.0
                    },
                    epochs: 6.0,
                    ..Scenario::default()
                };
                let rep = run(&s, Policy::Forebay, &mut |_| ()).unwrap();
                r += rep.ratio;
                b += rep.bound;
                c += rep.quality.correlation.unwrap_or(f64::NAN);
                w += rep.waited;
                neg += rep.neglected;
                bad += rep.missed + rep.twice + rep.repeats.unwrap();
            }
            let k = seeds as f64;
            print!(
                "  pool {pool}: {:.4} (bound {:.4}, corr {:.2}, waited {:.3}, neg {neg}, bad {bad})",
                r / k,
                b / k,
                c / k,
                w / k
            );
        }
        println!();
    }
}
