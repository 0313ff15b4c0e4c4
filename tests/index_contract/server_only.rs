//! What concerns only a server.

use elf::config::Secret;
use elf::index::{CollectionStatus, Filter, IndexError, UpsertMode, connect};
use qdrant_client::qdrant::{
    CollectionInfo, OptimizersConfigDiffBuilder, PointStruct, StrictModeConfigBuilder,
    UpdateCollectionBuilder, UpsertPointsBuilder, Vector,
};

use crate::promises::points::what_is_not_sent_is_gone;
use crate::proxy::Proxy;
use crate::qdrant_server::{self, Server};
use crate::setup::{Bench, block_on, direction, id, point, settings, spec, until_green};

#[test]
fn an_unreachable_server_is_unavailable() {
    // Nothing listens on the port of a closed listener.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = block_on(connect(&settings(&url))).err().unwrap();
    assert!(matches!(error, IndexError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains(&url), "{error}");
}

#[test]
fn a_url_of_another_kind_is_refused() {
    for url in ["localhost:6334", "postgres://x", "", "embedded:", "http://"] {
        let error = block_on(connect(&settings(url))).err().unwrap();
        assert!(
            matches!(error, IndexError::Denied { .. }),
            "{url:?}: {error:?}"
        );
        assert!(error.to_string().contains("storage.qdrant.url"), "{error}");
    }
}

#[test]
fn a_key_is_never_printed() {
    let url = "http://127.0.0.1:1";
    let settings = elf::config::Qdrant {
        api_key: Some(Secret::new("hush")),
        ..settings(url)
    };
    let error = block_on(connect(&settings)).err().unwrap();
    assert!(!format!("{error:?} {error}").contains("hush"));
}

#[test]
fn after_a_connection_has_gone_silent_another_is_made() {
    let Some(url) = qdrant_server::url() else {
        return;
    };
    let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
    block_on(async {
        let direct = connect(&settings(url)).await.unwrap();
        direct.create_collection(&name, &spec()).await.unwrap();
        let (host, port) = url.rsplit_once(':').unwrap();
        let host = host.trim_start_matches("http://");
        let proxy = Proxy::to(host, port.parse().unwrap()).await;
        let impatient = elf::config::Qdrant {
            timeout_ms: 1000,
            ..settings(&format!("http://127.0.0.1:{}", proxy.port()))
        };
        let index = connect(&impatient).await.unwrap();
        let put = async |n| {
            let points = [point(n, direction(n), "")];
            index.upsert(&name, &points, UpsertMode::NotNewer).await
        };
        put(1).await.unwrap();
        proxy.forget();
        let silent = put(2).await.unwrap_err();
        assert!(
            matches!(silent, IndexError::Unavailable { .. }),
            "{silent:?}"
        );
        put(3).await.unwrap();
        assert!(direct.count(&name, &Filter::default()).await.unwrap() >= 2);
        direct.drop_collection(&name).await.unwrap();
    });
}

#[test]
fn a_foreign_collection_has_no_spec() {
    use qdrant_client::qdrant::{CreateCollectionBuilder, Distance, VectorParamsBuilder};
    let Some(url) = qdrant_server::url() else {
        return;
    };
    let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
    block_on(async {
        let client = qdrant_client::Qdrant::from_url(url).build().unwrap();
        let vectors = VectorParamsBuilder::new(4, Distance::Cosine);
        let request = CreateCollectionBuilder::new(&name).vectors_config(vectors);
        client.create_collection(request).await.unwrap();

        let index = connect(&settings(url)).await.unwrap();
        let info = index.collection(&name).await.unwrap().unwrap();
        assert_eq!(info.spec, None);
        let query = crate::setup::query([1.0, 0.0, 0.0, 0.0], "");
        let error = index.search(&name, &query).await.unwrap_err();
        assert!(matches!(error, IndexError::Denied { .. }), "{error:?}");
        index.drop_collection(&name).await.unwrap();
    });
}

#[test]
fn a_wrong_key_is_refused_and_says_which_setting() {
    let Some(server) = Server::own(&[("QDRANT__SERVICE__API_KEY", "right")]) else {
        return;
    };
    block_on(async {
        for key in [None, Some(Secret::new("wrong"))] {
            let settings = elf::config::Qdrant {
                api_key: key,
                ..settings(&server.url)
            };
            // The health check needs no key; the first real request does.
            let error = match connect(&settings).await {
                Ok(index) => index.collection("notes").await.unwrap_err(),
                Err(error) => error,
            };
            assert!(matches!(error, IndexError::Denied { .. }), "{error:?}");
            assert!(
                error.to_string().contains("storage.qdrant.api_key"),
                "{error}"
            );
        }
        let right = Some(Secret::new("right"));
        let settings = elf::config::Qdrant {
            api_key: right,
            ..settings(&server.url)
        };
        let index = connect(&settings).await.unwrap();
        assert_eq!(index.collection("notes").await.unwrap(), None);
    });
}

#[test]
fn a_killed_server_is_unavailable_not_wrong() {
    let Some(server) = Server::own(&[]) else {
        return;
    };
    block_on(async {
        let index = connect(&settings(&server.url)).await.unwrap();
        index.create_collection("notes", &spec()).await.unwrap();
        drop(server);
        let one = vec![point(1, [1.0, 0.0, 0.0, 0.0], "")];
        let failures = [
            index
                .upsert("notes", &one, UpsertMode::NotNewer)
                .await
                .unwrap_err(),
            index.count("notes", &Filter::default()).await.unwrap_err(),
            index.collection("notes").await.unwrap_err(),
            index.resolve("notes").await.unwrap_err(),
            index.drop_collection("notes").await.unwrap_err(),
        ];
        for failure in failures {
            assert!(
                matches!(failure, IndexError::Unavailable { .. }),
                "{failure:?}"
            );
        }
    });
}

#[test]
fn settings_reach_the_collection() {
    use elf::config::{Datatype, Quantization};
    let Some(url) = qdrant_server::url() else {
        return;
    };
    block_on(async {
        for quantization in [Quantization::Scalar, Quantization::Binary] {
            let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
            let (shard_number, on_disk) = (Some(2), true);
            let settings = elf::config::Qdrant {
                datatype: Datatype::Float16,
                quantization,
                shard_number,
                on_disk,
                ..settings(url)
            };
            let index = connect(&settings).await.unwrap();
            index.create_collection(&name, &spec()).await.unwrap();
            let client = qdrant_client::Qdrant::from_url(url).build().unwrap();
            let info = client.collection_info(&name).await.unwrap().result.unwrap();
            let config = info.config.unwrap();
            assert!(config.quantization_config.is_some(), "{quantization:?}");
            let params = config.params.unwrap();
            assert_eq!(params.shard_number, 2);
            assert!(format!("{:?}", params.vectors_config).contains("datatype: Some(Float16)"));
            let indexed: std::collections::BTreeSet<_> =
                info.payload_schema.keys().map(String::as_str).collect();
            for field in ["note_id", "tenant_id", "revision", "expires_at", "key"] {
                assert!(indexed.contains(field), "{field} is not among {indexed:?}");
            }
            index.drop_collection(&name).await.unwrap();
        }
    });
}

/// A scroll skips points with numeric ids, which ELF did not write. They must not make a
/// page shorter: a page below the limit means the end.
#[test]
fn points_with_numbers_for_ids_shorten_no_page() {
    let Some(url) = qdrant_server::url() else {
        return;
    };
    let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
    block_on(async {
        let index = connect(&settings(url)).await.unwrap();
        index.create_collection(&name, &spec()).await.unwrap();
        let ours: Vec<_> = (0..7).map(|n| point(n, direction(n), "")).collect();
        index
            .upsert(&name, &ours, UpsertMode::NotNewer)
            .await
            .unwrap();
        let numbered = |n: u64| {
            let vector = Vector::new_dense(direction(n).to_vec());
            let dense = std::collections::HashMap::from([(elf::index::DENSE.to_owned(), vector)]);
            PointStruct::new(n, dense, qdrant_client::Payload::new())
        };
        let foreign: Vec<_> = [0, 1, 2, 3, 4, u64::MAX].map(numbered).into();
        let client = qdrant_client::Qdrant::from_url(url).build().unwrap();
        let request = UpsertPointsBuilder::new(&name, foreign).wait(true);
        client.upsert_points(request).await.unwrap();
        assert_eq!(index.count(&name, &Filter::default()).await.unwrap(), 13);

        let mut wanted: Vec<_> = (0..7).map(id).collect();
        wanted.sort();
        for limit in [1, 2, 3, 7, 100] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = index.scroll(&name, after, limit, false).await.unwrap();
                found.extend(page.iter().map(|point| point.chunk_id));
                after = found.last().copied();
                if page.len() < limit {
                    break;
                }
            }
            assert_eq!(found, wanted, "in pages of {limit}");
        }
        index.drop_collection(&name).await.unwrap();
    });
}

#[test]
fn graphs_are_built_when_the_bulk_load_is_over() {
    const POINTS: u64 = 20_000;
    /// In kB, like the others.
    const VECTORS: u64 = 4 * 4 * POINTS / 1024;
    const THRESHOLD: u64 = 50;
    const SEGMENT: u64 = 70_000;
    let Some(url) = qdrant_server::url() else {
        return;
    };
    let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
    block_on(async {
        let client = qdrant_client::Qdrant::from_url(url).build().unwrap();
        let info = async || -> CollectionInfo {
            client.collection_info(&name).await.unwrap().result.unwrap()
        };
        let settings_of = |info: &CollectionInfo| {
            let config = info.config.as_ref().unwrap();
            let optimizers = config.optimizer_config.unwrap();
            (optimizers.indexing_threshold, optimizers.max_segment_size)
        };
        let index = connect(&settings(url)).await.unwrap();
        index.create_collection(&name, &spec()).await.unwrap();
        let as_made = info().await.config.unwrap().metadata;
        let lower = OptimizersConfigDiffBuilder::default()
            .indexing_threshold(THRESHOLD)
            .max_segment_size(SEGMENT);
        let request = UpdateCollectionBuilder::new(&name).optimizers_config(lower);
        client.update_collection(request).await.unwrap();

        index.begin_load(&name).await.unwrap();
        let (threshold, segment) = settings_of(&info().await);
        assert_eq!(threshold, Some(0));
        assert!(segment.unwrap() < VECTORS / 3, "{segment:?}");
        for from in (0..POINTS).step_by(2_000) {
            let points: Vec<_> = (from..from + 2_000)
                .map(|n| point(n, direction(n), ""))
                .collect();
            index
                .upsert(&name, &points, UpsertMode::InsertOnly)
                .await
                .unwrap();
        }
        until_green(index.as_ref(), &name).await;
        let loaded = info().await;
        assert_eq!(loaded.indexed_vectors_count, Some(0));
        assert!(loaded.segments_count > 3, "{loaded:?}");

        // Another process than the one that turned it on.
        let another = connect(&settings(url)).await.unwrap();
        another.end_load(&name).await.unwrap();
        let green = until_green(another.as_ref(), &name).await;
        let info = info().await;
        assert!(info.indexed_vectors_count() > 0, "{info:?}");
        assert_eq!(settings_of(&info), (Some(THRESHOLD), Some(SEGMENT)));
        assert!(info.segments_count <= loaded.segments_count, "{info:?}");
        assert_eq!(info.config.unwrap().metadata, as_made);
        assert_eq!((green.spec, green.points), (Some(spec()), POINTS));
        index.drop_collection(&name).await.unwrap();
    });
}

/// A server that is restarted while it builds graphs builds none until something changes.
#[test]
fn a_server_that_was_restarted_builds_graphs_when_a_load_ends() {
    let folder = tempfile::tempdir().unwrap();
    let disk = [(
        "QDRANT__STORAGE__STORAGE_PATH",
        folder.path().to_str().unwrap(),
    )];
    let Some(server) = Server::own(&disk) else {
        return;
    };
    block_on(async {
        let index = connect(&settings(&server.url)).await.unwrap();
        index.create_collection("notes", &spec()).await.unwrap();
        index.begin_load("notes").await.unwrap();
        for from in (0..20_000).step_by(2_000) {
            let points: Vec<_> = (from..from + 2_000)
                .map(|n| point(n, direction(n), ""))
                .collect();
            index
                .upsert("notes", &points, UpsertMode::InsertOnly)
                .await
                .unwrap();
        }
        let client = qdrant_client::Qdrant::from_url(&server.url)
            .build()
            .unwrap();
        let needs_graphs = OptimizersConfigDiffBuilder::default().indexing_threshold(50);
        let request = UpdateCollectionBuilder::new("notes").optimizers_config(needs_graphs);
        client.update_collection(request).await.unwrap();
        drop(server);

        let server = Server::own(&disk).unwrap();
        let index = connect(&settings(&server.url)).await.unwrap();
        let status = async || index.collection("notes").await.unwrap().unwrap().status;
        assert_eq!(status().await, CollectionStatus::Grey);
        index.end_load("notes").await.unwrap();
        until_green(index.as_ref(), "notes").await;
        let client = qdrant_client::Qdrant::from_url(&server.url)
            .build()
            .unwrap();
        let info = client.collection_info("notes").await.unwrap().result;
        assert!(
            info.as_ref().unwrap().indexed_vectors_count() > 0,
            "{info:?}"
        );
    });
}

#[test]
fn a_larger_machine_gets_more_shards_and_as_many_segments() {
    for (processors, shape) in [("4", (1, 2)), ("8", (2, 4)), ("16", (4, 8)), ("64", (4, 8))] {
        let Some(server) = Server::own(&[("QDRANT_NUM_CPUS", processors)]) else {
            return;
        };
        block_on(async {
            let index = connect(&settings(&server.url)).await.unwrap();
            index.create_collection("notes", &spec()).await.unwrap();
            let client = qdrant_client::Qdrant::from_url(&server.url)
                .build()
                .unwrap();
            let info = client
                .collection_info("notes")
                .await
                .unwrap()
                .result
                .unwrap();
            let shards = info.config.unwrap().params.unwrap().shard_number;
            assert_eq!(
                (shards, info.segments_count),
                shape,
                "{processors} processors"
            );
            let names = client.list_collections().await.unwrap().collections;
            assert_eq!(names.len(), 1, "the probe is gone: {names:?}");

            let three = elf::config::Qdrant {
                shard_number: Some(3),
                ..settings(&server.url)
            };
            let index = connect(&three).await.unwrap();
            index.create_collection("three", &spec()).await.unwrap();
            let info = client
                .collection_info("three")
                .await
                .unwrap()
                .result
                .unwrap();
            let shards = info.config.unwrap().params.unwrap().shard_number;
            assert_eq!(shards, 3);
        });
    }
}

#[test]
fn a_key_that_may_only_read_is_denied_every_write() {
    let keys = [
        ("QDRANT__SERVICE__API_KEY", "writes"),
        ("QDRANT__SERVICE__READ_ONLY_API_KEY", "reads"),
    ];
    let Some(server) = Server::own(&keys) else {
        return;
    };
    let with_key = |key| elf::config::Qdrant {
        api_key: Some(Secret::new(key)),
        ..settings(&server.url)
    };
    block_on(async {
        let writer = connect(&with_key("writes")).await.unwrap();
        writer.create_collection("notes", &spec()).await.unwrap();
        let reader = connect(&with_key("reads")).await.unwrap();
        assert!(reader.collection("notes").await.unwrap().is_some());
        let points = vec![point(1, direction(1), "")];
        let failures = [
            reader
                .upsert("notes", &points, UpsertMode::NotNewer)
                .await
                .unwrap_err(),
            reader
                .delete("notes", &Filter::default())
                .await
                .unwrap_err(),
            reader.point_alias("alias", "notes").await.unwrap_err(),
        ];
        for failure in failures {
            assert!(matches!(failure, IndexError::Denied { .. }), "{failure:?}");
            assert!(failure.to_string().contains("storage.qdrant.api_key"));
        }
    });
}

#[test]
fn what_strict_mode_does_not_allow_is_denied() {
    let Some(url) = qdrant_server::url() else {
        return;
    };
    let limits = [
        StrictModeConfigBuilder::default().upsert_max_batchsize(2),
        StrictModeConfigBuilder::default().max_points_count(1),
        StrictModeConfigBuilder::default().max_collection_vector_size_bytes(1),
        StrictModeConfigBuilder::default().max_collection_payload_size_bytes(1),
        StrictModeConfigBuilder::default().write_rate_limit(2),
    ];
    block_on(async {
        let client = qdrant_client::Qdrant::from_url(url).build().unwrap();
        let index = connect(&settings(url)).await.unwrap();
        for limit in limits {
            let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
            index.create_collection(&name, &spec()).await.unwrap();
            let limit = limit.enabled(true).build();
            let update = UpdateCollectionBuilder::new(&name).strict_mode_config(limit.clone());
            client.update_collection(update).await.unwrap();
            // The server counts what a limit applies to every hundred updates or so.
            let mut failure = None;
            for _ in 0..300 {
                let points: Vec<_> = (0..3).map(|n| point(n, direction(n), "words")).collect();
                failure = index
                    .upsert(&name, &points, UpsertMode::NotNewer)
                    .await
                    .err();
                if failure.is_some() {
                    break;
                }
            }
            assert!(
                matches!(failure, Some(IndexError::Denied { .. })),
                "{limit:?}: {failure:?}"
            );
            index.drop_collection(&name).await.unwrap();
        }
    });
}

#[test]
fn candidates_have_both_scores_in_whichever_shard_they_are() {
    let Some(url) = qdrant_server::url() else {
        return;
    };
    let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
    block_on(async {
        let settings = elf::config::Qdrant {
            shard_number: Some(3),
            ..settings(url)
        };
        let index = connect(&settings).await.unwrap();
        index.create_collection(&name, &spec()).await.unwrap();
        let has_word = |n: u64| n.is_multiple_of(2);
        let points = (0..90).map(|n| {
            let text = if has_word(n) { "harbour" } else { "lighthouse" };
            point(n, direction(n), text)
        });
        index
            .upsert(&name, &points.collect::<Vec<_>>(), UpsertMode::NotNewer)
            .await
            .unwrap();
        let query = elf::index::Query {
            candidates: 5,
            ..crate::setup::query(direction(7), "harbour")
        };
        let found = index.search(&name, &query).await.unwrap();
        assert!((6..=10).contains(&found.len()), "five by each: {found:?}");
        for candidate in &found {
            let n = (0..90).find(|n| id(*n) == candidate.chunk_id).unwrap();
            assert!(candidate.dense.is_some(), "{candidate:?}");
            assert_eq!(candidate.bm25 > 0.0, has_word(n), "{candidate:?}");
        }
        index.drop_collection(&name).await.unwrap();
    });
}

/// Qdrant moves a point that is upserted out of an optimised segment, and keeps the vectors that the
/// new point lacks (copy on write, seen in 1.18.3).
#[test]
fn what_a_new_point_lacks_is_gone_from_an_optimised_segment() {
    let Some(url) = qdrant_server::url() else {
        return;
    };
    block_on(async {
        let index = connect(&settings(url)).await.unwrap();
        let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
        let bench = Bench {
            index: index.clone(),
            name: name.clone(),
        };
        bench.create().await;
        let client = qdrant_client::Qdrant::from_url(url).build().unwrap();
        // Optimised from so many kB of vectors on.
        let optimizers = OptimizersConfigDiffBuilder::default().indexing_threshold(1);
        let optimised = async || {
            let update = UpdateCollectionBuilder::new(&name).optimizers_config(optimizers.clone());
            client.update_collection(update).await.unwrap();
            loop {
                until_green(&*index, &name).await;
                let info = client.collection_info(&name).await.unwrap().result.unwrap();
                if info.indexed_vectors_count() > 300 {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        what_is_not_sent_is_gone(&bench, optimised).await;
        index.drop_collection(&name).await.unwrap();
    });
}

#[test]
fn the_settings_of_the_graph_reach_the_collection() {
    let Some(url) = qdrant_server::url() else {
        return;
    };
    let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
    block_on(async {
        let settings = elf::config::Qdrant {
            hnsw: elf::config::Hnsw {
                m: Some(24),
                ef_construct: Some(64),
            },
            ..settings(url)
        };
        let index = connect(&settings).await.unwrap();
        index.create_collection(&name, &spec()).await.unwrap();
        let client = qdrant_client::Qdrant::from_url(url).build().unwrap();
        let info = client.collection_info(&name).await.unwrap().result.unwrap();
        let config = format!("{:?}", info.config.unwrap().params.unwrap());
        assert!(
            config.contains("m: Some(24), ef_construct: Some(64)"),
            "{config}"
        );
        index.drop_collection(&name).await.unwrap();
    });
}
