//! The contracts, under random schedules: joins, leaves, crashes and resumes, speeds from 1 to 100, batches
//! that do not divide, ranks, subsets, bad samples, and pools from no slot to twice the samples.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{Dice, Received};

/// Epochs that each job must finish.
const EPOCHS: u64 = 3;

/// A job as its user sees it: what it has received, across crashes.
struct Trainer {
    join: Join,
    bit: Option<u32>,
    speed: u64,
    epoch: u64,
    received: Received,
    /// Positions in the order they came, this epoch.
    order: Vec<u64>,
    samples: BTreeSet<u32>,
    copies: HashSet<u64>,
    clock: Option<u64>,
    steps: Vec<Vec<u32>>,
    crashes: u32,
    /// It went on in another order within this epoch, so nothing is promised about lateness.
    other_order: bool,
}

struct World {
    n: u32,
    slots: u32,
    stream: Stream,
    dice: Dice,
    trainers: Vec<Trainer>,
    flights: Vec<Prepare>,
    /// Slots that hold something, and what drawn copies they are.
    alive: BTreeMap<u32, u32>,
    bad: BTreeSet<u32>,
    workers: usize,
}

fn random_order(dice: &mut Dice) -> Order {
    match dice.below(4) {
        0 => Order::Strict,
        1 => Order::Late(1 + dice.below(40)),
        _ => Order::Ready,
    }
}

fn random_job(n: u32, dice: &mut Dice) -> Join {
    let order = random_order(dice);
    let subset = (dice.below(3) == 0).then(|| {
        let (every, from) = (1 + dice.below(3) as usize, dice.below(u64::from(n)) as u32);
        Arc::new(Subset::new((from..n).step_by(every).collect(), n))
    });
    Join {
        batch: 1 + dice.below(20) as u32,
        ranks: if dice.below(3) == 0 { 1 + dice.below(4) as u32 } else { 1 },
        remainder: [Remainder::Pad, Remainder::Drop, Remainder::Uneven][dice.below(3) as usize],
        order,
        level: if dice.below(5) == 0 { Level::Decoded } else { Level::Augmented },
        mixing: [0.0, 0.1, 1.0][dice.below(3) as usize],
        // Few seeds, so that strict jobs meet.
        seed: dice.below(2),
        shuffle: order != Order::Strict || dice.below(4) > 0,
        subset,
        used_to: None,
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let n = 1 + dice.below(200) as u32;
        let slots = match dice.below(4) {
            0 => dice.below(2) as u32,
            1 => 1 + dice.below(8) as u32,
            _ => 1 + dice.below(2 * u64::from(n)) as u32,
        };
        let count = if dice.below(8) == 0 { 9 + dice.below(4) } else { 1 + dice.below(5) };
        let trainers = (0..count).map(|_| Trainer {
            join: random_job(n, &mut dice),
            bit: None,
            speed: [1, 10, 100][dice.below(3) as usize],
            epoch: dice.below(3),
            received: Received::default(),
            order: Vec::new(),
            samples: BTreeSet::new(),
            copies: HashSet::new(),
            clock: None,
            steps: Vec::new(),
            crashes: 0,
            other_order: false,
        });
        let trainers: Vec<Trainer> = trainers.collect();
        let bad = if dice.below(3) == 0 {
            (0..3).map(|_| dice.below(u64::from(n)) as u32).collect()
        } else {
            BTreeSet::new()
        };
        let clock = dice.bits();
        World {
            n,
            slots,
            stream: Stream::new(u64::from(n), slots, seed, clock).expect("small"),
            trainers,
            flights: Vec::new(),
            alive: BTreeMap::new(),
            bad,
            workers: 1 + dice.below(6) as usize,
            dice,
        }
    }

    fn settle(&mut self) {
        for effect in self.stream.effects() {
            match effect {
                Effect::Draw { slot, .. } => {
                    assert!(self.alive.contains_key(&slot), "a copy that is there is drawn")
                }
                Effect::Free { slot } => assert!(self.alive.remove(&slot).is_some(), "a copy goes once"),
            }
        }
        let reserve: u64 =
            self.present().map(|t| u64::from(t.join.batch * t.join.ranks) + u64::from(t.join.ranks)).sum();
        assert!(self.stream.resident() <= self.slots, "the pool holds what it may");
        assert!(
            self.alive.len() as u64 <= u64::from(self.slots) + reserve + self.workers as u64,
            "bounded memory"
        );
    }

    fn present(&self) -> impl Iterator<Item = &Trainer> {
        self.trainers.iter().filter(|t| t.bit.is_some())
    }

    fn is_done(&self, at: usize) -> bool {
        self.trainers[at].steps.len() as u64 == EPOCHS
    }

    /// One random thing happens.
    fn step(&mut self) {
        let at = self.dice.below(self.trainers.len() as u64) as usize;
        match self.dice.below(12) {
            0..=3 => self.start(),
            4..=7 => self.finish(),
            _ if self.trainers[at].bit.is_none() => self.join(at),
            8..=10 if self.dice.below(100) < self.trainers[at].speed => self.ask(at),
            11 if self.dice.below(20) == 0 && self.trainers[at].crashes < 4 => self.crash(at),
            _ => {}
        }
        self.settle();
    }

    fn join(&mut self, at: usize) {
        if self.is_done(at) {
            return;
        }
        // Others may prepare between joining and beginning.
        let join = Join { used_to: self.trainers[at].clock, ..self.trainers[at].join.clone() };
        let bit = self.stream.join(join).expect("few jobs");
        for _ in 0..self.dice.below(3) {
            self.start();
            self.finish();
            self.settle();
        }
        let trainer = &mut self.trainers[at];
        trainer.bit = Some(bit);
        self.stream.begin(bit, trainer.epoch, &trainer.received).expect("its own state");
    }

    fn crash(&mut self, at: usize) {
        if let Some(bit) = self.trainers[at].bit.take() {
            self.stream.leave(bit);
            let trainer = &mut self.trainers[at];
            trainer.crashes += 1;
            if trainer.join.shuffle && self.dice.below(2) == 0 {
                trainer.join.order = random_order(&mut self.dice);
                trainer.other_order = true;
            }
        }
    }

    fn start(&mut self) {
        if self.flights.len() >= self.workers {
            return;
        }
        let ahead = self.dice.below(4) > 0;
        if let Some(prepare) = self.stream.next(ahead, &mut self.dice) {
            for effect in self.stream.effects() {
                if let Effect::Free { slot } = effect {
                    assert!(self.alive.remove(&slot).is_some(), "a copy goes once");
                }
            }
            assert!(self.alive.insert(prepare.slot, prepare.sample).is_none(), "a slot holds one copy");
            self.flights.push(prepare);
        }
    }

    fn finish(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let at = self.dice.below(self.flights.len() as u64) as usize;
        let prepare = self.flights.swap_remove(at);
        if self.bad.contains(&prepare.sample) {
            self.stream.failed(prepare.slot, &mut self.dice);
        } else {
            self.stream.ready(prepare.slot, &mut self.dice);
        }
    }

    fn ask(&mut self, at: usize) {
        let Some(bit) = self.trainers[at].bit else { return };
        let rate = self.trainers[at].speed as f64;
        self.stream.set_demand(bit, (self.dice.below(10) > 0).then_some(rate));
        self.stream.open(bit, &mut self.dice);
        if let Some(step) = self.stream.take(bit) {
            self.receive(at, step);
        } else if self.stream.is_over(bit) {
            self.end_epoch(at);
        }
    }

    fn receive(&mut self, at: usize, step: Step) {
        let clock = self.stream.clock();
        let trainer = &mut self.trainers[at];
        let keyed = keyed(self.n, trainer);
        let join = &trainer.join;
        assert_eq!(step.sizes.iter().sum::<u32>() as usize, step.taken.len());
        let (most, least) = (step.sizes.iter().max(), step.sizes.iter().min());
        let spread = most.zip(least).map_or(0, |(most, least)| most - least);
        assert!(
            spread <= u32::from(join.remainder == Remainder::Uneven),
            "ranks stay equal: {:?}",
            step.sizes
        );
        let valid: Vec<&Taken> = step.taken.iter().filter(|t| t.valid).collect();
        for taken in &valid {
            assert_eq!(keyed.at(taken.position), taken.sample, "positions name samples");
            assert!(!trainer.received.contains(taken.position), "exactly once, across resume");
            assert!(trainer.samples.insert(taken.sample), "no sample twice in an epoch");
            assert!(!self.bad.contains(&taken.sample), "what failed is not delivered");
        }
        for taken in &step.taken {
            // A strict copy that was sent and never received may be sent again.
            assert!(trainer.copies.insert(taken.generation) || join.order == Order::Strict, "no copy twice");
        }
        let positions: Vec<u64> = valid.iter().map(|t| t.position).collect();
        if join.order == Order::Strict {
            assert!(positions.is_sorted(), "strict order");
        }
        trainer.received.add(&positions, &step.skipped);
        trainer.order.extend(&positions);
        trainer.clock = Some(clock);
    }

    fn end_epoch(&mut self, at: usize) {
        let bit = self.trainers[at].bit.expect("it asked");
        let skipped = self.stream.skipped(bit);
        let trainer = &mut self.trainers[at];
        trainer.received.add(&[], &skipped);
        let keyed = keyed(self.n, trainer);
        let full = u64::from(trainer.join.batch * trainer.join.ranks);
        let count = trainer.samples.len() as u64;
        let bad = (0..keyed.len()).filter(|&p| self.bad.contains(&keyed.at(p)));
        let bad: Vec<u64> = bad.collect();
        let live = keyed.len() - bad.len() as u64;
        if trainer.join.remainder == Remainder::Drop {
            assert_eq!(count % full, 0, "whole steps");
            assert_eq!(count, live / full * full, "and as many as there are");
            let share = keyed.len() / full * full + bad.len() as u64;
            assert!(trainer.order.iter().all(|&p| p < share), "the last positions are left out");
        } else {
            assert_eq!(count, live, "every sample of the share, once");
        }
        // Late by what its order allows, counted among the positions that did not fail.
        let late = match trainer.join.order {
            Order::Strict => 0,
            Order::Late(late) => late,
            Order::Ready => u64::MAX / 2,
        };
        let late = if std::mem::take(&mut trainer.other_order) { u64::MAX / 2 } else { late };
        for (index, &position) in trainer.order.iter().enumerate() {
            let rank = position - bad.partition_point(|&p| p < position) as u64;
            assert!(index as u64 <= rank + late, "position {position} came at {index}, late {late}");
        }
        trainer.steps.push(trainer.samples.iter().copied().collect());
        trainer.epoch += 1;
        trainer.received = Received::default();
        trainer.order.clear();
        trainer.samples.clear();
        if self.is_done(at) {
            self.stream.leave(bit);
            self.trainers[at].bit = None;
        } else {
            let trainer = &self.trainers[at];
            self.stream.begin(bit, trainer.epoch, &Received::default()).expect("a fresh epoch");
        }
    }

    fn stuck(&self) -> String {
        let stuck = self.present().filter_map(|t| self.stream.jobs[t.bit? as usize].as_ref());
        let lines = stuck.map(|job| {
            let open = self.stream.needs.open(job.bit);
            let (hand, pass) = (&job.hand, &job.pass);
            format!(
                "\n{:?} {:?} hand {hand:?} left {} drawn {} share {} of {} cursor {} front {} failed {:?} next {} \
                 ready {} flight {} tail {}+{} lost {:?} open {open} target {}",
                job.join.order, job.join.remainder, pass.left, pass.drawn, pass.share, pass.keyed.len(), pass.cursor,
                pass.front, pass.failed, job.next.is_some(), job.ready.len(), job.flight, job.tail.len(),
                job.tail_flight, job.lost, job.target
            )
        });
        let lines: String = lines.collect();
        format!(
            "{} slots, {} resident, {} flights{lines}",
            self.slots,
            self.stream.resident(),
            self.flights.len()
        )
    }

    /// With workers that work and jobs that ask, everything must end.
    fn run(&mut self) {
        for _ in 0..400 {
            self.step();
        }
        let mut rounds = 0;
        while (0..self.trainers.len()).any(|at| !self.is_done(at)) {
            rounds += 1;
            assert!(rounds < 200_000, "a job hangs: {}", self.stuck());
            for at in 0..self.trainers.len() {
                if self.trainers[at].bit.is_none() {
                    self.join(at);
                } else if self.dice.below(100) < self.trainers[at].speed {
                    self.ask(at);
                    self.settle();
                }
            }
            self.start();
            self.settle();
            if self.flights.len() >= self.workers || self.dice.below(2) == 0 {
                self.finish();
                self.settle();
            }
        }
        while !self.flights.is_empty() {
            self.finish();
        }
        self.settle();
        assert!(self.stream.is_empty() && self.stream.resident() == 0, "nothing stays behind");
        assert!(self.alive.is_empty(), "every copy is let go: {:?}", self.alive);
    }
}

fn keyed(n: u32, trainer: &Trainer) -> pass::Keyed {
    let key = trainer.join.shuffle.then_some((trainer.join.seed, trainer.epoch));
    pass::Keyed::new(n, trainer.join.subset.clone(), key)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_contracts_hold_under_any_schedule(seed: u64) {
        World::new(seed).run();
    }
}

#[test]
fn padding_stands_in_its_order_whatever_is_finished_first() {
    let mut stream = Stream::new(5, 16, 1, 1).expect("small");
    let mut dice = Dice::new(3);
    let join = Join { ranks: 4, order: Order::Strict, shuffle: false, ..Join::default() };
    let job = stream.join(join).expect("one job");
    stream.begin(job, 0, &Received::default()).expect("begun");
    for expect in [vec![0, 1, 2, 3], vec![4, 0, 1, 2]] {
        stream.open(job, &mut dice);
        let mut flights = Vec::new();
        while let Some(prepare) = stream.next(false, &mut dice) {
            flights.push(prepare.slot);
        }
        // The last begun is the first that is finished.
        flights.into_iter().rev().for_each(|slot| stream.ready(slot, &mut dice));
        let step = stream.take(job).expect("a full step");
        assert_eq!(step.taken.iter().map(|taken| taken.position).collect::<Vec<_>>(), expect);
    }
}
