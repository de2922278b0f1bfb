//! Failures that know their cure, and how a failure is printed: `error:`, its causes, `hint:`.

use std::fmt;

/// An error with one sentence on what to do about it.
#[derive(Debug)]
pub(crate) struct Hinted {
    said: String,
    hint: String,
}

impl Hinted {
    /// `said` is the failure, `hint` the cure.
    pub(crate) fn new(said: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { said: said.into(), hint: hint.into() }
    }
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for Hinted {}

/// The lines for stderr.
pub(crate) fn render(error: &anyhow::Error) -> String {
    let mut text = format!("error: {error}\n");
    for cause in error.chain().skip(1) {
        text.push_str(&format!("  caused by: {cause}\n"));
    }
    for hinted in error.chain().filter_map(|cause| cause.downcast_ref::<Hinted>()) {
        text.push_str(&format!("hint: {}\n", hinted.hint));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_and_hints_follow_the_error() {
        let inner: anyhow::Result<()> = Err(Hinted::new("no torch", "install it").into());
        let error = inner.context("the demo cannot run").unwrap_err();
        assert_eq!(render(&error), "error: the demo cannot run\n  caused by: no torch\nhint: install it\n");
    }
}
