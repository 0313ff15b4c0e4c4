//! What the tests share.

pub mod database;
pub mod embedding_server;
pub mod harness;
