//! A line to a server that can be cut.

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes connections on to a server while the line is up. It ends with the
/// test's runtime.
pub struct Proxy {
    port: u16,
    up: watch::Sender<bool>,
}

impl Proxy {
    /// A line to `host:port`.
    pub async fn to(host: &str, port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let up = watch::Sender::new(true);
        let target = (host.to_owned(), port);
        let state = up.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *state.borrow() {
                    tokio::spawn(pass(client, target.clone(), state.clone()));
                }
            }
        });
        Self { port: own_port, up }
    }

    /// The port on 127.0.0.1 to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends every connection, and every new one at once.
    pub fn cut(&self) {
        self.up.send_replace(false);
    }

    /// Passes new connections on again.
    pub fn mend(&self) {
        self.up.send_replace(true);
    }
}

async fn pass(mut client: TcpStream, target: (String, u16), mut up: watch::Receiver<bool>) {
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = up.wait_for(|up| !up) => {}
    }
}
