//! What runs where, in words a user can read.

use std::fmt::Write;

use crate::{Decode, Finish, Recipe};

impl Recipe {
    /// A table of the steps: which form each belongs to, and where it runs.
    pub fn explain(&self, finish: &Finish) -> String {
        let split = self.split();
        let mut text = String::new();
        let decode = match self.decode() {
            Decode::Exact => "exact: only the region a crop needs, bit-equal to a full decode",
            Decode::Scaled => "scaled: JPEG at 1/2, 1/4 or 1/8 where the resize still shrinks it",
        };
        let mut row = |form: &str, step: &str, note: &str| {
            let _ = writeln!(text, "  {form:<10} {step:<24} {note}");
        };
        row("form", "step", "runs in");
        row("encoded", "read", "native, worker threads");
        row("decoded", "decode", &format!("native, worker threads ({decode})"));
        for (index, step) in self.steps().iter().enumerate() {
            let form = if split.prefix.contains(&index) {
                "decoded"
            } else if split.random.contains(&index) {
                "augmented"
            } else {
                "finished"
            };
            let note = if form == "finished" {
                "native, while the batch is written"
            } else {
                "native, worker threads"
            };
            row(form, step.name(), note);
        }
        let layout = match finish.layout {
            crate::Layout::Nchw => "nchw",
            crate::Layout::ChannelsLast => "channels_last",
        };
        row("finished", "output", &format!("{} {layout}", finish.dtype.name()));
        let _ = writeln!(text, "  decoded fingerprint   {}", self.decoded_fingerprint());
        let _ = writeln!(text, "  augmented fingerprint {}", self.fingerprint());
        text
    }
}
