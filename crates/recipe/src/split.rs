//! A checked recipe and how it splits: deterministic prefix → decoded, random part → augmented,
//! cheap last part → finish.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Decode, Dtype, Error, Field, Kind, Layout, ResizeTo, Step};

/// Changes when the pixels of an equal recipe change, so that stored forms are not taken for new ones.
const PIXEL_VERSION: u32 = 1;

/// A checked list of steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recipe {
    steps: Vec<Step>,
    decode: Decode,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    steps: Vec<Step>,
    #[serde(default)]
    decode: Decode,
}

/// Which steps make which form, as ranges of the step list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Deterministic steps; their result is the decoded form.
    pub prefix: Range<usize>,
    /// From the first random step on; the result is the augmented form.
    pub random: Range<usize>,
    /// Cast, normalise, erase.
    pub finish: Range<usize>,
}

/// What a job wants its images to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Output {
    /// Element type; `None`: what the recipe ends in.
    pub dtype: Option<Dtype>,
    /// Memory layout.
    pub layout: Layout,
}

/// The last part of a recipe, resolved for one output.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// Element type of the result.
    pub dtype: Dtype,
    /// Memory layout.
    pub layout: Layout,
    /// Divide by 255.
    pub scale: bool,
    /// Mean and deviation per channel.
    pub normalize: Option<([f32; 3], [f32; 3])>,
}

impl Recipe {
    /// Checks the steps and their order.
    pub fn build(steps: Vec<Step>, decode: Decode) -> Result<Self, Error> {
        let mut cast = false;
        let mut normalized = false;
        for (index, step) in steps.iter().enumerate() {
            let name = step.name();
            step.check().map_err(|why| Error::Value { index, step: name, why })?;
            let order = |why: &str| Err(Error::Order { index, step: name, why: why.into() });
            match step {
                Step::ToFloat { .. } if cast => {
                    return order("the recipe casts to float twice; keep one cast");
                }
                Step::ToFloat { .. } => cast = true,
                Step::Normalize { .. } if !cast => {
                    return order(
                        "normalise works on float images; put ToTensor or ToDtype(float32, scale=True) before it",
                    );
                }
                Step::Normalize { .. } if normalized => {
                    return order("the recipe normalises twice; combine the two into one");
                }
                Step::Normalize { .. } => normalized = true,
                Step::RandomErasing { .. } if !cast => {
                    return order(
                        "random erasing runs after the cast to float; move it behind ToTensor or ToDtype",
                    );
                }
                Step::RandomErasing { .. } => {}
                _ if cast => {
                    return order("this step works on 8-bit pixels; move it before ToTensor or ToDtype");
                }
                _ => {}
            }
            if let Step::Normalize { .. } = step
                && steps[..index].iter().any(|s| matches!(s, Step::RandomErasing { .. }))
            {
                return order(
                    "normalise must come before random erasing, or the erased value is normalised too",
                );
            }
        }
        Ok(Recipe { steps, decode })
    }

    /// Reads a recipe from its JSON form.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let text: Text = serde_json::from_str(text).map_err(|e| Error::Parse(e.to_string()))?;
        Recipe::build(text.steps, text.decode)
    }

    /// The JSON form.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data always serialises")
    }

    /// The steps in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// How pixels are decoded.
    pub fn decode(&self) -> Decode {
        self.decode
    }

    /// Which steps make which form.
    pub fn split(&self) -> Split {
        let n = self.steps.len();
        let finish = self.steps.iter().position(Step::is_finish).unwrap_or(n);
        let prefix = self.steps[..finish].iter().position(Step::is_random).unwrap_or(finish);
        Split { prefix: 0..prefix, random: prefix..finish, finish: finish..n }
    }

    /// Whether there is an augmented form apart from the decoded one.
    pub fn is_random(&self) -> bool {
        self.steps.iter().any(Step::is_random)
    }

    /// Names the decoded form: decode mode and deterministic prefix.
    pub fn decoded_fingerprint(&self) -> String {
        self.hash(self.split().prefix.end)
    }

    /// Names the copies: decode mode, prefix, random part, and erasing, whose coins a copy carries.
    pub fn fingerprint(&self) -> String {
        self.hash(self.split().random.end)
    }

    fn hash(&self, end: usize) -> String {
        let erasing: Vec<_> =
            self.steps[end..].iter().filter(|s| matches!(s, Step::RandomErasing { .. })).collect();
        let erasing = if end == self.split().random.end { erasing } else { Vec::new() };
        let text = serde_json::to_string(&(PIXEL_VERSION, self.decode, &self.steps[..end], erasing))
            .expect("plain data always serialises");
        blake3::hash(text.as_bytes()).to_hex()[..32].to_string()
    }

    /// Height and width of the augmented image, where they do not depend on the input.
    pub fn output_size(&self) -> Option<(u32, u32)> {
        self.steps.iter().rev().find_map(|step| match step {
            Step::CenterCrop { height, width }
            | Step::RandomCrop { height, width, .. }
            | Step::RandomResizedCrop { height, width, .. }
            | Step::Resize { to: ResizeTo::Exact { height, width }, .. } => Some(Some((*height, *width))),
            Step::Resize { .. } => Some(None),
            _ => None,
        })?
    }

    /// Resolves cast, normalise and layout for one output.
    pub fn finish(&self, output: Output) -> Result<Finish, Error> {
        let mut finish = Finish { dtype: Dtype::Uint8, layout: output.layout, scale: false, normalize: None };
        for step in &self.steps {
            match step {
                Step::ToFloat { scale, dtype } => (finish.scale, finish.dtype) = (*scale, *dtype),
                Step::Normalize { mean, std } => finish.normalize = Some((three(mean), three(std))),
                _ => {}
            }
        }
        let refuse = |why: &str| {
            let output = output.dtype.map_or("none", Dtype::name).to_string();
            Err(Error::Output { output, why: why.into() })
        };
        match output.dtype {
            None => {}
            Some(Dtype::Int64) => return refuse("images come as uint8, float16, bfloat16 or float32"),
            Some(Dtype::Uint8) => {
                if self.steps.iter().any(|s| matches!(s, Step::Normalize { .. } | Step::RandomErasing { .. }))
                {
                    return refuse(
                        "8-bit images cannot be normalised or erased; drop these steps and do them on the GPU",
                    );
                }
                (finish.dtype, finish.scale) = (Dtype::Uint8, false);
            }
            Some(dtype) => {
                // Asking a recipe that ends in bytes for floats means torch's ToDtype(scale=True).
                finish.scale |= finish.dtype == Dtype::Uint8;
                finish.dtype = dtype;
            }
        }
        Ok(finish)
    }

    /// The fields of a sample as a batch carries them.
    pub fn fields(&self, finish: &Finish) -> Vec<Field> {
        let shape = self.output_size().map(|(h, w)| vec![3, h as usize, w as usize]);
        let image = Field {
            name: "image".into(),
            kind: Kind::Image,
            dtype: finish.dtype,
            shape,
            layout: finish.layout,
        };
        let target = Field {
            name: "target".into(),
            kind: Kind::Class,
            dtype: Dtype::Int64,
            shape: Some(vec![]),
            layout: Layout::Nchw,
        };
        vec![image, target]
    }
}

impl Output {
    /// Reads `"float16"`, `"channels_last"` or `"float16/channels_last"`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut output = Output::default();
        for part in text.split('/') {
            match part {
                "uint8" => output.dtype = Some(Dtype::Uint8),
                "float16" => output.dtype = Some(Dtype::Float16),
                "bfloat16" => output.dtype = Some(Dtype::Bfloat16),
                "float32" => output.dtype = Some(Dtype::Float32),
                "nchw" => output.layout = Layout::Nchw,
                "channels_last" => output.layout = Layout::ChannelsLast,
                _ => {
                    return Err(Error::Output {
                        output: text.into(),
                        why: "write uint8, float16, bfloat16 or float32, then optionally /channels_last"
                            .into(),
                    });
                }
            }
        }
        Ok(output)
    }
}

fn three(v: &[f32]) -> [f32; 3] {
    match v[..] {
        [a, b, c] => [a, b, c],
        _ => [v[0]; 3],
    }
}
