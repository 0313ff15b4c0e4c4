//! One side of a comparison: the rows of Postgres or the points of the engine, page by page in
//! the order of their ids.

use uuid::Uuid;

/// Chunks or points read at once.
pub(super) const PAGE: usize = 1000;

/// The rows or points that are read and not compared yet.
pub(super) struct Side<T> {
    pub(super) page: Vec<T>,
    pub(super) read_upto: Uuid,
    pub(super) ended: bool,
}

impl<T> Side<T> {
    pub(super) fn new(after: Uuid) -> Self {
        Self {
            page: Vec::new(),
            read_upto: after,
            ended: false,
        }
    }

    /// Whether the next page must be read before the comparison can continue.
    pub(super) fn is_spent(&self) -> bool {
        self.page.is_empty() && !self.ended
    }

    pub(super) fn fill(&mut self, mut page: Vec<T>, id: impl Fn(&T) -> Uuid, upto: Uuid) {
        self.ended = page.len() < PAGE;
        if let Some(last) = page.last() {
            self.read_upto = id(last);
        }
        let within = page.partition_point(|item| id(item) <= upto);
        if within < page.len() {
            page.truncate(within);
            self.ended = true;
        }
        if self.ended {
            self.read_upto = upto;
        }
        self.page = page;
    }

    /// Takes the items up to `bound`.
    pub(super) fn take(&mut self, id: impl Fn(&T) -> Uuid, bound: Uuid) -> Vec<T> {
        let within = self.page.partition_point(|item| id(item) <= bound);
        let rest = self.page.split_off(within);
        std::mem::replace(&mut self.page, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_ends_where_its_range_does() {
        let ids = |n: u128| (1..=n).map(Uuid::from_u128).collect::<Vec<_>>();
        let mut side = Side::new(Uuid::nil());
        side.fill(ids(PAGE as u128), |id| *id, Uuid::from_u128(10));
        assert!(side.ended && side.page.len() == 10 && side.read_upto == Uuid::from_u128(10));
        let mut side = Side::new(Uuid::nil());
        side.fill(ids(PAGE as u128), |id| *id, Uuid::max());
        assert!(!side.ended && side.read_upto == Uuid::from_u128(PAGE as u128));
        assert_eq!(side.take(|id| *id, Uuid::from_u128(3)).len(), 3);
        assert_eq!(side.page.len(), PAGE - 3);
        side.fill(ids(3), |id| *id, Uuid::max());
        assert!(side.ended && side.read_upto == Uuid::max());
    }
}
