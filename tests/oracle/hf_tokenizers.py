#!/usr/bin/env python3
"""tests/oracle/hf_tokenizers.py -- write tests/io/tokenizers/: small tokenizers, and the ids that HuggingFace's library gives.

Needs the package tokenizers (made with 0.23.3); nothing in the build or the tests does. For each tokenizer NAME:
  NAME.json    as the library saves it
  NAME.cases   a case a line: flags (1: special tokens in the text, 2: frame), the text in hexadecimal, ids
train.txt is what gpt2.json was trained on. split.txt has a digest of how each known expression splits a text around every code
point: FNV-1a over the lengths of the pieces in bytes, each as one byte."""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "io/tokenizers"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = GPT4.replace("{1,3}", "")
UPPER, LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = f"{UPPER}*{LOWER}+{ENDING}|{UPPER}+{LOWER}*{ENDING}" + (
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END = "<|endoftext|>"

random.seed(4)
WORDS = "the mill grinds grain and the stone turns; a quern is a small mill, turned by hand. It's we'll they're don't".split()
PIECES = WORDS + [" ", "  ", "\n", "\r\n", "\t", "'", "'S", "'LL", "'\u017f", "1", "23", "4567", "é", "ß", "中文", "🚀", "½", "Ⅷ"]
PIECES += ["\u00a0", "\u3000", "\u2028", "!", "...", "-", "\u0301", "\u200d", "\x1c", "\x85", END, "<s>", "</s>", "[MASK]", "▁", "ſ"]


def train_text():
    lines = []
    for _ in range(60):
        lines.append(" ".join(random.choice(WORDS) for _ in range(random.randrange(3, 12))))
    return "\n".join(lines) + "\naaaaaaaa aaaa aaaaaa 12 123 1234 ééé\n"


def case_text():
    return "".join(random.choice(PIECES) + random.choice(["", " "]) for _ in range(random.randrange(1, 14)))


def byte_level(pre, specials, text, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(specials)
    return tokenizer


def characters(text, unk, fallback, fuse, normalizer, pre, decoder):
    tokenizer = Tokenizer(models.BPE(unk_token=unk, byte_fallback=fallback, fuse_unk=fuse))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoder
    bytes_ = [f"<0x{i:02X}>" for i in range(256)] if fallback else []
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"] + bytes_, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    tree = json.loads(tokenizer.to_str())  # the byte tokens are of the model, not added
    tree["added_tokens"] = [a for a in tree["added_tokens"] if not a["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(tree))


def write(name, tokenizer, texts):
    (OUT / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    lines = []
    for i, text in enumerate(texts):
        flags = i % 4
        tokenizer.encode_special_tokens = not flags & 1
        ids = tokenizer.encode(text, add_special_tokens=bool(flags & 2)).ids
        lines.append(" ".join([str(flags), text.encode().hex() or "-"] + [str(x) for x in ids]))
    (OUT / f"{name}.cases").write_text("\n".join(lines) + "\n")


def digest(expression):
    split = pre_tokenizers.Split(Regex(expression), "isolated")
    value = 0xCBF29CE484222325
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        c = chr(code)
        for piece, _ in split.pre_tokenize_str(f"a{c}1{c}{c}2 {c}b\n{c}! {c} '{c} \t{c}A{c}Ba{c}{c}'s/{c}"):
            value = ((value ^ len(piece.encode())) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


OUT.mkdir(exist_ok=True)
text = train_text()
(OUT / "train.txt").write_text(text, newline="")
texts = [case_text() for _ in range(56)] + ["", " ", "a" * 70, "mill" * 40, " " * 50 + "x", "\n" * 40, "'" * 40, "12345678901"]
level = pre_tokenizers.ByteLevel
sequence = pre_tokenizers.Sequence
write("gpt2", byte_level(level(add_prefix_space=False), [], text), texts)
write("gpt2_prefix", byte_level(level(add_prefix_space=True), [], text), texts)
gpt4 = byte_level(
    sequence([pre_tokenizers.Split(Regex(GPT4), "isolated"), level(add_prefix_space=False, use_regex=False)]),
    [AddedToken("<s>", special=True, normalized=False), AddedToken("</s>", special=True, normalized=False)],
    text,
    ignore_merges=True,
)
frame = [("<s>", gpt4.token_to_id("<s>")), ("</s>", gpt4.token_to_id("</s>"))]
gpt4.post_processor = processors.Sequence(
    [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<s> $A </s>", pair="$A $B", special_tokens=frame)]
)
write("gpt4", gpt4, texts)
strip = [AddedToken("[MASK]", lstrip=True, rstrip=True, special=True, normalized=False), AddedToken("<s>", lstrip=True)]
write("digits", byte_level(sequence([pre_tokenizers.Digits(individual_digits=True), level(add_prefix_space=False)]), strip, text), texts)
pieces = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
blank = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
write("llama2", characters(text, "<unk>", True, True, blank, None, pieces), texts)
meta = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
write("metaspace", characters(text, "<unk>", False, False, None, meta, decoders.Metaspace(prepend_scheme="first")), texts)
if "--quick" not in sys.argv[1:]:
    rows = [("gpt2", GPT2), ("gpt4", GPT4), ("qwen2", QWEN2), ("gpt4o", GPT4O)]
    (OUT / "split.txt").write_text("".join(f"{name} {digest(expression):016x}\n" for name, expression in rows))
