//! Between what is sent and what the engine knows.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use forebay_engine::batch::Batch;
use forebay_engine::pipeline::{Failure, Feeding, OnError, Sharing, Spec, remainder};
use forebay_engine::storage::Dataset;
use forebay_engine::{self as engine, Error};
use forebay_recipe::{Kind, Layout, Names, Output, Recipe, Span, Values};
use forebay_wire as wire;

pub(crate) fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

/// What the job asks for, checked.
pub(crate) fn spec(join: &wire::Join, dataset: Dataset) -> Result<Spec, Error> {
    let share = match &join.sharing {
        None => None,
        Some(sharing) => Some(Sharing::parse(
            sharing.order,
            &sharing.level,
            sharing.mixing,
            sharing.seed.zip(sharing.clock),
        )?),
    };
    let output = if join.output.is_empty() { Output::default() } else { Output::parse(&join.output)? };
    let wrong = |what: String| Error::Invalid(format!("picks: {what}"));
    Ok(Spec {
        picks: wire::picks::receive(join.picks.as_ref(), dataset.len()).map_err(wrong)?,
        dataset: Arc::new(dataset),
        recipe: Recipe::from_json(&join.recipe)?,
        output,
        batch: join.batch,
        remainder: remainder(&join.remainder)?,
        rank: join.rank,
        ranks: join.ranks,
        group: join.name.clone(),
        late: join.late,
        seed: join.seed,
        shuffle: join.shuffle,
        on_error: OnError::parse(&join.on_error)?,
        ragged: join.ragged,
        lend: true,
        share,
    })
}

/// How a fed epoch goes on, checked.
pub(crate) fn feeding(fed: &wire::Fed, samples: u64) -> Result<Feeding, wire::Trouble> {
    let lie = |text: &str| wire::Trouble::Lie(text.into());
    if fed.skipped > fed.base || fed.passed > fed.base || fed.base >= 1 << 62 {
        return Err(lie("more samples skipped or passed than received"));
    }
    let (seen, rest) = fed.seen.as_chunks::<4>();
    if !rest.is_empty() || seen.len() as u64 > samples {
        return Err(lie("counts of samples that are not in the dataset"));
    }
    let counts = (0..).zip(seen.iter().map(|count| u64::from(u32::from_le_bytes(*count))));
    Ok(Feeding {
        base: fed.base,
        skipped: fed.skipped,
        given: fed.given,
        passed: fed.passed,
        seen: counts.filter(|(_, count)| *count > 0).collect(),
    })
}

pub(crate) fn failure(failure: &Failure) -> wire::Failure {
    wire::Failure {
        sample: failure.sample,
        path: failure.path.as_os_str().as_bytes().to_vec(),
        stage: failure.stage.clone(),
        cause: failure.cause.clone(),
    }
}

pub(crate) fn known(failure: wire::Failure) -> Failure {
    let wire::Failure { sample, path: file, stage, cause } = failure;
    Failure { sample, path: path(&file), stage, cause }
}

/// What a job is told, with the class of its exception.
pub(crate) fn fault(error: &Error) -> wire::Fault {
    use wire::FaultKind as K;
    let mut failure = None;
    let kind = match error {
        Error::Sample { sample, path, stage, fault } => {
            failure = Some(wire::Failure {
                sample: *sample,
                path: path.as_os_str().as_bytes().to_vec(),
                stage: stage.to_string(),
                cause: fault.to_string(),
            });
            if matches!(fault, engine::Fault::Changed { .. }) { K::Changed } else { K::Sample }
        }
        Error::NotFound(_) => K::NotFound,
        Error::Io { .. } | Error::Taken { .. } => K::Storage,
        Error::Newer { .. } => K::Version,
        Error::Budget(_) => K::Budget,
        Error::Ragged { .. } => K::Ragged,
        Error::Recipe(_) => K::Recipe,
        Error::Invalid(_) => K::Invalid,
        Error::Closed => K::Closed,
        // The daemon ends, and another one goes on.
        Error::Panic(_) => K::Draining,
        _ => K::Other,
    };
    wire::Fault { kind: kind.into(), text: error.to_string(), failure }
}

pub(crate) fn batch(batch: &Batch, slot: u64) -> wire::Batch {
    let columns = batch.columns.iter().map(|column| {
        let (spans, ragged) = match &column.values {
            Values::Stacked(one) => (vec![span(one)], false),
            Values::Ragged(spans) => (spans.iter().map(span).collect(), true),
        };
        let kind = match column.field.kind {
            Kind::Image => "image",
            Kind::Class => "class",
            _ => "other",
        };
        wire::Column {
            name: column.field.name.clone(),
            kind: kind.into(),
            dtype: column.field.dtype.name().into(),
            channels_last: column.field.layout == Layout::ChannelsLast,
            spans,
            ragged,
        }
    });
    let Names { seed, generation, copies, occurrences } = Names::of(&batch.names);
    wire::Batch {
        named: seed,
        generation,
        copies,
        occurrences,
        others: batch.others.clone(),
        slot,
        columns: columns.collect(),
        positions: batch.positions.clone(),
        samples: batch.samples.clone(),
        valid: batch.valid.clone(),
        skipped: batch.skipped.clone(),
        ..wire::Batch::default()
    }
}

fn span(span: &Span) -> wire::Span {
    let sizes = |list: &[usize]| list.iter().map(|&size| size as u64).collect();
    wire::Span { offset: span.offset as u64, shape: sizes(&span.shape), strides: sizes(&span.strides) }
}
