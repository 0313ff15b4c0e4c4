//! Rows in Postgres's binary COPY format.

use uuid::Uuid;

/// Rows for `copy … from stdin (format binary)`.
pub struct Copy(Vec<u8>);

impl Copy {
    pub fn new() -> Self {
        let mut header = b"PGCOPY\n\xff\r\n\0".to_vec();
        header.extend([0; 8]);
        Self(header)
    }

    pub fn row(&mut self, fields: i16) -> &mut Self {
        self.0.extend(fields.to_be_bytes());
        self
    }

    pub fn field(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend((bytes.len() as i32).to_be_bytes());
        self.0.extend(bytes);
        self
    }

    /// The row of a vector, as pgvector's `vector_recv` reads it.
    pub fn vector(&mut self, id: Uuid, version: &str, vector: &[f32]) {
        let dim = vector.len() as i32;
        let mut bytes = Vec::with_capacity(4 + 4 * vector.len());
        bytes.extend((dim as i16).to_be_bytes());
        bytes.extend([0; 2]);
        bytes.extend(vector.iter().flat_map(|float| float.to_be_bytes()));
        self.row(4)
            .field(id.as_bytes())
            .field(version.as_bytes())
            .field(&dim.to_be_bytes())
            .field(&bytes);
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.extend((-1i16).to_be_bytes());
        self.0
    }
}
