//! The two models: hand-computed points of the published one, and the linear program against a search that shares
//! no code with it.

mod exhaustive;
mod published;
mod shape;

use super::*;

/// A small machine and a stream on which every resource can be made to bind.
fn small() -> (Machine, Load) {
    let machine = Machine {
        cores: 4.0,
        memory: 2_000_000_000,
        storage_bytes: 100e6,
        storage_requests: 2000.0,
        link_bytes: 20e9,
    };
    let job = Job { demand: None, finish_s: 0.0002, level: Level::Augmented };
    let load = Load {
        samples: 20_000,
        encoded: 100e3,
        decoded: 400e3,
        augmented: 150e3,
        read_s: 0.0001,
        decode_s: 0.003,
        augment_s: 0.0005,
        mixing: 0.1,
        jobs: vec![job],
    };
    (machine, load)
}

fn near(a: f64, b: f64, by: f64) -> bool {
    (a - b).abs() <= by * b.abs().max(1e-9)
}
