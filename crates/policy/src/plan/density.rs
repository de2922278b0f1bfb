//! What it is worth to keep one sample in a form: saved seconds times their price, over its bytes.

use super::Prices;

/// One sample's own figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Bytes as stored.
    pub encoded: f64,
    /// Bytes decoded.
    pub decoded: f64,
    /// Core-seconds of a read from storage.
    pub read_s: f64,
    /// Core-seconds from file bytes to the decoded form.
    pub decode_s: f64,
}

/// A form that can be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// File bytes: saves the read.
    Encoded,
    /// Pixels: saves the read and the decode.
    Decoded,
}

/// Deliveries per second that a byte buys, if the sample is kept in this form and taken so often per second.
pub fn worth(prices: &Prices, sample: &Sample, form: Form, takes: f64) -> f64 {
    let (seconds, bytes) = match form {
        Form::Encoded => (sample.read_s, sample.encoded),
        Form::Decoded => (sample.read_s + sample.decode_s, sample.decoded),
    };
    if bytes <= 0.0 {
        return 0.0;
    }
    // A price is for a whole unit: a core, 1 MB/s, 100 reads per second.
    let saved = seconds * prices.core + sample.encoded / 1e6 * prices.megabyte + prices.requests / 100.0;
    takes * saved / bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Sample = Sample { encoded: 1e5, decoded: 6e5, read_s: 1e-4, decode_s: 4e-3 };

    #[test]
    fn where_cores_bind_slow_decodes_are_worth_their_bytes() {
        let prices = Prices { core: 200.0, ..Prices::default() };
        let (pixels, file) =
            (worth(&prices, &SAMPLE, Form::Decoded, 0.1), worth(&prices, &SAMPLE, Form::Encoded, 0.1));
        // 0.1 × 4.1 ms × 200 ÷ 600 kB
        assert!((pixels - 0.1 * 0.0041 * 200.0 / 6e5).abs() < 1e-15 && pixels > file);
        let slow = Sample { decode_s: 8e-3, ..SAMPLE };
        assert!(worth(&prices, &slow, Form::Decoded, 0.1) > pixels);
    }

    #[test]
    fn where_storage_binds_files_are() {
        let prices = Prices { megabyte: 10.0, requests: 3.0, ..Prices::default() };
        let of = |form| worth(&prices, &SAMPLE, form, 1.0);
        assert!((of(Form::Encoded) / of(Form::Decoded) - 6.0).abs() < 1e-9);
        assert_eq!(worth(&prices, &Sample { decoded: 0.0, ..SAMPLE }, Form::Decoded, 1.0), 0.0);
    }
}
