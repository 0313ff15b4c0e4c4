//! Two sides that take turns: A B A B …

use crate::{Options, Result};

/// Rounds of a comparison.
#[derive(Clone, Copy)]
pub struct Rounds {
    /// Measured ones.
    pub count: usize,
    /// The first round fills caches and is thrown away.
    pub warm_up: bool,
}

impl Rounds {
    /// Five and a warm-up.
    pub fn of(options: Options) -> Self {
        Self::few(options, 5)
    }

    /// For what takes minutes.
    pub fn few(options: Options, count: usize) -> Self {
        Self {
            count: if options.quick { 1 } else { count },
            warm_up: !options.quick,
        }
    }

    /// What each side measured, in turns.
    pub async fn measure<T>(
        self,
        mut a: impl AsyncFnMut() -> Result<T>,
        mut b: impl AsyncFnMut() -> Result<T>,
    ) -> Result<[Vec<T>; 2]> {
        let mut measured = [Vec::new(), Vec::new()];
        for round in 0..self.count + usize::from(self.warm_up) {
            let [of_a, of_b] = [a().await?, b().await?];
            if round > 0 || !self.warm_up {
                measured[0].push(of_a);
                measured[1].push(of_b);
            }
        }
        Ok(measured)
    }
}
