//! The kernels of the hot path, one image at a time: `cargo bench -p forebay-engine`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Bencher, Criterion, criterion_group, criterion_main};
use forebay_engine::CoreTime;
use forebay_engine::augment::{Augmenter, Head};
use forebay_engine::batch::Finisher;
use forebay_engine::decode::jpeg::{self, Subsampling};
use forebay_engine::decode::{Decoder, Picture, Pixels};
use forebay_recipe::{CopyName, Filter, Op, Output, Recipe, Rect};

const RECIPE: &str = r#"{"steps": [
    {"op": "random_resized_crop", "height": 224, "width": 224, "scale": [0.08, 1.0], "ratio": [0.75, 1.3333]},
    {"op": "random_horizontal_flip", "p": 0.5},
    {"op": "to_float", "scale": true},
    {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}]}"#;

/// 500 × 375 with detail at every scale, about 100 KB as JPEG.
fn photograph() -> Vec<u8> {
    let mut state = 1u64;
    let mut rgb = Vec::with_capacity(500 * 375 * 3);
    for y in 0..375 {
        for x in 0..500 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = (state >> 58) as i32 - 32;
            let wave = (f64::from(x) / 17.0).sin() * 50.0 + (f64::from(y) / 23.0).cos() * 50.0;
            for c in 0..3 {
                rgb.push(
                    (128.0 + wave * (1.0 - 0.2 * f64::from(c)) + f64::from(noise)).clamp(0.0, 255.0) as u8
                );
            }
        }
    }
    rgb
}

fn decode(c: &mut Criterion) {
    let bytes = jpeg::encode(&photograph(), 500, 375, 88, Subsampling::S420).expect("a photograph encodes");
    let mut decoder = Decoder::open().expect("libjpeg-turbo");
    let mut out = Pixels::default();
    let header = decoder.header(&bytes).expect("a header");
    for (name, rect) in [
        ("full", Rect::whole(500, 375)),
        ("centre half", Rect { x: 120, y: 90, width: 250, height: 190 }),
        ("top half", Rect { x: 0, y: 0, width: 500, height: 188 }),
    ] {
        c.bench_function(&format!("decode/{name}"), |b| {
            on_core(b, || {
                let header = decoder.header(black_box(&bytes)).expect("a header");
                decoder.decode(&bytes, &header, rect, 1, 1 << 30, &mut out).expect("pixels");
            });
        });
    }
    c.bench_function("decode/planes", |b| {
        on_core(b, || {
            let header = decoder.header(black_box(&bytes)).expect("a header");
            black_box(decoder.planes(&bytes, &header, 1 << 30).expect("decoded").expect("planes"));
        });
    });
    c.bench_function("decode/header", |b| {
        b.iter(|| decoder.header(black_box(&bytes)).expect("a header").size())
    });
    black_box(header);
}

fn resize(c: &mut Criterion) {
    let mut src = Pixels::default();
    src.reset(Rect::whole(500, 375), 3, 1 << 30).expect("room");
    src.bytes_mut()[..500 * 375 * 3].copy_from_slice(&photograph());
    let mut augmenter = Augmenter::default();
    let mut out = Pixels::default();
    for (name, width, height) in [("375x300", 375, 300), ("250x220", 250, 220), ("140x130", 140, 130)] {
        let ops = [
            Op::Crop(Rect { x: 20, y: 10, width, height }),
            Op::Resize { width: 224, height: 224, filter: Filter::Bilinear },
        ];
        let (head, rest) = Head::fold(500, 375, &ops);
        c.bench_function(&format!("resize/{name} to 224"), |b| {
            b.iter(|| {
                augmenter.run(black_box(&src), 1, &head, rest, 1 << 30, 1 << 30, &mut out).expect("pixels")
            });
        });
    }
}

fn finish(c: &mut Criterion) {
    let recipe = Recipe::from_json(RECIPE).expect("a recipe");
    let rgb = &photograph()[..224 * 224 * 3];
    for output in ["float32", "float32/channels_last", "float16", "bfloat16"] {
        let finisher = Finisher::new(&recipe, Output::parse(output).expect("an output")).expect("fits");
        let mut dst = vec![0; finisher.bytes(224, 224)];
        c.bench_function(&format!("finish/{output}"), |b| {
            b.iter(|| finisher.finish(black_box(rgb), 224, &[], &mut dst));
        });
    }
}

/// In time of a core: it is the ratio that counts, and others may want the cores too.
fn on_core(b: &mut Bencher<'_>, mut work: impl FnMut()) {
    b.iter_custom(|times| {
        let start = CoreTime::now();
        (0..times).for_each(|_| work());
        Duration::from_nanos(CoreTime::now().since(start))
    });
}

/// A finished copy from each form that is kept of a sample: more samples than the processor's caches hold.
fn copy(c: &mut Criterion) {
    const SAMPLES: u64 = 1000;
    let bytes = jpeg::encode(&photograph(), 500, 375, 88, Subsampling::S420).expect("a photograph encodes");
    let files: Vec<Vec<u8>> = (0..SAMPLES).map(|_| bytes.clone()).collect();
    let mut decoder = Decoder::open().expect("libjpeg-turbo");
    let header = decoder.header(&bytes).expect("a header");
    let whole = |decoder: &mut Decoder, planes: bool| {
        if planes {
            return Picture::Planes(
                decoder.planes(&bytes, &header, 1 << 30).expect("decoded").expect("planes"),
            );
        }
        let mut pixels = Pixels::default();
        decoder.decode(&bytes, &header, Rect::whole(500, 375), 1, 1 << 30, &mut pixels).expect("pixels");
        Picture::Rgb(pixels)
    };
    let recipe = Recipe::from_json(RECIPE).expect("a recipe");
    let finisher = Finisher::new(&recipe, Output::default()).expect("fits");
    let mut dst = vec![0; finisher.bytes(224, 224)];
    let (mut augmenter, mut scratch, mut out) = (Augmenter::default(), Pixels::default(), Pixels::default());
    let drawn = |copy: u64| {
        let name = CopyName { seed: 1, sample: copy % SAMPLES, generation: copy / SAMPLES, occurrence: 0 };
        recipe.draw(&name, 500, 375).expect("drawn")
    };
    for (name, planes) in [("pixels", false), ("planes", true)] {
        let pictures: Vec<Picture> = (0..SAMPLES).map(|_| whole(&mut decoder, planes)).collect();
        let mut copy = 0;
        c.bench_function(&format!("copy/from {name}"), |b| {
            on_core(b, || {
                copy += 1;
                let drawn = drawn(copy);
                let (head, rest) = Head::fold(500, 375, &drawn.ops);
                let picture = &pictures[(copy % SAMPLES) as usize];
                augmenter
                    .run_on(picture, &mut scratch, &head, rest, 1 << 30, 1 << 30, &mut out)
                    .expect("pixels");
                finisher.finish(out.rgb(), 224, &[], &mut dst);
            });
        });
    }
    let mut copy = 0;
    c.bench_function("copy/from JPEG", |b| {
        on_core(b, || {
            copy += 1;
            let drawn = drawn(copy);
            let (head, rest) = Head::fold(500, 375, &drawn.ops);
            let bytes = &files[(copy % SAMPLES) as usize];
            let header = decoder.header(bytes).expect("a header");
            let wanted = augmenter.wanted(&head);
            decoder.decode(bytes, &header, wanted, 1, 1 << 30, &mut scratch).expect("pixels");
            augmenter.run(&scratch, 1, &head, rest, 1 << 30, 1 << 30, &mut out).expect("pixels");
            finisher.finish(out.rgb(), 224, &[], &mut dst);
        });
    });
}

fn coins(c: &mut Criterion) {
    let recipe = Recipe::from_json(RECIPE).expect("a recipe");
    let mut sample = 0;
    c.bench_function("draw", |b| {
        b.iter(|| {
            sample += 1;
            recipe.draw(&CopyName { seed: 1, sample, generation: 0, occurrence: 0 }, 500, 375).expect("drawn")
        });
    });
}

criterion_group!(benches, decode, resize, finish, copy, coins);
criterion_main!(benches);
