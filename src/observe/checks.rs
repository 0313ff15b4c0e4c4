//! The checks of `/readyz`: whether Postgres, the vector engine, the alias, the provider and the
//! worker are as they must be.

use std::time::Duration;

use super::{Observer, Part};
use crate::embed::EmbedError;
use crate::error_class::ErrorClass;
use crate::serving::{self, Serving};
use crate::store::{CollectionRow, RegisteredVersion, StoreError};

/// How long Postgres or the vector engine may take to answer before it counts as unavailable.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What Postgres has registered.
pub(super) struct Registered {
    pub(super) versions: Vec<RegisteredVersion>,
    pub(super) collections: Vec<CollectionRow>,
}

impl Observer {
    /// Makes every check of `/readyz`, that of the schema only `with_schema`: it reads the
    /// catalogue of Postgres.
    pub async fn check(&self, with_schema: bool) {
        let store = &self.pipeline.serving.store;
        // The alias first, as in `serving::reconcile_alias`.
        let target = self.resolve_alias().await;
        let registered = postgres_answer(self.read_registered()).await;
        let schema = match with_schema && registered.is_ok() {
            true => postgres_answer(store.check_schema()).await,
            false => Ok(()),
        };
        let problem = registered.as_ref().err().or(schema.as_ref().err());
        self.record_postgres_check(problem, with_schema);
        self.health.set(Part::Index, target.as_ref().err().cloned());
        if let Ok(registered) = registered {
            self.record_config_check(&registered.versions);
            if let Ok(target) = &target {
                self.record_alias_check(target.as_deref(), &registered);
            }
            self.show_registered(registered, target.ok().flatten().as_deref());
        }
        let circuit = self.pipeline.provider.state();
        let problem = circuit.error().map(EmbedError::to_string);
        self.health.set(Part::Provider, problem);
        let outage = self.worker.outage().map(|outage| outage.reason);
        self.health.set(Part::Worker, outage);
    }

    /// Whether the last checks of Postgres and of its schema held.
    pub(super) fn schema_holds(&self) -> bool {
        self.health.holds(Part::Postgres) && self.health.holds(Part::Schema)
    }

    /// What the alias points at; an error when the engine does not answer.
    async fn resolve_alias(&self) -> Result<Option<String>, String> {
        let Serving { index, alias, .. } = &self.pipeline.serving;
        match tokio::time::timeout(ANSWER_TIMEOUT, index.resolve(alias)).await {
            Ok(target) => target.map_err(|error| error.to_string()),
            Err(_) => Err(no_answer("the vector engine")),
        }
    }

    async fn read_registered(&self) -> Result<Registered, StoreError> {
        let store = &self.pipeline.serving.store;
        Ok(Registered {
            versions: store.versions().await?,
            collections: store.registered_collections().await?,
        })
    }

    fn record_postgres_check(&self, problem: Option<&StoreError>, with_schema: bool) {
        match problem {
            // An unavailable Postgres says nothing about schema and configuration: they keep
            // their last result.
            Some(error) if error.class() != ErrorClass::Configuration => {
                self.health.set(Part::Postgres, Some(error.to_string()));
            }
            Some(error) => {
                self.health.set(Part::Postgres, None);
                self.health.set(Part::Schema, Some(error.to_string()));
            }
            None => {
                self.health.set(Part::Postgres, None);
                if with_schema {
                    self.health.set(Part::Schema, None);
                }
            }
        }
    }

    /// Whether the version is served or built, and the provider accepts its settings.
    fn record_config_check(&self, versions: &[RegisteredVersion]) {
        let circuit = self.pipeline.provider.state();
        let refused = match circuit.error() {
            Some(error @ EmbedError::Config { .. }) => Some(error.to_string()),
            _ => None,
        };
        let version = &self.pipeline.version.name;
        let retired = serving::unless_retired(versions, version).err();
        let problem = retired.map(|error| error.to_string()).or(refused);
        self.health.set(Part::Config, problem);
    }

    fn record_alias_check(&self, target: Option<&str>, registered: &Registered) {
        let alias = &self.pipeline.serving.alias;
        let Registered {
            versions,
            collections,
        } = registered;
        let problem = match serving::problem_of_target(alias, target, versions, collections) {
            Ok(problem) => problem.map(|problem| format!("the alias {alias:?} {problem}")),
            Err(error) => Some(error.to_string()),
        };
        self.health.set(Part::Alias, problem);
    }
}

async fn postgres_answer<T>(
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::Unavailable(no_answer("Postgres"))),
    }
}

fn no_answer(who: &str) -> String {
    format!(
        "{who} did not answer within {} seconds",
        ANSWER_TIMEOUT.as_secs()
    )
}
