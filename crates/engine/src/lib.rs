//! storage → decode → augment → cache → batch → pipeline.
//!
//! The engine owns the threads and the memory budget of a process. [`storage`] reads bytes, [`decode`]
//! makes pixels, [`augment`] runs drawn operations on them, the cache keeps forms, [`batch`] finishes them into lent memory, and
//! [`pipeline`] moves all of it: one main flow, readable from top to bottom there.
//! [`profile`] measures what it costs here.

pub mod augment;
pub mod batch;
mod cache;
mod config;
mod counters;
pub mod decode;
mod error;
pub mod kernels;
pub mod native;
pub mod pipeline;
mod prepare;
pub mod profile;
pub mod storage;

pub use cache::{DiskFacts, Mode as CacheMode};
pub use config::{Config, DiskConfig, parse_bytes};
pub use counters::{CoreTime, Counter, Counters, Gauge};
pub use error::{Error, Fault, Result, Stage};
