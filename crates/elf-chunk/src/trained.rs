//! One small tokenizer of each family, trained for the tests.

use std::sync::{Arc, OnceLock};

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
use tokenizers::normalizers::{BertNormalizer, NFKC};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, PostProcessorWrapper, SplitDelimiterBehavior};

use super::Tokenizer;

/// What the tokenizers learn from, and what some texts are made of.
pub(super) const SENTENCES: [&str; 24] = [
    "The ferry to the island leaves at seven in the morning, and at six on market days.",
    "Her brother keeps the keys; ask him before you open the boathouse.",
    "Nobody knew why the lamp went out.",
    "Restart the indexer, wait until the queue is empty, then run the verification again.",
    "Did you water the tomatoes?",
    "What a storm!",
    "Mr. Okafor measured 3.5 litres of vinegar, 200 g of salt and a handful of dill.",
    "The committee agreed on three things: the bridge is safe, the path is not, the fence stays.",
    "Don't forget that the well-known author's e-mail is unread.",
    "Version 2.0.1 fixes the timeout (see the notes), but not the leak.",
    "Der Zug nach Köln fährt heute später ab, weil die Strecke gesperrt ist.",
    "Où est la clé du grenier? Elle était près de la fenêtre.",
    "El niño preguntó: «¿Cuándo volverá la abuela?»",
    "Мы посадили вишню за домом, и весной она зацвела.",
    "Ο γάτος κοιμάται στον ήλιο όλη μέρα.",
    "会议定于星期三上午十点开始，请带上报告。",
    "昨日は雨が降りましたが、今日は晴れています。",
    "회의는 수요일 오전에 시작합니다.",
    "ذهبت إلى السوق، واشتريت الخبز والزيتون.",
    "הספר נמצא על המדף, ליד החלון.",
    "वह हर सुबह नदी तक चलता है।",
    "def total(items): return sum(item.price for item in items)",
    "| name | price | stock |",
    "- [ ] call the plumber, again",
];

/// A tokenizer of each family, with its name.
pub(super) fn all() -> [(&'static str, &'static Trained); 5] {
    [
        ("BPE with a pattern", pattern_bpe()),
        ("Unigram of words", unigram_of_words()),
        ("WordPiece", wordpiece()),
        ("byte-level BPE", byte_level_bpe()),
        ("Unigram", unigram()),
    ]
}

/// A tokenizer and what it was made from, to count without ELF's code.
pub(super) struct Trained {
    pub(super) ours: Arc<Tokenizer>,
    raw: tokenizers::Tokenizer,
}

impl Trained {
    fn new(raw: tokenizers::Tokenizer) -> Self {
        let json = raw.to_string(false).unwrap();
        Self {
            ours: Arc::new(Tokenizer::from_json(json.as_bytes()).unwrap()),
            raw,
        }
    }

    /// The library's own tokenizer.
    pub(super) fn raw(&self) -> &tokenizers::Tokenizer {
        &self.raw
    }

    /// Tokens of `text` as it is sent.
    pub(super) fn count(&self, text: &str) -> usize {
        self.raw.encode(text, true).unwrap().len()
    }

    /// Tokens of `text` without special ones.
    pub(super) fn count_plain(&self, text: &str) -> usize {
        self.raw.encode(text, false).unwrap().len()
    }
}

fn special(tokens: &[&str]) -> Vec<AddedToken> {
    tokens
        .iter()
        .map(|&token| AddedToken::from(token, true))
        .collect()
}

fn train(tokenizer: &mut tokenizers::Tokenizer, trainer: impl Into<TrainerWrapper>) {
    // Three times, so that whole words are frequent enough to be learnt.
    let texts = SENTENCES.iter().cycle().take(3 * SENTENCES.len());
    tokenizer.train(&mut trainer.into(), texts).unwrap();
}

fn template(tokenizer: &tokenizers::Tokenizer, before: &str, after: &str) -> PostProcessorWrapper {
    let id = |token: &str| tokenizer.token_to_id(token).unwrap();
    TemplateProcessing::builder()
        .try_single(format!("{before} $A {after}"))
        .unwrap()
        .special_tokens(vec![(before, id(before)), (after, id(after))])
        .build()
        .unwrap()
        .into()
}

pub(super) fn wordpiece() -> &'static Trained {
    static TRAINED: OnceLock<Trained> = OnceLock::new();
    TRAINED.get_or_init(|| {
        let model = WordPiece::builder()
            .unk_token("[UNK]".into())
            .build()
            .unwrap();
        let mut raw = tokenizers::Tokenizer::new(model);
        raw.with_normalizer(Some(BertNormalizer::default()))
            .unwrap();
        raw.with_pre_tokenizer(Some(BertPreTokenizer));
        let trainer = WordPieceTrainer::builder()
            .vocab_size(900)
            .show_progress(false)
            .special_tokens(special(&["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
            .build();
        train(&mut raw, trainer);
        // The trainer leaves the model without the token it was built with.
        let mut model = raw.get_model().clone();
        if let tokenizers::ModelWrapper::WordPiece(model) = &mut model {
            model.unk_token = "[UNK]".into();
            model.max_input_chars_per_word = 100;
            model.continuing_subword_prefix = "##".into();
        }
        raw.with_model(model);
        let post_processor = template(&raw, "[CLS]", "[SEP]");
        raw.with_post_processor(Some(post_processor));
        let trained = Trained::new(raw);
        assert!(trained.ours.is_word_local());
        trained
    })
}

pub(super) fn byte_level_bpe() -> &'static Trained {
    static TRAINED: OnceLock<Trained> = OnceLock::new();
    TRAINED.get_or_init(|| {
        let mut raw = tokenizers::Tokenizer::new(BPE::default());
        raw.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        raw.with_post_processor(Some(ByteLevel::new(false, true, true)));
        let trainer = BpeTrainer::builder()
            .vocab_size(900)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(special(&["<|endoftext|>"]))
            .build();
        train(&mut raw, trainer);
        Trained::new(raw)
    })
}

/// As cl100k and Llama 3 are.
pub(super) fn pattern_bpe() -> &'static Trained {
    static TRAINED: OnceLock<Trained> = OnceLock::new();
    TRAINED.get_or_init(|| {
        let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let pattern = SplitPattern::Regex(pattern.into());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
        let mut raw = tokenizers::Tokenizer::new(BPE::default());
        raw.with_pre_tokenizer(Some(Sequence::new(vec![
            split.into(),
            ByteLevel::new(false, true, false).into(),
        ])));
        let trainer = BpeTrainer::builder()
            .vocab_size(900)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(special(&["<|begin_of_text|>"]))
            .build();
        train(&mut raw, trainer);
        let trained = Trained::new(raw);
        assert!(trained.ours.has_independent_pieces());
        trained
    })
}

/// As XLM-RoBERTa and E5 are.
pub(super) fn unigram_of_words() -> &'static Trained {
    static TRAINED: OnceLock<Trained> = OnceLock::new();
    TRAINED.get_or_init(|| {
        let mut raw = tokenizers::Tokenizer::new(Unigram::default());
        raw.with_normalizer(Some(NFKC)).unwrap();
        raw.with_pre_tokenizer(Some(Sequence::new(vec![
            WhitespaceSplit.into(),
            Metaspace::new('▁', PrependScheme::Always, true).into(),
        ])));
        let mask = AddedToken::from("<mask>", true).lstrip(true);
        let trainer = UnigramTrainer::builder()
            .vocab_size(700)
            .show_progress(false)
            .unk_token(Some("<unk>".into()))
            .special_tokens([special(&["<s>", "</s>", "<unk>"]), vec![mask]].concat())
            .build()
            .unwrap();
        train(&mut raw, trainer);
        let post_processor = template(&raw, "<s>", "</s>");
        raw.with_post_processor(Some(post_processor));
        let trained = Trained::new(raw);
        assert!(trained.ours.has_independent_pieces());
        trained
    })
}

pub(super) fn unigram() -> &'static Trained {
    static TRAINED: OnceLock<Trained> = OnceLock::new();
    TRAINED.get_or_init(|| {
        let mut raw = tokenizers::Tokenizer::new(Unigram::default());
        raw.with_normalizer(Some(NFKC)).unwrap();
        raw.with_pre_tokenizer(Some(Metaspace::new('▁', PrependScheme::Always, true)));
        let trainer = UnigramTrainer::builder()
            .vocab_size(700)
            .show_progress(false)
            .unk_token(Some("<unk>".into()))
            .special_tokens(special(&["<s>", "</s>", "<unk>"]))
            .build()
            .unwrap();
        train(&mut raw, trainer);
        let post_processor = template(&raw, "<s>", "</s>");
        raw.with_post_processor(Some(post_processor));
        Trained::new(raw)
    })
}

/// Tokenizers whose vocabulary is written down, not learnt: training depends on the order of a hash map.
pub(super) fn written_down() -> &'static [Trained; 2] {
    static TOKENIZERS: OnceLock<[Trained; 2]> = OnceLock::new();
    TOKENIZERS.get_or_init(|| {
        let mut pieces: Vec<String> = ["[UNK]", "[CLS]", "[SEP]"].map(String::from).into();
        for sentence in &SENTENCES[..16] {
            let lower = sentence.to_lowercase();
            for word in lower.split(|c: char| !c.is_alphanumeric()).step_by(2) {
                pieces.push(word.to_owned());
            }
            pieces.extend(lower.chars().flat_map(|c| [c.to_string(), format!("##{c}")]));
        }
        let mut vocab = serde_json::Map::new();
        for piece in pieces.iter().filter(|piece| !piece.trim().is_empty()) {
            let id = vocab.len();
            vocab.entry(piece.clone()).or_insert(id.into());
        }
        let wordpiece = serde_json::json!({
            "version": "1.0", "added_tokens": [
                {"id": 2, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false,
                 "normalized": false, "special": true}],
            "normalizer": {"type": "BertNormalizer", "clean_text": true,
                "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
            "decoder": null, "truncation": null, "padding": null,
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab,
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}});

        let mut letters: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        letters.sort_unstable();
        let mut vocab = serde_json::Map::new();
        for (id, letter) in letters.into_iter().enumerate() {
            vocab.insert(letter.to_string(), id.into());
        }
        let merges = [["t", "h"], ["th", "e"], ["Ġ", "the"], ["i", "n"], ["Ġ", "a"], ["e", "r"], ["Ġ", "in"]];
        for merge in &merges {
            let id = vocab.len();
            vocab.insert(merge.concat(), id.into());
        }
        let byte_level = serde_json::json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let bpe = serde_json::json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": byte_level,
            "post_processor": byte_level, "decoder": byte_level, "truncation": null, "padding": null,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "vocab": vocab,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                "byte_fallback": false, "merges": merges}});
        [wordpiece, bpe]
            .map(|json| Trained::new(tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap()))
    })
}
