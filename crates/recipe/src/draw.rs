//! Coins first: a recipe, a copy's name and an image size become concrete operations.
//!
//! [`Recipe::draw`] is the only place where random parameters are made. The rules are torchvision's
//! (`get_params` of each transform), so the distributions agree; the numbers come from [`Coins`].

use serde::{Deserialize, Serialize};

use crate::{Coins, CopyName, EraseValue, Error, Filter, PadMode, Recipe, ResizeTo, Step};

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rect {
    /// Left edge.
    pub x: u32,
    /// Top edge.
    pub y: u32,
    /// Width.
    pub width: u32,
    /// Height.
    pub height: u32,
}

impl Rect {
    /// The whole of an image.
    pub fn whole(width: u32, height: u32) -> Self {
        Rect { x: 0, y: 0, width, height }
    }
}

/// One operation on pixels with all its numbers drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Op {
    /// Keep a rectangle inside the image.
    Crop(Rect),
    /// Put a border round the image.
    Pad {
        /// Left, top, right, bottom.
        border: [u32; 4],
        /// Its colour.
        fill: [u8; 3],
        /// Its kind.
        mode: PadMode,
    },
    /// Resample the whole image.
    Resize {
        /// New width.
        width: u32,
        /// New height.
        height: u32,
        /// Filter.
        filter: Filter,
    },
    /// Mirror left and right.
    FlipHorizontal,
    /// Mirror top and bottom.
    FlipVertical,
    /// Multiply all channels.
    Brightness {
        /// Factor.
        factor: f64,
    },
    /// Stretch from the mean grey.
    Contrast {
        /// Factor.
        factor: f64,
    },
    /// Stretch from the pixel's own grey.
    Saturation {
        /// Factor.
        factor: f64,
    },
    /// Turn the hue.
    Hue {
        /// Shift in turns.
        shift: f64,
    },
}

/// A rectangle to be filled in finish.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Erasure {
    /// Where.
    pub rect: Rect,
    /// With what.
    pub fill: Fill,
}

/// What an erased rectangle is filled with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// A value per channel.
    Constant([f32; 3]),
    /// Normal noise from the coins of this copy and step.
    Noise {
        /// The copy.
        name: CopyName,
        /// The step.
        step: u64,
    },
}

/// A recipe with every random number in place, for one copy of one image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// Width of the augmented image.
    pub width: u32,
    /// Height of the augmented image.
    pub height: u32,
    /// What to do with the pixels, in order.
    pub ops: Vec<Op>,
    /// How many of them make the decoded form: they are the same for every copy.
    #[serde(skip)]
    pub prefix: usize,
    /// What finish erases.
    pub erasures: Vec<Erasure>,
}

impl Recipe {
    /// Draws all coins of the copy `name` for an image of the given size.
    pub fn draw(&self, name: &CopyName, width: u32, height: u32) -> Result<Drawn, Error> {
        let mut drawn = Drawn { width, height, ops: Vec::with_capacity(4), prefix: 0, erasures: Vec::new() };
        let prefix = self.split().prefix.end;
        for (index, step) in self.steps().iter().enumerate() {
            drawn.step(step, name, index as u64)?;
            if index < prefix {
                drawn.prefix = drawn.ops.len();
            }
        }
        Ok(drawn)
    }
}

impl Recipe {
    /// The operations of the deterministic steps alone, for an image of the given size.
    pub fn draw_prefix(&self, name: &CopyName, width: u32, height: u32) -> Result<Vec<Op>, Error> {
        let mut drawn = Drawn { width, height, ops: Vec::new(), prefix: 0, erasures: Vec::new() };
        for (index, step) in self.steps()[self.split().prefix].iter().enumerate() {
            drawn.step(step, name, index as u64)?;
        }
        Ok(drawn.ops)
    }
}

impl Drawn {
    fn step(&mut self, step: &Step, name: &CopyName, index: u64) -> Result<(), Error> {
        let coins = || Coins::new(name, index);
        match step {
            Step::Resize { to, filter } => {
                let (width, height) = resized(*to, self.width, self.height);
                self.resize(width, height, *filter);
            }
            Step::CenterCrop { height, width } => self.center_crop(*width, *height),
            Step::RandomCrop { height, width, padding, pad_if_needed, fill, mode, in_turn } => {
                let [left, top, right, bottom] = *padding;
                let short = |want: u32, have: u32| if *pad_if_needed { want.saturating_sub(have) } else { 0 };
                let dx = short(*width, self.width + left + right);
                let dy = short(*height, self.height + top + bottom);
                if *in_turn {
                    for border in [*padding, [dx, 0, dx, 0], [0, dy, 0, dy]] {
                        self.pad(border, *fill, *mode);
                    }
                } else {
                    self.pad([left + dx, top + dy, right + dx, bottom + dy], *fill, *mode);
                }
                if self.width < *width || self.height < *height {
                    return Err(Error::CropTooLarge {
                        crop: (*height, *width),
                        image: (self.height, self.width),
                    });
                }
                let mut coins = coins();
                let y = coins.below(self.height - height + 1);
                let x = coins.below(self.width - width + 1);
                self.crop(Rect { x, y, width: *width, height: *height });
            }
            Step::RandomResizedCrop { height, width, scale, ratio, filter } => {
                let rect = resized_crop(&mut coins(), self.width, self.height, *scale, *ratio);
                self.crop(rect);
                self.resize(*width, *height, *filter);
            }
            Step::RandomHorizontalFlip { p } => {
                if coins().chance(*p) {
                    self.ops.push(Op::FlipHorizontal);
                }
            }
            Step::RandomVerticalFlip { p } => {
                if coins().chance(*p) {
                    self.ops.push(Op::FlipVertical);
                }
            }
            Step::ColorJitter { brightness, contrast, saturation, hue } => {
                let mut coins = coins();
                let order = coins.order::<4>();
                let drawn = [brightness, contrast, saturation, hue]
                    .map(|bounds| bounds.map(|bounds| coins.uniform(bounds)));
                self.ops.extend(order.iter().filter_map(|&which| {
                    let factor = drawn[which as usize]?;
                    Some(match which {
                        0 => Op::Brightness { factor },
                        1 => Op::Contrast { factor },
                        2 => Op::Saturation { factor },
                        _ => Op::Hue { shift: factor },
                    })
                }));
            }
            Step::RandomErasing { p, scale, ratio, value } => {
                let mut coins = coins();
                if coins.chance(*p)
                    && let Some(rect) = erased(&mut coins, self.width, self.height, *scale, *ratio)
                {
                    let fill = match value {
                        EraseValue::Constant(v) => Fill::Constant(match v[..] {
                            [a, b, c] => [a, b, c],
                            _ => [v[0]; 3],
                        }),
                        EraseValue::Random => Fill::Noise { name: *name, step: index | (1 << 32) },
                    };
                    self.erasures.push(Erasure { rect, fill });
                }
            }
            Step::ToFloat { .. } | Step::Normalize { .. } => {}
        }
        Ok(())
    }

    fn crop(&mut self, rect: Rect) {
        if rect != Rect::whole(self.width, self.height) {
            self.ops.push(Op::Crop(rect));
            (self.width, self.height) = (rect.width, rect.height);
        }
    }

    fn resize(&mut self, width: u32, height: u32, filter: Filter) {
        if (width, height) != (self.width, self.height) {
            self.ops.push(Op::Resize { width, height, filter });
            (self.width, self.height) = (width, height);
        }
    }

    fn pad(&mut self, border: [u32; 4], fill: [u8; 3], mode: PadMode) {
        if border != [0; 4] {
            self.ops.push(Op::Pad { border, fill, mode });
            self.width += border[0] + border[2];
            self.height += border[1] + border[3];
        }
    }

    fn center_crop(&mut self, width: u32, height: u32) {
        let (dx, dy) = (width.saturating_sub(self.width), height.saturating_sub(self.height));
        self.pad([dx / 2, dy / 2, dx.div_ceil(2), dy.div_ceil(2)], [0; 3], PadMode::Constant);
        // Python's round(): ties go to the even number.
        let middle = |all: u32, part: u32| (f64::from(all - part) / 2.0).round_ties_even() as u32;
        let (x, y) = (middle(self.width, width), middle(self.height, height));
        self.crop(Rect { x, y, width, height });
    }
}

fn resized(to: ResizeTo, width: u32, height: u32) -> (u32, u32) {
    match to {
        ResizeTo::Exact { height, width } => (width, height),
        ResizeTo::Shorter { shorter, max_size } => {
            let (short, long) = (width.min(height), width.max(height));
            let mut new = (shorter, (f64::from(shorter) * f64::from(long) / f64::from(short)) as u32);
            if let Some(max) = max_size
                && new.1 > max
            {
                new = ((f64::from(max) * f64::from(new.0) / f64::from(new.1)) as u32, max);
            }
            // A very long image must not vanish; torchvision fails there.
            let new = (new.0.max(1), new.1.max(1));
            if width <= height { new } else { (new.1, new.0) }
        }
    }
}

/// torchvision's `RandomResizedCrop.get_params`.
fn resized_crop(coins: &mut Coins, width: u32, height: u32, scale: [f64; 2], ratio: [f64; 2]) -> Rect {
    let area = f64::from(width) * f64::from(height);
    let log_ratio = ratio.map(f64::ln);
    for _ in 0..10 {
        let target = area * coins.uniform(scale);
        let aspect = coins.uniform(log_ratio).exp();
        let w = (target * aspect).sqrt().round_ties_even();
        let h = (target / aspect).sqrt().round_ties_even();
        if 0.0 < w && w <= f64::from(width) && 0.0 < h && h <= f64::from(height) {
            let (w, h) = (w as u32, h as u32);
            let y = coins.below(height - h + 1);
            let x = coins.below(width - w + 1);
            return Rect { x, y, width: w, height: h };
        }
    }
    let in_ratio = f64::from(width) / f64::from(height);
    let (w, h) = if in_ratio < ratio[0] {
        (width, ((f64::from(width) / ratio[0]).round_ties_even() as u32).clamp(1, height))
    } else if in_ratio > ratio[1] {
        (((f64::from(height) * ratio[1]).round_ties_even() as u32).clamp(1, width), height)
    } else {
        (width, height)
    };
    Rect { x: (width - w) / 2, y: (height - h) / 2, width: w, height: h }
}

/// torchvision's `RandomErasing.get_params`; `None` when ten tries found no box.
fn erased(coins: &mut Coins, width: u32, height: u32, scale: [f64; 2], ratio: [f64; 2]) -> Option<Rect> {
    let area = f64::from(width) * f64::from(height);
    let log_ratio = ratio.map(f64::ln);
    for _ in 0..10 {
        let target = area * coins.uniform(scale);
        let aspect = coins.uniform(log_ratio).exp();
        let h = (target * aspect).sqrt().round_ties_even();
        let w = (target / aspect).sqrt().round_ties_even();
        if h < f64::from(height) && w < f64::from(width) {
            let (w, h) = (w as u32, h as u32);
            let y = coins.below(height - h + 1);
            let x = coins.below(width - w + 1);
            return Some(Rect { x, y, width: w, height: h });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Decode;

    fn name(sample: u64) -> CopyName {
        CopyName { seed: 1, sample, generation: 0, occurrence: 0 }
    }

    /// Follows the sizes through the operations; fails when one leaves the image.
    fn replay(drawn: &Drawn, mut width: u32, mut height: u32) -> (u32, u32) {
        for op in &drawn.ops {
            match op {
                Op::Crop(rect) => {
                    assert!(rect.width > 0 && rect.height > 0);
                    assert!(rect.x + rect.width <= width && rect.y + rect.height <= height, "{rect:?}");
                    (width, height) = (rect.width, rect.height);
                }
                Op::Pad { border, .. } => {
                    (width, height) = (width + border[0] + border[2], height + border[1] + border[3]);
                }
                Op::Resize { width: w, height: h, .. } => (width, height) = (*w, *h),
                _ => {}
            }
        }
        (width, height)
    }

    proptest! {
        #[test]
        fn every_drawn_box_lies_in_the_image_and_the_size_is_what_it_says(
            width in 1u32..3000, height in 1u32..3000, sample: u64, shorter in 1u32..300,
        ) {
            let steps = vec![
                Step::Resize { to: ResizeTo::Shorter { shorter, max_size: None }, filter: Filter::Bilinear },
                Step::RandomResizedCrop {
                    height: 40, width: 50, scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0], filter: Filter::Bilinear,
                },
                Step::RandomCrop {
                    height: 60, width: 20, padding: [1, 2, 3, 4], pad_if_needed: true, fill: [0; 3],
                    mode: PadMode::Reflect, in_turn: sample % 2 == 0,
                },
                Step::CenterCrop { height: 33, width: 64 },
                Step::ToFloat { scale: true, dtype: crate::Dtype::Float32 },
                Step::RandomErasing {
                    p: 1.0, scale: [0.02, 0.33], ratio: [0.3, 3.3], value: EraseValue::Constant(vec![0.0]),
                },
            ];
            let recipe = Recipe::build(steps, Decode::Exact).expect("a recipe");
            let drawn = recipe.draw(&name(sample), width, height).expect("drawn");
            prop_assert_eq!(replay(&drawn, width, height), (64, 33));
            prop_assert_eq!((drawn.width, drawn.height), (64, 33));
            for Erasure { rect, .. } in &drawn.erasures {
                prop_assert!(rect.x + rect.width <= 64 && rect.y + rect.height <= 33);
            }
            prop_assert_eq!(recipe.draw(&name(sample), width, height).expect("drawn"), drawn, "same name, same numbers");
        }
    }

    #[test]
    fn a_crop_larger_than_the_image_is_told() {
        let step = Step::RandomCrop {
            height: 10,
            width: 10,
            padding: [0; 4],
            pad_if_needed: false,
            fill: [0; 3],
            mode: PadMode::Constant,
            in_turn: false,
        };
        let recipe = Recipe::build(vec![step], Decode::Exact).expect("a recipe");
        let error = recipe.draw(&name(0), 9, 20).expect_err("too small");
        assert_eq!(error, Error::CropTooLarge { crop: (10, 10), image: (20, 9) });
    }

    #[test]
    fn the_middle_is_where_python_rounds_it() {
        let recipe =
            Recipe::build(vec![Step::CenterCrop { height: 2, width: 2 }], Decode::Exact).expect("a recipe");
        // (5 − 2) / 2 = 1.5 rounds to 2, (7 − 2) / 2 = 2.5 rounds to 2.
        let drawn = recipe.draw(&name(0), 5, 7).expect("drawn");
        assert_eq!(drawn.ops, [Op::Crop(Rect { x: 2, y: 2, width: 2, height: 2 })]);
    }
}
