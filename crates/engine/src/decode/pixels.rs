//! The decoded image a worker holds: interleaved RGB bytes in memory that is reused.

use forebay_recipe::Rect;

use crate::error::Fault;

/// Vector loads may read this many bytes past the last pixel.
pub const SLACK: usize = 32;

/// RGB pixels of one rectangle of an image.
#[derive(Debug)]
pub struct Pixels {
    bytes: Vec<u8>,
    rect: Rect,
}

impl Default for Pixels {
    fn default() -> Self {
        Pixels { bytes: Vec::new(), rect: Rect::whole(0, 0) }
    }
}

impl Pixels {
    /// Makes room for `rect` with `channels` bytes a pixel; refuses more than `limit` bytes.
    pub fn reset(&mut self, rect: Rect, channels: usize, limit: u64) -> Result<(), Fault> {
        let need = u64::from(rect.width) * u64::from(rect.height) * channels as u64;
        if need > limit {
            return Err(Fault::TooLarge { need, allowed: limit });
        }
        let need = need as usize + SLACK;
        if self.bytes.len() < need {
            self.bytes.clear();
            self.bytes.shrink_to_fit();
            self.bytes.resize(need, 0);
        }
        self.rect = rect;
        Ok(())
    }

    /// Where in the image these pixels lie.
    pub fn rect(&self) -> Rect {
        self.rect
    }

    /// Width and height.
    pub fn size(&self) -> (u32, u32) {
        (self.rect.width, self.rect.height)
    }

    /// Declares a new origin or size for the same bytes.
    pub fn set_rect(&mut self, rect: Rect) {
        debug_assert!(rect.width as usize * rect.height as usize * 3 + SLACK <= self.bytes.len());
        self.rect = rect;
    }

    /// The bytes, rows without gaps, with at least [`SLACK`] bytes behind them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Exactly the pixels.
    pub fn rgb(&self) -> &[u8] {
        &self.bytes[..self.rect.width as usize * self.rect.height as usize * 3]
    }

    /// Bytes held, used or not.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Gives memory back when it is far above what is usual.
    pub fn trim(&mut self, keep: usize) {
        if self.bytes.len() > keep {
            self.bytes = Vec::new();
            self.rect = Rect::whole(0, 0);
        }
    }

    /// CMYK as Adobe stores it (inverted) to RGB, in place, with Pillow's rounding.
    pub fn cmyk_to_rgb(&mut self) {
        let pixels = self.rect.width as usize * self.rect.height as usize;
        for i in 0..pixels {
            let [c, m, y, k] = [0, 1, 2, 3].map(|c| 255 - u32::from(self.bytes[i * 4 + c]));
            let white = 255 - k;
            for (channel, ink) in [c, m, y].into_iter().enumerate() {
                let product = ink * white + 128;
                let inked = ((product >> 8) + product) >> 8;
                self.bytes[i * 3 + channel] = white.saturating_sub(inked) as u8;
            }
        }
    }
}
