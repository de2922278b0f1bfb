//! An event heap that drives the shipped policy, and published ones beside it, through a scenario.
//!
//! Equal scenarios give equal reports, bit for bit. Jobs take a batch, use it for a while and ask for the
//! next; workers prepare what the policy hands out. With `workers = 0` a preparation takes no time and is
//! made when a job needs it, so the report shows what the policy decides and nothing else.

mod baseline;
mod draws;
mod forebay;
mod quality;
mod report;
mod scenario;
mod system;

pub use quality::{Quality, Watch};
pub use report::{JobReport, Report};
pub use scenario::{Group, Halving, Member, Policy, Scenario, Wrong};
pub use system::{Served, System, Take};

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::Dice;
use report::Tally;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Start(usize),
    Ask(usize),
    Stop(usize),
    Done(u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct At(f64, u64, Event);

impl Eq for At {}

impl Ord for At {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the largest; the earliest event shall come first, equal times in their order.
        other.0.total_cmp(&self.0).then(other.1.cmp(&self.1))
    }
}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Absent,
    Busy,
    Waiting,
}

struct Job {
    member: Member,
    phase: Phase,
    epoch: u64,
    /// Received in this epoch.
    received: u32,
    score: f64,
}

/// Runs a scenario; `progress` is told the share of it that is done, now and then.
pub fn run(scenario: &Scenario, policy: Policy, progress: &mut dyn FnMut(f64)) -> Result<Report, Wrong> {
    let members = scenario.members()?;
    let mut system: Box<dyn System> = match policy {
        Policy::Forebay => Box::new(forebay::Forebay::new(scenario)?),
        other => baseline::build(other, scenario, &members)?,
    };
    Ok(Driver::new(scenario, policy, members).run(&mut *system, progress))
}

struct Driver<'a> {
    scenario: &'a Scenario,
    policy: Policy,
    jobs: Vec<Job>,
    heap: BinaryHeap<At>,
    sequence: u64,
    now: f64,
    end: f64,
    idle: u32,
    dice: Dice,
    tally: Tally,
    batch: Vec<Served>,
    /// Scores of those who reached each rung.
    rungs: Vec<Vec<f64>>,
}

impl<'a> Driver<'a> {
    fn new(scenario: &'a Scenario, policy: Policy, members: Vec<Member>) -> Self {
        let end = scenario.end(&members);
        let mut dice = Dice::new(scenario.seed ^ 0x5eed);
        let tally = Tally::new(scenario, &members);
        let jobs = members
            .into_iter()
            .map(|member| Job { member, phase: Phase::Absent, epoch: 0, received: 0, score: dice.unit() })
            .collect();
        let rungs = vec![Vec::new(); scenario.halving.as_ref().map_or(0, |h| h.rungs.len())];
        let idle = scenario.workers;
        let (heap, batch) = (BinaryHeap::new(), Vec::new());
        Driver { scenario, policy, jobs, heap, sequence: 0, now: 0.0, end, idle, dice, tally, batch, rungs }
    }

    fn push(&mut self, time: f64, event: Event) {
        self.sequence += 1;
        self.heap.push(At(time, self.sequence, event));
    }

    fn jitter(&mut self) -> f64 {
        1.0 + self.scenario.jitter * (2.0 * self.dice.unit() - 1.0)
    }

    fn run(mut self, system: &mut dyn System, progress: &mut dyn FnMut(f64)) -> Report {
        for job in 0..self.jobs.len() {
            self.push(self.jobs[job].member.start, Event::Start(job));
            if let Some(stop) = self.jobs[job].member.group.stop {
                self.push(stop, Event::Stop(job));
            }
        }
        let mut told = 0.0;
        while let Some(At(time, _, event)) = self.heap.pop() {
            if time > self.end {
                break;
            }
            self.now = time;
            match event {
                Event::Start(job) => {
                    system.join(time, job, &self.jobs[job].member);
                    system.begin(time, job, 0);
                    self.tally.joined(time, job);
                    self.ask(system, job);
                }
                Event::Ask(job) if self.jobs[job].phase == Phase::Busy => self.ask(system, job),
                Event::Stop(job) if self.jobs[job].phase != Phase::Absent => self.leave(system, job),
                Event::Ask(_) | Event::Stop(_) => {}
                Event::Done(token) => {
                    self.idle += 1;
                    system.done(time, token);
                }
            }
            self.pump(system);
            if time / self.end > told + 0.002 {
                told = time / self.end;
                progress(told);
            }
        }
        progress(1.0);
        self.tally.report(self.scenario, self.policy, self.end)
    }

    fn ask(&mut self, system: &mut dyn System, job: usize) {
        system.ask(self.now, job);
        self.jobs[job].phase = Phase::Waiting;
        self.tally.asked(self.now, job);
    }

    fn leave(&mut self, system: &mut dyn System, job: usize) {
        system.leave(self.now, job);
        self.jobs[job].phase = Phase::Absent;
        self.tally.left(self.now, job);
    }

    /// Lets workers work and jobs take until nothing moves.
    fn pump(&mut self, system: &mut dyn System) {
        loop {
            let mut moved = false;
            for job in 0..self.jobs.len() {
                while self.jobs[job].phase == Phase::Waiting && self.take(system, job) {
                    moved = true;
                }
            }
            if self.scenario.workers == 0 {
                while let Some(token) = system.work(self.now, false) {
                    self.tally.prepared();
                    system.done(self.now, token);
                    moved = true;
                }
            } else {
                while self.idle > 0
                    && let Some(token) = system.work(self.now, true)
                {
                    self.tally.prepared();
                    self.idle -= 1;
                    let time = self.now + self.scenario.prepare * self.jitter();
                    self.push(time, Event::Done(token));
                }
            }
            if !moved {
                break;
            }
        }
        if self.idle > 0 {
            for job in 0..self.jobs.len() {
                let waits = self.jobs[job].phase == Phase::Waiting;
                self.tally.neglected += u64::from(waits && system.neglects(job));
            }
        }
    }

    /// Whether the job got something.
    fn take(&mut self, system: &mut dyn System, job: usize) -> bool {
        self.batch.clear();
        match system.take(self.now, job, &mut self.batch) {
            Take::Wait => false,
            Take::Batch => {
                self.tally.took(self.now, job, &self.batch);
                self.jobs[job].received += self.batch.len() as u32;
                self.jobs[job].phase = Phase::Busy;
                let rate = self.jobs[job].member.group.speed;
                let time = self.now + self.batch.len() as f64 / rate * self.jitter();
                self.push(time, Event::Ask(job));
                true
            }
            Take::End => {
                self.end_epoch(system, job);
                true
            }
        }
    }

    fn end_epoch(&mut self, system: &mut dyn System, job: usize) {
        self.tally.ended(self.now, job);
        let state = &mut self.jobs[job];
        state.epoch += 1;
        let empty = std::mem::replace(&mut state.received, 0) == 0;
        let (epoch, score) = (state.epoch, state.score);
        let enough = state.member.group.epochs.is_some_and(|epochs| epoch >= epochs);
        // An epoch that gave nothing would be followed by another at the same instant.
        if enough || empty || self.is_stopped(epoch, score) {
            return self.leave(system, job);
        }
        system.begin(self.now, job, epoch);
        let pause = self.jobs[job].member.group.pause;
        if pause > 0.0 {
            self.jobs[job].phase = Phase::Busy;
            self.push(self.now + pause, Event::Ask(job));
        } else {
            self.ask(system, job);
        }
    }

    fn is_stopped(&mut self, epoch: u64, score: f64) -> bool {
        let Some(halving) = &self.scenario.halving else { return false };
        let Some(rung) = halving.rungs.iter().position(|&rung| rung == epoch) else { return false };
        let scores = &mut self.rungs[rung];
        scores.push(score);
        let better = scores.iter().filter(|&&other| other > score).count();
        better as f64 >= (scores.len() as f64 * halving.keep).max(1.0)
    }
}
