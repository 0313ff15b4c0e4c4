//! What only a server can meet.

use elf::config::Secret;
use elf::index::{Filter, IndexError, UpsertMode, connect};

use crate::qdrant_server::{self, Server};
use crate::setup::{block_on, point, settings, spec};

#[test]
fn a_server_that_is_away_is_unavailable() {
    // Nothing listens on the port of a listener that is gone.
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
            matches!(error, IndexError::Refused { .. }),
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
fn a_collection_of_somebody_else_has_no_spec() {
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
        assert!(matches!(error, IndexError::Refused { .. }), "{error:?}");
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
            assert!(matches!(error, IndexError::Refused { .. }), "{error:?}");
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
fn a_server_that_dies_is_unavailable_not_wrong() {
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
                .upsert("notes", one, UpsertMode::NotNewer)
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
    use elf::config::Quantization;
    let Some(url) = qdrant_server::url() else {
        return;
    };
    block_on(async {
        for quantization in [Quantization::Scalar, Quantization::Binary] {
            let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
            let (shard_number, on_disk) = (Some(2), true);
            let settings = elf::config::Qdrant {
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
            assert_eq!(config.params.unwrap().shard_number, 2);
            let indexed: std::collections::BTreeSet<_> =
                info.payload_schema.keys().map(String::as_str).collect();
            for field in ["note_id", "tenant_id", "revision", "expires_at", "key"] {
                assert!(indexed.contains(field), "{field} is not among {indexed:?}");
            }
            index.drop_collection(&name).await.unwrap();
        }
    });
}
