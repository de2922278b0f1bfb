//! The pipeline from folder to batch, on real JPEGs.

mod alone;
mod cache;
mod disk;
mod pictures;
mod plan;
mod ranks;
mod share;
