//! One sample from its file, or from what is kept of it, to its augmented form, on one thread with reused
//! buffers.

use std::sync::Arc;
use std::time::Instant;

use forebay_recipe::{CopyName, Decode, Drawn, Op, Recipe, Rect};

use crate::augment::{Augmenter, Head};
use crate::cache::{Decoded, From, Keep, Kept};
use crate::counters::Counters;
use crate::decode::{Decoder, Header, Pixels};
use crate::error::{Fault, Stage};
use crate::storage::Dataset;

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
    pub(crate) dataset: &'a Dataset,
    /// What is done to it.
    pub(crate) recipe: &'a Recipe,
    /// Which copy.
    pub(crate) name: &'a CopyName,
    /// Bytes that the result may take.
    pub(crate) room: u64,
    /// What is kept of the sample.
    pub(crate) kept: Option<&'a From>,
    /// What shall be kept of it.
    pub(crate) keep: &'a [Keep],
    /// Where the work is counted.
    pub(crate) counters: &'a Counters,
}

/// For each shelf that was to keep something, what it gets.
type Forms = Vec<(u64, Option<Arc<Kept>>)>;

/// Where and why it failed.
type Failed = (Stage, Fault);

/// What came of it.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The coins.
    pub(crate) drawn: Drawn,
    /// The image, where a recipe without random steps is served what is kept; else it is in `out`.
    pub(crate) image: Option<Arc<Kept>>,
    /// What is kept of it.
    pub(crate) kept: Forms,
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
    pub(crate) fn prepare(&mut self, order: &Order<'_>, out: &mut Pixels) -> Result<Prepared, Failed> {
        let result = self.make(order, out);
        if self.encoded.capacity() > KEEP {
            self.encoded = Vec::new();
        }
        self.decoded.trim(KEEP);
        self.augmenter.trim(KEEP);
        result
    }

    fn make(&mut self, order: &Order<'_>, out: &mut Pixels) -> Result<Prepared, Failed> {
        let Order { dataset, recipe, name, kept, keep, counters, .. } = *order;
        let augment = |fault| (Stage::Augment, fault);
        if let Some(from) = kept
            && from.check
        {
            dataset.check(name.sample).map_err(|fault| (Stage::Read, fault))?;
        }
        if let Some(From { kept, base, .. }) = kept
            && let Kept::Decoded(decoded) = &**kept
        {
            counters.decoded_hits.add(1);
            let (width, height) = decoded.size;
            let drawn = recipe.draw(name, width, height).map_err(|e| augment(e.into()))?;
            let Some(base) = base else {
                let image = self.augment(order, kept, decoded, &drawn, out).map_err(augment)?;
                return Ok(Prepared { drawn, image, kept: Vec::new() });
            };
            // What takes too much memory as a form of its own may not as a part of the copy.
            if let Ok(prepared) = self.go_on(order, decoded, base, drawn, out) {
                return Ok(prepared);
            }
        }
        let mut keeping = Vec::new();
        let mut file = std::mem::take(&mut self.encoded);
        let bytes = match kept.map(|from| &*from.kept) {
            Some(Kept::Encoded(bytes)) => {
                counters.encoded_hits.add(1);
                &bytes[..]
            }
            _ => {
                let start = Instant::now();
                let read = dataset.read(name.sample, self.limit / 4, &mut file);
                if let Err(fault) = read {
                    self.encoded = file;
                    return Err((Stage::Read, fault));
                }
                counters.reads.add(1);
                counters.read_bytes.add(file.len() as u64);
                counters.read_ns.lap(start);
                &file[..]
            }
        };
        for keep in keep {
            if let Keep::Encoded(shelf) = keep {
                keeping.push((*shelf, Some(Arc::new(Kept::Encoded(bytes.to_vec())))));
            }
        }
        let made = self.decode(order, bytes, &mut keeping, out);
        self.encoded = file;
        let (drawn, image) = made?;
        Ok(Prepared { drawn, image, kept: keeping })
    }

    /// From the decoded form of a recipe with fewer of the same steps.
    fn go_on(
        &mut self,
        order: &Order<'_>,
        decoded: &Decoded,
        base: &Recipe,
        drawn: Drawn,
        out: &mut Pixels,
    ) -> Result<Prepared, Fault> {
        let (start, (width, height)) = (Instant::now(), decoded.size);
        let done = base.draw_prefix(order.name, width, height)?.len();
        let rect = decoded.pixels.rect();
        let (head, rest) = Head::fold(rect.width, rect.height, &drawn.ops[done..drawn.prefix]);
        let mut pixels = Pixels::default();
        let (limit, room) = (self.limit / 8, self.limit / 2);
        self.augmenter.run(&decoded.pixels, 1, &head, rest, limit, room, &mut pixels)?;
        let own = Decoded { size: decoded.size, pixels };
        let form = Arc::new(Kept::Decoded(own));
        order.counters.augment_ns.lap(start);
        let Kept::Decoded(own) = &*form else { unreachable!("pixels were made") };
        let image = self.augment(order, &form, own, &drawn, out)?;
        order.counters.preparations.add(u64::from(image.is_some()));
        let shelf = order.keep.iter().find_map(|keep| match keep {
            Keep::Decoded(shelf, _) => Some((*shelf, Some(form.clone()))),
            Keep::Encoded(_) => None,
        });
        Ok(Prepared { drawn, image, kept: shelf.into_iter().collect() })
    }

    /// From the bytes of a file.
    fn decode(
        &mut self,
        order: &Order<'_>,
        bytes: &[u8],
        keeping: &mut Forms,
        out: &mut Pixels,
    ) -> Result<(Drawn, Option<Arc<Kept>>), Failed> {
        let Order { recipe, name, room, keep, counters, .. } = *order;
        let start = Instant::now();
        let header = self.decoder.header(bytes).map_err(|fault| (Stage::Decode, fault))?;
        let (width, height) = header.size();
        // Coins first: they say which pixels are needed.
        let augment = |fault| (Stage::Augment, fault);
        let drawn = recipe.draw(name, width, height).map_err(|e| augment(e.into()))?;
        let wanted = keep.iter().any(|keep| matches!(keep, Keep::Decoded(..)));
        let whole =
            if wanted { self.decode_whole(order, bytes, &header, &drawn, start, keeping) } else { Ok(None) };
        // What the copy itself needs may be less, and in order; else it fails by itself.
        if let Ok(Some(own)) = whole {
            let Kept::Decoded(decoded) = &*own else { unreachable!("pixels were made") };
            let image = self.augment(order, &own, decoded, &drawn, out).map_err(augment)?;
            counters.preparations.add(u64::from(image.is_some()));
            return Ok((drawn, image));
        }
        let (head, rest) = Head::fold(width, height, &drawn.ops);
        let denominator = denominator(recipe, &head);
        let wanted = if denominator == 1 { self.augmenter.wanted(&head) } else { head.source };
        let denominator = self
            .decoder
            .decode(bytes, &header, wanted, denominator, self.limit / 2, &mut self.decoded)
            .map_err(|fault| (Stage::Decode, fault))?;
        let start = count_decode(counters, &self.decoded, start);
        self.augmenter
            .run(&self.decoded, denominator, &head, rest, self.limit / 8, room, out)
            .map_err(augment)?;
        counters.augment_ns.lap(start);
        counters.preparations.add(1);
        Ok((drawn, None))
    }

    /// Decodes all that the shelves keep; the form of the order's own recipe is returned. Nothing where a
    /// scaled decode would depend on the copy.
    fn decode_whole(
        &mut self,
        order: &Order<'_>,
        bytes: &[u8],
        header: &Header,
        drawn: &Drawn,
        start: Instant,
        keeping: &mut Forms,
    ) -> Result<Option<Arc<Kept>>, Failed> {
        let (width, height) = header.size();
        let prefix = &drawn.ops[..drawn.prefix];
        let (head, rest) = Head::fold(width, height, prefix);
        let resized = prefix.iter().any(|op| matches!(op, Op::Resize { .. }));
        if order.recipe.decode() == Decode::Scaled && rest.is_empty() && !resized {
            return Ok(None);
        }
        let mut forms: Vec<(u64, &Recipe, Vec<Op>)> = Vec::new();
        for keep in order.keep {
            let Keep::Decoded(shelf, recipe) = keep else { continue };
            match recipe.draw_prefix(order.name, width, height) {
                Ok(ops) => forms.push((*shelf, recipe, ops)),
                // Another recipe does not fit this image: its own job is told.
                Err(_) => keeping.push((*shelf, None)),
            }
        }
        let denominator = denominator(order.recipe, &head);
        let region = if denominator == 1 { Rect::whole(width, height) } else { head.source };
        let plain = |ops: &[Op]| ops.is_empty() && denominator == 1;
        // What is kept as it was decoded is decoded into memory of its own.
        let own = forms.iter().any(|(_, _, ops)| plain(ops));
        let mut pixels = if own { Pixels::default() } else { std::mem::take(&mut self.decoded) };
        let decoded = self.decoder.decode(bytes, header, region, denominator, self.limit / 2, &mut pixels);
        let denominator = decoded.map_err(|fault| (Stage::Decode, fault))?;
        let start = count_decode(order.counters, &pixels, start);
        let mut mine = None;
        // All forms together take no more than a decoded image may.
        let mut room = self.limit / 2;
        let small = forms.iter().filter(|(_, _, ops)| !plain(ops));
        for (shelf, recipe, ops) in small {
            let (head, rest) = Head::fold(width, height, ops);
            let mut image = Pixels::default();
            let run = self.augmenter.run(&pixels, denominator, &head, rest, self.limit / 8, room, &mut image);
            let kept = run.is_ok().then(|| {
                room -= (image.capacity() as u64).min(room);
                Arc::new(Kept::Decoded(Decoded { size: (width, height), pixels: image }))
            });
            if recipe.decodes_as(order.recipe) {
                mine = kept.clone();
            }
            keeping.push((*shelf, kept));
        }
        if own {
            let kept = Arc::new(Kept::Decoded(Decoded { size: (width, height), pixels }));
            for (shelf, recipe, _) in forms.iter().filter(|(_, _, ops)| plain(ops)) {
                if recipe.decodes_as(order.recipe) {
                    mine = Some(kept.clone());
                }
                keeping.push((*shelf, Some(kept.clone())));
            }
        } else {
            self.decoded = pixels;
        }
        order.counters.augment_ns.lap(start);
        Ok(mine)
    }

    /// From the decoded form; gives it back where it is what is served.
    fn augment(
        &mut self,
        order: &Order<'_>,
        form: &Arc<Kept>,
        decoded: &Decoded,
        drawn: &Drawn,
        out: &mut Pixels,
    ) -> Result<Option<Arc<Kept>>, Fault> {
        let rect = decoded.pixels.rect();
        if !order.recipe.has_augmented() {
            let need = u64::from(rect.width) * u64::from(rect.height) * 3;
            if need > order.room {
                return Err(Fault::TooLarge { need, allowed: order.room });
            }
            return Ok(Some(form.clone()));
        }
        let start = Instant::now();
        let (head, rest) = Head::fold(rect.width, rect.height, &drawn.ops[drawn.prefix..]);
        self.augmenter.run(&decoded.pixels, 1, &head, rest, self.limit / 8, order.room, out)?;
        order.counters.augment_ns.lap(start);
        order.counters.preparations.add(1);
        Ok(None)
    }
}

/// At which part of its size an image is decoded.
pub(crate) fn denominator(recipe: &Recipe, head: &Head) -> u32 {
    match recipe.decode() {
        Decode::Scaled => head.denominator(),
        Decode::Exact => 1,
    }
}

fn count_decode(counters: &Counters, pixels: &Pixels, start: Instant) -> Instant {
    counters.decodes.add(1);
    let held = pixels.rect();
    counters.decoded_pixels.add(u64::from(held.width) * u64::from(held.height));
    counters.decode_ns.lap(start)
}
