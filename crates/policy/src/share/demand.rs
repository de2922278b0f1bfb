//! How fast a job could go if nothing held it up.

/// Without a sign of life for this long a job is validating or saving, and wants nothing.
const SILENT: f64 = 2.0;
/// Weight of the newest observation.
const NEW: f64 = 0.2;

/// Samples per second, from a job's own time between taking a batch and asking again. Its delivered rate
/// would starve the starved.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Demand {
    per_sec: Option<f64>,
    usual: f64,
    took: Option<(f64, u64)>,
}

impl Demand {
    /// The job took a batch of so many samples.
    pub fn took(&mut self, now: f64, samples: u64) {
        self.took = Some((now, samples));
    }

    /// The job is back from whatever it did, perhaps for long: that says nothing about its speed.
    pub fn returned(&mut self) {
        self.took = None;
    }

    /// The job asks for the next.
    pub fn asked(&mut self, now: f64) {
        let Some((then, samples)) = self.took.take() else { return };
        let seconds = (now - then).max(1e-6);
        // A pause says nothing about speed.
        if self.per_sec.is_some() && seconds > self.patience() {
            return;
        }
        let rate = samples as f64 / seconds;
        self.usual = if self.per_sec.is_some() { self.usual + NEW * (seconds - self.usual) } else { seconds };
        self.per_sec = Some(self.per_sec.map_or(rate, |old| old + NEW * (rate - old)));
    }

    fn patience(&self) -> f64 {
        SILENT.max(4.0 * self.usual)
    }

    /// Samples per second; 0 while silent, nothing before anything is known.
    pub fn per_sec(&self, now: f64) -> Option<f64> {
        match self.took {
            Some((then, _)) if now - then > self.patience() => Some(0.0),
            _ => self.per_sec,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_batch_does_not_lower_the_demand() {
        let mut demand = Demand::default();
        assert_eq!(demand.per_sec(0.0), None);
        let mut now = 0.0;
        for _ in 0..50 {
            demand.asked(now);
            now += 10.0; // the loader is slow
            demand.took(now, 64);
            now += 0.064; // the job is not
        }
        demand.asked(now);
        assert!((demand.per_sec(now).expect("known") - 1000.0).abs() < 1.0);
    }

    #[test]
    fn a_silent_job_wants_nothing_until_it_asks() {
        let mut demand = Demand::default();
        demand.took(0.0, 64);
        demand.asked(0.1);
        demand.took(0.1, 64);
        assert!(demand.per_sec(1.0).is_some_and(|rate| rate > 600.0));
        assert_eq!(demand.per_sec(2.2), Some(0.0));
        demand.asked(30.0);
        assert!(demand.per_sec(30.0).is_some_and(|rate| rate > 600.0), "a pause is not a slow step");
        demand.took(30.0, 64);
        assert_eq!(demand.per_sec(40.0), Some(0.0));
        demand.returned();
        assert!(demand.per_sec(40.0).is_some_and(|rate| rate > 600.0), "a new epoch is a sign of life");
    }

    #[test]
    fn a_slow_job_is_not_silent() {
        let mut demand = Demand::default();
        demand.took(0.0, 64);
        demand.asked(3.0);
        demand.took(3.0, 64);
        assert!(demand.per_sec(8.0).is_some_and(|rate| rate > 20.0));
    }
}
