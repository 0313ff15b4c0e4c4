//! A proxy in front of a server. It can cut connections, and it can drop their packets.

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes connections on to a server until it is cut. It ends with the
/// test's runtime.
pub struct Proxy {
    port: u16,
    line: watch::Sender<Line>,
}

#[derive(Clone, Copy, PartialEq)]
struct Line {
    is_up: bool,
    /// How often [`Proxy::forget`] was called. Connections that began before the last call get
    /// no more bytes.
    forgotten: u32,
}

impl Proxy {
    /// A proxy in front of `host:port`.
    pub async fn to(host: &str, port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let line = watch::Sender::new(Line {
            is_up: true,
            forgotten: 0,
        });
        let target = (host.to_owned(), port);
        let state = line.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if state.borrow().is_up {
                    tokio::spawn(pass(client, target.clone(), state.clone()));
                }
            }
        });
        Self {
            port: own_port,
            line,
        }
    }

    /// The port on 127.0.0.1 to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends every connection, and every new one at once.
    pub fn cut(&self) {
        self.line.send_modify(|line| line.is_up = false);
    }

    /// Passes new connections on again.
    pub fn restore(&self) {
        self.line.send_modify(|line| line.is_up = true);
    }

    /// Drops the packets of the open connections without ending them, like a firewall that has
    /// lost its state. New connections are passed on.
    pub fn forget(&self) {
        self.line.send_modify(|line| line.forgotten += 1);
    }
}

async fn pass(mut client: TcpStream, target: (String, u16), mut line: watch::Receiver<Line>) {
    let known = line.borrow().forgotten;
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
        _ = line.wait_for(|line| !line.is_up || line.forgotten != known) => {}
    }
    let _ = line.wait_for(|line| !line.is_up).await;
}
