//! Medians, quantiles, and how sure a median of paired ratios is.

use crate::rng::Rng;

const RESAMPLES: usize = 2000;

/// A value with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interval {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The `q`-quantile, linear between neighbours (NumPy's default); `None` of nothing.
pub(crate) fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile_of_sorted(&sorted, q)
}

fn quantile_of_sorted(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}

/// The median of `values` and the 95 % percentile interval of 2000 bootstrap resamples.
pub(crate) fn bootstrap_median(values: &[f64], seed: u64) -> Option<Interval> {
    let value = quantile(values, 0.5)?;
    let mut rng = Rng::new(seed, values.len() as u64);
    let mut resample = vec![0.0; values.len()];
    let mut medians = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        resample.fill_with(|| values[rng.below(values.len())]);
        resample.sort_unstable_by(f64::total_cmp);
        medians.extend(quantile_of_sorted(&resample, 0.5));
    }
    medians.sort_unstable_by(f64::total_cmp);
    Some(Interval {
        value,
        low: quantile_of_sorted(&medians, 0.025)?,
        high: quantile_of_sorted(&medians, 0.975)?,
    })
}

/// `of / over` in every round that has both.
pub(crate) fn paired(of: &[Option<f64>], over: &[Option<f64>]) -> Vec<f64> {
    of.iter().zip(over).filter_map(|(of, over)| Some((*of)? / (*over)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_numpy() {
        let values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0];
        assert_eq!(quantile(&values, 0.5), Some(3.5));
        assert!((quantile(&values, 0.1).unwrap() - 1.0).abs() < 1e-12);
        assert!((quantile(&values, 0.9).unwrap() - 6.9).abs() < 1e-12);
        assert_eq!(quantile(&values, 1.0), Some(9.0));
        assert_eq!(quantile(&[7.0], 0.1), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn the_interval_repeats_and_narrows_with_the_rounds() {
        let noise = |rounds: u64| {
            let mut rng = Rng::new(3, 0);
            (0..rounds).map(|_| f64::from(rng.between(1.8, 2.2))).collect::<Vec<_>>()
        };
        let (few, many) =
            (bootstrap_median(&noise(8), 1).unwrap(), bootstrap_median(&noise(200), 1).unwrap());
        assert_eq!(bootstrap_median(&noise(8), 1), Some(few));
        assert!(few.low <= few.value && few.value <= few.high);
        assert!(many.high - many.low < (few.high - few.low) / 2.0, "{few:?} {many:?}");
    }

    #[test]
    fn the_interval_covers_the_true_median_about_nineteen_times_in_twenty() {
        let covered = (0..200)
            .filter(|&trial| {
                let mut rng = Rng::new(11, trial);
                let values: Vec<_> = (0..20).map(|_| f64::from(rng.between(0.0, 2.0))).collect();
                let interval = bootstrap_median(&values, 0).unwrap();
                interval.low <= 1.0 && 1.0 <= interval.high
            })
            .count();
        assert!((178..=200).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn rounds_that_one_side_missed_are_left_out() {
        assert_eq!(paired(&[Some(4.0), None, Some(9.0)], &[Some(2.0), Some(1.0), None]), [2.0]);
    }
}
