//! The pool has every statement planned anew, unless a pooler refuses that setting.

use elf::store::Store;

use crate::support::harness::Harness;
use crate::support::pooler::Pooler;

/// The pool plans every statement anew, whatever the database's default is.
#[tokio::test]
async fn no_plan_outlives_what_it_was_made_for() {
    let h = Harness::start().await;
    let mode: String = sqlx::query_scalar("show plan_cache_mode")
        .fetch_one(h.pipeline.serving.store.pool())
        .await
        .unwrap();
    assert_eq!(mode, "force_custom_plan");
}

/// PgBouncer in transaction mode, and similar poolers, refuse settings that they cannot pass
/// on.
#[tokio::test]
async fn behind_a_pooler_that_refuses_settings_it_connects_without() {
    let h = Harness::start().await;
    let pooler = Pooler::to(h.database.server()).await;
    for (sqlstate, message) in [
        (
            "08P01",
            "unsupported startup parameter in options: plan_cache_mode",
        ),
        ("08P01", "unsupported startup parameter: options"),
        (
            "0A000",
            "Feature not supported: RDS Proxy currently doesn't support command-line options.",
        ),
    ] {
        pooler.refuse_options(sqlstate, message);
        let store = Store::connect(&h.database.url_through(pooler.port()), 5)
            .await
            .unwrap();
        let mode: String = sqlx::query_scalar("show plan_cache_mode")
            .fetch_one(store.pool())
            .await
            .unwrap();
        assert_eq!(mode, "auto", "{message}");
    }
}
