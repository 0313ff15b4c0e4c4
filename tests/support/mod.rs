//! What several tests need.
#![allow(dead_code, reason = "each test uses its part")]

pub mod embedding_server;
