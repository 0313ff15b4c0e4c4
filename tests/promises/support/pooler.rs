//! A stand-in for a connection pooler: it passes connections on to Postgres, and can refuse them as poolers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A refusal at the start of a session.
#[derive(Clone, PartialEq)]
pub struct Refusal {
    pub sqlstate: String,
    pub message: String,
}

#[derive(Clone, PartialEq)]
enum Mode {
    Pass,
    /// Refuses sessions that ask for settings.
    RefuseOptions(Refusal),
    /// Refuses new sessions, and ends those that are open.
    Refuse(Refusal),
}

/// It ends with the test's runtime.
pub struct Pooler {
    port: u16,
    mode: Arc<watch::Sender<Mode>>,
    refused: Arc<AtomicUsize>,
}

impl Pooler {
    /// A pooler in front of `host:port`.
    pub async fn to((host, port): (&str, u16)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let mode = Arc::new(watch::Sender::new(Mode::Pass));
        let refused = Arc::new(AtomicUsize::new(0));
        let (target, state) = ((host.to_owned(), port), mode.clone());
        let count = refused.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (target, mode, count) = (target.clone(), state.subscribe(), count.clone());
                tokio::spawn(async move { pass(client, target, mode, &count).await.ok() });
            }
        });
        Self {
            port: own_port,
            mode,
            refused,
        }
    }

    /// The port on 127.0.0.1 to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Refuses sessions that ask for settings.
    pub fn refuse_options(&self, sqlstate: &str, message: &str) {
        let (sqlstate, message) = (sqlstate.to_owned(), message.to_owned());
        let refusal = Refusal { sqlstate, message };
        self.mode.send_replace(Mode::RefuseOptions(refusal));
    }

    /// Refuses every session, and ends those that are open.
    pub fn refuse(&self, sqlstate: &str, message: &str) {
        let (sqlstate, message) = (sqlstate.to_owned(), message.to_owned());
        let refusal = Refusal { sqlstate, message };
        self.mode.send_replace(Mode::Refuse(refusal));
    }

    /// How many sessions it has refused.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Passes all sessions on.
    pub fn pass(&self) {
        self.mode.send_replace(Mode::Pass);
    }
}

async fn pass(
    mut client: TcpStream,
    target: (String, u16),
    mut mode: watch::Receiver<Mode>,
    refused: &AtomicUsize,
) -> std::io::Result<()> {
    let mut startup = message(&mut client).await?;
    // No TLS, <https://www.postgresql.org/docs/current/protocol-message-formats.html>.
    if startup[4..] == 80_877_103u32.to_be_bytes() {
        client.write_all(b"N").await?;
        startup = message(&mut client).await?;
    }
    let asks = startup.windows(8).any(|name| name == b"options\0");
    let refusal = match &*mode.borrow_and_update() {
        Mode::RefuseOptions(refusal) if asks => Some(refusal.clone()),
        Mode::Refuse(refusal) => Some(refusal.clone()),
        _ => None,
    };
    if let Some(Refusal { sqlstate, message }) = refusal {
        refused.fetch_add(1, Ordering::Relaxed);
        let fields = format!("SFATAL\0VFATAL\0C{sqlstate}\0M{message}\0\0");
        let length = (fields.len() as u32 + 4).to_be_bytes();
        return client
            .write_all(&[b"E", &length[..], fields.as_bytes()].concat())
            .await;
    }
    let mut server = TcpStream::connect(target).await?;
    server.write_all(&startup).await?;
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = mode.wait_for(|mode| matches!(mode, Mode::Refuse(_))) => {}
    }
    Ok(())
}

/// A message without a type: its length comes first.
async fn message(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; 4];
    client.read_exact(&mut message).await?;
    let length = u32::from_be_bytes(message[..4].try_into().expect("four bytes"));
    message.resize(length as usize, 0);
    client.read_exact(&mut message[4..]).await?;
    Ok(message)
}
