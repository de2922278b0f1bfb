//! How fast memory is copied.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Beyond what caches hold, within what any machine has.
const BYTES: usize = 64 << 20;
/// What a thread copies at a time: about an image.
const PIECE: usize = 256 << 10;
const LONGEST: Duration = Duration::from_millis(250);

/// Bytes per second: one thread's from memory to memory, and those of `threads` together out of one
/// memory into buffers of their own.
pub(super) fn measure(threads: usize) -> (f64, f64) {
    let source = vec![1u8; BYTES];
    (alone(&source), together(&source, threads))
}

fn alone(source: &[u8]) -> f64 {
    let mut target = vec![0u8; source.len()];
    // The first writes give the target its pages.
    target.copy_from_slice(source);
    let (begun, mut bytes) = (Instant::now(), 0);
    while begun.elapsed() < LONGEST {
        target.copy_from_slice(black_box(source));
        black_box(&target);
        bytes += source.len();
    }
    bytes as f64 / begun.elapsed().as_secs_f64()
}

fn together(source: &[u8], threads: usize) -> f64 {
    let begun = Instant::now();
    let one = |first: usize| {
        let (mut target, mut bytes) = (vec![0u8; PIECE], 0);
        let pieces = source.chunks_exact(PIECE);
        let mut pieces = pieces.cycle().skip(first * (BYTES / PIECE) / threads.max(1));
        while begun.elapsed() < LONGEST {
            let Some(piece) = pieces.next() else { break };
            target.copy_from_slice(black_box(piece));
            black_box(&target);
            bytes += PIECE;
        }
        bytes
    };
    let bytes: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|first| scope.spawn(move || one(first))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
    });
    bytes as f64 / begun.elapsed().as_secs_f64()
}
