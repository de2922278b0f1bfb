//! The native half of the `forebay` Python package: thin classes over the engine.
//!
//! Argument rules, frameworks and messages are Python's; here are only handles, memory and the waiting.

mod batch;
mod dataset;
mod dlpack;
mod error;
mod loader;
mod remote;

use std::sync::{Arc, Mutex, MutexGuard};

use forebay_engine::pipeline::Engine;
use forebay_engine::{CacheMode, Config, DiskConfig, parse_bytes};
use forebay_recipe::{CopyName, Output, Recipe};
use pyo3::prelude::*;

use error::raise;

/// The process's engine with the process id that made it, and what `configure` asked for.
static ENGINE: Mutex<Option<(u32, Arc<Engine>)>> = Mutex::new(None);
static WANTED: Mutex<Wanted> = Mutex::new(Wanted { memory: None, threads: None, cache: None, disk: None });

#[derive(Clone)]
struct Wanted {
    memory: Option<u64>,
    threads: Option<usize>,
    cache: Option<CacheMode>,
    disk: Option<DiskConfig>,
}

impl Wanted {
    fn resolve(self) -> forebay_engine::Result<Config> {
        Config::resolve(self.memory, self.threads, self.cache, self.disk)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The engine of this process; one per process for all its loaders.
pub(crate) fn engine() -> forebay_engine::Result<Arc<Engine>> {
    let mut slot = lock(&ENGINE);
    let pid = std::process::id();
    match &*slot {
        Some((owner, engine)) if *owner == pid => return Ok(engine.clone()),
        _ => {}
    }
    let wanted = lock(&WANTED).clone();
    let engine = Arc::new(Engine::open(wanted.resolve()?)?);
    // An engine inherited through fork is left alone: its threads are in the parent.
    std::mem::forget(slot.replace((pid, engine.clone())));
    Ok(engine)
}

#[pyfunction]
#[pyo3(signature = (memory=None, threads=None, cache=None, disk=None))]
fn configure(
    py: Python<'_>,
    memory: Option<Bound<'_, PyAny>>,
    threads: Option<usize>,
    cache: Option<&str>,
    disk: Option<&str>,
) -> PyResult<()> {
    let disk = disk.map(DiskConfig::parse).transpose().map_err(|e| raise(py, e))?;
    let cache = cache.map(CacheMode::parse).transpose().map_err(|e| raise(py, e))?;
    let memory = match memory {
        None => None,
        Some(value) => Some(match value.extract::<u64>() {
            Ok(bytes) => bytes,
            Err(_) => parse_bytes(&value.extract::<String>()?).map_err(|e| raise(py, e))?,
        }),
    };
    let mut slot = lock(&ENGINE);
    if let Some((pid, engine)) = &*slot
        && *pid == std::process::id()
    {
        if !engine.is_idle() {
            let error =
                "forebay.configure() must be called before the first loader is iterated; close it first";
            return Err(raise(py, forebay_engine::Error::Invalid(error.into())));
        }
        *slot = None;
    }
    let mut wanted = lock(&WANTED);
    let new = Wanted {
        memory: memory.or(wanted.memory),
        threads: threads.or(wanted.threads),
        cache: cache.or(wanted.cache),
        disk: disk.or_else(|| wanted.disk.clone()),
    };
    new.clone().resolve().map_err(|e| raise(py, e))?;
    *wanted = new;
    Ok(())
}

/// Memory in bytes and threads that a loader would get.
#[pyfunction]
fn config(py: Python<'_>) -> PyResult<(u64, usize)> {
    let config = lock(&WANTED).clone().resolve().map_err(|e| raise(py, e))?;
    Ok((config.memory, config.threads))
}

/// Stops the engine's threads when no loader holds it any more.
#[pyfunction]
fn shutdown(py: Python<'_>) {
    let engine = lock(&ENGINE).take();
    py.detach(|| drop(engine));
}

#[pyfunction]
#[pyo3(signature = (text, output=None))]
fn recipe_check(py: Python<'_>, text: &str, output: Option<&str>) -> PyResult<Option<(u32, u32)>> {
    let recipe = Recipe::from_json(text).map_err(|e| raise(py, e.into()))?;
    recipe.finish(parse_output(py, output)?).map_err(|e| raise(py, e.into()))?;
    Ok(recipe.output_size())
}

#[pyfunction]
#[pyo3(signature = (text, output=None))]
fn recipe_explain(py: Python<'_>, text: &str, output: Option<&str>) -> PyResult<String> {
    let recipe = Recipe::from_json(text).map_err(|e| raise(py, e.into()))?;
    let finish = recipe.finish(parse_output(py, output)?).map_err(|e| raise(py, e.into()))?;
    Ok(recipe.explain(&finish))
}

#[pyfunction]
fn recipe_fingerprint(py: Python<'_>, text: &str) -> PyResult<String> {
    Ok(Recipe::from_json(text).map_err(|e| raise(py, e.into()))?.fingerprint())
}

/// What a copy's coins say for an image of the given size, as JSON.
#[pyfunction]
#[pyo3(signature = (text, width, height, seed, sample, generation, occurrence=0))]
#[expect(clippy::too_many_arguments, reason = "a copy's name and a size")]
fn recipe_draw(
    py: Python<'_>,
    text: &str,
    width: u32,
    height: u32,
    seed: u64,
    sample: u64,
    generation: u64,
    occurrence: u64,
) -> PyResult<String> {
    let recipe = Recipe::from_json(text).map_err(|e| raise(py, e.into()))?;
    let name = CopyName { seed, sample, generation, occurrence };
    let drawn = recipe.draw(&name, width, height).map_err(|e| raise(py, e.into()))?;
    Ok(serde_json::to_string(&drawn).expect("plain data always serialises"))
}

pub(crate) fn parse_output(py: Python<'_>, output: Option<&str>) -> PyResult<Output> {
    output.map_or(Ok(Output::default()), Output::parse).map_err(|e| raise(py, e.into()))
}

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("debug", cfg!(debug_assertions))?;
    module.add_class::<dataset::Folder>()?;
    module.add_class::<dataset::Dataset>()?;
    module.add_class::<dataset::Picks>()?;
    module.add_class::<loader::Job>()?;
    module.add_class::<remote::Remote>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<dlpack::Tensor>()?;
    module.add_class::<loader::ReceivedSet>()?;
    module.add_function(wrap_pyfunction!(configure, module)?)?;
    module.add_function(wrap_pyfunction!(config, module)?)?;
    module.add_function(wrap_pyfunction!(shutdown, module)?)?;
    module.add_function(wrap_pyfunction!(recipe_check, module)?)?;
    module.add_function(wrap_pyfunction!(recipe_explain, module)?)?;
    module.add_function(wrap_pyfunction!(recipe_fingerprint, module)?)?;
    module.add_function(wrap_pyfunction!(recipe_draw, module)?)?;
    module.add_function(wrap_pyfunction!(loader::rank_steps, module)?)?;
    module.add_function(wrap_pyfunction!(remote::default_socket, module)?)?;
    Ok(())
}
