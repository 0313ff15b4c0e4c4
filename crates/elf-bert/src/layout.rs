//! Reads the small files of a sentence-transformers folder: `modules.json`,
//! `1_Pooling/config.json`, `sentence_bert_config.json`, `tokenizer_config.json`.

use serde_json::Value;

use super::pooling::Pooling;

/// Which modules a text passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modules {
    /// The folder of the encoder's files: empty, or with a slash at the end.
    pub encoder: String,
    /// The folder of the pooling's configuration, likewise.
    pub pooling: Option<String>,
    /// Whether vectors are made unit length.
    pub normalize: bool,
}

impl Default for Modules {
    /// What sentence-transformers does with a folder without `modules.json`.
    fn default() -> Self {
        Self {
            encoder: String::new(),
            pooling: None,
            normalize: false,
        }
    }
}

/// Reads `modules.json`; the error finishes "the model …".
pub fn modules(json: &Value) -> Result<Modules, String> {
    let mut modules = Modules::default();
    for module in json
        .as_array()
        .ok_or("has a modules.json that is not a list")?
    {
        let path = module["path"].as_str().unwrap_or_default();
        let kind = module["type"].as_str().unwrap_or_default();
        // The package in front of the name has changed between releases.
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" => modules.encoder = folder(path),
            "Pooling" => modules.pooling = Some(folder(path)),
            "Normalize" => modules.normalize = true,
            other => {
                return Err(format!(
                    "passes texts through a module {other:?} ({path}), which elf does not compute"
                ));
            }
        }
    }
    Ok(modules)
}

fn folder(path: &str) -> String {
    match path.trim_end_matches('/') {
        "" => String::new(),
        path => format!("{path}/"),
    }
}

/// Reads `1_Pooling/config.json`: one name (sentence-transformers 5 and later)
/// or a flag for each mode (before). The error finishes "the model …".
pub fn pooling(json: &Value) -> Result<Pooling, String> {
    let modes: Vec<&str> = match &json["pooling_mode"] {
        Value::String(mode) => vec![mode],
        Value::Array(modes) => modes.iter().filter_map(Value::as_str).collect(),
        _ => json
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, on)| on.as_bool() == Some(true))
            .filter_map(|(key, _)| key.strip_prefix("pooling_mode_"))
            .collect(),
    };
    match modes[..] {
        ["mean" | "mean_tokens"] => Ok(Pooling::Mean),
        ["cls" | "cls_token"] => Ok(Pooling::Cls),
        ["max" | "max_tokens"] => Ok(Pooling::Max),
        _ => Err(format!(
            "pools its tokens by {modes:?}; elf computes \"mean\", \"cls\" and \"max\""
        )),
    }
}

/// Tokens that the model reads, special ones included: what its authors set
/// (`max_seq_length`, else the tokenizer's `model_max_length`), but at most
/// `positions`.
pub fn window(sentence_config: &Value, tokenizer_config: &Value, positions: usize) -> usize {
    let set = sentence_config["max_seq_length"]
        .as_f64()
        .or_else(|| tokenizer_config["model_max_length"].as_f64())
        .filter(|set| *set >= 1.0);
    // An unset `model_max_length` is written as 1e30.
    set.map_or(positions, |set| positions.min(set as usize))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_layouts_of_modules_are_read() {
        let classic = json!([
            {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]);
        let current = json!([
            {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"},
            {"path": "2_Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"},
        ]);
        let pooling = Some("1_Pooling/".to_owned());
        let classic = modules(&classic).unwrap();
        assert_eq!(classic.encoder, "0_Transformer/");
        assert_eq!(
            (classic.pooling, classic.normalize),
            (pooling.clone(), false)
        );
        let current = modules(&current).unwrap();
        assert_eq!(current.encoder, "");
        assert_eq!((current.pooling, current.normalize), (pooling, true));
    }

    #[test]
    fn a_module_that_would_be_left_out_is_an_error() {
        let dense = json!([{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]);
        assert!(modules(&dense).unwrap_err().contains("\"Dense\" (2_Dense)"));
    }

    #[test]
    fn poolings_are_read_from_flags_and_from_names() {
        let flags = json!({"word_embedding_dimension": 8, "pooling_mode_cls_token": false,
            "pooling_mode_mean_tokens": true, "include_prompt": true});
        assert_eq!(pooling(&flags), Ok(Pooling::Mean));
        assert_eq!(
            pooling(&json!({"pooling_mode_max_tokens": true})),
            Ok(Pooling::Max)
        );
        assert_eq!(pooling(&json!({"pooling_mode": "cls"})), Ok(Pooling::Cls));
    }

    #[test]
    fn a_pooling_that_is_not_computed_is_an_error() {
        for other in [
            json!({"pooling_mode": "lasttoken"}),
            json!({"pooling_mode_weightedmean_tokens": true}),
            json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}),
            json!({"pooling_mode": ["mean", "max"]}),
            json!({}),
        ] {
            assert!(pooling(&other).is_err(), "{other}");
        }
    }

    #[test]
    fn the_window_is_what_was_set_and_what_there_are_positions_for() {
        let none = json!(null);
        assert_eq!(
            window(
                &json!({"max_seq_length": 256}),
                &json!({"model_max_length": 512}),
                512
            ),
            256
        );
        assert_eq!(window(&json!({"max_seq_length": 9999}), &none, 512), 512);
        assert_eq!(
            window(
                &json!({"max_seq_length": null}),
                &json!({"model_max_length": 128}),
                512
            ),
            128
        );
        assert_eq!(window(&none, &json!({"model_max_length": 1e30}), 512), 512);
        assert_eq!(window(&none, &none, 512), 512);
    }
}
