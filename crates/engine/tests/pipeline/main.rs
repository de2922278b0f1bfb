//! The pipeline from folder to batch, on real JPEGs.

mod alone;
mod pictures;
mod share;
