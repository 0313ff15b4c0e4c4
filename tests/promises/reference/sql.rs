//! `docs/reference/sql.md`
