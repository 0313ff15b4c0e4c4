//! The contract of every vector engine. The tests run against the engine in the process, against
//! the same through another process, and against a Qdrant server when there is one.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/components.rs"]
mod components;
#[path = "support/proxy.rs"]
#[expect(dead_code, reason = "no test here cuts connections")]
mod proxy;
#[path = "support/qdrant_server.rs"]
mod qdrant_server;

#[cfg(feature = "embedded")]
#[path = "index_contract/embedded_only.rs"]
mod embedded_only;
#[cfg(feature = "embedded")]
#[path = "index_contract/processes.rs"]
mod processes;
#[path = "index_contract/promises/mod.rs"]
mod promises;
#[path = "index_contract/server_only.rs"]
mod server_only;
#[path = "index_contract/setup.rs"]
mod setup;

/// One test per engine and promise; the promises are listed by the file that they are in.
/// Without its engine a test ends at once; `engines` prints once which engines were tested.
macro_rules! contract {
    ($($topic:ident { $($promise:ident)* })*) => {
        #[cfg(feature = "embedded")]
        mod embedded {
            $($(
                #[test]
                fn $promise() {
                    crate::setup::on_embedded(crate::promises::$topic::$promise);
                }
            )*)*
        }
        #[cfg(feature = "embedded")]
        mod through_another_process {
            $($(
                #[test]
                fn $promise() {
                    crate::setup::through_another_process(crate::promises::$topic::$promise);
                }
            )*)*
        }
        mod server {
            $($(
                #[test]
                fn $promise() {
                    crate::setup::on_server(crate::promises::$topic::$promise);
                }
            )*)*
        }
    };
}

contract! {
    collections {
        making_a_collection_twice_keeps_the_first
        a_spec_comes_back_as_it_was_given
        an_unknown_collection_is_none_or_not_found
        an_unknown_language_is_refused
        bulk_loading_is_not_seen_from_outside
        bulk_loading_is_asked_of_a_collection
        dropping_a_collection_twice_is_no_error
        a_wrong_dimension_is_refused
    }
    aliases {
        an_alias_is_as_good_as_a_name
        an_alias_to_nowhere_leaves_the_old_one
        no_search_fails_while_its_alias_is_swapped
    }
    points {
        points_come_back_as_they_were_written
        a_point_without_a_vector_is_found_by_keyword_alone
        what_a_new_point_lacks_is_gone
        the_same_upsert_twice_changes_nothing
        points_are_read_by_their_ids
        scroll_gives_every_point_once_in_order
        a_large_upsert_is_written_whole
    }
    revisions {
        an_older_revision_never_replaces_a_newer_one
        points_of_one_upsert_are_judged_each_by_its_revision
        insert_only_never_replaces
        a_relabel_changes_what_points_of_one_revision_say_of_their_note
        delete_takes_only_what_is_older
        an_upsert_over_a_forgotten_revision_replaces_it_and_nothing_newer
        a_delete_by_chunk_leaves_a_newer_point_alone
        concurrent_writers_lose_nothing
    }
    filters {
        an_empty_list_matches_nothing
        a_filter_takes_what_is_newer_and_leaves_what_is_excepted
        a_thousand_chunks_fit_in_a_filter
        filters_match_keywords_and_expiry
        filters_match_times_and_importance
    }
    search {
        search_finds_by_meaning_and_by_exact_word
        a_candidate_of_one_ranking_has_the_score_of_the_other
        a_search_ranks_by_meaning_or_by_keyword_alone
        a_text_without_words_is_still_found_by_meaning
        search_never_leaves_its_filter
        language_none_stems_nothing
        a_word_is_found_in_every_form_and_script
        accents_are_folded_by_a_setting
        an_id_is_found_however_it_is_written_with_every_tokenizer
        a_multilingual_tokenizer_knows_the_words_of_a_text_without_spaces
        own_stopwords_do_not_count
        how_a_graph_is_searched_changes_no_answer_of_a_few_points
    }
}

#[test]
fn engines() {
    setup::say_engines();
}
