//! What lending a batch of 64 pictures costs either side: `cargo bench -p forebay-arena`.
#![expect(unsafe_code, reason = "a borrower writes through the view's address")]

use criterion::{Criterion, criterion_group, criterion_main};
use forebay_arena::{Buffer, Room, View};

const BYTES: usize = 64 * 3 * 224 * 224 * 4;

fn view_of(buffer: &Buffer) -> View {
    let file = buffer.descriptor().expect("it is lendable").try_clone_to_owned().expect("a descriptor");
    View::map(file, buffer.len()).expect("a sealed slot")
}

fn lend(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lend");
    group.sample_size(15);
    group.bench_function("make a slot", |b| b.iter(|| Buffer::lendable(BYTES).expect("room for one slot")));
    group.bench_function("look for room", |b| b.iter(Room::now));
    let mut buffer = Buffer::lendable(BYTES).expect("room for one slot");
    group.bench_function("map a view", |b| b.iter(|| view_of(&buffer)));
    group.bench_function("fill", |b| b.iter(|| buffer.fill(7)));
    let view = view_of(&buffer);
    let sum = || view.bytes().as_chunks::<8>().0.iter().fold(0, |sum, &c| sum ^ u64::from_ne_bytes(c));
    group.bench_function("read all", |b| b.iter(sum));
    group.bench_function("clean, nothing written", |b| b.iter(|| view.clean().expect("not locked")));
    group.bench_function("write 10 pages, clean", |b| {
        b.iter(|| {
            // SAFETY: inside the view, and nobody holds a reference into it.
            (0..10).for_each(|page| unsafe { view.as_ptr().add(page << 13).write_volatile(1) });
            assert_eq!(view.clean().expect("not locked"), 10);
        })
    });
}

criterion_group!(benches, lend);
criterion_main!(benches);
