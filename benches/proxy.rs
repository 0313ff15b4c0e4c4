//! A TCP proxy in a process of its own that holds every piece of a stream back for half a
//! millisecond, in both directions: a network of 1 ms. Pieces wait side by side, so that the
//! proxy limits no throughput.
//!
//! It has threads, because tokio's timers are a millisecond coarse.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::process::Helper;
use crate::report::median;

/// The argument of the process.
pub const ROLE: &str = "--proxy";

const ONE_WAY: Duration = Duration::from_micros(500);

pub struct Proxy {
    /// Its host and port.
    pub address: String,
    _process: Helper,
}

impl Proxy {
    /// A proxy to the host and port of this URL.
    pub fn to(url: &str) -> Result<Self> {
        let url = reqwest::Url::parse(url)?;
        let host = url.host_str().ok_or("the URL has no host")?;
        let port = url.port().ok_or("the URL has no port")?;
        let (process, address) = Helper::start(&[ROLE, &format!("{host}:{port}")])?;
        Ok(Self {
            address,
            _process: process,
        })
    }

    /// The URL with the proxy in the place of its host and port.
    pub fn url(&self, url: &str) -> Result<String> {
        let mut url = reqwest::Url::parse(url)?;
        let (host, port) = self.address.split_once(':').ok_or("no port")?;
        url.set_host(Some(host))?;
        url.set_port(Some(port.parse()?))
            .map_err(|()| "no port in this URL")?;
        Ok(url.into())
    }
}

/// The median time of a byte through a proxy to an echo and back, in milliseconds.
pub fn ping_millis() -> Result<f64> {
    let echo = TcpListener::bind("127.0.0.1:0")?;
    let proxy = Proxy::to(&format!("tcp://{}", echo.local_addr()?))?;
    thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = echo.accept()?;
        stream.set_nodelay(true)?;
        let mut byte = [0];
        while stream.read(&mut byte)? > 0 {
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(&proxy.address)?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(&times))
}

/// The process: prints its address and serves until it is killed.
pub fn serve(arguments: &[String]) -> Result<()> {
    let target = arguments.first().ok_or("a proxy to what?")?.clone();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    for client in listener.incoming() {
        let client = client?;
        let server = TcpStream::connect(&target)?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        delay(client.try_clone()?, server.try_clone()?);
        delay(server, client);
    }
    Ok(())
}

/// Passes on what `from` says, each piece when it is old enough.
fn delay(mut from: TcpStream, mut to: TcpStream) {
    let (pieces, arrived) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let piece = (Instant::now() + ONE_WAY, buffer[..read].to_vec());
            if pieces.send(piece).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, piece) in arrived {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
