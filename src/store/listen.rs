//! LISTEN: a commit wakes the worker before its next poll.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::sync::Notify;

use super::Store;

/// A connection that is silent for this long may be dead, so it is made again.
const SILENCE: Duration = Duration::from_secs(300);

impl Store {
    /// Wakes `wake` whenever the outbox has new rows, and whenever the connection was lost, because
    /// notifications of commits during that time are lost too. Runs until dropped.
    pub async fn listen(&self, wake: Arc<Notify>) {
        loop {
            if let Err(error) = self.listen_once(&wake).await {
                tracing::debug!(%error, "not listening for new work, polling continues");
            }
            wake.notify_one();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn listen_once(&self, wake: &Notify) -> Result<(), sqlx::Error> {
        let one = PgPoolOptions::new().max_connections(1);
        let pool = one.connect_lazy_with(self.control.options().clone());
        let mut listener = PgListener::connect_with(&pool).await?;
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
}
