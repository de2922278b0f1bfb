//! The state of one job inside the engine: its runs, its slots, its samples.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use forebay_arena::Buffer;
use forebay_policy::share::Remainder;
use forebay_policy::{Cut as Cuts, Deal, Epoch, Formed, Picks, Received, Sequence};
use forebay_recipe::{CopyName, Field, Values};

use super::Client;
use super::bell::Bell;
use super::run::{Failure, Feeding, Filling, Label, Made, Own, Run, Source};
use super::spec::{MIN_SLOTS, OnError, Share, Spec};
use crate::Error;
use crate::batch::{Finisher, Plan};
use crate::cache::{Forms, From, Keep, Present, Ticket};
use crate::counters::{Counters, Gauge};
use crate::decode::{Pixels, SLACK};
use crate::error::{Fault, Stage};

/// One piece of work for a thread.
#[derive(Debug)]
pub(super) enum Task {
    /// Finish rows of a batch.
    Fill(Arc<Filling>),
    /// Make a sample.
    Prepare(Prepare),
}

#[derive(Debug)]
pub(super) struct Prepare {
    pub(super) to: To,
    pub(super) name: CopyName,
    /// It is more than padding.
    pub(super) valid: bool,
    /// The sample is known to be bad: go to its neighbours at once.
    pub(super) substitute: bool,
    pub(super) room: u64,
    pub(super) pixels: Pixels,
    pub(super) spec: Arc<Spec>,
    pub(super) counters: Arc<Counters>,
    /// What is kept of the sample, and what shall be.
    pub(super) ticket: Arc<Ticket>,
    pub(super) kept: Option<From>,
    pub(super) keep: Vec<Keep>,
    /// The file, where another thread has read it.
    pub(super) fetched: Option<Box<Result<Vec<u8>, Fault>>>,
}

/// Whom a sample is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum To {
    /// One position of one job.
    Run { job: u64, run: u64, position: u64 },
    /// The pool of a stream.
    Stream { stream: u64, slot: u32 },
}

/// A batch of one rank.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) formed: Formed,
    /// Positions of the other ranks in the same step.
    pub(super) others: Vec<u64>,
    /// How many at its end only fill it up.
    pub(super) pads: usize,
}

/// What became of a [`Prepare`].
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) to: To,
    pub(super) failures: Vec<(u64, Stage, Fault)>,
    pub(super) made: Result<Arc<Made>, Pixels>,
    /// The sample in its folder, and what its shelves get of it.
    pub(super) at: u64,
    pub(super) kept: Forms,
}

#[derive(Debug)]
pub(super) struct JobState {
    pub(super) id: u64,
    pub(super) spec: Arc<Spec>,
    pub(super) finisher: Arc<Finisher>,
    fields: Vec<Field>,
    pub(super) counters: Arc<Counters>,
    pub(super) share: Share,
    /// Its shelves in the cache.
    pub(super) ticket: Arc<Ticket>,
    /// Keeps its datasets on the local disk.
    pub(super) present: Vec<Present>,
    /// Samples in the largest batch that the share was planned for.
    pub(super) planned: u64,
    pub(super) arrived: Arc<Bell>,
    pub(super) runs: VecDeque<Run>,
    pub(super) filling: Vec<Arc<Filling>>,
    /// A batch that waits for the slot of another, because there was no memory for its own.
    deferred: Option<Filling>,
    /// Batches of all runs that are begun and not booked.
    pub(super) unfinished: u64,
    pub(super) quarantine: BTreeMap<u64, Failure>,
    /// Slots in the hands of the job, and their bytes.
    pub(super) lent: u64,
    pub(super) lent_bytes: u64,
    /// The shared stream it draws from, and its number there.
    pub(super) seat: Option<(u64, u32)>,
    /// Numbers of slots that were lent and are no more.
    pub(super) retired: Vec<u64>,
    slots: Vec<Buffer>,
    slots_made: u64,
    /// The first slot is being made while its samples are.
    making: bool,
    samples: Vec<Pixels>,
    samples_out: u64,
    samples_made: u64,
    next_run: u64,
    gauge: Arc<Gauge>,
}

impl JobState {
    pub(super) fn new(
        id: u64,
        spec: Spec,
        finisher: Finisher,
        share: Share,
        arrived: Bell,
        gauge: Arc<Gauge>,
    ) -> Self {
        JobState {
            id,
            planned: spec.batch,
            fields: spec.recipe.fields(finisher.as_data()),
            spec: Arc::new(spec),
            finisher: Arc::new(finisher),
            counters: Arc::default(),
            share,
            ticket: Arc::default(),
            present: Vec::new(),
            arrived: Arc::new(arrived),
            runs: VecDeque::new(),
            filling: Vec::new(),
            deferred: None,
            unfinished: 0,
            quarantine: BTreeMap::new(),
            lent: 0,
            lent_bytes: 0,
            seat: None,
            retired: Vec::new(),
            slots: Vec::new(),
            slots_made: 0,
            making: false,
            samples: Vec::new(),
            samples_out: 0,
            samples_made: 0,
            next_run: 0,
            gauge,
        }
    }

    /// Whose part of the cores its work counts to.
    pub(super) fn client(&self) -> Client {
        self.seat.map_or(Client::Job(self.id), |(stream, _)| Client::Stream(stream))
    }

    fn cut(&self) -> Cuts {
        // What ranks leave out is decided where they are dealt.
        let drop_last = self.spec.remainder == Remainder::Drop && self.spec.ranks == 1;
        Cuts::Every { batch: self.spec.batch, drop_last }
    }

    /// Takes a larger share, for batches of up to `batch` samples.
    pub(super) fn grow(&mut self, batch: u64, share: Share) {
        // What was counted at the old size is counted at the new one.
        self.gauge.add(self.samples_made * share.sample_bytes);
        self.gauge.sub(self.samples_made * self.share.sample_bytes);
        (self.planned, self.share) = (batch, share);
    }

    /// Opens a run over the job's own order, or over a rank's share of what is left of it, of which `own` was
    /// received, in so many steps.
    pub(super) fn open_keyed(
        &mut self,
        sequence: Sequence,
        epoch: u64,
        received: &Received,
        (own, steps): (&Received, u64),
    ) -> u64 {
        let fresh = *received == Received::default() && *own == Received::default();
        if self.spec.ranks == 1 {
            let order = Epoch::new(sequence.len(), self.cut(), self.spec.late).resume(received);
            return self.open(epoch, order, Source::Keyed(sequence, None), fresh);
        }
        let deal = Deal::new(self.spec.rank(), sequence.len(), received);
        let late = self.spec.late / u64::from(self.spec.ranks);
        let order = Epoch::new(deal.len(), self.cut(), late).with_steps(deal.steps(), steps).resume(own);
        self.open(epoch, order, Source::Keyed(sequence, Some(deal)), fresh)
    }

    /// Opens a run of copies that a log names, batch by batch, after `base` of them.
    pub(super) fn open_listed(&mut self, epoch: u64, base: u64) -> u64 {
        let order = Epoch::open(Cuts::Given(VecDeque::new()), base, 0);
        self.open(epoch, order, Source::Listed(VecDeque::new()), false)
    }

    /// Opens a run that is fed; `given` says whether each feeding is a batch.
    pub(super) fn open_fed(&mut self, epoch: u64, feeding: Feeding) -> u64 {
        let Feeding { base, skipped, given, passed, seen } = feeding;
        let cut = if given { Cuts::Given(VecDeque::new()) } else { self.cut() };
        let skip = base.saturating_sub(passed);
        let source = Source::Fed { skip, samples: VecDeque::new(), seen };
        self.open(epoch, Epoch::open(cut, base, skipped), source, false)
    }

    /// Opens a run that a shared stream decides.
    pub(super) fn open_shared(&mut self, epoch: u64) -> u64 {
        self.open(epoch, Epoch::new(0, self.cut(), 0), Source::Shared { over: false }, false)
    }

    fn open(&mut self, epoch: u64, order: Epoch, source: Source, fresh: bool) -> u64 {
        self.next_run += 1;
        self.runs.push_back(Run::new(self.next_run, epoch, order, source, fresh));
        self.next_run
    }

    pub(super) fn run(&mut self, id: u64) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.id == id)
    }

    /// Drops the runs for which `keep` is false and takes back what they held.
    pub(super) fn cancel(&mut self, keep: impl Fn(&Run) -> bool) {
        let (kept, dropped): (VecDeque<Run>, VecDeque<Run>) = self.runs.drain(..).partition(|run| keep(run));
        self.runs = kept;
        for run in dropped {
            run.ready.into_values().for_each(|made| self.give_made(made));
            run.done.into_values().for_each(|(buffer, _)| self.give_slot(buffer));
        }
    }

    /// Whether a batch is among those being filled.
    pub(super) fn is_filling(&self, filling: &Arc<Filling>) -> bool {
        self.filling.iter().any(|other| Arc::ptr_eq(other, filling))
    }

    /// Takes back a slot.
    pub(super) fn give_slot(&mut self, buffer: Buffer) {
        match self.deferred.take() {
            Some(filling) => self.filling.push(Arc::new(filling.with_slot(buffer))),
            None => self.slots.push(buffer),
        }
    }

    /// Takes back a sample's memory.
    pub(super) fn give_sample(&mut self, pixels: Pixels) {
        self.samples_out -= 1;
        self.samples.push(pixels);
    }

    /// Takes back the memory of a sample that was made.
    pub(super) fn give_made(&mut self, made: Arc<Made>) {
        if let Some(pixels) = Arc::into_inner(made).and_then(Made::into_pixels) {
            self.give_sample(pixels);
        }
    }

    /// A free slot, or the size of one that is to be made.
    fn take_slot(&mut self, bytes: usize) -> Option<Result<Buffer, usize>> {
        // A batch without samples has a slot all the same.
        let bytes = bytes.max(1);
        if let Some(at) = self.slots.iter().position(|slot| slot.len() >= bytes) {
            return Some(Ok(self.slots.swap_remove(at)));
        }
        // The share may have got fewer and larger slots.
        while self.slots_made >= self.share.slots {
            let small = self.slots.pop()?;
            self.retired.extend(small.number());
            self.gauge.sub(small.len() as u64);
            self.slots_made -= 1;
        }
        self.slots_made += 1;
        // Fixed sizes make full slots, so that the shorter last batch does not get one of its own.
        let fixed = self.spec.recipe.output_size().is_some();
        let bytes = if fixed { self.share.slot_bytes } else { self.spec.slot_bytes(bytes as u64) };
        self.gauge.add(bytes);
        Some(Err(bytes as usize))
    }

    /// Bytes of a first slot, which the caller makes and gives; nothing where sizes vary.
    pub(super) fn first_slot(&mut self) -> Option<usize> {
        if self.slots_made > 0 || self.spec.recipe.output_size().is_none() {
            return None;
        }
        (self.slots_made, self.making) = (1, true);
        self.gauge.add(self.share.slot_bytes);
        Some(self.share.slot_bytes as usize)
    }

    /// Takes the first slot, or hears that there is none: then whoever fills a batch tries again.
    pub(super) fn give_first(&mut self, slot: Option<Buffer>) {
        self.making = false;
        match slot {
            Some(slot) => self.give_slot(slot),
            None => {
                self.slots_made -= 1;
                self.gauge.sub(self.share.slot_bytes);
            }
        }
        self.form();
    }

    pub(super) fn has_slot(&self) -> bool {
        if self.making && self.slots.is_empty() {
            return false;
        }
        self.slots_made - (self.slots.len() as u64) < self.share.slots
    }

    /// The next piece of work this job has, if any.
    pub(super) fn task(&mut self) -> Option<Task> {
        // A batch to finish goes first; looking for a sample to prepare may bring one about.
        self.fill().or_else(|| self.prepare().map(Task::Prepare)).or_else(|| self.fill())
    }

    fn fill(&mut self) -> Option<Task> {
        self.filling.retain(|filling| !filling.is_claimed());
        self.filling.first().cloned().map(Task::Fill)
    }

    fn prepare(&mut self) -> Option<Prepare> {
        if self.samples_out >= self.share.samples {
            // Samples of the next epoch must not keep this one from its end.
            let starved =
                self.runs.len() > 1 && self.runs[0].fault.is_none() && !self.runs[0].order.is_issued();
            if starved {
                let first = self.runs[0].id;
                self.cancel(|run| run.id == first);
            }
            if self.samples_out >= self.share.samples {
                return None;
            }
        }
        loop {
            let (run, position, name, valid) = self.issue()?;
            let known = self.quarantine.contains_key(&name.sample);
            if known && self.spec.on_error == OnError::Skip {
                if let Some(run) = self.run(run) {
                    run.order.fail(position);
                }
                self.form();
                self.tell_end();
                continue;
            }
            self.samples_out += 1;
            let pixels = self.samples.pop().unwrap_or_else(|| {
                self.samples_made += 1;
                self.gauge.add(self.share.sample_bytes);
                Pixels::default()
            });
            return Some(Prepare {
                to: To::Run { job: self.id, run, position },
                name,
                valid,
                substitute: known && self.spec.on_error == OnError::Substitute,
                room: self.share.sample_bytes - (SLACK as u64).min(self.share.sample_bytes),
                pixels,
                spec: self.spec.clone(),
                counters: self.counters.clone(),
                ticket: self.ticket.clone(),
                kept: None,
                keep: Vec::new(),
                fetched: None,
            });
        }
    }

    /// The lowest position that is not handed out, of this epoch or the next.
    fn issue(&mut self) -> Option<(u64, u64, CopyName, bool)> {
        for run in &mut self.runs {
            if let Some((position, name, valid)) = run.issue(&self.spec) {
                return Some((run.id, position, name, valid));
            }
        }
        // All of this epoch is in hand: begin the next, unless it depends on what the job does.
        let next = match self.runs.front() {
            Some(run)
                if self.runs.len() == 1
                    && run.order.is_issued()
                    && run.fault.is_none()
                    && matches!(run.source, Source::Keyed(..))
                    // A draw takes longer than the lock may be held.
                    && !matches!(self.spec.picks, Picks::Weighted(_)) =>
            {
                run.epoch + 1
            }
            _ => return None,
        };
        let (none, spec) = (Received::default(), self.spec.clone());
        let sequence = Sequence::new(&spec.picks, spec.dataset.len(), spec.shuffle, spec.seed, next);
        let id = self.open_keyed(sequence, next, &none, (&none, 0));
        let (position, name, valid) = self.run(id)?.issue(&spec)?;
        Some((id, position, name, valid))
    }

    /// Books what became of a sample.
    pub(super) fn settle(&mut self, id: u64, position: u64, outcome: Outcome) {
        let Outcome { failures, made, .. } = outcome;
        let keep = self.spec.on_error != OnError::Raise;
        let mut first = None;
        for (sample, stage, fault) in failures {
            let path = self.spec.dataset.path(sample);
            // The epoch after may have tried it in the same moment: one sample is one failure.
            if !keep || !self.quarantine.contains_key(&sample) {
                self.counters.failures.add(1);
            }
            if keep {
                let failure = Failure {
                    sample,
                    path: path.clone(),
                    stage: stage.to_string(),
                    cause: fault.to_string(),
                };
                self.quarantine.entry(sample).or_insert(failure);
            }
            first.get_or_insert(Error::Sample { sample, path, stage, fault });
        }
        let skip = self.spec.on_error == OnError::Skip;
        let free = match (made, self.run(id)) {
            (Ok(made), Some(run)) => {
                run.order.ready(position);
                run.ready.insert(position, made);
                None
            }
            (Ok(made), None) => Arc::into_inner(made).and_then(Made::into_pixels),
            (Err(pixels), Some(run)) if skip => {
                run.order.fail(position);
                Some(pixels)
            }
            (Err(pixels), Some(run)) => {
                run.stuck += 1;
                if run.fault.is_none() {
                    run.fault = first;
                }
                Some(pixels)
            }
            (Err(pixels), None) => Some(pixels),
        };
        if let Some(pixels) = free {
            self.give_sample(pixels);
        }
        self.form();
        self.tell_end();
    }

    /// Wakes the job when there is nothing left to wait for.
    pub(super) fn tell_end(&mut self) {
        let Some(run) = self.runs.front_mut() else { return };
        if !run.told && (run.is_failed() || run.is_over() || run.is_hungry()) {
            run.told = true;
            self.arrived.ring();
        }
    }

    /// Forms every batch that may leave and has a slot.
    pub(super) fn form(&mut self) {
        while self.has_slot() {
            // The next epoch takes no slot before this one has all it needs.
            let Some(at) = self.runs.iter().position(|run| !run.order.is_done()) else { return };
            let run = &mut self.runs[at];
            if run.halted {
                return;
            }
            let Some(formed) = run.order.form() else { return };
            let made = formed.positions.iter().filter_map(|position| run.ready.remove(position)).collect();
            let step = Step { formed, others: Vec::new(), pads: 0 };
            let refused = self.assemble(at, step, made, (None, None));
            if !refused.is_empty() {
                refused.into_iter().for_each(|made| self.give_made(made));
                return;
            }
        }
    }

    /// Begins to fill a slot, which must be free, with the samples of a step. Gives them back if they do not
    /// make a batch.
    pub(super) fn assemble(
        &mut self,
        at: usize,
        step: Step,
        made: Vec<Arc<Made>>,
        (stream, own): (Option<u64>, Option<Own>),
    ) -> Vec<Arc<Made>> {
        let Step { formed, others, pads } = step;
        let made_len = made.len();
        let plan =
            Plan::new(&self.fields, made.len(), |field, sample| match (&own, &self.fields[field].shape) {
                // What is shared has a size that does not vary.
                (Some(_), Some(shape)) => shape.clone(),
                _ => made[sample].values[field].shape(),
            });
        let ragged = plan.columns.iter().find_map(|column| match &column.values {
            Values::Ragged(spans) if !self.spec.ragged => Some(spans),
            _ => None,
        });
        let run = &mut self.runs[at];
        let number = run.formed;
        run.formed += 1;
        if let Some(spans) = ragged {
            let entry = spans.iter().position(|span| span.shape != spans[0].shape).unwrap_or(0);
            run.halted = true;
            run.fault.get_or_insert(Error::Ragged {
                first: spans[0].shape.clone(),
                other: spans[entry].shape.clone(),
                entry,
            });
            self.arrived.ring();
            return made;
        }
        run.filling += 1;
        self.unfinished += 1;
        let run = run.id;
        let Some(slot) = self.take_slot(plan.bytes) else { unreachable!("a slot was free") };
        let label = Label {
            names: made
                .iter()
                .map(|made| own.as_ref().map_or(made.name, |own| own.name(made.name)))
                .collect(),
            valid: made.iter().enumerate().map(|(at, made)| made.valid && at + pads < made_len).collect(),
            positions: formed.positions,
            skipped: formed.skipped,
            others,
            plan,
        };
        self.filling.push(Arc::new(Filling {
            bytes: slot.as_ref().map_or_else(|&bytes| bytes as u64, |buffer| buffer.len() as u64),
            job: self.id,
            run,
            number,
            lend: self.spec.lend,
            slot: Mutex::new(slot.ok()),
            cut: OnceLock::new(),
            made: RwLock::new(made),
            stream,
            own,
            fault: OnceLock::new(),
            finisher: self.finisher.clone(),
            label,
        }));
        Vec::new()
    }

    /// Books a batch whose last row was written.
    pub(super) fn filled(&mut self, filling: &Filling, buffer: Buffer) {
        self.unfinished -= 1;
        if let Some((sample, fault)) = filling.fault.get() {
            let error = Error::Sample {
                sample: *sample,
                path: self.spec.dataset.path(*sample),
                stage: Stage::Augment,
                fault: fault.again(),
            };
            if let Some(run) = self.run(filling.run) {
                run.filling -= 1;
                run.halted = true;
                run.fault.get_or_insert(error);
            }
            self.counters.failures.add(1);
            self.give_slot(buffer);
            return self.tell_end();
        }
        match self.run(filling.run) {
            Some(run) => {
                run.filling -= 1;
                run.done.insert(filling.number, (buffer, filling.label.clone()));
                self.arrived.ring();
            }
            None => self.give_slot(buffer),
        }
    }

    /// Books a batch that got no slot, made of `made`. One slot more than a job needs is done without: then
    /// the batch waits for another. Gives the samples back where it does not, and how many bytes the share
    /// became smaller.
    pub(super) fn refused(
        &mut self,
        filling: &Arc<Filling>,
        made: Vec<Arc<Made>>,
        why: &str,
    ) -> (Vec<Arc<Made>>, u64) {
        self.filling.retain(|other| !Arc::ptr_eq(other, filling));
        self.slots_made -= 1;
        self.gauge.sub(filling.bytes);
        if self.can_wait(filling) {
            let before = self.share.bytes();
            self.share.slots = self.slots_made;
            self.deferred = Some(filling.again(made));
            if let Some(slot) = self.slots.pop() {
                self.give_slot(slot);
            }
            return (Vec::new(), before - self.share.bytes());
        }
        let mut back = made;
        self.give_up(filling.run, why);
        // One that waits for a slot would wait for this one too.
        if let Some(deferred) = self.deferred.take() {
            back.extend(deferred.take_made());
            self.give_up(deferred.run, why);
        }
        self.arrived.ring();
        (back, 0)
    }

    /// A batch of a run is not made.
    fn give_up(&mut self, run: u64, why: &str) {
        self.unfinished -= 1;
        if let Some(run) = self.run(run) {
            run.filling -= 1;
            run.halted = true;
            run.fault.get_or_insert(Error::Budget(why.into()));
        }
    }

    /// Whether a batch is sure to get the slot of another: enough of them exist for the job to go on with, all of
    /// them are large enough, and no later batch can take one before it.
    fn can_wait(&self, filling: &Filling) -> bool {
        let pending = self.filling.iter().filter(|other| other.is_unmade()).count() as u64;
        let last = self.runs.back();
        self.slots_made >= MIN_SLOTS + pending
            && self.planned == self.spec.batch
            && self.spec.recipe.output_size().is_some()
            && last.is_some_and(|run| run.id == filling.run && run.formed == filling.number + 1)
            && self.deferred.is_none()
    }
}

/// Whether no thread has begun it, or will.
fn untouched(filling: &&Arc<Filling>) -> bool {
    Arc::strong_count(filling) == 1 && !filling.is_claimed() && !filling.is_refused()
}

impl JobState {
    /// Samples in batches that no thread has begun, which nobody else will give back.
    pub(super) fn take_waiting(&self) -> Vec<Arc<Made>> {
        let waiting = self.filling.iter().filter(untouched).map(Arc::as_ref).chain(&self.deferred);
        waiting.flat_map(Filling::take_made).collect()
    }
}

impl Drop for JobState {
    fn drop(&mut self) {
        // Batches that no thread has begun; the others are, or were, booked by those who fill them.
        let waiting = self.filling.iter().filter(untouched);
        self.gauge.sub(waiting.map(|filling| filling.bytes).sum());
        let held = self.slots.iter().map(|slot| slot.len()).sum::<usize>()
            + self.runs.iter().flat_map(|run| run.done.values()).map(|(slot, _)| slot.len()).sum::<usize>();
        self.gauge.sub(held as u64 + self.samples_made * self.share.sample_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Value;
    use crate::decode::jpeg::{Subsampling, encode};
    use crate::storage::{Dataset, Folder};
    use forebay_recipe::{Drawn, Output, Recipe, Rect};

    const SAMPLE: u64 = 4 * 4 * 3;

    /// A job of batches of one sample with room for so many slots.
    fn job(slots: u64) -> JobState {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let class = dir.path().join("class");
        std::fs::create_dir(&class).expect("a folder");
        let bytes = encode(&[9; SAMPLE as usize], 4, 4, 80, Subsampling::S444).expect("a JPEG");
        std::fs::write(class.join("a.jpg"), bytes).expect("written");
        let recipe = r#"{"steps": [{"op": "center_crop", "height": 4, "width": 4}]}"#;
        let spec = Spec {
            dataset: Arc::new(Dataset::from(Folder::open(dir.path(), 1, &|_| ()).expect("a dataset"))),
            picks: Picks::All,
            recipe: Recipe::from_json(recipe).expect("a recipe"),
            output: Output::default(),
            batch: 1,
            remainder: Remainder::Pad,
            rank: 0,
            ranks: 1,
            group: String::new(),
            late: 0,
            seed: 0,
            shuffle: false,
            on_error: OnError::Raise,
            ragged: false,
            lend: true,
            share: None,
        };
        let finisher = Finisher::new(&spec.recipe, spec.output).expect("a finisher");
        let share = Share { slots, slot_bytes: 4096, samples: 8, sample_bytes: 4096, listed: 0 };
        JobState::new(0, spec, finisher, share, Bell::default(), Arc::default())
    }

    /// Begins a batch of the job's only run.
    fn begin(job: &mut JobState, position: u64) -> Arc<Filling> {
        let mut pixels = Pixels::default();
        pixels.reset(Rect::whole(4, 4), 3, 1 << 20).expect("room");
        let drawn = Drawn { width: 4, height: 4, ops: Vec::new(), prefix: 0, erasures: Vec::new() };
        let name = CopyName { seed: 0, sample: 0, generation: 0, occurrence: 0 };
        let values = vec![Value::Image(pixels), Value::Class(0)];
        let made = vec![Arc::new(Made { name, valid: true, drawn, values, spare: None })];
        let formed = Formed { positions: vec![position], skipped: Vec::new() };
        assert!(job.assemble(0, Step { formed, others: Vec::new(), pads: 0 }, made, (None, None)).is_empty());
        job.filling.last().expect("it was begun").clone()
    }

    #[test]
    fn a_job_goes_on_without_a_slot_that_it_does_not_need() {
        let mut job = job(MIN_SLOTS + 1);
        job.open_shared(0);
        let fillings: Vec<_> = (0..=MIN_SLOTS).map(|position| begin(&mut job, position)).collect();
        let last = &fillings[MIN_SLOTS as usize];
        assert!(!job.can_wait(last), "the others have no slot yet");
        fillings[..MIN_SLOTS as usize].iter().for_each(|filling| assert!(filling.cut().is_ok()));
        let (before, made) = (job.share.bytes(), last.take_made());
        let (back, less) = job.refused(last, made, "no memory");
        assert!(back.is_empty() && job.runs[0].fault.is_none());
        assert_eq!((job.share.slots, before - job.share.bytes()), (MIN_SLOTS, less));
        assert!(!job.has_slot() && job.unfinished == MIN_SLOTS + 1);
        // A slot that comes back is filled with the batch that had none.
        job.give_slot(Buffer::new(4096));
        let again = job.filling.last().expect("it is begun again");
        assert_eq!((again.number, &again.label.positions), (last.number, &vec![MIN_SLOTS]));
        assert!(again.cut().is_ok() && again.take_made().len() == 1);
    }

    #[test]
    fn a_job_without_memory_for_what_it_needs_is_told() {
        let mut job = job(MIN_SLOTS);
        job.open_shared(0);
        let filling = begin(&mut job, 0);
        let made = filling.take_made();
        assert_eq!(job.refused(&filling, made, "no memory").0.len(), 1);
        assert!(matches!(&job.runs[0].fault, Some(Error::Budget(why)) if why == "no memory"));
        assert_eq!((job.unfinished, job.slots_made), (0, 0));
    }

    #[test]
    fn what_waits_for_a_slot_is_given_up_with_what_has_none() {
        let mut job = job(MIN_SLOTS + 2);
        job.open_shared(0);
        let fillings: Vec<_> = (0..MIN_SLOTS + 2).map(|position| begin(&mut job, position)).collect();
        fillings[1..=MIN_SLOTS as usize].iter().for_each(|filling| assert!(filling.cut().is_ok()));
        let (early, last) = (&fillings[0], &fillings[MIN_SLOTS as usize + 1]);
        let made = last.take_made();
        assert!(job.refused(last, made, "no memory").0.is_empty());
        let made = early.take_made();
        assert_eq!(job.refused(early, made, "no memory").0.len(), 2);
        assert!(job.runs[0].fault.is_some() && job.runs[0].filling == MIN_SLOTS);
        assert_eq!(job.unfinished, MIN_SLOTS);
    }

    #[test]
    fn what_no_thread_has_begun_can_be_taken_back() {
        let mut job = job(MIN_SLOTS);
        job.open_shared(0);
        let held = begin(&mut job, 0);
        drop(begin(&mut job, 1));
        assert_eq!(job.take_waiting().len(), 1);
        assert_eq!(held.take_made().len(), 1);
    }
}
