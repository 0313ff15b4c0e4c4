//! A bound that clients share: connections, places, bytes. One who takes as much as it can always
//! leaves something for the next tenant, and for the next key of its own tenant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use crate::lock::lock;

/// Who takes a share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub tenant: Arc<str>,
    /// Its key; nil for a part of ELF that knows none.
    pub key: Uuid,
}

/// So many of something, and who holds them.
#[derive(Debug)]
pub struct Shares {
    all: u64,
    held: Mutex<Held>,
    freed: Notify,
}

/// What a holder has taken, until it is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    holder: Holder,
    amount: u64,
}

#[derive(Debug, Default)]
struct Held {
    total: u64,
    of_tenant: HashMap<Arc<str>, OfTenant>,
}

#[derive(Debug, Default)]
struct OfTenant {
    total: u64,
    of_key: HashMap<Uuid, u64>,
}

/// Whether a holder may have `key` in all, of which its tenant then has `tenant` and everybody
/// `total`. A tenant may have as much as it leaves free: alone a half, two of them a third each. A
/// key may have four times what it leaves its tenant: alone four fifths of that half. Who holds
/// nothing yet gets something as long as there is any for its tenant.
fn may_have(all: u64, total: u64, tenant: u64, key: u64, amount: u64) -> bool {
    let Some(free) = all.checked_sub(total) else {
        return false;
    };
    let left_to_tenant = free.saturating_sub(tenant) / 2;
    (tenant == amount || tenant <= free) && (key == amount || key <= 4 * left_to_tenant)
}

impl Holder {
    /// A key of the HTTP API.
    pub fn of_key(tenant: &str, key: Uuid) -> Self {
        Self {
            tenant: tenant.into(),
            key,
        }
    }

    /// A part of ELF that works for a tenant and knows no key.
    pub fn of_tenant(tenant: Option<&String>) -> Self {
        Self {
            tenant: tenant.map(String::as_str).unwrap_or_default().into(),
            key: Uuid::nil(),
        }
    }
}

impl Shares {
    /// `all` of something, all free.
    pub fn new(all: u64) -> Arc<Self> {
        Arc::new(Self {
            all,
            held: Mutex::default(),
            freed: Notify::new(),
        })
    }

    pub fn take(self: &Arc<Self>, holder: &Holder, amount: u64) -> Option<Share> {
        let is_taken = lock(&self.held).add(self.all, holder, amount);
        is_taken.then(|| Share {
            shares: self.clone(),
            holder: holder.clone(),
            amount,
        })
    }

    /// Takes a share, and waits for one up to `time`.
    pub async fn take_within(
        self: &Arc<Self>,
        holder: &Holder,
        amount: u64,
        time: Duration,
    ) -> Option<Share> {
        let taking = async {
            loop {
                // Registered before the look: a share that is freed between them is not missed.
                let mut freed = std::pin::pin!(self.freed.notified());
                freed.as_mut().enable();
                if let Some(share) = self.take(holder, amount) {
                    return share;
                }
                freed.await;
            }
        };
        tokio::time::timeout(time, taking).await.ok()
    }
}

impl Held {
    fn add(&mut self, all: u64, holder: &Holder, amount: u64) -> bool {
        let (of_tenant, of_key) = match self.of_tenant.get(&holder.tenant) {
            Some(tenant) => (
                tenant.total,
                tenant.of_key.get(&holder.key).copied().unwrap_or(0),
            ),
            None => (0, 0),
        };
        let sum = |held: u64| held.saturating_add(amount);
        if !may_have(all, sum(self.total), sum(of_tenant), sum(of_key), amount) {
            return false;
        }
        self.total += amount;
        let tenant = self.of_tenant.entry(holder.tenant.clone()).or_default();
        tenant.total += amount;
        *tenant.of_key.entry(holder.key).or_default() += amount;
        true
    }

    fn remove(&mut self, holder: &Holder, amount: u64) {
        self.total -= amount;
        let Some(tenant) = self.of_tenant.get_mut(&holder.tenant) else {
            return;
        };
        tenant.total -= amount;
        if let Some(of_key) = tenant.of_key.get_mut(&holder.key) {
            *of_key -= amount;
            if *of_key == 0 {
                tenant.of_key.remove(&holder.key);
            }
        }
        if tenant.total == 0 {
            self.of_tenant.remove(&holder.tenant);
        }
    }
}

impl Share {
    /// Takes more, if there is as much for this holder.
    pub fn grow(&mut self, more: u64) -> bool {
        let grown = lock(&self.shares.held).add(self.shares.all, &self.holder, more);
        self.amount += if grown { more } else { 0 };
        grown
    }

    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Gives back what is above `amount`.
    pub fn shrink(&mut self, amount: u64) {
        let less = self.amount.saturating_sub(amount);
        self.give_back(less);
        self.amount -= less;
    }

    fn give_back(&self, amount: u64) {
        lock(&self.shares.held).remove(&self.holder, amount);
        self.shares.freed.notify_waiters();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(tenant: &str, key: u128) -> Holder {
        Holder {
            tenant: tenant.into(),
            key: Uuid::from_u128(key),
        }
    }

    /// Takes ones until there are no more.
    fn take_all(shares: &Arc<Shares>, tenant: &str, key: u128) -> Vec<Share> {
        let holder = holder(tenant, key);
        std::iter::from_fn(|| shares.take(&holder, 1)).collect()
    }

    #[test]
    fn a_tenant_leaves_places_for_others_and_a_key_for_its_tenant() {
        let shares = Shares::new(64);
        let one = take_all(&shares, "a", 1);
        assert_eq!(one.len(), 25, "of a half, a key leaves some");
        let two = take_all(&shares, "a", 2);
        assert!(!two.is_empty(), "another key of the tenant");
        assert!(one.len() + two.len() <= 32, "a tenant has a half at most");
        let third = take_all(&shares, "a", 3);
        assert!(!third.is_empty(), "and a third one");
        let mut others = Vec::new();
        for tenant in ["b", "c", "d", "e"] {
            let taken = take_all(&shares, tenant, 1);
            assert!(!taken.is_empty(), "{tenant}");
            others.push(taken);
        }
        drop((one, two, third, others));
        assert_eq!(lock(&shares.held).total, 0);
        assert!(lock(&shares.held).of_tenant.is_empty());
    }

    #[test]
    fn few_places_are_shared_too() {
        for all in 2..12 {
            let shares = Shares::new(all);
            let greedy = take_all(&shares, "a", 1);
            let other_key = take_all(&shares, "a", 2);
            let other = take_all(&shares, "b", 1);
            assert!(!greedy.is_empty() && !other.is_empty(), "of {all}");
            assert!(!other_key.is_empty() || all < 4, "of {all}");
        }
        let shares = Shares::new(1);
        let only = take_all(&shares, "a", 1);
        assert_eq!(only.len(), 1, "one place is better than none");
    }

    #[test]
    fn an_amount_is_taken_as_a_whole_or_not_at_all() {
        let shares = Shares::new(100);
        let one = holder("a", 1);
        assert!(shares.take(&one, 101).is_none());
        assert!(shares.take(&one, u64::MAX).is_none());
        let mut share = shares.take(&one, 90).expect("who holds nothing gets it");
        assert!(!share.grow(5));
        assert!(shares.take(&holder("b", 1), 20).is_none());
        share.shrink(10);
        assert!(share.grow(5));
        assert_eq!(lock(&shares.held).total, 15);
        let other = shares.take(&holder("b", 1), 20);
        assert!(other.is_some());
        drop((share, other));
        assert_eq!(lock(&shares.held).total, 0);
    }

    #[tokio::test]
    async fn a_place_that_becomes_free_goes_to_one_that_waits() {
        let shares = Shares::new(1);
        let held = shares.take(&holder("a", 1), 1);
        let waiting = tokio::spawn({
            let shares = shares.clone();
            async move {
                let hour = Duration::from_secs(3600);
                shares.take_within(&holder("b", 1), 1, hour).await
            }
        });
        tokio::task::yield_now().await;
        drop(held);
        assert!(waiting.await.expect("it does not panic").is_some());
        let _held = shares.take(&holder("a", 1), 1);
        let none = shares.take_within(&holder("b", 1), 1, Duration::ZERO).await;
        assert!(none.is_none());
    }
}
