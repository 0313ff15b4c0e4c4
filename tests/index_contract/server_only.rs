//! What only a server can meet.

use elf::config::Secret;
use elf::index::{IndexError, connect};

use crate::qdrant_server;
use crate::setup::{block_on, settings};

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
