//! Rows that Postgres cannot read, because a part of them is lost on its disk. One of them must not hide
//! the others.

use super::StoreError;

/// Reads rows by their keys. When Postgres cannot read them, each half is read separately, until a
/// key stands alone. Returns the rows, and the keys without one with what Postgres said.
pub(super) async fn read_each<'k, K, T, F>(
    keys: &'k [K],
    read: impl Fn(&'k [K]) -> F,
) -> Result<(Vec<T>, Vec<(&'k K, String)>), StoreError>
where
    F: Future<Output = Result<Vec<T>, StoreError>>,
{
    let (mut rows, mut unreadable) = (Vec::new(), Vec::new());
    let mut parts = vec![keys];
    while let Some(part) = parts.pop() {
        match read(part).await {
            Ok(more) => rows.extend(more),
            Err(StoreError::Unreadable(reason)) => match part {
                [only] => unreadable.push((only, reason)),
                _ => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            },
            Err(error) => return Err(error),
        }
    }
    Ok((rows, unreadable))
}

/// [`read_each`], where a row that cannot be read counts as one that is not there.
pub(super) async fn read_those_that_can_be<'k, K: std::fmt::Debug, T, F>(
    keys: &'k [K],
    read: impl Fn(&'k [K]) -> F,
) -> Result<Vec<T>, StoreError>
where
    F: Future<Output = Result<Vec<T>, StoreError>>,
{
    let (rows, unreadable) = read_each(keys, read).await?;
    if let Some((key, reason)) = unreadable.first() {
        let rows = unreadable.len();
        tracing::warn!(
            ?key,
            reason,
            rows,
            "left out what Postgres cannot read; `elf verify` names it"
        );
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_row_but_the_unreadable_ones_is_read() {
        let keys: Vec<u32> = (0..100).collect();
        let lost = [0, 41, 42, 99];
        let read = |part: &[u32]| {
            let is_lost = part.iter().any(|key| lost.contains(key));
            let answer = match is_lost {
                true => Err(StoreError::Unreadable("a chunk is missing".into())),
                false => Ok(part.to_vec()),
            };
            std::future::ready(answer)
        };
        let (rows, unreadable) = read_each(&keys, read).await.expect("the others are read");
        assert_eq!(rows.len(), 96);
        let unreadable: Vec<u32> = unreadable.into_iter().map(|(key, _)| *key).collect();
        assert_eq!(unreadable, lost);
        // Any other error ends it.
        let read = |_: &[u32]| {
            std::future::ready(Err::<Vec<u32>, _>(StoreError::Unavailable("away".into())))
        };
        assert!(read_each(&keys, read).await.is_err());
    }
}
