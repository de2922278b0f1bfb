//! One sample from its file, or from what is kept of it, to its augmented form, on one thread with reused
//! buffers.

use std::sync::Arc;
use std::time::Instant;

use forebay_recipe::{CopyName, Decode, Drawn, Op, Recipe, Rect};

use crate::augment::{Augmenter, Head};
use crate::batch::Value;
use crate::cache::{Decoded, Form, Forms, From, Keep, Kept, NO_SHELF, keeps_planes};
use crate::counters::{CoreTime, Counters};
use crate::decode::{Decoder, Header, Picture, Pixels};
use crate::error::{Fault, Stage};
use crate::pipeline::count_read;
use crate::storage::Dataset;

/// Scratch above this is given back after the sample that needed it.
const KEEP: usize = 16 << 20;

/// Everything a thread needs to prepare samples.
#[derive(Debug)]
pub(crate) struct Preparer {
    decoder: Decoder,
    augmenter: Augmenter,
    encoded: Vec<u8>,
    /// The sample of which `encoded` is the file, if it was read ahead of the order.
    read: Option<u64>,
    decoded: Pixels,
    /// An image on its way into a batch.
    copy: Value,
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
    /// The file, where another thread has read it.
    pub(crate) file: Option<&'a [u8]>,
    /// Where the work is counted.
    pub(crate) counters: &'a Counters,
}

impl Order<'_> {
    /// Whether the decoded form itself is wanted, for jobs to make copies of.
    fn is_form(&self) -> bool {
        self.keep.iter().any(|keep| keep.shelf() == NO_SHELF)
    }

    /// Whether the decoded form of a recipe is kept as planes where the file has them.
    fn keeps_planes(&self, recipe: &Recipe) -> bool {
        keeps_planes(recipe) || self.is_form() && recipe.split().prefix.is_empty()
    }
}

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
            read: None,
            decoded: Pixels::default(),
            copy: Value::Image(Pixels::default()),
            limit,
        })
    }

    /// Bytes of scratch held now.
    pub(crate) fn capacity(&self) -> usize {
        let copy = self.copy.pixels().map_or(0, Pixels::capacity);
        self.encoded.capacity() + self.decoded.capacity() + self.augmenter.capacity() + copy
    }

    /// Reads a file for the order that comes next, if that needs no device; false if it does.
    pub(crate) fn read_now(&mut self, dataset: &Dataset, sample: u64, counters: &Counters) -> bool {
        let start = Instant::now();
        match dataset.read_now(sample, self.limit / 4, &mut self.encoded) {
            Ok(true) => {
                count_read(counters, self.encoded.len(), start, false);
                self.read = Some(sample);
                true
            }
            Ok(false) => false,
            // It is found out again, and told, where the sample is made.
            Err(_) => true,
        }
    }

    /// Reads a file for the order that comes next by `read`, which says whether it could.
    pub(crate) fn read_by(&mut self, sample: u64, read: impl FnOnce(u64, &mut Vec<u8>) -> bool) {
        if read(self.limit / 4, &mut self.encoded) {
            self.read = Some(sample);
        }
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
        let (mut file, read) = (std::mem::take(&mut self.encoded), self.read.take());
        let bytes = match kept.map(|from| &*from.kept) {
            Some(Kept::Encoded(bytes)) => {
                counters.encoded_hits.add(1);
                &bytes[..]
            }
            _ if order.file.is_some() => order.file.unwrap_or_default(),
            _ if read == Some(name.sample) => &file[..],
            _ => {
                let start = Instant::now();
                match dataset.read(name.sample, self.limit / 4, &mut file) {
                    Ok(device) => count_read(counters, file.len(), start, device),
                    Err(fault) => {
                        self.encoded = file;
                        return Err((Stage::Read, fault));
                    }
                }
                &file[..]
            }
        };
        for keep in keep {
            if let Keep::Encoded(shelf) = keep {
                keeping.push((*shelf, Some(Arc::new(Kept::Encoded(bytes.to_vec()))), None));
            }
        }
        let made = self.decode(order, bytes, &mut keeping, out);
        self.encoded = file;
        let (drawn, image) = made?;
        Ok(Prepared { drawn, image, kept: keeping })
    }

    /// Makes the copy `name` from the decoded form of its sample, as an image of its own.
    pub(crate) fn copy(
        &mut self,
        recipe: &Recipe,
        name: &CopyName,
        decoded: &Decoded,
        counters: &Counters,
    ) -> Result<(Drawn, &Value), Fault> {
        let start = CoreTime::now();
        let (width, height) = decoded.size;
        let drawn = recipe.draw(name, width, height)?;
        let (width, height) = decoded.picture.size();
        let (head, rest) = Head::fold(width, height, &drawn.ops[drawn.prefix..]);
        let Value::Image(out) = &mut self.copy else { unreachable!("made as an image") };
        // The size of what is shared does not vary, and the job has reserved it.
        let (limit, room) = (self.limit / 8, u64::MAX);
        self.augmenter.run_on(&decoded.picture, &mut self.decoded, &head, rest, limit, room, out)?;
        self.decoded.trim(KEEP);
        counters.augment_ns.spend(start);
        counters.preparations.add(1);
        Ok((drawn, &self.copy))
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
        let (start, (width, height)) = (CoreTime::now(), decoded.size);
        let done = base.draw_prefix(order.name, width, height)?.len();
        let (width, height) = decoded.picture.size();
        let (head, rest) = Head::fold(width, height, &drawn.ops[done..drawn.prefix]);
        let mut pixels = Pixels::default();
        let (limit, room) = (self.limit / 8, self.limit / 2);
        self.augmenter.run_on(&decoded.picture, &mut self.decoded, &head, rest, limit, room, &mut pixels)?;
        let own = Decoded { size: decoded.size, picture: Picture::Rgb(pixels) };
        let form = Arc::new(Kept::Decoded(own));
        order.counters.augment_ns.spend(start);
        let Kept::Decoded(own) = &*form else { unreachable!("pixels were made") };
        let image = self.augment(order, &form, own, &drawn, out)?;
        order.counters.preparations.add(u64::from(image.is_some() && !order.is_form()));
        let forms = order.keep.iter().filter_map(|keep| match keep {
            Keep::Decoded(Form { shelf, recipe, .. }) if recipe.decodes_as(order.recipe) => {
                Some((*shelf, Some(form.clone()), None))
            }
            _ => None,
        });
        let kept = forms.collect();
        Ok(Prepared { drawn, image, kept })
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
        let start = CoreTime::now();
        let header = self.decoder.header(bytes).map_err(|fault| (Stage::Decode, fault))?;
        let (width, height) = header.size();
        // Coins first: they say which pixels are needed.
        let augment = |fault| (Stage::Augment, fault);
        let drawn = recipe.draw(name, width, height).map_err(|e| augment(e.into()))?;
        let density = |recipe: &Recipe| {
            let (height, width) = recipe.decoded_size().unwrap_or((height, width));
            let pixels = width as f32 * height as f32 * 3.0;
            let planes = self.planes_bytes(&header).filter(|_| order.keeps_planes(recipe));
            bytes.len() as f32 / planes.map_or(pixels, |bytes| bytes as f32)
        };
        let wanted = keep.iter().any(|keep| match keep {
            Keep::Decoded(form) => density(&form.recipe) >= form.least,
            Keep::Encoded(_) => false,
        });
        for keep in keep {
            if let Keep::Decoded(Form { shelf, recipe, .. }) = keep
                && !wanted
            {
                keeping.push((*shelf, None, Some(density(recipe))));
            }
        }
        let whole =
            if wanted { self.decode_whole(order, bytes, &header, &drawn, start, keeping) } else { Ok(None) };
        // What the copy itself needs may be less, and in order; else it fails by itself.
        if let Ok(Some(own)) = whole {
            let Kept::Decoded(decoded) = &*own else { unreachable!("pixels were made") };
            let image = self.augment(order, &own, decoded, &drawn, out).map_err(augment)?;
            counters.preparations.add(u64::from(image.is_some() && !order.is_form()));
            return Ok((drawn, image));
        }
        let (head, rest) = Head::fold(width, height, &drawn.ops);
        let denominator = denominator(recipe, &head);
        let wanted = if denominator == 1 { self.augmenter.wanted(&head) } else { head.source };
        let denominator = self
            .decoder
            .decode(bytes, &header, wanted, denominator, self.limit / 2, &mut self.decoded)
            .map_err(|fault| (Stage::Decode, fault))?;
        let start = count_decode(counters, self.decoded.size(), start, false);
        self.augmenter
            .run(&self.decoded, denominator, &head, rest, self.limit / 8, room, out)
            .map_err(augment)?;
        counters.augment_ns.spend(start);
        counters.preparations.add(1);
        Ok((drawn, None))
    }

    /// Bytes of an image's planes, if it is kept as such: beside them there must be room for the pixels of a copy.
    fn planes_bytes(&self, header: &Header) -> Option<u64> {
        header.planes_bytes().filter(|planes| planes + header.pixels_bytes() <= self.limit / 2)
    }

    /// Decodes all that the shelves keep; the form of the order's own recipe is returned. Nothing where a
    /// scaled decode would depend on the copy.
    fn decode_whole(
        &mut self,
        order: &Order<'_>,
        bytes: &[u8],
        header: &Header,
        drawn: &Drawn,
        start: CoreTime,
        keeping: &mut Forms,
    ) -> Result<Option<Arc<Kept>>, Failed> {
        let decode = |fault| (Stage::Decode, fault);
        let (width, height) = header.size();
        let prefix = &drawn.ops[..drawn.prefix];
        let (head, rest) = Head::fold(width, height, prefix);
        let resized = prefix.iter().any(|op| matches!(op, Op::Resize { .. }));
        if order.recipe.decode() == Decode::Scaled && rest.is_empty() && !resized {
            return Ok(None);
        }
        let mut forms: Vec<(u64, &Recipe, Vec<Op>)> = Vec::new();
        for keep in order.keep {
            let Keep::Decoded(Form { shelf, recipe, .. }) = keep else { continue };
            match recipe.draw_prefix(order.name, width, height) {
                Ok(ops) => forms.push((*shelf, recipe, ops)),
                // Another recipe does not fit this image: its own job is told.
                Err(_) => keeping.push((*shelf, None, None)),
            }
        }
        let denominator = denominator(order.recipe, &head);
        let region = if denominator == 1 { Rect::whole(width, height) } else { head.source };
        let plain = |ops: &[Op]| ops.is_empty() && denominator == 1;
        // What is kept as it was decoded is decoded into memory of its own.
        let own = forms.iter().any(|(_, _, ops)| plain(ops));
        let whole = forms.iter().filter(|(_, _, ops)| plain(ops));
        let mut planes = None;
        if self.planes_bytes(header).is_some()
            && whole.clone().any(|(_, recipe, _)| order.keeps_planes(recipe))
            && whole.clone().all(|(_, recipe, _)| recipe.split().prefix.is_empty())
        {
            planes = self.decoder.planes(bytes, header, self.limit / 2).map_err(decode)?;
        }
        let (picture, denominator) = match planes {
            Some(planes) => (Picture::Planes(planes), 1),
            None => {
                let mut pixels = if own { Pixels::default() } else { std::mem::take(&mut self.decoded) };
                let limit = self.limit / 2;
                let scale = self.decoder.decode(bytes, header, region, denominator, limit, &mut pixels);
                (Picture::Rgb(pixels), scale.map_err(decode)?)
            }
        };
        let start = count_decode(order.counters, picture.size(), start, true);
        let density = |bytes_held: usize| Some(bytes.len() as f32 / (bytes_held as f32).max(1.0));
        let mut mine = None;
        // All forms together take no more than a decoded image may.
        let mut room = self.limit / 2;
        let small = forms.iter().filter(|(_, _, ops)| !plain(ops));
        for (shelf, recipe, ops) in small {
            let (head, rest) = Head::fold(width, height, ops);
            let mut image = Pixels::default();
            let limit = self.limit / 8;
            let run = match &picture {
                Picture::Rgb(pixels) => {
                    self.augmenter.run(pixels, denominator, &head, rest, limit, room, &mut image)
                }
                planes => {
                    self.augmenter.run_on(planes, &mut self.decoded, &head, rest, limit, room, &mut image)
                }
            };
            let dense = density(image.capacity());
            let kept = run.is_ok().then(|| {
                room -= (image.capacity() as u64).min(room);
                Arc::new(Kept::Decoded(Decoded { size: (width, height), picture: Picture::Rgb(image) }))
            });
            if recipe.decodes_as(order.recipe) {
                mine = kept.clone();
            }
            keeping.push((*shelf, kept, dense));
        }
        if own {
            let dense = density(picture.capacity());
            let kept = Arc::new(Kept::Decoded(Decoded { size: (width, height), picture }));
            for (shelf, recipe, _) in forms.iter().filter(|(_, _, ops)| plain(ops)) {
                if recipe.decodes_as(order.recipe) {
                    mine = Some(kept.clone());
                }
                keeping.push((*shelf, Some(kept.clone()), dense));
            }
        } else if let Picture::Rgb(pixels) = picture {
            self.decoded = pixels;
        }
        order.counters.augment_ns.spend(start);
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
        let (width, height) = decoded.picture.size();
        // Planes are kept for others, whose steps are random: what is served are pixels.
        let served = order.is_form() || matches!(decoded.picture, Picture::Rgb(_));
        if !order.recipe.has_augmented() && served {
            let need = u64::from(width) * u64::from(height) * 3;
            if need > order.room {
                return Err(Fault::TooLarge { need, allowed: order.room });
            }
            return Ok(Some(form.clone()));
        }
        let start = CoreTime::now();
        let (head, rest) = Head::fold(width, height, &drawn.ops[drawn.prefix..]);
        let (limit, room) = (self.limit / 8, order.room);
        self.augmenter.run_on(&decoded.picture, &mut self.decoded, &head, rest, limit, room, out)?;
        order.counters.augment_ns.spend(start);
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

fn count_decode(counters: &Counters, size: (u32, u32), start: CoreTime, whole: bool) -> CoreTime {
    counters.decodes.add(1);
    counters.decoded_pixels.add(u64::from(size.0) * u64::from(size.1));
    let now = counters.decode_ns.spend(start);
    if whole {
        counters.whole_decodes.add(1);
        counters.whole_ns.add(now.since(start));
    }
    now
}
