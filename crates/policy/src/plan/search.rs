//! Looks for the best sizes of pools and of each stream's memory: for fixed ones the program is linear.
//!
//! Memory is divided among accounts: for each stream what it keeps, and its pool where jobs share. A coarse grid
//! gives a start; then bytes move from one account to another as long as that helps, in ever smaller pieces. The
//! number of solutions is bounded, so many streams get a coarser answer, not a later one.

use super::PlanError;
use super::bottleneck::{Answer, Kept, Room, solve, solve_beyond};
use super::model::Model;
use super::waste::POOL;

/// Most solutions of one search with few streams; with more, each takes longer and there are fewer.
const SOLUTIONS: usize = 800;
/// Most solutions near a known choice.
const NEAR: usize = 150;
/// Streams up to which every coarse division of memory is tried.
const FEW: usize = 3;
/// Parts of memory in the coarse grid.
const PARTS: usize = 6;
/// First and last piece that is moved, in parts of memory.
const PIECES: [f64; 2] = [1.0 / 8.0, 1.0 / 4096.0];
/// What counts as better.
const BETTER: f64 = 1e-6;

/// Bytes for each stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    pub(super) kept: Vec<f64>,
    pub(super) pool: Vec<f64>,
}

impl Choice {
    pub(super) fn rooms(&self) -> Vec<Room> {
        let room = |(&kept, &pool): (&f64, &f64)| Room { kept: Kept::Bytes(kept), pool };
        self.kept.iter().zip(&self.pool).map(room).collect()
    }

    /// With so many times the bytes.
    pub(super) fn scaled(&self, times: f64) -> Choice {
        let scale = |bytes: &Vec<f64>| bytes.iter().map(|one| one * times).collect();
        Choice { kept: scale(&self.kept), pool: scale(&self.pool) }
    }

    /// Its own bytes, with a pool of this size out of them.
    fn with_pool(&self, stream: usize, pool: f64) -> Choice {
        let mut other = self.clone();
        let all = self.kept[stream] + self.pool[stream];
        other.pool[stream] = pool.min(all);
        other.kept[stream] = all - other.pool[stream];
        other
    }
}

struct Search<'a> {
    model: &'a Model,
    left: usize,
    best: Option<(Choice, Answer)>,
}

/// The best choice found.
///
/// `from` is the choice of a machine that is a little smaller: then only what is near it is looked at, so that a
/// unit more never seems to give less.
pub(super) fn best(model: &Model, from: Option<&Choice>) -> Result<Choice, PlanError> {
    let few = |solutions: usize| solutions * FEW / model.flows.len().max(FEW);
    let mut search = Search { model, left: few(SOLUTIONS), best: None };
    let mut piece = PIECES[0];
    match from {
        Some(from) => {
            search.left = few(NEAR);
            piece /= 8.0;
            search.near(from)?;
        }
        None => search.coarse()?,
    }
    search.refine(piece)?;
    let streams = model.flows.len();
    let none = Choice { kept: vec![0.0; streams], pool: vec![0.0; streams] };
    Ok(search.best.map_or(none, |(choice, _)| choice))
}

/// Divisions of memory to begin with, pools empty.
fn starts(model: &Model) -> Vec<Choice> {
    let streams = model.flows.len();
    let choice = |parts: Vec<f64>| {
        let whole = parts.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let kept = parts.iter().map(|part| model.memory * part / whole).collect();
        Choice { kept, pool: vec![0.0; streams] }
    };
    if streams <= FEW {
        return divisions(streams, PARTS).into_iter().map(choice).collect();
    }
    vec![choice(model.flows.iter().map(super::model::Flow::all).collect()), choice(vec![1.0; streams])]
}

/// All ways to give `parts` to so many.
fn divisions(streams: usize, parts: usize) -> Vec<Vec<f64>> {
    match streams {
        0 => vec![],
        1 => vec![vec![parts as f64]],
        _ => (0..=parts)
            .flat_map(|mine| {
                divisions(streams - 1, parts - mine).into_iter().map(move |mut rest| {
                    rest.push(mine as f64);
                    rest
                })
            })
            .collect(),
    }
}

impl Search<'_> {
    /// What there was, with new bytes for one stream or another.
    fn near(&mut self, from: &Choice) -> Result<(), PlanError> {
        let had = from.kept.iter().chain(&from.pool).sum::<f64>();
        let more = (self.model.memory - had).max(0.0);
        self.try_(from.clone())?;
        for stream in (0..from.kept.len()).filter(|_| more > 0.0) {
            let mut grown = from.clone();
            grown.kept[stream] += more;
            self.try_(grown)?;
        }
        Ok(())
    }

    /// Every start, with pools of every size of the table.
    fn coarse(&mut self) -> Result<(), PlanError> {
        let flows = &self.model.flows;
        for start in starts(self.model) {
            self.try_(start.clone())?;
            for share in POOL {
                let pools = (0..flows.len()).filter(|&stream| flows[stream].shares());
                let choice = pools.fold(start.clone(), |choice, stream| {
                    choice.with_pool(stream, share * flows[stream].samples * flows[stream].copy)
                });
                if choice != start {
                    self.try_(choice)?;
                }
            }
        }
        Ok(())
    }

    /// Whether it is the best so far.
    fn try_(&mut self, choice: Choice) -> Result<bool, PlanError> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        let answer = match &self.best {
            None => Some(solve(self.model, &choice.rooms())?),
            Some((_, best)) => solve_beyond(self.model, &choice.rooms(), &best.value)?
                .filter(|answer| answer.value.beats(&best.value, BETTER)),
        };
        let better = answer.is_some();
        self.best = answer.map(|answer| (choice, answer)).or(self.best.take());
        Ok(better)
    }

    fn refine(&mut self, mut piece: f64) -> Result<(), PlanError> {
        let streams = self.model.flows.len();
        let accounts: Vec<(bool, usize)> = (0..streams)
            .flat_map(|stream| [(false, stream), (true, stream)])
            .filter(|&(pool, stream)| !pool || self.model.flows[stream].shares())
            .collect();
        while piece >= PIECES[1] && accounts.len() > 1 && self.left > 0 {
            let mut moved = false;
            for &from in &accounts {
                for &to in accounts.iter().filter(|&&to| to != from) {
                    moved |= self.shift(from, to, piece * self.model.memory)?;
                }
            }
            if !moved {
                piece /= 2.0;
            }
        }
        Ok(())
    }

    /// Moves bytes from one account to another, if that helps.
    fn shift(&mut self, from: (bool, usize), to: (bool, usize), bytes: f64) -> Result<bool, PlanError> {
        let Some((best, _)) = &self.best else { return Ok(false) };
        let mut choice = best.clone();
        let account = |choice: &mut Choice, (pool, stream): (bool, usize), by: f64| {
            let bytes = if pool { &mut choice.pool[stream] } else { &mut choice.kept[stream] };
            *bytes += by;
            *bytes
        };
        let there = account(&mut choice, from, 0.0);
        let bytes = bytes.min(there);
        if bytes <= 0.0 {
            return Ok(false);
        }
        account(&mut choice, from, -bytes);
        account(&mut choice, to, bytes);
        self.try_(choice)
    }
}
