//! LISTEN: a commit wakes the worker before its next poll.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::Notify;

/// A connection that is silent for this long may be dead, so it is made again.
const SILENCE: Duration = Duration::from_secs(300);

/// Wakes `wake` whenever the outbox has new rows, and whenever the connection was lost, because
/// notifications of commits during that time are lost too. Runs until dropped.
pub async fn listen(pool: PgPool, wake: Arc<Notify>) {
    loop {
        if let Err(error) = listen_once(&pool, &wake).await {
            tracing::debug!(%error, "not listening for new work, polling continues");
        }
        wake.notify_one();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn listen_once(pool: &PgPool, wake: &Notify) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen("elf_outbox").await?;
    // Rows that were committed before LISTEN took effect.
    wake.notify_one();
    while let Ok(heard) = tokio::time::timeout(SILENCE, listener.try_recv()).await {
        if heard?.is_none() {
            break;
        }
        wake.notify_one();
    }
    Ok(())
}
