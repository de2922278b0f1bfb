//! One buffer, cut into pieces that threads claim and fill.
//!
//! The usual way is to split a `&mut [u8]` and send the parts through channels; that would tie a batch
//! to a scope. Here the buffer is owned by a [`Cut`] behind an `Arc`, a counter hands out each piece
//! once, and the buffer comes back when the last piece is dropped.
#![expect(unsafe_code, reason = "disjoint mutable pieces of one allocation")]

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Buffer;

/// A buffer being filled by several threads.
#[derive(Debug)]
pub struct Cut {
    buffer: Mutex<Option<Buffer>>,
    start: *mut u8,
    ends: Vec<usize>,
    next: AtomicUsize,
    left: AtomicUsize,
}

// SAFETY: `start` points into `buffer`, and each byte is reachable from one Piece at most.
unsafe impl Send for Cut {}
// SAFETY: as above; the counters are atomic.
unsafe impl Sync for Cut {}

/// Exclusive access to one piece; dropping it says that the piece is filled.
#[derive(Debug)]
pub struct Piece<'a> {
    cut: &'a Cut,
    index: usize,
    bytes: &'a mut [u8],
}

impl Cut {
    /// Cuts `buffer` at the given ends (ascending, inside the buffer): piece `i` is `ends[i-1]..ends[i]`.
    ///
    /// # Panics
    /// When the ends do not ascend or pass the end of the buffer.
    pub fn new(buffer: Buffer, ends: Vec<usize>) -> Self {
        assert!(
            ends.is_sorted() && ends.last().is_none_or(|&end| end <= buffer.len()),
            "pieces must not overlap"
        );
        Cut {
            start: buffer.as_ptr(),
            left: AtomicUsize::new(ends.len()),
            next: AtomicUsize::new(0),
            buffer: Mutex::new(Some(buffer)),
            ends,
        }
    }

    /// The next piece that nobody has claimed.
    pub fn claim(&self) -> Option<Piece<'_>> {
        // Relaxed is enough: the counter only makes claims unique; filling is ordered by `left`.
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let end = *self.ends.get(index)?;
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        // SAFETY: `begin..end` lies in the buffer (checked in `new`), pieces do not overlap, each index is
        // handed out once, and `take` gives the buffer away only after every piece is dropped.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.add(begin), end - begin) };
        Some(Piece { cut: self, index, bytes })
    }

    /// Whether every piece has been claimed.
    pub fn is_claimed(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.ends.len()
    }

    /// The buffer, once every piece has been claimed and dropped; `None` before, and after the first take.
    pub fn take(&self) -> Option<Buffer> {
        if self.left.load(Ordering::Acquire) == 0 {
            self.buffer.lock().unwrap_or_else(|e| e.into_inner()).take()
        } else {
            None
        }
    }
}

impl Piece<'_> {
    /// Which piece this is.
    pub fn index(&self) -> usize {
        self.index
    }
}

impl Deref for Piece<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for Piece<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        self.cut.left.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_claimed_once_and_the_buffer_returns_when_all_are_filled() {
        for buffer in [Buffer::new(1000), Buffer::lendable(1000).expect("a small slot")] {
            let (start, number) = (buffer.as_ptr(), buffer.number());
            let cut = Cut::new(buffer, (1..=100).map(|i| i * 10).collect());
            assert!(cut.take().is_none());
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        while let Some(mut piece) = cut.claim() {
                            let value = piece.index() as u8;
                            piece.fill(value);
                        }
                    });
                }
            });
            let buffer = cut.take().expect("all pieces are filled");
            assert!(buffer[..1000].iter().enumerate().all(|(i, &b)| b == (i / 10) as u8));
            assert_eq!((buffer.as_ptr(), buffer.number()), (start, number));
            assert!(cut.take().is_none());
        }
    }

    #[test]
    fn a_held_piece_keeps_the_buffer() {
        let cut = Cut::new(Buffer::new(4), vec![2, 4]);
        let first = cut.claim();
        drop(cut.claim());
        assert!(cut.take().is_none());
        drop(first);
        assert!(cut.take().is_some());
    }

    #[test]
    #[should_panic(expected = "must not overlap")]
    fn overlapping_pieces_are_refused() {
        Cut::new(Buffer::new(4), vec![3, 2]);
    }
}
