#!/usr/bin/env python3
"""Makes the references that the `local` models are held against.

    pip install sentence-transformers
    python tests/data/make_reference.py FOLDER_OF_ALL_MINILM_L6_V2

Writes, beside itself:

- minilm_reference.json: texts with their vectors from all-MiniLM-L6-v2;
- tiny-distilbert/, tiny-roberta/: random models of a hundred kilobytes, for the
  other architectures, poolings and file layouts, each with its reference.json;
- tiny-cross-bert/, tiny-cross-roberta/, tiny-cross-distilbert/: random cross-encoders,
  likewise. Without an argument, only these are made, and transformers is enough.

The random weights are larger than a trained model's would be, so that a slip in
an activation, a mask or a position shows in the vectors.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer, BertWordPieceTokenizer
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    DistilBertModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
    RobertaTokenizerFast,
)

HERE = Path(__file__).parent

LONG = (
    "The pump in cellar two stopped at 03:40. The night shift switched to the reserve "
    "pump and wrote the pressure down every ten minutes: 2.1, 2.0, 2.0, 1.8 bar. At 05:15 "
    "the mechanic found a torn coupling, ordered a new one from the depot in Kassel, and "
    "bridged the gap with a hose clamp. "
)

TEXTS = [
    "ELF",
    "The cat sat on the mat.",
    "How do I restart the payment service after a failed deploy?",
    "Der Zug nach Köln fährt heute von Gleis 7, nicht von Gleis 9.",
    "東京の夏は蒸し暑いですが、夜は少し涼しくなります。",
    "Встреча перенесена на четверг, возьмите с собой договор.",
    "اجتماع الفريق يوم الأحد الساعة العاشرة",
    "Great job 🎉🎉 👩‍👩‍👧‍👦 see you tomorrow 🚀",
    "...",
    "fn main() { println!(\"{}\", 40 + 2); } // prints forty-two",
    "| name | qty |\n|------|-----|\n| flour | 500 g |\n| salt | 10 g |",
    LONG,
    (LONG * 3).strip(),
]


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def reference(model, texts):
    for text in texts:
        tokens = len(model.tokenizer(text, truncation=False)["input_ids"])
        assert tokens <= model.max_seq_length, (tokens, text)
    vectors = model.encode(texts, batch_size=4).tolist()
    return [
        {"text": text, "vector": [round(x, 6) for x in vector]}
        for text, vector in zip(texts, vectors)
    ]


def compact(items):
    # One line an item: a list with a number a line would be unreadable and large.
    lines = (json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in items)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def tiny_distilbert(texts):
    """DistilBERT, cls pooling, in the layout that sentence-transformers 5 and later write."""
    folder = HERE / "tiny-distilbert"
    folder.mkdir(exist_ok=True)
    tokenizer = word_pieces(texts)
    config = DistilBertConfig(
        vocab_size=len(tokenizer), dim=32, hidden_dim=64, n_layers=2, n_heads=4,
        max_position_embeddings=128, initializer_range=0.3,
    )
    save_tiny(folder, DistilBertModel(config), tokenizer, "cls", normalize=True)
    return folder


def tiny_roberta(texts):
    """RoBERTa, max pooling, no normalisation, in the classic layout."""
    folder = HERE / "tiny-roberta"
    folder.mkdir(exist_ok=True)
    tokenizer = byte_pairs(texts)
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=130, type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id, initializer_range=0.3,
    )
    save_tiny(folder, RobertaModel(config, add_pooling_layer=False), tokenizer, "max", normalize=False)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 120, "do_lower_case": False})
    write(folder / "1_Pooling" / "config.json", {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": True,
        "pooling_mode_mean_sqrt_len_tokens": False,
    })
    write(folder / "modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ])
    return folder


def word_pieces(texts):
    words = BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator(texts, vocab_size=400, show_progress=False)
    return BertTokenizerFast(tokenizer_object=words._tokenizer, model_max_length=128)


def byte_pairs(texts):
    pieces = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces.train_from_iterator(texts, vocab_size=400, special_tokens=special, show_progress=False)
    model = json.loads(pieces.to_str())["model"]
    return RobertaTokenizerFast(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],
        model_max_length=128,
    )


def perturb(model):
    # Biases and layer norms start as zeros and ones, which would hide a missing one.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.2)


def tiny_cross_encoders(texts):
    """A query and a text in, one number out. Their order is that of the number before a sigmoid."""
    words, pairs = word_pieces(texts), byte_pairs(texts)
    sizes = {"num_labels": 1, "initializer_range": 0.3}
    large = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    models = {
        "bert": (words, BertForSequenceClassification(BertConfig(
            vocab_size=len(words), max_position_embeddings=128, **large, **sizes))),
        "roberta": (pairs, RobertaForSequenceClassification(RobertaConfig(
            vocab_size=len(pairs), max_position_embeddings=130, type_vocab_size=1,
            pad_token_id=pairs.pad_token_id, **large, **sizes))),
        "distilbert": (words, DistilBertForSequenceClassification(DistilBertConfig(
            vocab_size=len(words), dim=32, hidden_dim=64, n_layers=2, n_heads=4,
            max_position_embeddings=128, **sizes))),
    }
    for kind, (tokenizer, model) in models.items():
        folder = HERE / f"tiny-cross-{kind}"
        folder.mkdir(exist_ok=True)
        perturb(model)
        model.eval()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for extra in ("special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt"):
            (folder / extra).unlink(missing_ok=True)
        references = []
        for query in ("When does the train leave?", "東京"):
            for text in texts:
                read = tokenizer(query, text, return_tensors="pt")
                if kind == "distilbert":
                    read.pop("token_type_ids", None)
                assert read["input_ids"].shape[1] <= 128, text
                with torch.no_grad():
                    score = model(**read).logits.item()
                references.append({"query": query, "text": text, "score": round(score, 5)})
        (folder / "reference.json").write_text(compact(references))


def save_tiny(folder, encoder, tokenizer, pooling, normalize):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    perturb(encoder)
    plain = folder / "plain"
    encoder.save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    modules = [Transformer(str(plain)), Pooling(encoder.config.hidden_size, pooling)]
    if normalize:
        modules.append(Normalize())
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    for file in plain.iterdir():
        file.unlink()
    plain.rmdir()
    (folder / "README.md").unlink(missing_ok=True)


def main():
    torch.manual_seed(7)
    short = [text for text in TEXTS if len(text.encode()) < 100]
    tiny_cross_encoders(short)
    if len(sys.argv) < 2:
        return
    from sentence_transformers import SentenceTransformer

    minilm = SentenceTransformer(sys.argv[1], device="cpu")
    (HERE / "minilm_reference.json").write_text(compact(reference(minilm, TEXTS)))
    for make in (tiny_distilbert, tiny_roberta):
        folder = make(TEXTS)
        model = SentenceTransformer(str(folder), device="cpu")
        (folder / "reference.json").write_text(compact(reference(model, short)))


if __name__ == "__main__":
    main()
