//! The steps, as data. Names and meanings follow torchvision's, which users already know.

use serde::{Deserialize, Serialize};

/// How encoded pixels become decoded ones. Part of a recipe, because it changes pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decode {
    /// Bit-equal to decoding the whole image, then cropping and resizing it.
    #[default]
    Exact,
    /// JPEG may be decoded at 1/2, 1/4 or 1/8 where the resize that follows still shrinks it.
    Scaled,
}

/// Resampling filter; the arithmetic is Pillow's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// No filter.
    Nearest,
    /// Mean of the pixels covered.
    Box,
    /// Triangle.
    #[default]
    Bilinear,
    /// Hamming window.
    Hamming,
    /// Cubic with a = -0.5.
    Bicubic,
    /// Lanczos with three lobes.
    Lanczos,
}

/// Target of a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ResizeTo {
    /// Both sides.
    Exact {
        /// New height.
        height: u32,
        /// New width.
        width: u32,
    },
    /// The shorter side; the longer one follows, up to `max_size`.
    Shorter {
        /// New length of the shorter side.
        shorter: u32,
        /// Bound of the longer side.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_size: Option<u32>,
    },
}

/// What stands outside the image when it is padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PadMode {
    /// A colour.
    #[default]
    Constant,
    /// The edge pixel.
    Edge,
    /// Mirror without the edge pixel.
    Reflect,
    /// Mirror with the edge pixel.
    Symmetric,
}

/// What an erased rectangle is filled with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EraseValue {
    /// One value, or one per channel.
    Constant(Vec<f32>),
    /// Standard normal noise.
    Random,
}

/// One step of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Step {
    /// Resample to a size.
    Resize {
        /// The size.
        to: ResizeTo,
        /// The filter.
        #[serde(default)]
        filter: Filter,
    },
    /// Cut the middle; pads with zero where the image is smaller.
    CenterCrop {
        /// Height.
        height: u32,
        /// Width.
        width: u32,
    },
    /// Cut at a random place.
    RandomCrop {
        /// Height.
        height: u32,
        /// Width.
        width: u32,
        /// Left, top, right, bottom, put round the image first.
        #[serde(default)]
        padding: [u32; 4],
        /// Pad smaller images up to the size.
        #[serde(default)]
        pad_if_needed: bool,
        /// Colour of the padding.
        #[serde(default)]
        fill: [u8; 3],
        /// Kind of the padding.
        #[serde(default)]
        mode: PadMode,
        /// Pad for `padding`, width and height one after the other, as torchvision's v1 does: a mirror
        /// then mirrors what was padded before.
        #[serde(default)]
        in_turn: bool,
    },
    /// Cut a box of random area and aspect, then resample it.
    RandomResizedCrop {
        /// Height.
        height: u32,
        /// Width.
        width: u32,
        /// Bounds of the area, as a share of the image.
        scale: [f64; 2],
        /// Bounds of width over height.
        ratio: [f64; 2],
        /// The filter.
        #[serde(default)]
        filter: Filter,
    },
    /// Mirror left and right.
    RandomHorizontalFlip {
        /// Probability.
        p: f64,
    },
    /// Mirror top and bottom.
    RandomVerticalFlip {
        /// Probability.
        p: f64,
    },
    /// Change brightness, contrast, saturation and hue in random order.
    ColorJitter {
        /// Bounds of the brightness factor.
        #[serde(default)]
        brightness: Option<[f64; 2]>,
        /// Bounds of the contrast factor.
        #[serde(default)]
        contrast: Option<[f64; 2]>,
        /// Bounds of the saturation factor.
        #[serde(default)]
        saturation: Option<[f64; 2]>,
        /// Bounds of the hue shift, in turns.
        #[serde(default)]
        hue: Option<[f64; 2]>,
    },
    /// Cast to float; `scale` divides by 255.
    ToFloat {
        /// Map 0..255 to 0..1.
        scale: bool,
        /// float32, float16 or bfloat16.
        #[serde(default = "float32")]
        dtype: crate::Dtype,
    },
    /// Subtract a mean and divide by a deviation, per channel.
    Normalize {
        /// Mean per channel.
        mean: Vec<f32>,
        /// Deviation per channel.
        std: Vec<f32>,
    },
    /// Fill a random rectangle of the finished image.
    RandomErasing {
        /// Probability.
        p: f64,
        /// Bounds of the area, as a share of the image.
        scale: [f64; 2],
        /// Bounds of height over width.
        ratio: [f64; 2],
        /// What to fill with.
        value: EraseValue,
    },
}

fn float32() -> crate::Dtype {
    crate::Dtype::Float32
}

impl Step {
    /// The step's name, as it is written in a recipe.
    pub fn name(&self) -> &'static str {
        match self {
            Step::Resize { .. } => "resize",
            Step::CenterCrop { .. } => "center_crop",
            Step::RandomCrop { .. } => "random_crop",
            Step::RandomResizedCrop { .. } => "random_resized_crop",
            Step::RandomHorizontalFlip { .. } => "random_horizontal_flip",
            Step::RandomVerticalFlip { .. } => "random_vertical_flip",
            Step::ColorJitter { .. } => "color_jitter",
            Step::ToFloat { .. } => "to_float",
            Step::Normalize { .. } => "normalize",
            Step::RandomErasing { .. } => "random_erasing",
        }
    }

    /// Whether the step draws random numbers.
    pub fn is_random(&self) -> bool {
        matches!(
            self,
            Step::RandomCrop { .. }
                | Step::RandomResizedCrop { .. }
                | Step::RandomHorizontalFlip { .. }
                | Step::RandomVerticalFlip { .. }
                | Step::ColorJitter { .. }
                | Step::RandomErasing { .. }
        )
    }

    /// Whether the step belongs to finish: cast, normalise, erase.
    pub fn is_finish(&self) -> bool {
        matches!(self, Step::ToFloat { .. } | Step::Normalize { .. } | Step::RandomErasing { .. })
    }

    /// Checks the step's own numbers; `Err` says what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let side = |s: u32| (1..=65_535).contains(&s);
        let range = |what: &str, r: &[f64; 2], low: f64| {
            if r[0].is_finite() && r[1].is_finite() && low <= r[0] && r[0] <= r[1] {
                Ok(())
            } else {
                Err(format!("{what} {r:?} is not a range of finite numbers from {low} up"))
            }
        };
        let chance = |p: f64| {
            if (0.0..=1.0).contains(&p) {
                Ok(())
            } else {
                Err(format!("probability {p} is not between 0 and 1"))
            }
        };
        let size = |h: u32, w: u32| {
            if side(h) && side(w) {
                Ok(())
            } else {
                Err(format!("size {h}x{w} is not between 1 and 65535 on each side"))
            }
        };
        match self {
            Step::Resize { to: ResizeTo::Exact { height, width }, .. }
            | Step::CenterCrop { height, width } => size(*height, *width),
            Step::Resize { to: ResizeTo::Shorter { shorter, max_size }, .. } => {
                size(*shorter, max_size.unwrap_or(*shorter))?;
                match max_size {
                    Some(max) if max <= shorter => {
                        Err(format!("max_size {max} must be greater than the shorter side {shorter}"))
                    }
                    _ => Ok(()),
                }
            }
            Step::RandomCrop { height, width, padding, .. } => {
                size(*height, *width)?;
                match padding.iter().find(|&&p| p > 65_535) {
                    Some(p) => Err(format!("padding {p} is over 65535")),
                    None => Ok(()),
                }
            }
            Step::RandomResizedCrop { height, width, scale, ratio, .. } => {
                size(*height, *width)?;
                range("scale", scale, 0.0)?;
                range("ratio", ratio, f64::MIN_POSITIVE)
            }
            Step::RandomHorizontalFlip { p } | Step::RandomVerticalFlip { p } => chance(*p),
            Step::ColorJitter { brightness, contrast, saturation, hue } => {
                for (what, r) in
                    [("brightness", brightness), ("contrast", contrast), ("saturation", saturation)]
                {
                    if let Some(r) = r {
                        range(what, r, 0.0)?;
                    }
                }
                match hue {
                    Some(r) if range("hue", r, -0.5).is_err() || r[1] > 0.5 => {
                        Err(format!("hue {r:?} is not a range between -0.5 and 0.5"))
                    }
                    _ => Ok(()),
                }
            }
            Step::ToFloat { dtype, .. } => match dtype {
                crate::Dtype::Float32 | crate::Dtype::Float16 | crate::Dtype::Bfloat16 => Ok(()),
                other => Err(format!("{} is not a float type", other.name())),
            },
            Step::Normalize { mean, std } => {
                let three = |v: &[f32]| (v.len() == 1 || v.len() == 3) && v.iter().all(|x| x.is_finite());
                if !three(mean) || !three(std) {
                    return Err("mean and std need 1 or 3 finite values each".into());
                }
                if std.contains(&0.0) {
                    return Err("std evaluated to zero, leading to division by zero".into());
                }
                Ok(())
            }
            Step::RandomErasing { p, scale, ratio, value } => {
                chance(*p)?;
                range("scale", scale, 0.0)?;
                if scale[1] > 1.0 {
                    return Err(format!("scale {scale:?} should be between 0 and 1"));
                }
                range("ratio", ratio, f64::MIN_POSITIVE)?;
                match value {
                    EraseValue::Constant(v) if v.len() != 1 && v.len() != 3 => {
                        Err("value needs 1 or 3 numbers".into())
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}
