//! A set of positions that is dense or sparse, small in memory and in a state.

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Up to this many are written as plain numbers.
const PLAIN: u64 = 64;
/// Positions of one set lie no further apart: a state comes from outside, and must not ask for memory.
const SPAN: u64 = 1 << 32;

/// A bitmap that begins at its lowest member.
///
/// In JSON it is a list of numbers while it is small. Else it is text: `bits:` with its first position and
/// the bitmap, or `gaps:` with the distances from one member to the next as little-endian base-128 numbers,
/// whichever is shorter, both in base64.
#[derive(Debug, Clone, Default)]
pub struct Positions {
    /// Word that `words[0]` is.
    first: u64,
    words: VecDeque<u64>,
    len: u64,
}

impl Positions {
    /// How many.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `position` is in.
    pub fn contains(&self, position: u64) -> bool {
        let word = (position / 64).checked_sub(self.first).and_then(|at| self.words.get(at as usize));
        word.is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    /// Adds a position; whether it was new.
    pub fn insert(&mut self, position: u64) -> bool {
        let at = position / 64;
        if self.words.is_empty() {
            self.first = at;
        }
        while at < self.first {
            self.words.push_front(0);
            self.first -= 1;
        }
        let at = (at - self.first) as usize;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let new = self.words[at] >> (position % 64) & 1 == 0;
        self.words[at] |= 1 << (position % 64);
        self.len += u64::from(new);
        new
    }

    /// Takes a position out; whether it was in.
    pub fn remove(&mut self, position: u64) -> bool {
        if !self.contains(position) {
            return false;
        }
        self.words[(position / 64 - self.first) as usize] &= !(1 << (position % 64));
        self.len -= 1;
        while self.words.front() == Some(&0) {
            self.words.pop_front();
            self.first += 1;
        }
        true
    }

    /// Ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + Clone + '_ {
        self.words.iter().zip(self.first..).flat_map(|(&word, at)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        })
    }

    /// The highest.
    pub fn last(&self) -> Option<u64> {
        let at = self.words.iter().rposition(|word| *word != 0)?;
        Some((self.first + at as u64) * 64 + 63 - u64::from(self.words[at].leading_zeros()))
    }

    fn text(&self) -> String {
        let mut gaps = Vec::new();
        let mut before = 0;
        for position in self.iter() {
            let mut gap = position - std::mem::replace(&mut before, position);
            while gap >= 128 {
                gaps.push(gap as u8 | 128);
                gap >>= 7;
            }
            gaps.push(gap as u8);
        }
        let bits: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if gaps.len() < bits.len() {
            format!("gaps:{}", STANDARD.encode(gaps))
        } else {
            format!("bits:{}:{}", self.first * 64, STANDARD.encode(bits))
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut set = Positions::default();
        if let Some(gaps) = text.strip_prefix("gaps:") {
            let (mut position, mut gap, mut shift) = (0u64, 0u64, 0);
            for byte in STANDARD.decode(gaps).ok()? {
                gap |= u64::from(byte & 127).checked_shl(shift).filter(|_| shift < 57)?;
                shift += 7;
                if byte < 128 {
                    position = position.checked_add(gap)?;
                    set.add_checked(position)?;
                    (gap, shift) = (0, 0);
                }
            }
            return (shift == 0).then_some(set);
        }
        let (first, bits) = text.strip_prefix("bits:")?.split_once(':')?;
        let first: u64 = first.parse().ok().filter(|first: &u64| first.is_multiple_of(64))?;
        let bits = STANDARD.decode(bits).ok()?;
        let words = bits.chunks(8).map(|chunk| {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(bytes)
        });
        set.words = words.collect();
        set.first = first / 64;
        if set.first + set.words.len() as u64 > u64::MAX / 64 {
            return None;
        }
        set.len = set.words.iter().map(|word| u64::from(word.count_ones())).sum();
        Some(set)
    }

    /// Adds a position from outside, if that needs no unreasonable memory.
    fn add_checked(&mut self, position: u64) -> Option<()> {
        let lowest = if self.words.is_empty() { position } else { self.first * 64 };
        let highest =
            lowest.max(position).max(self.first.saturating_add(self.words.len() as u64).saturating_mul(64));
        if highest - lowest.min(position) > SPAN && !self.words.is_empty() {
            return None;
        }
        self.insert(position);
        Some(())
    }
}

impl PartialEq for Positions {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for Positions {}

impl Extend<u64> for Positions {
    fn extend<T: IntoIterator<Item = u64>>(&mut self, positions: T) {
        positions.into_iter().for_each(|position| {
            self.insert(position);
        });
    }
}

impl FromIterator<u64> for Positions {
    fn from_iter<T: IntoIterator<Item = u64>>(positions: T) -> Self {
        let mut set = Positions::default();
        set.extend(positions);
        set
    }
}

impl Serialize for Positions {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.len <= PLAIN { to.collect_seq(self.iter()) } else { to.serialize_str(&self.text()) }
    }
}

impl<'de> Deserialize<'de> for Positions {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Plain(Vec<u64>),
            Text(String),
        }
        let set = match Raw::deserialize(from)? {
            Raw::Plain(list) => {
                let mut set = Positions::default();
                list.into_iter().try_for_each(|position| set.add_checked(position)).map(|()| set)
            }
            Raw::Text(text) => Positions::parse(&text),
        };
        set.ok_or_else(|| de::Error::custom("a set of positions is damaged"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_set_and_survives_json(
            base in 0u64..1 << 40, span in 1u64..50_000, moves in prop::collection::vec(any::<u64>(), 0..600),
        ) {
            let (mut set, mut model) = (Positions::default(), BTreeSet::new());
            for pick in moves {
                let position = base + pick % span;
                if pick % 5 == 0 {
                    prop_assert_eq!(set.remove(position), model.remove(&position));
                } else {
                    prop_assert_eq!(set.insert(position), model.insert(position));
                }
                prop_assert_eq!(set.contains(position), model.contains(&position));
            }
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!((set.len(), set.last()), (model.len() as u64, model.last().copied()));
            let text = serde_json::to_string(&set).expect("plain data");
            prop_assert_eq!(serde_json::from_str::<Positions>(&text).expect("its own text"), set);
        }
    }

    #[test]
    fn a_million_positions_take_a_sixth_of_a_megabyte_at_most() {
        let random = |part: u64| (0..1_000_000).filter(move |&p| crate::permute::mix(p) % 100 < part);
        for (part, most) in [(1, 20_000), (50, 170_000), (99, 170_000)] {
            let set: Positions = random(part).collect();
            let text = serde_json::to_string(&set).expect("plain data");
            assert!(text.len() < most, "{} bytes for {part} %", text.len());
        }
    }

    #[test]
    fn damage_is_an_error_and_takes_no_memory() {
        for text in [
            "[0, 9223372036854775807]",
            "\"gaps:////////////\"",
            "\"gaps:gA==\"",
            "\"bits:1:AA==\"",
            "\"bits:x\"",
            "\"bits:18446744073709551552:AAAAAAAAAAAAAAAAAAAAAA==\"",
            "\"what\"",
            "{\"a\": 1}",
        ] {
            assert!(serde_json::from_str::<Positions>(text).is_err(), "{text}");
        }
    }
}
