//! What a job of a stream asks for.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// In which order a job takes its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Its keyed order, with its own copies.
    Strict,
    /// Any copy, but no sample more than so many positions late.
    Late(u64),
    /// Any copy.
    #[default]
    Ready,
}

impl Serialize for Order {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Order::Strict => to.serialize_str("strict"),
            Order::Late(late) => to.serialize_u64(*late),
            Order::Ready => to.serialize_str("ready"),
        }
    }
}

impl<'de> Deserialize<'de> for Order {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(u64),
            Name(String),
        }
        match Raw::deserialize(from)? {
            Raw::Number(0) => Ok(Order::Strict),
            Raw::Number(late) => Ok(Order::Late(late)),
            Raw::Name(name) if name == "strict" => Ok(Order::Strict),
            Raw::Name(name) if name == "ready" => Ok(Order::Ready),
            Raw::Name(name) => {
                Err(de::Error::custom(format!("order {name:?}: \"ready\", \"strict\" or an integer")))
            }
        }
    }
}

/// The last form that a job shares with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Bytes as stored.
    Encoded,
    /// After the deterministic steps.
    Decoded,
    /// Copies themselves.
    #[default]
    Augmented,
}

/// What becomes of samples that do not fill a step of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Remainder {
    /// The first positions come again, marked, until every rank has as many.
    #[default]
    Pad,
    /// The last positions are left out.
    Drop,
    /// Batches of the last step differ by one sample at most and may be empty.
    Uneven,
}
