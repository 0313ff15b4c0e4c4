//! What several tests need.

pub mod embedding_server;
