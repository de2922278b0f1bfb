//! What the recipe costs: core-seconds of each part, and how large what it makes is.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_policy::Permutation;
use forebay_policy::plan::profile::{Form, Step};
use forebay_recipe::{CopyName, Op, Output, Recipe, Rect};
use rustix::time::{ClockId, clock_gettime};

use super::storage::failed;
use super::{Options, share};
use crate::augment::{Augmenter, Head};
use crate::batch::Finisher;
use crate::cache::keeps_planes;
use crate::decode::{Decoder, Pixels};
use crate::error::{Fault, Stage};
use crate::kernels::Simd;
use crate::prepare::denominator;
use crate::storage::Dataset;
use crate::{Error, Result};

const LIMIT: u64 = 1 << 30;

/// Core-seconds and bytes for one sample, on average.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// Samples measured.
    pub samples: u64,
    /// Decoded form; 0: there is none to keep.
    pub decoded_bytes: f64,
    /// A copy; 0: no random steps.
    pub augmented_bytes: f64,
    /// A read of a file in the page cache.
    pub read_s: f64,
    /// The pixels that a copy needs.
    pub decode_s: f64,
    /// The whole image, as for a decoded form that is kept.
    pub decode_whole_s: f64,
    /// Steps between decoder and finish. Crops, a resize and flips are one pass over the pixels; a step of it
    /// has what the pass takes longer for it.
    pub steps: Vec<Step>,
    /// Cast, normalise, lay out.
    pub finish_s: f64,
}

/// One thread's buffers and sums.
struct Thread {
    decoder: Decoder,
    augmenter: Augmenter,
    encoded: Vec<u8>,
    part: Pixels,
    whole: Pixels,
    form: Pixels,
    out: Pixels,
    finished: Vec<u8>,
    sums: Sums,
}

#[derive(Debug, Clone, Default)]
struct Sums {
    samples: u64,
    decoded_bytes: u64,
    augmented_bytes: u64,
    read_s: f64,
    decode_s: f64,
    decode_whole_s: f64,
    /// Of the deterministic and of the random steps, in one go.
    forms_s: [f64; 2],
    /// What each step adds to the steps before it.
    steps_s: Vec<f64>,
    finish_s: f64,
}

/// Takes samples through the recipe on all threads.
pub(super) fn measure(
    dataset: &Dataset,
    recipe: &Recipe,
    options: &Options,
    progress: &(dyn Fn(&str, f64) + Sync),
) -> Result<Work> {
    let count = options.samples.min(dataset.len());
    let order = Permutation::new(dataset.len(), options.seed, 0);
    let finisher = Finisher::new(recipe, Output::default())?;
    let done = AtomicU64::new(0);
    let threads = share(
        options.config.threads.min(count as usize),
        count,
        || true,
        || Thread::open().map_err(|fault| Error::Invalid(fault.to_string())),
        |thread, index| {
            let name = CopyName { seed: options.seed, sample: order.at(index), generation: 0, occurrence: 0 };
            thread.one(dataset, recipe, &finisher, &name)?;
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress("taking samples through the recipe", done as f64 / count as f64);
            Ok(())
        },
    )?;
    let mut all = Sums::default();
    threads.iter().for_each(|thread| all.add(&thread.sums));
    Ok(all.mean(recipe))
}

impl Thread {
    fn open() -> Result<Self, Fault> {
        Ok(Thread {
            decoder: Decoder::open()?,
            augmenter: Augmenter::default(),
            encoded: Vec::new(),
            part: Pixels::default(),
            whole: Pixels::default(),
            form: Pixels::default(),
            out: Pixels::default(),
            finished: Vec::new(),
            sums: Sums::default(),
        })
    }

    fn one(
        &mut self,
        dataset: &Dataset,
        recipe: &Recipe,
        finisher: &Finisher,
        name: &CopyName,
    ) -> Result<()> {
        // The warm pass over storage has left the same files in the page cache.
        let clock = Cpu::start();
        let read = dataset.read(name.sample, LIMIT, &mut self.encoded);
        read.map_err(|fault| failed(dataset, name.sample, fault))?;
        self.sums.read_s += clock.seconds();
        self.prepare(recipe, finisher, name).map_err(|(stage, fault)| Error::Sample {
            sample: name.sample,
            path: dataset.path(name.sample),
            stage,
            fault,
        })
    }

    /// All but the read. Costs of what the engine does in one go are measured in one go.
    fn prepare(
        &mut self,
        recipe: &Recipe,
        finisher: &Finisher,
        name: &CopyName,
    ) -> Result<(), (Stage, Fault)> {
        let (decode, augment) = (|fault| (Stage::Decode, fault), |fault| (Stage::Augment, fault));
        let clock = Cpu::start();
        let header = self.decoder.header(&self.encoded).map_err(decode)?;
        let (width, height) = header.size();
        let drawn = recipe.draw(name, width, height).map_err(|e| augment(e.into()))?;
        let (head, _) = Head::fold(width, height, &drawn.ops);
        let asked = denominator(recipe, &head);
        let wanted = if asked == 1 { self.augmenter.wanted(&head) } else { head.source };
        let scale = self
            .decoder
            .decode(&self.encoded, &header, wanted, asked, LIMIT, &mut self.part)
            .map_err(decode)?;
        self.sums.decode_s += clock.seconds();

        let bounds = bounds(recipe, name, width, height).map_err(augment)?;
        let kept = recipe.has_decoded();
        let clock = Cpu::start();
        let prefix = Head::fold(width, height, &drawn.ops[..drawn.prefix]).0;
        let (all, asked) = (Rect::whole(width, height), if kept { denominator(recipe, &prefix) } else { 1 });
        let whole_scale = self
            .decoder
            .decode(&self.encoded, &header, all, asked, LIMIT, &mut self.whole)
            .map_err(decode)?;
        let mut decode_whole_s = clock.seconds();
        // What is kept as planes is decoded to them, and each copy makes its pixels.
        let (mut planes_bytes, mut convert_s) = (None, 0.0);
        if kept && keeps_planes(recipe) && header.planes_bytes().is_some() {
            let clock = Cpu::start();
            if let Some(planes) = self.decoder.planes(&self.encoded, &header, LIMIT).map_err(decode)? {
                decode_whole_s = clock.seconds();
                let clock = Cpu::start();
                let wanted = self.augmenter.wanted(&head);
                planes.region(Simd::detect(), wanted, LIMIT, &mut self.form).map_err(augment)?;
                convert_s = clock.seconds();
                planes_bytes = header.planes_bytes();
            }
        }
        self.sums.decode_whole_s += decode_whole_s;

        let sums = &mut self.sums;
        sums.samples += 1;
        sums.steps_s.resize(bounds.len(), 0.0);
        let random = recipe.split().prefix.end.min(bounds.len());
        let augmenter = &mut self.augmenter;
        let mut time =
            |src: &Pixels, scale, size: (u32, u32), from: usize, steps: Range<usize>, out: &mut Pixels| {
                // All of them first, as the engine finds the pixels; the parts then find them in the CPU's caches.
                let Some(last) = steps.clone().last() else { return Ok(0.0) };
                let total = run(augmenter, src, scale, size, &drawn.ops[from..bounds[last]], out)?;
                let mut before = 0.0;
                for step in steps {
                    let took = run(augmenter, src, scale, size, &drawn.ops[from..bounds[step]], out)?;
                    sums.steps_s[step] += took - before;
                    before = took;
                }
                Ok(total)
            };
        let size = (width, height);
        if kept {
            // The decoded form, and from it the copy.
            let mut src = &self.whole;
            let mut form = size;
            if random > 0 {
                sums.forms_s[0] +=
                    time(src, whole_scale, size, 0, 0..random, &mut self.form).map_err(augment)?;
                src = &self.form;
                form = (src.rect().width, src.rect().height);
            }
            let steps = random..bounds.len();
            let took = time(src, 1, form, drawn.prefix, steps, &mut self.out).map_err(augment)?;
            sums.forms_s[1] += took + convert_s;
            sums.decoded_bytes += planes_bytes.unwrap_or(3 * u64::from(form.0) * u64::from(form.1));
        } else {
            sums.forms_s[1] +=
                time(&self.part, scale, size, 0, 0..bounds.len(), &mut self.out).map_err(augment)?;
        }
        // The same copy as the engine makes it, for what follows.
        run(augmenter, &self.part, scale, size, &drawn.ops, &mut self.out).map_err(augment)?;
        if recipe.has_augmented() {
            sums.augmented_bytes += 3 * u64::from(drawn.width) * u64::from(drawn.height);
        }
        self.finished.resize(finisher.bytes(drawn.width, drawn.height), 0);
        let clock = Cpu::start();
        finisher.finish(self.out.rgb(), drawn.width, &drawn.erasures, &mut self.finished);
        sums.finish_s += clock.seconds();
        Ok(())
    }
}

/// Runs operations on `src`, which stands for an image of `size`; the core-seconds.
fn run(
    augmenter: &mut Augmenter,
    src: &Pixels,
    scale: u32,
    (width, height): (u32, u32),
    ops: &[Op],
    out: &mut Pixels,
) -> Result<f64, Fault> {
    let (head, rest) = Head::fold(width, height, ops);
    let clock = Cpu::start();
    augmenter.run(src, scale, &head, rest, LIMIT, LIMIT, out)?;
    Ok(clock.seconds())
}

/// Behind which operation each step before finish ends.
fn bounds(recipe: &Recipe, name: &CopyName, width: u32, height: u32) -> Result<Vec<usize>, Fault> {
    let steps = &recipe.steps()[..recipe.split().finish.start];
    let end = |count: usize| {
        let first = Recipe::build(steps[..count].to_vec(), recipe.decode())?;
        Ok(first.draw(name, width, height)?.ops.len())
    };
    (1..=steps.len()).map(end).collect()
}

impl Sums {
    fn add(&mut self, other: &Sums) {
        self.samples += other.samples;
        self.decoded_bytes += other.decoded_bytes;
        self.augmented_bytes += other.augmented_bytes;
        self.read_s += other.read_s;
        self.decode_s += other.decode_s;
        self.decode_whole_s += other.decode_whole_s;
        self.finish_s += other.finish_s;
        self.forms_s.iter_mut().zip(other.forms_s).for_each(|(sum, more)| *sum += more);
        self.steps_s.resize(self.steps_s.len().max(other.steps_s.len()), 0.0);
        self.steps_s.iter_mut().zip(&other.steps_s).for_each(|(sum, more)| *sum += more);
    }

    fn mean(&self, recipe: &Recipe) -> Work {
        let samples = self.samples.max(1) as f64;
        let random = recipe.split().prefix.end;
        let forms = if recipe.has_decoded() {
            vec![(0..random, self.forms_s[0]), (random..self.steps_s.len(), self.forms_s[1])]
        } else {
            vec![(0..self.steps_s.len(), self.forms_s[1])]
        };
        let mut steps = Vec::new();
        for (range, total) in forms {
            let range = range.start.min(self.steps_s.len())..range.end.min(self.steps_s.len());
            // A later step can make the one pass shorter: no step gives time back, and the sum is that of the pass.
            let added = |step: usize| self.steps_s[step].max(0.0);
            let sum: f64 = range.clone().map(added).sum();
            for step in range {
                let form = if step < random { Form::Decoded } else { Form::Augmented };
                let seconds = if sum > 0.0 { added(step) * total / sum / samples } else { 0.0 };
                steps.push(Step { name: recipe.steps()[step].name().into(), form, seconds });
            }
        }
        Work {
            samples: self.samples,
            decoded_bytes: self.decoded_bytes as f64 / samples,
            augmented_bytes: self.augmented_bytes as f64 / samples,
            read_s: self.read_s / samples,
            decode_s: self.decode_s / samples,
            decode_whole_s: self.decode_whole_s / samples,
            steps,
            finish_s: self.finish_s / samples,
        }
    }
}

/// The CPU time of this thread.
struct Cpu(f64);

impl Cpu {
    fn now() -> f64 {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    }

    fn start() -> Self {
        Cpu(Self::now())
    }

    fn seconds(&self) -> f64 {
        Self::now() - self.0
    }
}
