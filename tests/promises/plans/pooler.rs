//! The pool has every statement planned anew, unless a pooler refuses that setting.

use elf::store::Store;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::harness::Harness;

/// The pool plans every statement anew, whatever the database's default is.
#[tokio::test]
async fn no_plan_outlives_what_it_was_made_for() {
    let h = Harness::start().await;
    let mode: String = sqlx::query_scalar("show plan_cache_mode")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    assert_eq!(mode, "force_custom_plan");
}

/// PgBouncer in transaction mode, and similar poolers, refuse settings that they cannot pass
/// on.
#[tokio::test]
async fn behind_a_pooler_that_refuses_the_setting_it_connects_without() {
    let h = Harness::start().await;
    let (host, port) = h.database.server();
    let pooler = strict_pooler(host.to_owned(), port).await;
    let store = Store::connect(&h.database.url_through(pooler), 2)
        .await
        .unwrap();
    let mode: String = sqlx::query_scalar("show plan_cache_mode")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(mode, "auto");
}

/// Passes connections on to `host:port`, but for those that ask for a setting.
async fn strict_pooler(host: String, port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own_port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut startup = message(&mut client).await;
            // No TLS, <https://www.postgresql.org/docs/current/protocol-message-formats.html>.
            if startup[4..] == 80_877_103u32.to_be_bytes() {
                client.write_all(b"N").await.unwrap();
                startup = message(&mut client).await;
            }
            if startup.windows(15).any(|name| name == b"plan_cache_mode") {
                let fields = b"SFATAL\0C08P01\0Munsupported startup parameter in options: plan_cache_mode\0\0";
                let length = (fields.len() as u32 + 4).to_be_bytes();
                let refusal = [b"E", &length[..], fields].concat();
                client.write_all(&refusal).await.unwrap();
                continue;
            }
            let mut server = TcpStream::connect((host.as_str(), port)).await.unwrap();
            server.write_all(&startup).await.unwrap();
            tokio::spawn(async move {
                tokio::io::copy_bidirectional(&mut client, &mut server)
                    .await
                    .ok();
            });
        }
    });
    own_port
}

/// A message without a type: its length comes first.
async fn message(client: &mut TcpStream) -> Vec<u8> {
    let mut message = vec![0; 4];
    client.read_exact(&mut message).await.unwrap();
    let length = u32::from_be_bytes(message[..4].try_into().unwrap());
    message.resize(length as usize, 0);
    client.read_exact(&mut message[4..]).await.unwrap();
    message
}
