//! Points that come to the index when their worker no longer waits for them.

use elf::index::IndexError;

use crate::support::eventually;
use crate::support::harness::{Harness, sentences};
use crate::support::hooked::{Hooked, Verb, When};

/// A request that timed out, and one that the end of its worker cut off.
#[tokio::test]
async fn points_that_come_after_those_of_the_next_claim_leave_nothing_behind() {
    for is_cut_off in [false, true] {
        let mut h =
            Harness::start_with(|toml| toml.replace("grace_secs = 5", "grace_secs = 1")).await;
        let index = h.tools.index.clone();
        let note = h.insert("A short note.").await;
        h.drain().await;

        let slow = Hooked::over(&index);
        let late = slow.delay_upserts();
        if !is_cut_off {
            let error = IndexError::Unavailable {
                engine: "the engine".into(),
                reason: "no answer in time".into(),
            };
            slow.fail(When::Before, Verb::Upsert, error);
        }
        h.tools.index = slow.clone();
        h.edit(note, &sentences(9, "a long one")).await;
        let working = h.work();
        late.reached_by(1).await;
        if !is_cut_off {
            eventually(async || h.count("note_index_state where holder is not null").await == 0)
                .await;
        }
        working.stop().await;

        h.tools.index = index;
        h.edit(note, "Short again.").await;
        let another = h.insert("Another note.").await;
        h.drain().await;
        assert_eq!(h.points_of(another).await, 1, "it waits for nothing");
        late.open();
        slow.all_landed().await;
        h.expire_leases().await;
        h.drain().await;
        h.assert_converged().await;
    }
}
