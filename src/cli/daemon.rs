//! What a worker that goes on has around it: the admin port, eyes, systemd.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use tokio_util::task::AbortOnDropHandle;

use super::systemd;
use crate::config::Service;
use crate::http::{self, Admin};
use crate::observe::Health;
use crate::observe::Observer;
use crate::telemetry::{self, Metrics};
use crate::worker::{Worker, WorkerContext};

/// The surroundings of a worker. They are there before it can begin.
pub struct Daemon {
    /// What `/readyz` says.
    pub health: Arc<Health>,
    /// Where the admin port is.
    pub address: SocketAddr,
    metrics: Metrics,
    admin: Arc<Admin>,
}

impl Daemon {
    /// Binds the admin port and begins to collect metrics.
    pub async fn start(service: &Service) -> anyhow::Result<Self> {
        let metrics = telemetry::init_metrics().context("metrics are collected already")?;
        let health = Arc::new(Health::default());
        let admin = Admin::new(service, metrics.clone(), health.clone());
        let bind = &service.admin_bind;
        let address = http::serve(bind, admin.clone())
            .await
            .with_context(|| format!("failed to bind service.admin_bind {bind}"))?;
        tracing::info!(%address, "serving the admin page, /metrics, /livez and /readyz");
        Ok(Self {
            health,
            address,
            metrics,
            admin,
        })
    }

    /// Watches `worker` and what it works with, until what is returned is dropped.
    pub async fn watch(
        &self,
        context: WorkerContext,
        worker: Arc<Worker>,
    ) -> AbortOnDropHandle<()> {
        let health = self.health.clone();
        let metrics = self.metrics.clone();
        let observer = Arc::new(Observer::new(context, worker, health.clone(), metrics));
        // Or it would not be ready when it says so.
        observer.check().await;
        self.admin.show(observer.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::join!(observer.run(), systemd::keep_told(&observer, &health));
        }))
    }
}
