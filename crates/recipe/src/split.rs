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

    /// The steps of the decoded form alone.
    pub fn decoded_part(&self) -> Recipe {
        Recipe { steps: self.steps[..self.split().prefix.end].to_vec(), decode: self.decode }
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

    /// Whether the decoded form is a function of the sample alone. A scaled decode that no deterministic
    /// resize follows depends on what the copy's crop needs.
    pub fn has_decoded(&self) -> bool {
        let prefix = &self.steps[self.split().prefix];
        self.decode == Decode::Exact || prefix.iter().any(|step| matches!(step, Step::Resize { .. }))
    }

    /// Whether its decoded form is that of `other`.
    pub fn decodes_as(&self, other: &Recipe) -> bool {
        let (own, theirs) = (self.split().prefix, other.split().prefix);
        self.decode == other.decode && self.steps[own] == other.steps[theirs]
    }

    /// Whether its decoded form can be made from that of `base`, whose steps are the first of its own.
    pub fn continues(&self, base: &Recipe) -> bool {
        let (own, first) = (self.split().prefix, base.split().prefix);
        let exact = self.decode == Decode::Exact && base.decode == Decode::Exact;
        exact && first.end < own.end && base.steps[first.clone()] == self.steps[first]
    }

    /// Whether copies differ in their pixels before finish; else the decoded form is served itself.
    pub fn has_augmented(&self) -> bool {
        !self.split().random.is_empty()
    }

    /// Height and width of the decoded form, where they do not depend on the input.
    pub fn decoded_size(&self) -> Option<(u32, u32)> {
        fixed_size(&self.steps[self.split().prefix])
    }

    /// Height and width of the augmented image, where they do not depend on the input.
    pub fn output_size(&self) -> Option<(u32, u32)> {
        fixed_size(&self.steps)
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

/// Height and width behind the given steps, where they do not depend on what was before.
fn fixed_size(steps: &[Step]) -> Option<(u32, u32)> {
    steps.iter().rev().find_map(|step| match step {
        Step::CenterCrop { height, width }
        | Step::RandomCrop { height, width, .. }
        | Step::RandomResizedCrop { height, width, .. }
        | Step::Resize { to: ResizeTo::Exact { height, width }, .. } => Some(Some((*height, *width))),
        Step::Resize { .. } => Some(None),
        _ => None,
    })?
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

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(steps: &str) -> Result<Recipe, Error> {
        Recipe::from_json(&format!("{{\"steps\": [{steps}]}}"))
    }

    const CROP: &str =
        r#"{"op": "random_resized_crop", "height": 4, "width": 6, "scale": [0.1, 1], "ratio": [0.7, 1.4]}"#;
    const FLOAT: &str = r#"{"op": "to_float", "scale": true}"#;
    const NORMALIZE: &str = r#"{"op": "normalize", "mean": [0.5], "std": [0.2, 0.3, 0.4]}"#;
    const ERASE: &str = r#"{"op": "random_erasing", "p": 1, "scale": [0.1, 0.2], "ratio": [0.3, 3], "value": {"constant": [0]}}"#;
    const RESIZE: &str = r#"{"op": "resize", "to": {"shorter": 8}}"#;
    const FLIP: &str = r#"{"op": "random_horizontal_flip", "p": 0.5}"#;

    #[test]
    fn splits_at_the_first_random_step_and_at_the_cast() {
        let all = recipe(&[RESIZE, CROP, FLIP, FLOAT, NORMALIZE, ERASE].join(",")).expect("a recipe");
        assert_eq!(all.split(), Split { prefix: 0..1, random: 1..3, finish: 3..6 });
        assert_eq!(all.output_size(), Some((4, 6)));
        let fixed = recipe(&[RESIZE, FLOAT].join(",")).expect("a recipe");
        assert_eq!(fixed.split(), Split { prefix: 0..1, random: 1..1, finish: 1..2 });
        assert!(!fixed.is_random() && fixed.output_size().is_none());
    }

    #[test]
    fn a_misplaced_step_is_named_with_the_cure() {
        for (steps, cure) in [
            ([FLOAT, CROP].join(","), "move it before"),
            ([NORMALIZE, FLOAT].join(","), "before it"),
            ([ERASE, FLOAT].join(","), "move it behind"),
            ([FLOAT, ERASE, NORMALIZE].join(","), "before random erasing"),
            ([FLOAT, FLOAT].join(","), "keep one cast"),
            ([FLOAT, NORMALIZE, NORMALIZE].join(","), "combine"),
        ] {
            match recipe(&steps) {
                Err(Error::Order { why, .. }) => assert!(why.contains(cure), "{why}"),
                other => panic!("{steps} gave {other:?}"),
            }
        }
    }

    #[test]
    fn numbers_out_of_range_and_unknown_words_are_refused() {
        for bad in [
            r#"{"op": "random_horizontal_flip", "p": 1.5}"#,
            r#"{"op": "resize", "to": {"height": 0, "width": 4}}"#,
            r#"{"op": "resize", "to": {"shorter": 8, "max_size": 8}}"#,
            r#"{"op": "color_jitter", "hue": [-0.6, 0.1]}"#,
            r#"{"op": "random_resized_crop", "height": 4, "width": 4, "scale": [1, 0.5], "ratio": [1, 1]}"#,
        ] {
            assert!(matches!(recipe(bad), Err(Error::Value { .. })), "{bad}");
        }
        for bad in [r#"{"op": "sharpen"}"#, r#"{"op": "random_vertical_flip", "p": 1, "q": 1}"#, "7"] {
            assert!(matches!(recipe(bad), Err(Error::Parse(_))), "{bad}");
        }
    }

    #[test]
    fn fingerprints_tell_what_shares_pixels() {
        let make = |steps: &[&str]| recipe(&steps.join(",")).expect("a recipe");
        let base = make(&[RESIZE, CROP, FLOAT]);
        assert_eq!(
            base.fingerprint(),
            make(&[RESIZE, CROP, FLOAT, NORMALIZE]).fingerprint(),
            "finish is each job's own"
        );
        assert_ne!(base.fingerprint(), make(&[RESIZE, CROP, FLIP, FLOAT]).fingerprint());
        assert_eq!(base.decoded_fingerprint(), make(&[RESIZE, FLIP, FLOAT]).decoded_fingerprint());
        assert_eq!(base.decoded_fingerprint(), base.decoded_part().decoded_fingerprint());
        assert_ne!(base.decoded_fingerprint(), make(&[CROP, FLOAT]).decoded_fingerprint());
        assert_ne!(
            base.fingerprint(),
            make(&[RESIZE, CROP, FLOAT, ERASE]).fingerprint(),
            "a copy carries its erasures"
        );
        let scaled = Recipe::build(base.steps().to_vec(), Decode::Scaled).expect("a recipe");
        assert_ne!(base.fingerprint(), scaled.fingerprint());
    }

    #[test]
    fn json_and_back_is_the_same_recipe() {
        let all = recipe(&[RESIZE, CROP, FLIP, FLOAT, NORMALIZE, ERASE].join(",")).expect("a recipe");
        assert_eq!(Recipe::from_json(&all.to_json()).expect("a recipe"), all);
    }

    #[test]
    fn outputs_resolve_or_say_why_not() {
        let parse = |text| Output::parse(text).expect("an output");
        let floats = recipe(&[CROP, FLOAT, NORMALIZE].join(",")).expect("a recipe");
        let half = floats.finish(parse("float16/channels_last")).expect("fits");
        assert_eq!((half.dtype, half.layout, half.scale), (Dtype::Float16, Layout::ChannelsLast, true));
        assert_eq!(half.normalize, Some(([0.5; 3], [0.2, 0.3, 0.4])));
        assert!(matches!(floats.finish(parse("uint8")), Err(Error::Output { .. })));
        let bytes = recipe(CROP).expect("a recipe");
        assert_eq!(bytes.finish(Output::default()).expect("fits").dtype, Dtype::Uint8);
        assert!(bytes.finish(parse("float32")).expect("fits").scale);
        assert!(Output::parse("float64").is_err());
    }
}
