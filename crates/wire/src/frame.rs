//! Frames on a Unix stream socket: a length, a protobuf message, and at times a descriptor.
//!
//! A header of four bytes, little-endian, holds the length of what follows, at most 1 MB; its top bit says
//! that the message goes on in the next frame. A descriptor travels with the first byte of a message.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use prost::Message;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::time::Timespec;

/// Bytes of a frame at most.
pub const FRAME: usize = 1 << 20;
/// Bytes of a message at most: what a job received of 2^28 samples fits.
pub const MESSAGE: usize = 64 << 20;
/// Bytes of a message at most, of any kind but that which may be long: lists take more memory than they have
/// bytes.
const SHORT: usize = 8 << 20;
/// Descriptors that may wait for their message.
const DESCRIPTORS: usize = 4;
const MORE: u32 = 1 << 31;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The other side is gone.
    #[error("the connection was closed")]
    Closed,
    /// It sent what no honest peer sends.
    #[error("{0}")]
    Lie(String),
    /// It took too long.
    #[error("no answer in time")]
    Late,
    /// The system says no.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Trouble::Closed,
            other => Trouble::Io(other.into()),
        }
    }
}

/// Waits until one of the descriptors is ready, or the deadline has passed; tells which are.
pub fn wait<const N: usize>(
    fds: [(BorrowedFd<'_>, PollFlags); N],
    deadline: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ });
        match poll(&mut polled, left.as_ref()) {
            Ok(_) => return Ok(polled.map(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Puts messages into frames.
#[derive(Debug, Default)]
pub struct Sender {
    bytes: Vec<u8>,
    frame: Vec<u8>,
}

impl Sender {
    /// Sends a whole message, waiting for room until the deadline; `dead` becomes readable when there is no
    /// more point in it.
    pub fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        message: &impl Message,
        descriptor: Option<BorrowedFd<'_>>,
        deadline: Instant,
        dead: Option<BorrowedFd<'_>>,
    ) -> Result<(), Trouble> {
        self.bytes.clear();
        message.encode(&mut self.bytes).map_err(|e| Trouble::Lie(e.to_string()))?;
        if self.bytes.len() > MESSAGE {
            return Err(Trouble::Lie(format!("a message of {} bytes is too long to send", self.bytes.len())));
        }
        self.frame.clear();
        let mut chunks = self.bytes.chunks(FRAME).peekable();
        if chunks.peek().is_none() {
            self.frame.extend(0u32.to_le_bytes());
        }
        while let Some(chunk) = chunks.next() {
            let more = if chunks.peek().is_some() { MORE } else { 0 };
            self.frame.extend((chunk.len() as u32 | more).to_le_bytes());
            self.frame.extend(chunk);
        }
        let mut sent = 0;
        while sent < self.frame.len() {
            let descriptor = descriptor.filter(|_| sent == 0);
            match send_once(socket, &self.frame[sent..], descriptor) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let ready = match dead {
                        Some(dead) => {
                            wait([(socket, PollFlags::OUT), (dead, PollFlags::IN)], Some(deadline))?
                        }
                        None => [wait([(socket, PollFlags::OUT)], Some(deadline))?[0], false],
                    };
                    match ready {
                        [_, true] => return Err(Trouble::Closed),
                        [false, _] => return Err(Trouble::Late),
                        _ => {}
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

fn send_once(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|fd| [fd]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// What comes through a socket.
pub trait Kind: Message + Default {
    /// Whether these bytes, of a message, are of a kind that may be long.
    fn may_be_long(bytes: &[u8]) -> bool;
}

/// Takes frames apart into messages.
#[derive(Debug, Default)]
pub struct Frames {
    /// Bytes that came, from `start` on.
    bytes: Vec<u8>,
    start: usize,
    /// The parts of a message so far.
    message: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Frames {
    /// Reads what is there without waiting. Whether anything came.
    pub fn read(&mut self, socket: impl AsFd) -> Result<bool, Trouble> {
        // What was taken apart makes room.
        self.bytes.drain(..std::mem::take(&mut self.start));
        let before = self.bytes.len();
        self.bytes.resize(before + (64 << 10), 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let result = {
            let mut into = [IoSliceMut::new(&mut self.bytes[before..])];
            recvmsg(socket, &mut into, &mut control, flags)
        };
        self.bytes.truncate(before + result.as_ref().map_or(0, |message| message.bytes));
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        match result {
            Ok(message) if message.bytes == 0 => Err(Trouble::Closed),
            Ok(_) if self.descriptors.len() > DESCRIPTORS => {
                Err(Trouble::Lie("it sent descriptors that nobody asked for".into()))
            }
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The next whole message, if it has come.
    pub fn message<M: Kind>(&mut self) -> Result<Option<M>, Trouble> {
        loop {
            let rest = &self.bytes[self.start..];
            let Some((header, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
            let header = u32::from_le_bytes(*header);
            let (length, more) = ((header & !MORE) as usize, header & MORE != 0);
            if length > FRAME {
                return Err(Trouble::Lie(format!("a frame of {length} bytes is over {FRAME}")));
            }
            if self.message.len() + length > MESSAGE {
                return Err(Trouble::Lie(format!("a message is over {MESSAGE} bytes")));
            }
            if more && length == 0 {
                return Err(Trouble::Lie("an empty part of a message".into()));
            }
            if rest.len() < length {
                return Ok(None);
            }
            let part = &rest[..length];
            self.start += 4 + length;
            if more {
                self.message.extend(part);
                continue;
            }
            let decoded = if self.message.is_empty() {
                M::decode(part)
            } else {
                self.message.extend(part);
                let message = std::mem::take(&mut self.message);
                if message.len() > SHORT && !M::may_be_long(&message) {
                    return Err(Trouble::Lie(format!("a message of its kind is over {SHORT} bytes")));
                }
                M::decode(&message[..])
            };
            return decoded.map(Some).map_err(|e| Trouble::Lie(format!("not a message: {e}")));
        }
    }

    /// Whether part of a message has come and the rest has not.
    pub fn is_partial(&self) -> bool {
        !self.message.is_empty() || self.start < self.bytes.len()
    }

    /// The descriptor that came with the message taken last.
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }
}
