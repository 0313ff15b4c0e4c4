//! What systemd hears from a worker.

use tokio::net::UnixDatagram;

use crate::support::embedding_server::Behaviour;
use crate::support::site::{Running, Site};

/// The socket on which systemd receives a service's messages.
struct Systemd {
    socket: UnixDatagram,
    path: std::path::PathBuf,
}

impl Systemd {
    fn of(site: &Site) -> Self {
        let path = site.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self { socket, path }
    }

    /// Starts a worker that has to feed the watchdog every 400 ms.
    fn worker(&self, site: &Site) -> Running {
        let socket = self.path.to_str().unwrap();
        site.worker_with(&[("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", "400000")])
    }

    /// Waits for a message with `word` in it, and gives it.
    async fn hears(&self, word: &str) -> String {
        let mut message = [0; 4096];
        let wait = async {
            loop {
                let length = self.socket.recv(&mut message).await.unwrap();
                let text = String::from_utf8_lossy(&message[..length]).into_owned();
                if text.contains(word) {
                    return text;
                }
            }
        };
        tokio::time::timeout(crate::support::DEADLINE, wait)
            .await
            .unwrap_or_else(|_| panic!("it never heard {word:?}"))
    }
}

#[tokio::test]
async fn systemd_is_told_of_the_start_the_work_and_the_stop() {
    let site = Site::start().await;
    let systemd = Systemd::of(&site);
    let worker = systemd.worker(&site);
    assert!(systemd.hears("READY=1").await.contains("STATUS=working"));
    systemd.hears("WATCHDOG=1").await;
    systemd.hears("STATUS=ready: 0 pending").await;
    site.provider.always(Behaviour::Status(503));
    site.note("waits").await;
    let status = systemd.hears("STATUS=not ready").await;
    assert!(status.contains("provider"), "{status}");
    // A paused worker still feeds the watchdog.
    systemd.hears("WATCHDOG=1").await;
    worker.signal("TERM").await;
    systemd.hears("STOPPING=1").await;
    worker.ended().await.exits(0);
}

#[tokio::test]
async fn systemd_neither_waits_for_an_unavailable_postgres_nor_kills_a_worker_that_does() {
    let (site, line) = Site::start().await.behind_a_proxy().await;
    line.cut();
    let systemd = Systemd::of(&site);
    let worker = systemd.worker(&site);
    let ready = systemd.hears("READY=1").await;
    assert!(ready.contains("STATUS=waiting:"), "{ready}");
    systemd.hears("WATCHDOG=1").await;
    systemd.hears("WATCHDOG=1").await;
    worker.kill().await;
}
