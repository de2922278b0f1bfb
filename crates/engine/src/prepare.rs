//! One sample from its file to its augmented form, on one thread with reused buffers.

use std::time::Instant;

use forebay_recipe::{CopyName, Decode, Drawn, Recipe};

use crate::augment::{Augmenter, Head};
use crate::counters::Counters;
use crate::decode::{Decoder, Pixels};
use crate::error::{Fault, Stage};
use crate::storage::Folder;

/// Scratch above this is given back after the sample that needed it.
const KEEP: usize = 16 << 20;

/// Everything a thread needs to prepare samples.
#[derive(Debug)]
pub(crate) struct Preparer {
    decoder: Decoder,
    augmenter: Augmenter,
    encoded: Vec<u8>,
    decoded: Pixels,
    limit: u64,
}

/// One copy to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order<'a> {
    /// Where its sample is.
    pub(crate) folder: &'a Folder,
    /// What is done to it.
    pub(crate) recipe: &'a Recipe,
    /// Which copy.
    pub(crate) name: &'a CopyName,
    /// Bytes that the result may take.
    pub(crate) room: u64,
    /// Where the work is counted.
    pub(crate) counters: &'a Counters,
}

impl Preparer {
    /// Buffers for one thread that may use `limit` bytes of scratch.
    pub(crate) fn open(limit: u64) -> Result<Self, Fault> {
        Ok(Preparer {
            decoder: Decoder::open()?,
            augmenter: Augmenter::default(),
            encoded: Vec::new(),
            decoded: Pixels::default(),
            limit,
        })
    }

    /// Bytes of scratch held now.
    pub(crate) fn capacity(&self) -> usize {
        self.encoded.capacity() + self.decoded.capacity() + self.augmenter.capacity()
    }

    /// Makes the copy that `order` names in `out`.
    pub(crate) fn prepare(&mut self, order: &Order<'_>, out: &mut Pixels) -> Result<Drawn, (Stage, Fault)> {
        let result = self.read_and_make(order, out);
        if self.encoded.capacity() > KEEP {
            self.encoded = Vec::new();
        }
        self.decoded.trim(KEEP);
        self.augmenter.trim(KEEP);
        result
    }

    fn read_and_make(&mut self, order: &Order<'_>, out: &mut Pixels) -> Result<Drawn, (Stage, Fault)> {
        let Order { folder, recipe, name, room, counters } = *order;
        let start = Instant::now();
        folder.read(name.sample, self.limit / 4, &mut self.encoded).map_err(|fault| (Stage::Read, fault))?;
        counters.reads.add(1);
        counters.read_bytes.add(self.encoded.len() as u64);
        let start = counters.read_ns.lap(start);

        let decode = |fault| (Stage::Decode, fault);
        let header = self.decoder.header(&self.encoded).map_err(decode)?;
        let (width, height) = header.size();
        // Coins first: they say which pixels are needed.
        let drawn = recipe.draw(name, width, height).map_err(|e| (Stage::Augment, e.into()))?;
        let (head, rest) = Head::fold(width, height, &drawn.ops);
        let denominator = match recipe.decode() {
            Decode::Scaled => head.denominator(),
            Decode::Exact => 1,
        };
        let wanted = if denominator == 1 { self.augmenter.wanted(&head) } else { head.source };
        let denominator = self
            .decoder
            .decode(&self.encoded, &header, wanted, denominator, self.limit / 2, &mut self.decoded)
            .map_err(decode)?;
        counters.decodes.add(1);
        let held = self.decoded.rect();
        counters.decoded_pixels.add(u64::from(held.width) * u64::from(held.height));
        let start = counters.decode_ns.lap(start);

        self.augmenter
            .run(&self.decoded, denominator, &head, rest, self.limit / 8, room, out)
            .map_err(|fault| (Stage::Augment, fault))?;
        counters.augment_ns.lap(start);
        counters.preparations.add(1);
        Ok(drawn)
    }
}
