//! Lines on stderr, with the time of day in UTC.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::SystemTime;

/// Says what happened.
pub fn log(text: impl Display) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let second = now.as_secs() % 86_400;
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    let millis = now.subsec_millis();
    // A log that cannot be written is no reason to end.
    let _ = writeln!(io::stderr(), "{h:02}:{m:02}:{s:02}.{millis:03}Z forebay: {text}");
}
