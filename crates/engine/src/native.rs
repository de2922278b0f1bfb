//! The bare loop that the loader is measured against: same codecs, same kernels, no hand-over.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_recipe::{CopyName, Output, Recipe, Rect};

use crate::augment::{Augmenter, Head};
use crate::batch::Finisher;
use crate::decode::{Decoder, Pixels};
use crate::error::{Fault, Stage};
use crate::storage::throttle;
use crate::{Error, Result};

/// Reads every file once on `threads` threads; prepares and finishes it into a buffer that is reused, or
/// with `decode_only` only decodes all of it, by libjpeg-turbo alone. Returns the number of images.
pub fn run(files: &[PathBuf], recipe: &Recipe, seed: u64, threads: usize, decode_only: bool) -> Result<u64> {
    let finisher = Finisher::new(recipe, Output::default())?;
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let loops: Vec<_> = (0..threads.max(1))
            .map(|_| {
                scope.spawn(|| {
                    let mut buffers = Buffers::open(decode_only)?;
                    let mut done = 0;
                    loop {
                        let sample = next.fetch_add(1, Ordering::Relaxed);
                        let Some(path) = files.get(sample) else { return Ok(done) };
                        let result = buffers.one(path, recipe, &finisher, seed, sample as u64, decode_only);
                        result.map_err(|fault| Error::Sample {
                            sample: sample as u64,
                            path: path.clone(),
                            stage: Stage::Decode,
                            fault,
                        })?;
                        done += 1;
                    }
                })
            })
            .collect();
        loops.into_iter().map(|l| l.join().map_err(|_| Error::Panic("native loop".into()))?).sum()
    })
}

struct Buffers {
    decoder: Decoder,
    augmenter: Augmenter,
    encoded: Vec<u8>,
    decoded: Pixels,
    image: Pixels,
    finished: Vec<u8>,
}

impl Buffers {
    fn open(plain: bool) -> Result<Self> {
        let decoder = if plain { Decoder::open_plain() } else { Decoder::open() };
        let decoder = decoder.map_err(|fault| Error::Invalid(fault.to_string()))?;
        Ok(Buffers {
            decoder,
            augmenter: Augmenter::default(),
            encoded: Vec::new(),
            decoded: Pixels::default(),
            image: Pixels::default(),
            finished: Vec::new(),
        })
    }

    fn one(
        &mut self,
        path: &PathBuf,
        recipe: &Recipe,
        finisher: &Finisher,
        seed: u64,
        sample: u64,
        decode_only: bool,
    ) -> Result<(), Fault> {
        use std::io::Read;
        let limit = 1 << 30;
        self.encoded.clear();
        let mut file = std::fs::File::open(path)?;
        throttle::wait(&file)?;
        file.read_to_end(&mut self.encoded)?;
        let header = self.decoder.header(&self.encoded)?;
        let (width, height) = header.size();
        if decode_only {
            let whole = Rect::whole(width, height);
            self.decoder.decode(&self.encoded, &header, whole, 1, limit, &mut self.decoded)?;
            return Ok(());
        }
        let name = CopyName { seed, sample, generation: 0, occurrence: 0 };
        let drawn = recipe.draw(&name, width, height)?;
        let (head, rest) = Head::fold(width, height, &drawn.ops);
        let wanted = self.augmenter.wanted(&head);
        let denominator = self.decoder.decode(&self.encoded, &header, wanted, 1, limit, &mut self.decoded)?;
        self.augmenter.run(&self.decoded, denominator, &head, rest, limit, limit, &mut self.image)?;
        self.finished.resize(finisher.bytes(drawn.width, drawn.height), 0);
        finisher.finish(self.image.rgb(), drawn.width, &drawn.erasures, &mut self.finished);
        Ok(())
    }
}
