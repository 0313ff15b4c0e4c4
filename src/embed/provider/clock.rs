//! The provider's clock. Tests replace it, so that they need not wait.

use std::time::Instant;

/// Where the time comes from.
#[derive(Clone)]
pub enum Clock {
    /// The system's.
    System,
    /// Stands still, and jumps ahead when a task sleeps.
    #[cfg(test)]
    Jumping(std::sync::Arc<std::sync::Mutex<Instant>>),
}

impl Clock {
    /// A clock that jumps.
    #[cfg(test)]
    pub fn jumping() -> Self {
        Self::Jumping(std::sync::Arc::new(std::sync::Mutex::new(Instant::now())))
    }

    /// Jumps ahead.
    #[cfg(test)]
    pub fn advance_to(&self, at: Instant) {
        if let Self::Jumping(now) = self {
            let mut now = now.lock().expect("no test panics while holding it");
            *now = at.max(*now);
        }
    }

    pub fn now(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            #[cfg(test)]
            Self::Jumping(now) => *now.lock().expect("no test panics while holding it"),
        }
    }

    pub async fn sleep_until(&self, deadline: Instant) {
        match self {
            Self::System => tokio::time::sleep_until(deadline.into()).await,
            #[cfg(test)]
            Self::Jumping(now) => {
                tokio::task::yield_now().await;
                let mut now = now.lock().expect("no test panics while holding it");
                *now = deadline.max(*now);
            }
        }
    }
}
