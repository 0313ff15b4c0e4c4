//! Checks an answer before ELF uses it: as many vectors as texts, in their order,
//! of the right dimension, finite and not all zero.

use super::EmbedError;

/// A vector of an answer, with the place that the provider says it has.
#[derive(Debug, Clone, PartialEq)]
pub struct Indexed {
    /// Which text it belongs to, from 0; servers that keep the order may leave it out.
    pub index: Option<usize>,
    /// As it came, unchecked.
    pub vector: Vec<f32>,
}

/// The vectors of `answer` in the order of the `count` texts that were sent,
/// each of `dim` floats. Where `dim` is not known yet the first vector gives it.
pub fn answer(
    answer: Vec<Indexed>,
    count: usize,
    dim: Option<usize>,
) -> Result<Vec<Vec<f32>>, EmbedError> {
    // ELF cannot know which text a missing vector belongs to, so no vector of this
    // answer is usable. The provider is at fault, not a text.
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

fn in_order(answer: Vec<Indexed>) -> Result<Vec<Vec<f32>>, EmbedError> {
    if answer.iter().all(|item| item.index.is_none()) {
        return Ok(answer.into_iter().map(|item| item.vector).collect());
    }
    let mut places: Vec<Option<Vec<f32>>> = vec![None; answer.len()];
    for Indexed { index, vector } in answer {
        match index.and_then(|index| places.get_mut(index)) {
            Some(place @ None) => *place = Some(vector),
            _ => {
                return Err(EmbedError::failed(
                    "the indexes of its vectors are not 0, 1, 2, … each once",
                ));
            }
        }
    }
    Ok(places.into_iter().flatten().collect())
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

    #[test]
    fn a_wrong_count_or_wrong_indexes_are_the_providers_state() {
        let unindexed = Indexed {
            index: None,
            vector: vec![1.0],
        };
        for (items, count) in [
            (vec![item(0, &[1.0])], 2),
            (vec![item(0, &[1.0]), item(1, &[1.0])], 1),
            (vec![], 1),
            (vec![item(0, &[1.0]), item(0, &[1.0])], 2),
            (vec![item(0, &[1.0]), item(2, &[1.0])], 2),
            (vec![item(0, &[1.0]), unindexed], 2),
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
