//! Dead letters on the page: an operator retries and discards them.

use serde_json::json;

use super::{DEAD, count, set_token, sign_in, worker_with_dead};
use crate::support::browser::{Browser, ENTER, ESCAPE, TAB};
use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::site::Site;

#[tokio::test]
async fn dead_letters_are_retried_and_discarded_after_a_confirmation() {
    let test = "dead_letters_are_retried_and_discarded_after_a_confirmation";
    let Some(browser) = Browser::start(test).await else {
        return;
    };
    let site = Site::start().await;
    set_token(&site);
    site.provider.poison("poison", Behaviour::Status(400));
    let texts = [
        "first poison",
        "second poison",
        "third poison",
        "A good note.",
    ];
    let (worker, admin) = worker_with_dead(&site, &texts, 3).await;
    let mut db = site.connect().await;

    // The page reports a wrong token and keeps the right one.
    browser.open(&admin).await;
    browser.until("document.activeElement.id === 'token'").await;
    browser.type_into("#token", &format!("wrong{ENTER}")).await;
    browser.shows("#sign-in-error", "did not accept").await;
    sign_in(&browser, &admin).await;
    browser
        .shows("#verdict-title", "Ready, but 3 notes are dead-lettered")
        .await;
    browser
        .shows("#todo", "docs/operate/runbook.md#dead-letters")
        .await;
    browser.shows("#dead-count", "showing 3 of 3").await;
    for words in ["The embedding provider rejected it", "poison", "UPSERT"] {
        browser.shows("#letters", words).await;
    }
    browser.shows("#letters", "Attempts").await;

    // Without a confirmation nothing changes, and the focus returns to where it was.
    let discard = ".letter:first-child button:last-child";
    browser.click(discard).await;
    browser.shows("#confirm", "Discard this dead letter?").await;
    browser
        .shows("#confirm", "The note stays in Postgres")
        .await;
    browser.press(ESCAPE).await;
    browser
        .until(&format!(
            "!document.querySelector('#confirm').open && document.activeElement === document.querySelector('{discard}')"
        ))
        .await;
    assert_eq!(count(&mut db, DEAD).await, 3);

    // By keyboard: the dialog focuses the cancel button first.
    browser.press(ENTER).await;
    browser
        .until("document.activeElement.id === 'confirm-no'")
        .await;
    browser.press(TAB).await;
    browser.press(ENTER).await;
    browser.shows("#dead-result", "Discarded").await;
    browser.shows("#dead-count", "showing 2 of 2").await;
    browser
        .until("document.activeElement.id === 'dead-title'")
        .await;
    assert_eq!(count(&mut db, "indexing_outbox").await, 2);
    assert_eq!(count(&mut db, "memory_notes").await, 4);

    // The provider accepts the text now, and the rest is retried.
    site.provider.heal();
    browser.click(".letter:first-child .row button").await;
    browser.shows("#confirm", "Its attempts are reset").await;
    browser.click("#confirm-yes").await;
    browser.shows("#dead-result", "the note is due again").await;
    browser.shows("#dead-count", "showing 1 of 1").await;
    browser.click("#retry-all").await;
    browser.shows("#confirm", "Retry the dead letter?").await;
    browser.click("#confirm-yes").await;
    browser
        .shows("#dead-result", "Retried: 1 note due again")
        .await;
    browser
        .shows("#verdict-title", "Ready, and nothing waits")
        .await;
    let db = tokio::sync::Mutex::new(db);
    eventually(async || count(&mut *db.lock().await, "indexing_outbox").await == 0).await;
    let indexed = "note_index_state where indexed_at is not null";
    assert_eq!(count(&mut *db.lock().await, indexed).await, 3);
    // The audit log names who did it.
    worker.says("discarded from the admin page").await;
    worker.says("retried from the admin page").await;

    browser.click("#sign-out").await;
    browser.until("document.activeElement.id === 'token'").await;
    let kept = browser
        .run("return sessionStorage.length + localStorage.length + document.cookie.length")
        .await;
    assert_eq!(kept, 0);
    browser.assert_clean().await;
}

#[tokio::test]
async fn a_note_is_shown_as_text_and_never_as_markup() {
    let Some(browser) = Browser::start("a_note_is_shown_as_text_and_never_as_markup").await else {
        return;
    };
    let site = Site::start().await;
    set_token(&site);
    let reason = "<b onmouseover=hacked=1>no</b><script>hacked=1</script>";
    let body = json!({"error": {"message": reason}}).to_string();
    let kind = "application/json".to_owned();
    site.provider.poison(
        "arsenic",
        Behaviour::Answer(400, "content-type", kind, body),
    );
    let text = "<img src=x onerror=hacked=1><script>hacked=1</script></blockquote>\u{202e} arsenic";
    let (_worker, admin) = worker_with_dead(&site, &[text], 1).await;
    sign_in(&browser, &admin).await;
    browser.shows("#letters blockquote", text).await;
    browser.shows("#letters .error", reason).await;
    browser.click(".letter .row button").await;
    browser.shows("#confirm-what", "<img src=x onerror").await;
    let found = browser
        .run("return [typeof hacked, document.querySelectorAll('img, b, main script, dialog script').length]")
        .await;
    assert_eq!(found, json!(["undefined", 0]));
    browser.assert_clean().await;
}
