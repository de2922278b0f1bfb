//! The shipped policy as a simulated system.

use std::sync::Arc;

use super::{Member, Scenario, Served, System, Take, Wrong};
use crate::share::{Demand, Join, Stream, Subset};
use crate::{Dice, Received};

/// [`Stream`] with the jobs of a scenario.
pub(super) struct Forebay {
    stream: Stream,
    samples: u32,
    dice: Dice,
    jobs: Vec<Option<Seat>>,
    /// The next step is filled while the job works on this one, as the engine does it.
    ahead: bool,
}

struct Seat {
    bit: u32,
    demand: Demand,
    asked: bool,
    /// The clock when it asked: later copies were made while it waited.
    clock: u64,
}

impl Forebay {
    pub(super) fn new(scenario: &Scenario) -> Result<Self, Wrong> {
        let stream = Stream::new(scenario.samples, scenario.slots(), scenario.seed, 0);
        Ok(Forebay {
            stream: stream.map_err(|error| Wrong(error.to_string()))?,
            samples: scenario.samples as u32,
            dice: Dice::new(scenario.seed),
            jobs: (0..64).map(|_| None).collect(),
            ahead: scenario.workers > 0,
        })
    }

    fn seat(&mut self, job: usize) -> &mut Seat {
        self.jobs[job].as_mut().expect("the driver asks for jobs that joined")
    }
}

impl System for Forebay {
    fn join(&mut self, _now: f64, job: usize, member: &Member) {
        let whole = member.range == (0, self.samples);
        let subset =
            (!whole).then(|| Arc::new(Subset::new((member.range.0..member.range.1).collect(), self.samples)));
        let group = &member.group;
        let join = Join {
            batch: group.batch,
            ranks: group.ranks,
            remainder: group.remainder,
            order: group.order,
            level: group.level,
            mixing: member.mixing,
            seed: member.seed,
            shuffle: true,
            subset,
            used_to: None,
        };
        let bit = self.stream.join(join).expect("a scenario has at most 64 jobs");
        self.jobs[job] = Some(Seat { bit, demand: Demand::default(), asked: false, clock: 0 });
    }

    fn leave(&mut self, _now: f64, job: usize) {
        let bit = self.seat(job).bit;
        self.stream.leave(bit);
        self.jobs[job] = None;
    }

    fn begin(&mut self, _now: f64, job: usize, epoch: u64) {
        let bit = self.seat(job).bit;
        self.stream.begin(bit, epoch, &Received::default()).expect("nothing received fits everything");
    }

    fn ask(&mut self, now: f64, job: usize) {
        let clock = self.stream.clock();
        let seat = self.seat(job);
        seat.demand.asked(now);
        (seat.asked, seat.clock) = (true, clock);
        let bit = seat.bit;
        for seat in self.jobs.iter().flatten() {
            self.stream.set_demand(seat.bit, seat.demand.per_sec(now));
        }
        self.stream.open(bit, &mut self.dice);
    }

    fn take(&mut self, now: f64, job: usize, batch: &mut Vec<Served>) -> Take {
        self.stream.effects();
        let bit = self.seat(job).bit;
        let Some(step) = self.stream.take(bit) else {
            return if self.stream.is_over(bit) { Take::End } else { Take::Wait };
        };
        let seat = self.seat(job);
        seat.demand.took(now, step.taken.len() as u64);
        seat.asked = false;
        let clock = seat.clock;
        let valid = step.taken.iter().filter(|taken| taken.valid);
        batch.extend(valid.map(|taken| Served {
            sample: taken.sample,
            copy: taken.generation,
            hit: taken.generation <= clock,
        }));
        if self.ahead {
            self.stream.open(bit, &mut self.dice);
        }
        Take::Batch
    }

    fn work(&mut self, _now: f64, ahead: bool) -> Option<u64> {
        self.stream.next(ahead, &mut self.dice).map(|prepare| u64::from(prepare.slot))
    }

    fn done(&mut self, _now: f64, token: u64) {
        self.stream.ready(token as u32, &mut self.dice);
    }

    fn neglects(&mut self, job: usize) -> bool {
        let bit = self.seat(job).bit;
        self.stream.neglects(bit)
    }
}
