//! Cast, normalise, lay out and erase, once per sample, while the batch is written.

use forebay_recipe::{Coins, Drawn, Erasure, Fill, Finish, Layout, Output, Recipe};

use super::Value;
use crate::Result;
use crate::kernels::{Simd, Table, store};

/// The last part of a recipe, ready to run.
#[derive(Debug, Clone)]
pub struct Finisher {
    finish: Finish,
    table: Table,
    simd: Simd,
}

impl Finisher {
    /// Resolves the recipe's last part for one output.
    pub fn new(recipe: &Recipe, output: Output) -> Result<Self> {
        let finish = recipe.finish(output)?;
        let table = Table::new(finish.dtype, finish.scale, finish.normalize);
        Ok(Finisher { finish, table, simd: Simd::detect() })
    }

    /// What it does, as data.
    pub fn as_data(&self) -> &Finish {
        &self.finish
    }

    /// Bytes of one finished image.
    pub fn bytes(&self, width: u32, height: u32) -> usize {
        width as usize * height as usize * 3 * self.finish.dtype.bytes()
    }

    /// Writes one field of a sample to the end of its piece of a batch.
    pub fn write(&self, value: &Value, drawn: &Drawn, piece: &mut [u8]) {
        match value {
            Value::Image(_) | Value::Kept(_) => {
                let Some(pixels) = value.pixels() else { return };
                let start = piece.len() - self.bytes(drawn.width, drawn.height);
                self.finish(pixels.rgb(), drawn.width, &drawn.erasures, &mut piece[start..]);
            }
            Value::Class(index) => {
                let start = piece.len() - size_of::<i64>();
                piece[start..].copy_from_slice(&index.to_ne_bytes());
            }
        }
    }

    /// Finishes an RGB image of the given width into `dst`.
    pub fn finish(&self, rgb: &[u8], width: u32, erasures: &[Erasure], dst: &mut [u8]) {
        let channels_last = self.finish.layout == Layout::ChannelsLast;
        self.simd.finish(rgb, &self.table, channels_last, dst);
        for erasure in erasures {
            self.erase(rgb.len() / 3, width as usize, erasure, dst);
        }
    }

    fn erase(&self, pixels: usize, width: usize, Erasure { rect, fill }: &Erasure, dst: &mut [u8]) {
        let mut noise = match fill {
            Fill::Noise { name, step } => Some(Coins::new(name, *step)),
            Fill::Constant(_) => None,
        };
        for c in 0..3 {
            for y in rect.y..rect.y + rect.height {
                for x in rect.x..rect.x + rect.width {
                    let pixel = y as usize * width + x as usize;
                    let at = match self.finish.layout {
                        Layout::Nchw => c * pixels + pixel,
                        Layout::ChannelsLast => pixel * 3 + c,
                    };
                    let value = match (&mut noise, fill) {
                        (Some(coins), _) => coins.normal(),
                        (None, Fill::Constant(value)) => value[c],
                        (None, Fill::Noise { .. }) => unreachable!("noise has coins"),
                    };
                    store(dst, self.finish.dtype, at, value);
                }
            }
        }
    }
}
