//! Pieces that every drawing of this program has: a page with its heading, text, round axis steps.
//!
//! Drawings are SVG written by hand: no fonts to ship, no crate to follow, and a diff that can be read.

/// The page: white, with a heading and a grey line below it. `</svg>` is for the caller to write.
pub(crate) fn page(width: f64, height: f64, heading: &str, below: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\" fill=\"#222\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"15\">{}</text>\n<text x=\"12\" y=\"40\" fill=\"#666\">{}</text>\n",
        escape(heading),
        escape(below)
    )
}

/// One line of text; `style` holds further attributes, such as `text-anchor="end"`.
pub(crate) fn text(x: f64, y: f64, style: &str, said: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{}</text>\n", escape(said))
}

/// A straight line; `style` holds at least its stroke.
pub(crate) fn line([x1, y1]: [f64; 2], [x2, y2]: [f64; 2], style: &str) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>\n")
}

/// A round step that divides `span` into at most `marks` parts.
pub(crate) fn step(span: f64, marks: f64) -> f64 {
    let power = 10_f64.powf((span / marks).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
    step.into_iter().find(|step| span / step <= marks).unwrap_or(span)
}

/// Steps of an axis from 0, at most six, and where it ends.
pub(crate) fn axis(most: f64) -> (f64, f64) {
    let step = step(most, 6.0);
    (step, (most / step).ceil() * step)
}

/// The multiples of `step` from `low` to `high`, each with its label.
pub(crate) fn ticks(low: f64, high: f64, step: f64) -> Vec<(f64, String)> {
    let digits = (-step.log10().floor()).max(0.0) as usize;
    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    (first..=last).map(|times| times as f64 * step).map(|at| (at, format!("{at:.digits$}"))).collect()
}

/// Text that may stand between tags.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!(axis(1700.0), (500.0, 2000.0));
        assert_eq!(axis(6000.0), (1000.0, 6000.0));
        assert_eq!(axis(61.0), (20.0, 80.0));
    }

    #[test]
    fn ticks_are_the_multiples_within_and_have_the_digits_of_the_step() {
        let labels =
            |low, high, step| ticks(low, high, step).into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        assert_eq!(labels(0.24, 0.31, 0.02), ["0.24", "0.26", "0.28", "0.30"]);
        assert_eq!(labels(-0.1, 0.1, 0.1), ["-0.1", "0.0", "0.1"]);
        assert_eq!(labels(0.0, 1000.0, 500.0), ["0", "500", "1000"]);
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(text(1.0, 2.0, "", "a < b & c"), "<text x=\"1.0\" y=\"2.0\" >a &lt; b &amp; c</text>\n");
    }
}
