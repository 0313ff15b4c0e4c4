//! The checks of `/readyz`: whether Postgres, the vector engine, the alias, the provider and the
//! worker are as they must be.

use std::time::Duration;

use super::{Observer, Part};
use crate::embed::EmbedError;
use crate::error_class::ErrorClass;
use crate::registry::{self, IndexContext, RegistryError};
use crate::store::StoreError;
use crate::worker::WorkerContext;

/// How long Postgres or the vector engine may take to answer before it counts as unavailable.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl Observer {
    /// Makes every check of `/readyz`.
    pub async fn check(&self) {
        let WorkerContext {
            stores: IndexContext { store, .. },
            version,
            ..
        } = &self.context;
        let config = async {
            registry::version_unless_retired(store, &version.name).await?;
            Ok::<(), RegistryError>(store.check_schema().await?)
        };
        let (config, alias) = tokio::join!(
            tokio::time::timeout(ANSWER_TIMEOUT, config),
            self.look_at_alias()
        );
        self.record_postgres_check(
            config.unwrap_or_else(|_| Err(StoreError::Unavailable(no_answer("Postgres")).into())),
        );
        match alias {
            Ok(Some(alias)) => self.record_index_check(alias),
            Ok(None) => self.health.set(Part::Index, None),
            Err(silence) => self.health.set(Part::Index, Some(silence)),
        }
        let circuit = self.context.provider.state();
        let problem = circuit.error().map(EmbedError::to_string);
        self.health.set(Part::Provider, problem);
        let outage = self.worker.outage().map(|outage| outage.reason);
        self.health.set(Part::Worker, outage);
    }

    /// What is wrong with the alias. `Ok(None)` when the engine answers but Postgres does not,
    /// `Err` when the engine does not answer.
    async fn look_at_alias(&self) -> Result<Option<Result<Option<String>, RegistryError>>, String> {
        let stores = &self.context.stores;
        // The engine alone first: `alias_problem` also queries Postgres, and a Postgres that
        // does not answer must not be reported as an unavailable engine.
        let answer =
            tokio::time::timeout(ANSWER_TIMEOUT, stores.index.resolve(&stores.alias)).await;
        if answer.is_err() {
            return Err(no_answer("the vector engine"));
        }
        let problem = registry::alias_problem(stores);
        Ok(tokio::time::timeout(ANSWER_TIMEOUT, problem).await.ok())
    }

    fn record_postgres_check(&self, found: Result<(), RegistryError>) {
        let health = &self.health;
        let circuit = self.context.provider.state();
        let refused = match circuit.error() {
            Some(error @ EmbedError::Config { .. }) => Some(error.to_string()),
            _ => None,
        };
        match found {
            Ok(()) => {
                health.set(Part::Postgres, None);
                health.set(Part::Schema, None);
                health.set(Part::Config, refused);
            }
            // An unavailable Postgres says nothing about schema and configuration: they keep
            // their last result.
            Err(error) if error.class() != ErrorClass::Configuration => {
                health.set(Part::Postgres, Some(error.to_string()));
            }
            Err(RegistryError::Store(error)) => {
                health.set(Part::Postgres, None);
                health.set(Part::Schema, Some(error.to_string()));
                health.set(Part::Config, refused);
            }
            Err(error) => {
                health.set(Part::Postgres, None);
                health.set(Part::Config, Some(error.to_string()));
            }
        }
    }

    fn record_index_check(&self, found: Result<Option<String>, RegistryError>) {
        // An unavailable engine or Postgres says nothing about the alias: the check keeps its last
        // result.
        let (index, alias) = match found {
            Ok(None) => (None, Some(None)),
            Ok(Some(problem)) => {
                let alias = &self.context.stores.alias;
                (None, Some(Some(format!("the alias {alias:?} {problem}"))))
            }
            Err(RegistryError::Index(error)) => (Some(error.to_string()), None),
            Err(RegistryError::Store(_)) => return,
            Err(error) => (None, Some(Some(error.to_string()))),
        };
        self.health.set(Part::Index, index);
        if let Some(alias) = alias {
            self.health.set(Part::Alias, alias);
        }
    }
}

fn no_answer(who: &str) -> String {
    format!(
        "{who} did not answer within {} seconds",
        ANSWER_TIMEOUT.as_secs()
    )
}
