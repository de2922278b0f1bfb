//! The shipped policy as a simulated system.
//!
//! Jobs share a [`Stream`]. Those that draw with replacement share nothing and stand beside it; workers
//! serve what jobs wait for before what they will want, one job after the other.

use std::sync::Arc;

use super::draws::Draws;
use super::{Member, Scenario, Served, System, Take, Wrong};
use crate::share::{Demand, Join, MOST_JOBS, Stream, Subset};
use crate::{Dice, Received};

/// [`Stream`] with the jobs of a scenario, and the jobs beside it.
pub(super) struct Forebay {
    stream: Stream,
    samples: u32,
    dice: Dice,
    jobs: Vec<Option<Seat>>,
    /// Jobs with replacement that are there, and whose turn it is if there are any.
    beside: usize,
    turn: usize,
    /// The next step is filled while the job works on this one, as the engine does it.
    ahead: bool,
}

enum Seat {
    Shared(Shared),
    Own(Box<Draws>),
}

struct Shared {
    bit: u32,
    demand: Demand,
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
            jobs: (0..MOST_JOBS).map(|_| None).collect(),
            beside: 0,
            turn: 0,
            ahead: scenario.workers > 0,
        })
    }

    fn seat(&mut self, job: usize) -> &mut Seat {
        self.jobs[job].as_mut().expect("the driver asks for jobs that joined")
    }

    /// One round over the jobs from the one whose turn it is; the stream's are served together.
    fn serve(&mut self, ahead: bool) -> Option<u64> {
        let mut stream = true;
        for i in 0..MOST_JOBS {
            let job = (self.turn + i) % MOST_JOBS;
            let token = match &mut self.jobs[job] {
                Some(Seat::Own(draws)) => draws.work(ahead),
                Some(Seat::Shared(_)) if std::mem::take(&mut stream) => self.next(ahead),
                _ => None,
            };
            if token.is_some() {
                self.turn = job + 1;
                return token;
            }
        }
        None
    }

    fn next(&mut self, ahead: bool) -> Option<u64> {
        self.stream.next(ahead, &mut self.dice).map(|prepare| u64::from(prepare.slot))
    }

    fn take_shared(&mut self, now: f64, job: usize, batch: &mut Vec<Served>) -> Take {
        self.stream.effects();
        let Some(Seat::Shared(shared)) = &mut self.jobs[job] else { return Take::End };
        let Some(step) = self.stream.take(shared.bit) else {
            return if self.stream.is_over(shared.bit) { Take::End } else { Take::Wait };
        };
        shared.demand.took(now, step.taken.len() as u64);
        let valid = step.taken.iter().filter(|taken| taken.valid);
        batch.extend(valid.map(|taken| Served {
            sample: taken.sample,
            copy: taken.generation,
            hit: taken.generation <= shared.clock,
        }));
        if self.ahead {
            self.stream.open(shared.bit, &mut self.dice);
        }
        Take::Batch
    }
}

impl System for Forebay {
    fn join(&mut self, _now: f64, job: usize, member: &Member) {
        let group = &member.group;
        if group.replacement {
            self.beside += 1;
            self.jobs[job] = Some(Seat::Own(Box::new(Draws::new(job, member))));
            return;
        }
        let whole = member.range == (0, self.samples);
        let subset =
            (!whole).then(|| Arc::new(Subset::new((member.range.0..member.range.1).collect(), self.samples)));
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
        self.jobs[job] = Some(Seat::Shared(Shared { bit, demand: Demand::default(), clock: 0 }));
    }

    fn leave(&mut self, _now: f64, job: usize) {
        match self.jobs[job].take().expect("the driver lets jobs go that joined") {
            Seat::Shared(shared) => self.stream.leave(shared.bit),
            Seat::Own(_) => self.beside -= 1,
        }
    }

    fn begin(&mut self, _now: f64, job: usize, epoch: u64) {
        let bit = match self.seat(job) {
            Seat::Shared(shared) => shared.bit,
            Seat::Own(draws) => return draws.begin(),
        };
        self.stream.begin(bit, epoch, &Received::default()).expect("nothing received fits everything");
    }

    fn ask(&mut self, now: f64, job: usize) {
        let clock = self.stream.clock();
        let bit = match self.seat(job) {
            Seat::Shared(shared) => {
                shared.demand.asked(now);
                shared.clock = clock;
                shared.bit
            }
            Seat::Own(draws) => return draws.ask(),
        };
        for seat in self.jobs.iter().flatten() {
            if let Seat::Shared(shared) = seat {
                self.stream.set_demand(shared.bit, shared.demand.per_sec(now));
            }
        }
        self.stream.open(bit, &mut self.dice);
    }

    fn take(&mut self, now: f64, job: usize, batch: &mut Vec<Served>) -> Take {
        match self.seat(job) {
            Seat::Own(draws) => draws.take(batch),
            Seat::Shared(_) => self.take_shared(now, job, batch),
        }
    }

    fn work(&mut self, _now: f64, ahead: bool) -> Option<u64> {
        if self.beside == 0 {
            return self.next(ahead);
        }
        self.serve(false).or_else(|| if ahead { self.serve(true) } else { None })
    }

    fn done(&mut self, _now: f64, token: u64) {
        match Draws::job_of(token) {
            None => self.stream.ready(token as u32, &mut self.dice),
            Some(job) => {
                // Who left needs it no more.
                if let Some(Seat::Own(draws)) = &mut self.jobs[job] {
                    draws.done(token);
                }
            }
        }
    }

    fn neglects(&mut self, job: usize) -> bool {
        let bit = match self.seat(job) {
            Seat::Shared(shared) => shared.bit,
            Seat::Own(draws) => return draws.is_urgent(),
        };
        self.stream.neglects(bit)
    }
}
