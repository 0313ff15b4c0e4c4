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
