//! A data set of real JPEGs without a download: [`generate`].
//!
//! Every picture is drawn from its seed and number alone, so the bytes do not depend on the number of
//! threads. A picture is a lit background, a handful of shapes with hard edges, and noise whose octaves
//! fall as 1/f, stronger in some regions than in others: like a photograph, most of a file's bytes sit
//! in the textured parts. Sizes spread around 500×375, one in five upright; chroma is 4:2:0. Quality,
//! then detail, is adjusted until a file has 88 to 112 thousand bytes, as the photographs of ImageNet do.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use forebay_engine::decode::jpeg::{self, Subsampling};
use serde::{Deserialize, Serialize};

use crate::hint::Hinted;
use crate::rng::Rng;

const MARKER: &str = ".forebay-generated.json";
const BYTES: RangeInclusive<usize> = 88_000..=112_000;
const QUALITY: RangeInclusive<u8> = 85..=95;
/// Raised whenever the same parameters would draw other pictures.
const VERSION: u32 = 1;

/// What is asked for; equal parameters make equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Number of files.
    pub(crate) images: u64,
    /// Number of folders, filled in turn.
    pub(crate) classes: u64,
    /// Names the whole set.
    pub(crate) seed: u64,
}

impl Parameters {
    /// A folder name that tells sets apart.
    pub(crate) fn folder(&self) -> String {
        format!("images-{}-classes-{}-seed-{}-v{VERSION}", self.images, self.classes, self.seed)
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    version: u32,
    parameters: Parameters,
    complete: bool,
}

/// What [`generate`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The files were written.
    Made,
    /// An earlier run had already made the same set.
    Found,
}

/// Fills `dir` with `parameters.images` files in class folders; `progress` hears of each one.
///
/// A set that is already there is left alone; a folder that holds anything else is refused.
pub(crate) fn generate(
    dir: &Path,
    parameters: Parameters,
    threads: usize,
    progress: &(dyn Fn() + Sync),
) -> Result<Outcome> {
    let marker = dir.join(MARKER);
    let wanted = |complete| Marker { version: VERSION, parameters, complete };
    match read_marker(&marker)? {
        Some(found) if found == wanted(true) => return Ok(Outcome::Found),
        Some(found) if found == wanted(false) => {}
        Some(_) => bail!(Hinted::new(
            format!("{} holds a data set that was generated with other parameters", dir.display()),
            "name another folder, or delete this one",
        )),
        None if !is_empty(dir)? => bail!(Hinted::new(
            format!("{} is not empty and holds no generated data set", dir.display()),
            "name a folder that is empty or does not exist",
        )),
        None => {}
    }
    let folder = |class: u64| dir.join(format!("class_{class:03}"));
    for class in 0..parameters.classes {
        fs::create_dir_all(folder(class))
            .with_context(|| format!("cannot create {}", folder(class).display()))?;
    }
    write_marker(&marker, &wanted(false))?;

    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || -> Result<()> {
        let mut canvas = Canvas::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= parameters.images || failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let class = number % parameters.classes;
            let path = folder(class).join(format!("image_{number:06}.jpg"));
            let made = draw(&mut canvas, parameters, number)
                .and_then(|bytes| fs::write(&path, bytes).map_err(Into::into))
                .with_context(|| format!("cannot make {}", path.display()));
            if made.is_err() {
                failed.store(true, Ordering::Relaxed);
                return made;
            }
            progress();
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    write_marker(&marker, &wanted(true))?;
    Ok(Outcome::Made)
}

fn read_marker(path: &Path) -> Result<Option<Marker>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(
            serde_json::from_slice(&text).with_context(|| format!("cannot read {}", path.display()))?,
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn write_marker(path: &Path, marker: &Marker) -> Result<()> {
    let unfinished: PathBuf = path.with_extension("unfinished");
    fs::write(&unfinished, serde_json::to_vec(marker)?)
        .and_then(|()| fs::rename(&unfinished, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn is_empty(dir: &Path) -> Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", dir.display())),
    }
}

/// The bytes of picture `number`.
fn draw(canvas: &mut Canvas, parameters: Parameters, number: u64) -> Result<Vec<u8>> {
    let mut rng = Rng::new(parameters.seed, number);
    let (width, height) = size(&mut rng);
    let hue = (number % parameters.classes) as f32 / parameters.classes as f32;
    canvas.paint(&mut rng, width, height, hue);

    // Size grows with quality and with the strength of the detail. Quality has few steps, so it goes
    // first; what it cannot reach, the detail does.
    let target = rng.between(92_000.0, 108_000.0);
    let (mut quality, mut strength) = (90_u8, 1.0_f32);
    for attempt in 0..24 {
        canvas.expose(strength);
        let bytes = jpeg::encode(&canvas.rgb, width, height, quality, Subsampling::S420)?;
        let miss = target / bytes.len() as f32;
        let near = (miss - 1.0).abs() < 0.05 || attempt > 3;
        if near && BYTES.contains(&bytes.len()) {
            return Ok(bytes);
        }
        // One step of quality near 90 is about 7 % of the bytes.
        let steps = ((miss - 1.0) / 0.07).round().clamp(-5.0, 5.0) as i16;
        let (least, most) = (i16::from(*QUALITY.start()), i16::from(*QUALITY.end()));
        let wish = (i16::from(quality) + steps).clamp(least, most) as u8;
        if wish == quality {
            strength *= miss.powf(1.3).clamp(0.4, 2.5);
        }
        quality = wish;
    }
    bail!("the size of picture {number} does not settle")
}

/// Around 500×375 on average; about one in five is upright.
fn size(rng: &mut Rng) -> (usize, usize) {
    let scale = rng.between(0.85, 1.15);
    let stretch = rng.between(0.92, 1.08);
    let (width, height) = if rng.below(5) == 0 { (375.0, 500.0) } else { (531.0, 344.0) };
    ((width * scale * stretch) as usize, (height * scale / stretch) as usize)
}

/// Buffers of one thread, reused from picture to picture.
#[derive(Debug, Default)]
struct Canvas {
    width: usize,
    height: usize,
    /// Colour without fine detail, three values for each pixel.
    base: Vec<f32>,
    /// Fine detail in brightness, already weighted by region.
    detail: Vec<f32>,
    /// How much detail a pixel's region has.
    texture: Vec<f32>,
    rgb: Vec<u8>,
}

impl Canvas {
    fn paint(&mut self, rng: &mut Rng, width: usize, height: usize, hue: f32) {
        (self.width, self.height) = (width, height);
        for (buffer, channels) in [(&mut self.base, 3), (&mut self.detail, 1), (&mut self.texture, 1)] {
            buffer.clear();
            buffer.resize(width * height * channels, 0.0);
        }
        self.light(rng, hue);
        for _ in 0..5 + rng.below(8) {
            self.shape(rng, hue);
        }
        // Low octaves move colour and brightness, high ones only brightness, as sensors see the world.
        let mut layer = std::mem::take(&mut self.detail);
        for (cell, strength) in [(128, 26.0), (64, 15.0)] {
            for channel in 0..3 {
                layer.fill(0.0);
                octave(rng, &mut layer, width, cell, strength);
                self.base
                    .iter_mut()
                    .skip(channel)
                    .step_by(3)
                    .zip(&layer)
                    .for_each(|(pixel, noise)| *pixel += noise);
            }
        }
        layer.fill(0.0);
        for (cell, strength) in [(32, 20.0), (16, 14.0), (8, 11.0), (4, 14.0), (2, 17.0)] {
            octave(rng, &mut layer, width, cell, strength);
        }
        for (detail, texture) in layer.iter_mut().zip(&self.texture) {
            *detail = (*detail + rng.between(-20.0, 20.0)) * texture;
        }
        self.detail = layer;
    }

    /// A background that is lit from one side.
    fn light(&mut self, rng: &mut Rng, hue: f32) {
        let (dx, dy) =
            (rng.between(-1.0, 1.0) / self.width as f32, rng.between(-1.0, 1.0) / self.height as f32);
        let (from, to) = (colour(rng, hue), colour(rng, hue));
        let texture = rng.between(0.4, 1.0);
        for y in 0..self.height {
            for x in 0..self.width {
                let at = y * self.width + x;
                let lit = (0.5
                    + dx * (x as f32 - self.width as f32 / 2.0)
                    + dy * (y as f32 - self.height as f32 / 2.0))
                    .clamp(0.0, 1.0);
                for channel in 0..3 {
                    self.base[at * 3 + channel] = from[channel] + (to[channel] - from[channel]) * lit;
                }
                self.texture[at] = texture;
            }
        }
    }

    /// An ellipse, a turned box or a striped box with its own colour and texture.
    fn shape(&mut self, rng: &mut Rng, hue: f32) {
        let (cx, cy) = (rng.between(0.0, self.width as f32), rng.between(0.0, self.height as f32));
        let (rx, ry) =
            (rng.between(0.04, 0.3) * self.width as f32, rng.between(0.04, 0.3) * self.height as f32);
        // A rotation without trigonometry: a random direction, normalised.
        let (ux, uy) = (rng.between(-1.0, 1.0), rng.between(0.1, 1.0));
        let length = (ux * ux + uy * uy).sqrt();
        let (ux, uy) = (ux / length, uy / length);
        let kind = rng.below(3);
        let stripe = rng.between(6.0, 24.0);
        let fill = colour(rng, hue);
        let shade = rng.between(-40.0, 40.0);
        let texture = rng.between(0.1, 1.8);
        let reach = rx.max(ry) * 1.5;
        let span = |centre: f32, end: usize| {
            ((centre - reach).max(0.0) as usize)..((centre + reach).max(0.0) as usize + 1).min(end)
        };
        for y in span(cy, self.height) {
            for x in span(cx, self.width) {
                let (px, py) = (x as f32 - cx, y as f32 - cy);
                let (along, across) = (px * ux + py * uy, py * ux - px * uy);
                let (nx, ny) = (along / rx, across / ry);
                let edge = if kind == 0 { (nx * nx + ny * ny).sqrt() } else { nx.abs().max(ny.abs()) };
                let cover = ((1.0 - edge) * rx.min(ry) + 0.5).clamp(0.0, 1.0);
                if cover > 0.0 {
                    let striped = kind == 2 && (along / stripe).floor() as i32 % 2 == 0;
                    let tone = shade * ny + if striped { 35.0 } else { 0.0 };
                    let at = y * self.width + x;
                    for (pixel, fill) in self.base[at * 3..][..3].iter_mut().zip(fill) {
                        *pixel += (fill + tone - *pixel) * cover;
                    }
                    self.texture[at] += (texture - self.texture[at]) * cover;
                }
            }
        }
    }

    /// Base and detail as 8-bit RGB.
    fn expose(&mut self, strength: f32) {
        self.rgb.clear();
        self.rgb.extend(self.base.chunks_exact(3).zip(&self.detail).flat_map(|(pixel, detail)| {
            [pixel[0], pixel[1], pixel[2]].map(|value| (value + detail * strength) as u8)
        }));
    }
}

/// A colour near the class's hue, light or dark.
fn colour(rng: &mut Rng, hue: f32) -> [f32; 3] {
    let turned = hue + rng.between(-0.18, 0.18);
    let (value, saturation) = (rng.between(70.0, 210.0), rng.between(0.1, 0.6));
    [0.0, 1.0 / 3.0, 2.0 / 3.0].map(|offset| {
        let wave = ((turned + offset).rem_euclid(1.0) * 2.0 - 1.0).abs() * 2.0 - 1.0;
        value * (1.0 + saturation * wave)
    })
}

/// Adds smooth noise whose lattice points are `cell` pixels apart.
fn octave(rng: &mut Rng, layer: &mut [f32], width: usize, cell: usize, strength: f32) {
    let columns = width / cell + 2;
    let line = |rng: &mut Rng| (0..columns).map(|_| rng.between(-strength, strength)).collect::<Vec<f32>>();
    let smooth = |t: f32| t * t * (3.0 - 2.0 * t);
    let weights: Vec<f32> = (0..cell).map(|i| smooth(i as f32 / cell as f32)).collect();
    let (mut above, mut below) = (line(rng), line(rng));
    let mut mixed = vec![0.0; columns];
    for (y, row) in layer.chunks_exact_mut(width).enumerate() {
        if y > 0 && y.is_multiple_of(cell) {
            above = std::mem::replace(&mut below, line(rng));
        }
        let down = weights[y % cell];
        for ((mixed, above), below) in mixed.iter_mut().zip(&above).zip(&below) {
            *mixed = above + (below - above) * down;
        }
        for (pixels, ends) in row.chunks_mut(cell).zip(mixed.windows(2)) {
            for (pixel, right) in pixels.iter_mut().zip(&weights) {
                *pixel += ends[0] + (ends[1] - ends[0]) * right;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Parameters = Parameters { images: 24, classes: 3, seed: 5 };

    fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        for class in
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
        {
            for entry in fs::read_dir(class).unwrap() {
                let path = entry.unwrap().path();
                let bytes = fs::read(&path).unwrap();
                found.push((path.strip_prefix(dir).unwrap().to_owned(), bytes));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn the_bytes_do_not_depend_on_the_threads() {
        let (one, three) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert_eq!(generate(one.path(), FEW, 1, &|| {}).unwrap(), Outcome::Made);
        assert_eq!(generate(three.path(), FEW, 3, &|| {}).unwrap(), Outcome::Made);
        let files = files(one.path());
        assert_eq!(files.len(), 24);
        assert!(files == self::files(three.path()));
        assert!(files.iter().all(|(_, bytes)| BYTES.contains(&bytes.len())));
    }

    #[test]
    fn sizes_spread_around_500_by_375() {
        let sizes: Vec<_> = (0..4000).map(|number| size(&mut Rng::new(1, number))).collect();
        let mean = |pick: fn(&(usize, usize)) -> usize| sizes.iter().map(pick).sum::<usize>() as f64 / 4000.0;
        assert!((mean(|size| size.0) - 500.0).abs() < 5.0, "{}", mean(|size| size.0));
        assert!((mean(|size| size.1) - 375.0).abs() < 5.0, "{}", mean(|size| size.1));
        assert!((600..1000).contains(&sizes.iter().filter(|size| size.1 > size.0).count()));
    }

    #[test]
    fn a_finished_set_is_found_and_an_interrupted_one_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let few = Parameters { images: 3, ..FEW };
        generate(dir.path(), few, 2, &|| {}).unwrap();
        let whole = files(dir.path());
        assert_eq!(generate(dir.path(), few, 2, &|| panic!("made again")).unwrap(), Outcome::Found);
        write_marker(
            &dir.path().join(MARKER),
            &Marker { version: VERSION, parameters: few, complete: false },
        )
        .unwrap();
        fs::write(dir.path().join("class_000/image_000000.jpg"), "cut").unwrap();
        assert_eq!(generate(dir.path(), few, 2, &|| {}).unwrap(), Outcome::Made);
        assert!(whole == files(dir.path()));
    }

    #[test]
    fn other_peoples_folders_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "all of it").unwrap();
        assert!(generate(dir.path(), FEW, 1, &|| {}).is_err());
        let dir = tempfile::tempdir().unwrap();
        generate(dir.path(), Parameters { images: 1, ..FEW }, 1, &|| {}).unwrap();
        assert!(generate(dir.path(), FEW, 1, &|| {}).is_err());
    }
}
