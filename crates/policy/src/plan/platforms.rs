//! The published platforms and data sets, as inputs of both models.
//!
//! The figures are in `platforms.toml`. The number of samples is a data set's footprint over its mean size, which
//! differs a little from the number of images that is given.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

use super::seneca::{Params, Shares};
use super::{Job, Load, Machine};

const TEXT: &str = include_str!("platforms.toml");

/// Everything that is published.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Bytes of a decoded or augmented sample.
    pub tensor: f64,
    /// Machines.
    pub platforms: Vec<Platform>,
    /// Data sets.
    pub datasets: Vec<Dataset>,
}

/// A machine, or several; rates for one node in samples or bytes per second.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// For the command line.
    pub name: String,
    /// How many.
    pub nodes: f64,
    /// Samples that the GPUs can use.
    pub gpu: f64,
    /// Samples that the cores can decode and augment.
    pub decode_augment: f64,
    /// Samples that the cores can augment.
    pub augment: f64,
    /// Bytes through the network.
    pub nic: f64,
    /// Bytes through PCIe.
    pub pcie: f64,
    /// Bytes from the cache service, for all nodes.
    pub cache: f64,
    /// Bytes from the storage service, for all nodes.
    pub storage: f64,
    /// Bytes of the cache in the evaluation.
    pub memory: f64,
}

/// A data set.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// For the command line.
    pub name: String,
    /// Images as published, rounded.
    pub images: f64,
    /// Mean bytes of an image file.
    pub sample: f64,
    /// Bytes of all files.
    pub footprint: f64,
    /// Percent of the cache for encoded, decoded and augmented data, as published for each platform.
    pub chosen: BTreeMap<String, [f64; 3]>,
}

/// The published figures.
pub fn published() -> &'static Published {
    static PUBLISHED: OnceLock<Published> = OnceLock::new();
    let none = || Published { tensor: 0.0, platforms: vec![], datasets: vec![] };
    // A test reads the file, so the empty answer is never seen.
    PUBLISHED.get_or_init(|| toml::from_str(TEXT).unwrap_or_else(|_| none()))
}

impl Published {
    /// A platform by name.
    pub fn platform(&self, name: &str) -> Option<&Platform> {
        self.platforms.iter().find(|one| one.name == name)
    }

    /// A data set by name.
    pub fn dataset(&self, name: &str) -> Option<&Dataset> {
        self.datasets.iter().find(|one| one.name == name)
    }
}

impl Dataset {
    /// Samples.
    pub fn samples(&self) -> f64 {
        self.footprint / self.sample
    }

    /// The split published for a platform.
    pub fn shares(&self, platform: &Platform) -> Option<Shares> {
        let [encoded, decoded, augmented] = self.chosen.get(&platform.name)?.map(|percent| percent / 100.0);
        Some(Shares { encoded, decoded, augmented })
    }
}

impl Platform {
    /// As the equations want it, without gradients.
    pub fn params(&self, dataset: &Dataset) -> Params {
        Params {
            gpu: self.gpu,
            decode_augment: self.decode_augment,
            augment: self.augment,
            nic: self.nic,
            pcie: self.pcie,
            cache: self.cache,
            storage: self.storage,
            memory: self.memory,
            sample: dataset.sample,
            inflation: published().tensor / dataset.sample,
            total: dataset.samples(),
            network_gradients: 0.0,
            pcie_gradients: 0.0,
            nodes: self.nodes,
        }
    }

    /// As the linear program wants it. A core here is all cores of a node. The network limits what comes from the
    /// cache and what comes from storage, each by itself; PCIe is far from a limit on all of them and left out.
    pub fn machine(&self) -> Machine {
        Machine {
            cores: self.nodes,
            memory: self.memory as u64,
            storage_bytes: self.storage.min(self.nodes * self.nic),
            storage_requests: f64::INFINITY,
            link_bytes: self.cache.min(self.nodes * self.nic),
        }
    }

    /// A data set on it, with so many equal jobs that share its GPUs and their copies.
    pub fn load(&self, dataset: &Dataset, jobs: usize) -> Load {
        let tensor = published().tensor;
        let demand = Some(self.nodes * self.gpu / jobs.max(1) as f64);
        Load {
            samples: dataset.samples().round() as u64,
            encoded: dataset.sample,
            decoded: tensor,
            augmented: tensor,
            read_s: 0.0,
            decode_s: 1.0 / self.decode_augment - 1.0 / self.augment,
            augment_s: 1.0 / self.augment,
            mixing: 0.1,
            jobs: vec![Job { demand, ..Job::default() }; jobs],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_and_complete() {
        let read: Published = toml::from_str(TEXT).expect("sound");
        assert_eq!((read.platforms.len(), read.datasets.len()), (5, 3));
        for dataset in &read.datasets {
            for platform in &read.platforms {
                let shares = dataset.shares(platform).expect("a published split");
                assert!((shares.encoded + shares.decoded + shares.augmented - 1.0).abs() < 1e-9);
            }
        }
        assert_eq!(published().platform("azure").expect("there").cache, 3.75e9);
        assert!(published().platform("moon").is_none());
    }
}
