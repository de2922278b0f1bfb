//! Picks between a job and its daemon: a set as compact text, lists and weights as plain numbers.

use std::sync::Arc;

use forebay_policy::share::Subset;
use forebay_policy::{Picks, Positions, Weights};

use crate::message;

/// As a message carries them; nothing for all samples.
pub fn send(picks: &Picks) -> Option<message::Picks> {
    let none = message::Picks::default();
    match picks {
        Picks::All => None,
        Picks::Some(subset) => {
            let set: Positions = subset.samples().iter().map(|&sample| u64::from(sample)).collect();
            let subset = serde_json::to_string(&set).expect("plain data always serialises");
            Some(message::Picks { subset, ..none })
        }
        Picks::List(list) => {
            let list = list.iter().flat_map(|(sample, _)| sample.to_le_bytes()).collect();
            Some(message::Picks { list, ..none })
        }
        Picks::Weighted(weights) => Some(message::Picks {
            weights: weights.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect(),
            samples: weights.samples,
            replacement: weights.replacement,
            ..none
        }),
    }
}

/// What a message means for a dataset of `n` samples, or what is wrong with it.
pub fn receive(picks: Option<&message::Picks>, n: u64) -> Result<Picks, String> {
    let Some(picks) = picks else { return Ok(Picks::All) };
    let small = u32::try_from(n).map_err(|_| format!("{n} samples are too many to pick from"))?;
    let found = if !picks.subset.is_empty() {
        let set: Positions = serde_json::from_str(&picks.subset).map_err(|error| error.to_string())?;
        if set.last().is_some_and(|last| last >= n) {
            return Err(format!("a sample that is not below {n}"));
        }
        Picks::Some(Arc::new(Subset::new(set.iter().map(|sample| sample as u32).collect(), small)))
    } else if !picks.weights.is_empty() {
        let (weights, rest) = picks.weights.as_chunks::<8>();
        if !rest.is_empty() {
            return Err("weights that are cut off".into());
        }
        Picks::Weighted(Arc::new(Weights {
            weights: weights.iter().map(|weight| f64::from_le_bytes(*weight)).collect(),
            samples: picks.samples,
            replacement: picks.replacement,
        }))
    } else {
        let (list, rest) = picks.list.as_chunks::<4>();
        if !rest.is_empty() {
            return Err("a list that is cut off".into());
        }
        let samples = list.iter().map(|sample| u32::from_le_bytes(*sample)).collect();
        Picks::of(samples, small, true).map_err(|error| error.to_string())?
    };
    found.check(n).map_err(|error| error.to_string())?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_received() {
        let weights = Weights { weights: vec![0.5; 9], samples: 20, replacement: true };
        for picks in [
            Picks::All,
            Picks::of(vec![1, 4, 8], 9, false).expect("samples"),
            Picks::of(vec![8, 1, 1], 9, true).expect("samples"),
            Picks::Weighted(Arc::new(weights)),
        ] {
            assert_eq!(receive(send(&picks).as_ref(), 9), Ok(picks));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let none = message::Picks::default();
        for wrong in [
            message::Picks { subset: "[9]".into(), ..none.clone() },
            message::Picks { subset: "nonsense".into(), ..none.clone() },
            message::Picks { list: vec![9, 0, 0, 0], ..none.clone() },
            message::Picks { list: vec![1, 0], ..none.clone() },
            message::Picks { weights: vec![0; 8], samples: 1, ..none.clone() },
            message::Picks { weights: vec![0; 9], ..none },
        ] {
            assert!(receive(Some(&wrong), 9).is_err(), "{wrong:?}");
        }
    }
}
