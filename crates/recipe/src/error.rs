//! What can be wrong with a recipe, or with a recipe applied to one image.

/// One variant per decision a caller can take.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a recipe.
    #[error("not a recipe: {0}")]
    Parse(String),
    /// A step stands where it cannot run.
    #[error("step {index} ({step}): {why}")]
    Order {
        /// Place in the list.
        index: usize,
        /// The step's name.
        step: &'static str,
        /// What is wrong, with the cure.
        why: String,
    },
    /// A step's numbers are out of range.
    #[error("step {index} ({step}): {why}")]
    Value {
        /// Place in the list.
        index: usize,
        /// The step's name.
        step: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The wanted output does not fit the recipe.
    #[error("output {output:?}: {why}")]
    Output {
        /// What was asked for.
        output: String,
        /// What is wrong, with the cure.
        why: String,
    },
    /// The image is too small for a crop.
    #[error("required crop size {crop:?} is larger than input image size {image:?} (height, width)")]
    CropTooLarge {
        /// Height and width asked for.
        crop: (u32, u32),
        /// Height and width there are.
        image: (u32, u32),
    },
}
