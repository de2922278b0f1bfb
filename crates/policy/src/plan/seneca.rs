//! The published model of Seneca (FAST '26), equations 1 to 9 as printed, and its search over a 1 % grid.
//!
//! It gives each form the rate of its slowest part and averages the four rates by the share of samples served in
//! each form. A mean of rates is not a bound: it can ask more of a link than the link has. It is here to be
//! compared with [`super::bottleneck()`].

use super::{Job, Load, Machine};

/// What the equations know of a platform and a data set. Rates are for one node, in samples or bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Params {
    /// T_GPU.
    pub gpu: f64,
    /// T_{D+A}: decode and augment.
    pub decode_augment: f64,
    /// T_A: augment alone.
    pub augment: f64,
    /// B_NIC.
    pub nic: f64,
    /// B_PCIe.
    pub pcie: f64,
    /// B_cache, of the cache service.
    pub cache: f64,
    /// B_storage, of the storage service.
    pub storage: f64,
    /// S_mem: bytes of the cache.
    pub memory: f64,
    /// S_data: mean bytes of an encoded sample.
    pub sample: f64,
    /// M: bytes of a tensor over those of an encoded sample.
    pub inflation: f64,
    /// N_total.
    pub total: f64,
    /// C_nw: gradient bytes over the network, for a batch, added to bytes of a sample as printed.
    pub network_gradients: f64,
    /// C_PCIe: the same over PCIe.
    pub pcie_gradients: f64,
    /// n: nodes.
    pub nodes: f64,
}

impl Params {
    /// A measured machine with one stream as one node of the published model.
    ///
    /// The link stands for the cache service. There is no network and no PCIe beside it, and one size for decoded
    /// and augmented samples: the decoded one, or that of a copy where nothing decoded can be kept. Jobs that
    /// want all there is want no less than the GPUs could use.
    pub fn of(machine: &Machine, load: &Load) -> Params {
        let mean =
            |of: fn(&Job) -> f64| load.jobs.iter().map(of).sum::<f64>() / load.jobs.len().max(1) as f64;
        let finish = mean(|job| job.finish_s);
        let rate = |seconds: f64| if seconds > 0.0 { machine.cores / seconds } else { f64::INFINITY };
        let tensor = if load.decoded > 0.0 { load.decoded } else { load.augmented.max(load.encoded) };
        Params {
            gpu: load.jobs.iter().map(|job| job.demand.unwrap_or(f64::INFINITY)).sum(),
            decode_augment: rate(load.read_s + load.decode_s + load.augment_s + finish),
            augment: rate(load.augment_s + finish),
            nic: f64::INFINITY,
            pcie: f64::INFINITY,
            cache: machine.link_bytes,
            storage: machine.storage_bytes.min(machine.storage_requests * load.encoded),
            memory: machine.memory as f64,
            sample: load.encoded,
            inflation: tensor / load.encoded,
            total: load.samples as f64,
            network_gradients: 0.0,
            pcie_gradients: 0.0,
            nodes: 1.0,
        }
    }
}

/// Shares of the cache, which sum to 1.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Shares {
    /// x_E.
    pub encoded: f64,
    /// x_D.
    pub decoded: f64,
    /// x_A.
    pub augmented: f64,
}

/// How many tensors' bytes an augmented sample takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Charge {
    /// One, as printed.
    #[default]
    Once,
    /// Two, as the released optimiser has it: a copy is kept together with its decoded parent.
    Twice,
}

/// What the equations say.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Prediction {
    /// DSI_A, DSI_D, DSI_E, DSI_S: samples per second if all were served so.
    pub rates: [f64; 4],
    /// N_A, N_D, N_E, N_storage.
    pub counts: [f64; 4],
    /// DSI_overall, samples per second.
    pub overall: f64,
}

impl Prediction {
    /// Bytes per second that it asks of storage, which the equations do not look at.
    pub fn storage_bytes(&self, params: &Params) -> f64 {
        let total = self.counts.iter().sum::<f64>();
        if total > 0.0 { self.overall * self.counts[3] / total * params.sample } else { 0.0 }
    }
}

fn least<const N: usize>(rates: [f64; N]) -> f64 {
    rates.into_iter().fold(f64::INFINITY, f64::min)
}

/// Equations 1 to 9.
pub fn predict(params: &Params, shares: Shares, charge: Charge) -> Prediction {
    let p = params;
    let tensor = p.inflation * p.sample;
    let nic = |bytes: f64| p.nodes * p.nic / (bytes + p.network_gradients);
    let pcie = p.nodes * p.pcie / (tensor + p.pcie_gradients);
    let gpu = p.nodes * p.gpu;
    let times = if charge == Charge::Twice { 2.0 } else { 1.0 };

    // Seneca, eq. 1 and 2
    let rate_a = least([p.cache / tensor, nic(tensor), pcie, gpu]);
    let count_a = p.total.min(shares.augmented * p.memory / (times * tensor));
    // Seneca, eq. 3 and 4
    let rate_d = least([p.cache / tensor, nic(tensor), p.nodes * p.augment, pcie, gpu]);
    let count_d = (p.total - count_a).min(shares.decoded * p.memory / tensor);
    // Seneca, eq. 5 and 6
    let rate_e = least([p.cache / p.sample, nic(p.sample), p.nodes * p.decode_augment, pcie, gpu]);
    let count_e = (p.total - (count_a + count_d)).min(shares.encoded * p.memory / p.sample);
    // Seneca, eq. 7 and 8
    let rate_s = rate_e.min(p.storage / p.sample);
    let count_s = p.total - count_a - count_d - count_e;

    let (rates, counts) = ([rate_a, rate_d, rate_e, rate_s], [count_a, count_d, count_e, count_s]);
    // Seneca, eq. 9
    let served = rates.iter().zip(&counts).filter(|(_, count)| **count > 0.0);
    let overall = served.map(|(rate, count)| rate * count).sum::<f64>() / p.total;
    Prediction { rates, counts, overall }
}

/// The best shares on a 1 % grid: 5151 points.
///
/// Encoded goes from 100 % down, within it decoded from the rest down. The first of equal points wins, so ties go
/// to the smaller forms.
pub fn best(params: &Params, charge: Charge) -> (Shares, Prediction) {
    let at = |encoded: u32, decoded: u32| {
        let part = |percent: u32| f64::from(percent) / 100.0;
        let augmented = part(100 - encoded - decoded);
        let shares = Shares { encoded: part(encoded), decoded: part(decoded), augmented };
        (shares, predict(params, shares, charge))
    };
    let mut best = at(100, 0);
    for encoded in (0..100).rev() {
        for decoded in (0..=100 - encoded).rev() {
            let one = at(encoded, decoded);
            // Sums of the same four terms differ in their last digits; that is no difference.
            if one.1.overall > best.1.overall * (1.0 + 1e-12) {
                best = one;
            }
        }
    }
    best
}

/// Seneca's bytes of gradients in a batch: 2 (k − 1) / k times the model's size.
pub fn ring(members: f64, model_bytes: f64) -> f64 {
    2.0 * (members - 1.0) / members * model_bytes
}
