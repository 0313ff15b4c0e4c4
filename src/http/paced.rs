//! A connection whose client must take what ELF sends at a pace: what it does not take, ELF keeps
//! in memory.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::clients::Client;
use super::connection::refuse;

/// A client that blocks must take [`LEAST_BYTES`] within this time.
const WINDOW: Duration = Duration::from_secs(10);

/// 32 KiB a second, which a slow mobile network has.
const LEAST_BYTES: usize = 320 << 10;

/// The connection of a client.
pub struct Paced {
    stream: TcpStream,
    client: Arc<Client>,
    window: Option<Window>,
}

/// From the moment when the client blocked.
struct Window {
    /// The answer that it blocked: each has a window of its own.
    answer: u64,
    end: Pin<Box<Sleep>>,
    taken: usize,
}

impl Paced {
    pub fn new(stream: TcpStream, client: Arc<Client>) -> Self {
        Self {
            stream,
            client,
            window: None,
        }
    }

    /// Notes what came of a write.
    fn paced(
        &mut self,
        context: &mut Context<'_>,
        wrote: Poll<Result<usize>>,
    ) -> Poll<Result<usize>> {
        if let Poll::Ready(wrote) = wrote {
            self.client.takes();
            if let (Ok(bytes), Some(window)) = (&wrote, &mut self.window) {
                window.taken += bytes;
                if window.taken >= LEAST_BYTES {
                    self.window = None;
                }
            }
            return Poll::Ready(wrote);
        }
        self.client.blocks();
        let answer = self.client.requests();
        let current = self.window.take().filter(|window| window.answer == answer);
        let window = self.window.insert(current.unwrap_or_else(|| Window {
            answer,
            end: Box::pin(tokio::time::sleep(WINDOW)),
            taken: 0,
        }));
        ready!(window.end.as_mut().poll(context));
        refuse("slow_reader");
        Poll::Ready(Err(Error::new(
            ErrorKind::TimedOut,
            "the client reads too slowly",
        )))
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.paced(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.paced(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
