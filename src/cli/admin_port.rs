//! What runs beside a long-running worker: the admin port, the observer, systemd
//! notifications.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use tokio_util::task::AbortOnDropHandle;

use super::systemd;
use crate::config::Service;
use crate::http::bounds::Bounds;
use crate::http::{self, Admin};
use crate::observe::Health;
use crate::observe::Observer;
use crate::telemetry::{self, Metrics};
use crate::worker::{Pipeline, Worker};

/// The admin port and the health checks. They start before the worker does, so that an
/// operator can see why a worker does not start.
pub struct AdminPort {
    /// The checks that `/readyz` reports.
    pub health: Arc<Health>,
    /// The address that the admin port listens on.
    pub address: SocketAddr,
    metrics: Metrics,
    admin: Arc<Admin>,
}

impl AdminPort {
    /// Starts the metrics recorder and binds the admin port.
    pub async fn start(service: &Service, bounds: Bounds) -> anyhow::Result<Self> {
        let metrics = telemetry::init_metrics()
            .context("failed to start metrics: this process has a recorder already")?;
        let health = Arc::new(Health::default());
        let admin = Admin::new(service, metrics.clone(), health.clone());
        let bind = &service.admin_bind;
        let address = http::serve(bind, admin.clone(), bounds)
            .await
            .with_context(|| {
                format!(
                    "failed to bind service.admin_bind {bind}: if another worker runs on this machine, give this one another \
                     service.admin_bind"
                )
            })?;
        tracing::info!(%address, "admin port serves the page, /metrics, /livez and /readyz");
        Ok(Self {
            health,
            address,
            metrics,
            admin,
        })
    }

    /// Observes `worker`, Postgres, the index and the provider until the returned handle is dropped.
    pub async fn watch(&self, pipeline: Pipeline, worker: Arc<Worker>) -> AbortOnDropHandle<()> {
        let health = self.health.clone();
        let metrics = self.metrics.clone();
        let observer = Arc::new(Observer::new(pipeline, worker, health.clone(), metrics));
        // Checked before systemd is told that the worker is ready.
        observer.check(true).await;
        self.admin.show(observer.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::join!(observer.run(), systemd::report_status(&observer, &health));
        }))
    }
}
