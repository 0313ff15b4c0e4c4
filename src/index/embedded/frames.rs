//! What two processes send each other: a [`Greeting`], a request and an answer, each a frame of
//! MessagePack behind its length. MessagePack keeps the bits of a float.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio_util::bytes::Bytes;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// The longest frame, in bytes: a page of 1,000 points with the largest vectors that Postgres
/// holds (16,000 floats) takes a third.
const LONGEST: usize = 256 << 20;

/// A connection.
pub(super) type Frames = Framed<UnixStream, LengthDelimitedCodec>;

/// The frames of a connection.
pub(super) fn over(stream: UnixStream) -> Frames {
    LengthDelimitedCodec::builder()
        .max_frame_length(LONGEST)
        .new_framed(stream)
}

/// What the process that has the folder open says first. Every version of ELF must be able to read
/// it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Greeting {
    /// Of ELF. Only the same version understands requests and answers.
    pub(super) version: String,
    /// `process 4711 (elf)`
    pub(super) process: String,
}

impl Greeting {
    /// Of the process that calls itself so.
    pub(super) fn of(process: String) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process,
        }
    }

    /// Why this process cannot ask that one.
    pub(super) fn misfit(&self) -> Option<String> {
        let (own, theirs) = (env!("CARGO_PKG_VERSION"), &self.version);
        (own != theirs).then(|| {
            format!(
                "{} has the folder open and is elf {theirs}, this is elf {own}: stop that one, or \
                 run the same version",
                self.process
            )
        })
    }
}

/// The frame of a value.
pub(super) fn encoded(value: &impl Serialize) -> io::Result<Bytes> {
    let frame = rmp_serde::to_vec_named(value).map_err(io::Error::other)?;
    match frame.len() <= LONGEST {
        true => Ok(frame.into()),
        false => Err(io::Error::other(format!(
            "it has {} bytes, more than {LONGEST}",
            frame.len()
        ))),
    }
}

/// The value of a frame.
pub(super) fn decoded<T: DeserializeOwned>(frame: &[u8]) -> io::Result<T> {
    rmp_serde::from_slice(frame).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
