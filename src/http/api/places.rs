//! How many requests are answered at once, in all and for one tenant. A request takes its place
//! when its body is there, and gives it back before it waits for the index.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::access::Caller;
use super::error::ApiError;

/// Requests that are answered at once. A further one is told to come back.
const MAX_REQUESTS: usize = 64;

/// Of these, the requests of one tenant: others find a place while it sends as many as it can.
const MAX_OF_TENANT: usize = 32;

/// The requests that are answered now.
#[derive(Default)]
pub struct Places {
    by_tenant: Mutex<HashMap<String, usize>>,
}

/// The place of a request, until it is dropped.
pub struct Place {
    places: Arc<Places>,
    tenant: String,
}

impl Places {
    /// Takes a place, or says that there is none.
    pub fn take(self: &Arc<Self>, caller: &Caller) -> Result<Place, ApiError> {
        let tenant = &caller.reach().tenant_id;
        let mut taken = self.lock();
        let of_tenant = taken.get(tenant).copied().unwrap_or(0);
        if of_tenant >= MAX_OF_TENANT || taken.values().sum::<usize>() >= MAX_REQUESTS {
            return Err(ApiError::too_many());
        }
        taken.insert(tenant.clone(), of_tenant + 1);
        Ok(Place {
            places: self.clone(),
            tenant: tenant.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        let taken = self.by_tenant.lock();
        taken.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Some(of_tenant) = taken.get_mut(&self.tenant) {
            *of_tenant -= 1;
            if *of_tenant == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::{ApiKey, Reach};

    fn caller(tenant: &str) -> Caller {
        Caller(ApiKey {
            key_id: Uuid::nil(),
            reach: Reach {
                tenant_id: tenant.into(),
                project_id: None,
                agent_id: None,
            },
            can_write: false,
            is_replaced: false,
        })
    }

    #[test]
    fn one_tenant_leaves_places_for_others() {
        let places = Arc::<Places>::default();
        let take = |tenant| places.take(&caller(tenant)).ok();
        let mut taken: Vec<Place> = (0..100).filter_map(|_| take("a")).collect();
        assert_eq!(taken.len(), MAX_OF_TENANT);
        taken.extend((0..100).filter_map(|_| take("b")));
        assert_eq!(taken.len(), MAX_REQUESTS);
        assert!(take("c").is_none());
        taken.clear();
        assert!(take("c").is_some() && places.lock().is_empty());
    }
}
