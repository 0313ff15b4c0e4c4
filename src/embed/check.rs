//! Checks an answer before ELF uses it: as many vectors as texts, in their order,
//! of the right dimension, finite and not all zero.

use std::collections::HashMap;

use super::{EmbedError, Most};

/// A vector of an answer, with the place that the provider says it has.
#[derive(Debug, Clone, PartialEq)]
pub struct Indexed {
    /// Which text it belongs to, from 0; servers that keep the order may leave it out.
    pub index: Option<usize>,
    /// As it came, unchecked.
    pub vector: Vec<f32>,
}

/// From so many texts on, one vector for all of them means that the server made one text of them.
/// For two texts, it may as well have left one out.
const FUSED: usize = 3;

/// The vectors of `answer` in the order of the `count` texts that were sent,
/// each of `dim` floats. Where `dim` is not known yet the first vector gives it.
pub fn answer(
    answer: Vec<Indexed>,
    count: usize,
    dim: Option<usize>,
) -> Result<Vec<Vec<f32>>, EmbedError> {
    if answer.len() == 1 && count >= FUSED {
        return Err(EmbedError::TooMuch {
            reason: format!("it answered {count} texts with one vector"),
            most: Most::Texts(1),
        });
    }
    let answer = match answer.len() > count {
        true => without_repetitions(answer),
        false => answer,
    };
    // ELF cannot know which text a missing vector belongs to, so no vector of this
    // answer is usable.
    if answer.len() != count {
        return Err(EmbedError::failed(format!(
            "it answered {count} texts with {} vectors",
            answer.len()
        )));
    }
    let vectors = in_order(answer)?;
    let dim = dim.or_else(|| vectors.first().map(Vec::len));
    for (index, vector) in vectors.iter().enumerate() {
        one(vector, dim).map_err(|error| at(index, error))?;
    }
    Ok(vectors)
}

/// Leaves out what a server says twice: the same index and the same vector.
fn without_repetitions(answer: Vec<Indexed>) -> Vec<Indexed> {
    let mut kept: Vec<Indexed> = Vec::with_capacity(answer.len());
    let mut places = HashMap::new();
    for item in answer {
        let first = item
            .index
            .map(|index| *places.entry(index).or_insert(kept.len()));
        match first.and_then(|place| kept.get(place)) {
            Some(same) if same.vector == item.vector => {}
            _ => kept.push(item),
        }
    }
    kept
}

/// Puts the vectors at their indexes, from 0 or from 1. Where that cannot be, their places count,
/// if the indexes tell no other order.
fn in_order(answer: Vec<Indexed>) -> Result<Vec<Vec<f32>>, EmbedError> {
    let indexes: Vec<Option<usize>> = answer.iter().map(|item| item.index).collect();
    let places = match places(&indexes, 0).or_else(|| places(&indexes, 1)) {
        Some(places) => places,
        None if count_up(&indexes) => (0..answer.len()).collect(),
        None => {
            return Err(EmbedError::failed(
                "the indexes of its vectors are not 0, 1, 2, … each once",
            ));
        }
    };
    let mut vectors = vec![Vec::new(); answer.len()];
    for (item, place) in answer.into_iter().zip(places) {
        vectors[place] = item.vector;
    }
    Ok(vectors)
}

/// The place of each vector, if the indexes from `first` on are each there once. A vector without
/// an index is at its place.
fn places(indexes: &[Option<usize>], first: usize) -> Option<Vec<usize>> {
    let mut taken = vec![false; indexes.len()];
    let place = |(at, index): (usize, &Option<usize>)| {
        let place = match index {
            Some(index) => index.checked_sub(first)?,
            None => at,
        };
        let is_taken = taken.get_mut(place)?;
        (!std::mem::replace(is_taken, true)).then_some(place)
    };
    indexes.iter().enumerate().map(place).collect()
}

/// Whether the indexes only count up, and begin anew: all are 0, or a server behind the server
/// numbered its own part.
fn count_up(indexes: &[Option<usize>]) -> bool {
    let Some(first) = indexes.iter().flatten().min().copied() else {
        return true;
    };
    let mut next = first;
    indexes.iter().all(|index| {
        let index = index.unwrap_or(next);
        let fits = index == next || index == first;
        next = index + 1;
        fits
    })
}

fn one(vector: &[f32], dim: Option<usize>) -> Result<(), EmbedError> {
    if vector.is_empty() {
        return Err(EmbedError::failed("it answered with an empty vector"));
    }
    if let Some(dim) = dim
        && vector.len() != dim
    {
        return Err(EmbedError::config(format!(
            "it answered with a vector of {} dimensions where {dim} are expected; check \
             `providers.embedding.dimensions` and `providers.embedding.model`",
            vector.len()
        )));
    }
    if !vector.iter().all(|x| x.is_finite()) {
        return Err(EmbedError::input("its vector holds NaN or infinity"));
    }
    if vector.iter().all(|x| *x == 0.0) {
        return Err(EmbedError::input("its vector is all zeros"));
    }
    Ok(())
}

fn at(index: usize, error: EmbedError) -> EmbedError {
    match error {
        EmbedError::Input { reason } => EmbedError::input(format!("text {index}: {reason}")),
        error => error,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn item(index: usize, vector: &[f32]) -> Indexed {
        Indexed {
            index: Some(index),
            vector: vector.to_vec(),
        }
    }

    #[test]
    fn vectors_come_back_in_the_order_of_their_texts() {
        let shuffled = vec![item(2, &[3.0]), item(0, &[1.0]), item(1, &[2.0])];
        assert_eq!(answer(shuffled, 3, Some(1)).unwrap(), [[1.0], [2.0], [3.0]]);
    }

    #[test]
    fn an_answer_without_indexes_keeps_its_order() {
        let plain = [[1.0, 0.0], [0.0, 1.0]].map(|vector| Indexed {
            index: None,
            vector: vector.to_vec(),
        });
        assert_eq!(
            answer(plain.to_vec(), 2, None).unwrap(),
            [[1.0, 0.0], [0.0, 1.0]]
        );
    }

    /// Vectors that hold their place, with these indexes.
    fn numbered(indexes: &[Option<usize>]) -> Vec<Indexed> {
        let item = |(place, index): (usize, &Option<usize>)| Indexed {
            index: *index,
            vector: vec![place as f32 + 1.0],
        };
        indexes.iter().enumerate().map(item).collect()
    }

    #[test]
    fn indexes_are_read_as_servers_write_them() {
        let (none, some) = (None, Some);
        for (indexes, order) in [
            (vec![none, some(1), some(2)], [1.0, 2.0, 3.0]),
            (vec![some(0), none, none], [1.0, 2.0, 3.0]),
            (vec![some(3), some(1), some(2)], [2.0, 3.0, 1.0]),
            (vec![some(0), some(0), some(0)], [1.0, 2.0, 3.0]),
            (vec![some(1), some(1), some(1)], [1.0, 2.0, 3.0]),
            // Numbered by two servers.
            (vec![some(0), some(1), some(0)], [1.0, 2.0, 3.0]),
        ] {
            let vectors = answer(numbered(&indexes), 3, None).unwrap();
            assert_eq!(vectors.concat(), order, "{indexes:?}");
        }
        for indexes in [
            [some(1), some(0), some(0)],
            [some(2), none, some(1)],
            [some(0), some(2), some(2)],
            [some(5), some(9), some(7)],
        ] {
            answer(numbered(&indexes), 3, None).unwrap_err();
        }
    }

    #[test]
    fn what_a_server_says_twice_is_read_once() {
        let once = [item(0, &[1.0]), item(1, &[2.0])];
        let twice = [once.clone(), once].concat();
        assert_eq!(answer(twice, 2, None).unwrap(), [[1.0], [2.0]]);
    }

    #[test]
    fn one_vector_for_all_texts_asks_for_texts_one_by_one() {
        let fused = answer(vec![item(0, &[1.0])], 3, None).unwrap_err();
        let one = Most::Texts(1);
        assert!(matches!(fused, EmbedError::TooMuch { most, .. } if most == one));
    }

    #[test]
    fn a_wrong_count_or_wrong_indexes_are_the_providers_state() {
        for (items, count) in [
            (vec![item(0, &[1.0])], 2),
            (vec![item(0, &[1.0]), item(1, &[1.0])], 1),
            (vec![], 1),
            (vec![item(0, &[1.0]), item(2, &[1.0])], 2),
            (vec![item(0, &[])], 1),
        ] {
            let error = answer(items.clone(), count, None).unwrap_err();
            assert!(
                matches!(
                    error,
                    EmbedError::Unavailable {
                        perhaps_input: true,
                        ..
                    }
                ),
                "{items:?}: {error}"
            );
        }
    }

    #[test]
    fn a_wrong_dimension_is_a_configuration_error() {
        let pinned = answer(vec![item(0, &[1.0, 2.0])], 1, Some(3)).unwrap_err();
        assert!(matches!(&pinned, EmbedError::Config { reason }
            if reason.contains("2 dimensions where 3") && reason.contains("providers.embedding.dimensions")));
        let unequal = vec![item(0, &[1.0, 2.0]), item(1, &[1.0])];
        let unequal = answer(unequal, 2, None).unwrap_err();
        assert!(matches!(unequal, EmbedError::Config { .. }));
    }

    #[test]
    fn a_vector_without_a_direction_is_the_inputs_fault() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = answer(vec![item(0, &[1.0, bad])], 1, Some(2)).unwrap_err();
            assert!(matches!(error, EmbedError::Input { .. }), "{bad}: {error}");
        }
        let zeros = answer(vec![item(0, &[0.0, -0.0])], 1, Some(2)).unwrap_err();
        assert!(matches!(zeros, EmbedError::Input { .. }));
    }
}
