//! What the tests share.

pub mod database;
