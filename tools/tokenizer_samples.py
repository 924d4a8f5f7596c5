"""Small tokenizers of the styles that stretto reads, and varied texts to try them on.

Used by make_tokenizer_vectors.py and compare_tokenizers.py; needs the Hugging Face `tokenizers` package.
"""

import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CASED_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, doesn't it? They'll say we've seen it, I'm sure he'd agree.",
    "Communication hides behind computation, tile by tile; nothing waits that need not wait.",
    "Der schnelle braune Fuchs springt über den faulen Hund. Straße, Größe, Äpfel, Übermut.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë au delà des îles.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío, ¿añoraba a su querido cachorro?",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń. Árvíztűrő tükörfúrógép.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак біжить по ґанку.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ο ΚΑΛΥΜΝΙΟΣ ΣΦΟΥΓΓΑΡΑΣ ψιθύρισε.",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。カタカナ・ひらがな",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. وقد وُهبوا عقلاً وضميراً ١٢٣٤",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है। क़िला १२३",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "İstanbul'da ılık bir gün; IĞDIR'lı şoför çabucak öğrendi.",
    "யாவரும் சுதந்திரமாகப் பிறக்கின்றனர். ሰው ሁሉ ነጻ ሆኖ ተወለደ። მოგესალმებით ԲԱՐԵՒ հայերեն",
    "def main(argc: int, *argv):\n    for i in range(10):\n\t\tprint(f'{i:03d}', end=\"\\n\")\n    return x if x != 0 else -1\n",
    "#include <vector>\ntemplate <typename T> T sum(const std::vector<T>& v) { T s{}; for (auto&& x : v) s += x; return s; }\r\n",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x >= 3.14159 AND b <> 'it''s' GROUP BY 1; -- done",
    '{"key": [1, 2.5e-10, null, true], "nested": {"a\\u0041": "\\n"}}',
    "https://example.org/a/b?c=d&e=%20f#g user@host.example 192.168.0.1 2024-12-31T23:59:59Z 1,234,567.89 0xDEADBEEF",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n## Heading\n\n* item\n  1. sub\n\n```py\nx = 1\n```\n",
]

EMOJI = [
    "😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "🧑🏿‍🚀", "❤️", "☃", "1️⃣", "👁️‍🗨️", "🤷🏻‍♀️", "🫠", "🪿", "©️", "™",
]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\u200b", "\u1680", "\ufeff", "\v", "\f"]
MARKS = ["\u0301", "\u0308", "\u0323", "\u0327", "\u0334", "\u0345", "\u05b0", "\u064b", "\u093c", "\u3099", "\u20dd", "\u0f71", "\u0f72", "\u0c3c", "\u1abf"]
NORMALISING = [
    "e\u0301", "A\u030a", "\u212b", "\u1e9b\u0323", "\ufb01", "①", "ｶﾞ", "\u1100\u1161\u11a8", "각", "\u0958", "\uf900", "ﷺ", "㎏", "\u2126",
    "\u0344", "\u0f73", "\u2adc", "\u1d15e", "\U0001d15e", "\U00011935\U00011930", "ﬃ", "Ǆ", "İ", "ẞ", "\u03d4", "\u1fb3", "½", "x²", "\u0385",
]
CONTRACTIONS = ["'s", "'S", "'t", "'RE", "'Ve", "'m", "'LL", "'d", "'\u017f", "’s", "''", "'", "'x"]
SPECIALS = [
    "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|python_tag|>",
    "<tool>", "<TOOL>", "[mask]", "Straße!", "café", "<|endof", "text|>", "<|", "|>", "<s>", "</s>", "<unk>", "word", "keepspace",
]
SCRIPTS = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x530, 0x6FF), (0x700, 0x97F), (0x980, 0xDFF), (0xE00, 0x109F),
    (0x10A0, 0x13FF), (0x1E00, 0x20CF), (0x2100, 0x2BFF), (0x3000, 0x33FF), (0x4E00, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7A3),
    (0xF900, 0xFFFD), (0x10000, 0x10FFF), (0x11000, 0x11FFF), (0x16000, 0x18FFF), (0x1D000, 0x1F2FF), (0x1F300, 0x1FAFF),
    (0x20000, 0x323AF), (0xE0000, 0x10FFFF), (0x2EBF0, 0x2EE5D),
]


def _code_point(rng):
    while True:
        c = rng.randint(*rng.choice(SCRIPTS))
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def _words(rng):
    words = rng.choice(SENTENCES).split(" ") + rng.choice(SENTENCES).split(" ")
    rng.shuffle(words)
    return "".join(w + rng.choice([" ", " ", " ", "", "  ", rng.choice(SPACES)]) for w in words[: rng.randint(1, 14)])


def _spaces(rng):
    return "".join(rng.choice(SPACES) * rng.choice([1, 1, 2, 3, 9]) + rng.choice(["", "", "a", "É", "7", "!", "字"]) for _ in range(rng.randint(1, 12)))


def _marks(rng):
    base = lambda: rng.choice(["a", "e", "o", "ж", "ا", "क", "か", "字", " ", "1", "", rng.choice(NORMALISING)])
    return "".join(base() + "".join(rng.choice(MARKS) for _ in range(rng.choice([0, 1, 1, 2, 5]))) for _ in range(rng.randint(1, 12)))


def _specials(rng):
    glue = lambda: rng.choice(["", "", " ", "  ", "\n", "\t ", "x", "É", "_", "-", "\u00a0", rng.choice(SENTENCES)[:9]])
    return "".join(glue() + rng.choice(SPECIALS) for _ in range(rng.randint(1, 6))) + glue()


def _numbers(rng):
    digits = rng.choice(["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３", "²³¹", "ⅣⅫ", "𝟘𝟙𝟚", "〇一二"])
    number = lambda: "".join(rng.choice(digits) for _ in range(rng.randint(1, 11)))
    return rng.choice(["", " ", "$", "-"]).join(number() + rng.choice(["", ".", ",", "%", " ", "e+", "st"]) for _ in range(rng.randint(1, 5)))


def _controls(rng):
    return "".join(chr(rng.choice([*range(0x20), 0x7F, *range(0x80, 0xA0), 0xAD, 0x200C, 0x200D, 0x202E, 0xFFFE, 0xFFFF])) + rng.choice(["", "a", " "]) for _ in range(rng.randint(1, 15)))


def _run(rng):
    return rng.choice(["a", " ", "\n", "ab", "=", "-", "\t", "0", "字", "é", "😀", " a", "\r\n", "'s", "\u0301"]) * rng.choice([7, 40, 300])


def _text(rng):
    kind = rng.randrange(11)
    if kind == 0:
        return rng.choice(SENTENCES)
    if kind in (1, 2):
        return _words(rng)
    if kind == 3:
        return "".join(_code_point(rng) + rng.choice(["", "", " ", "a", "1"]) for _ in range(rng.randint(1, 20)))
    if kind == 4:
        return "".join(rng.choice(EMOJI) + rng.choice(["", " ", "a", "\u200d"]) for _ in range(rng.randint(1, 8)))
    if kind == 5:
        return "".join(rng.choice(["I", "they", "ÉL", "я", "字", "3", ""]) + rng.choice(CONTRACTIONS) + rng.choice(["", " ", "x"]) for _ in range(rng.randint(1, 8)))
    return [_spaces, _marks, _specials, _numbers, _controls if rng.random() < 0.7 else _run][kind - 6](rng)


def make_lines(seed, count):
    """`count` varied texts as bytes, some of them not UTF-8. The same seed gives the same texts."""
    rng = random.Random(seed)
    lines = [b"", b" ", b"\x00", b"\xff", "\ufffd".encode()]
    while len(lines) < count:
        line = "".join(_text(rng) for _ in range(rng.choice([1, 1, 2, 3]))).encode()
        change = rng.random()
        if change < 0.1:  # cut code points in two
            a, b = sorted((rng.randint(0, len(line)), rng.randint(0, len(line))))
            line = line[a:b]
        elif change < 0.2:
            broken = bytearray(line[:200])
            for _ in range(rng.randint(1, 6)):
                bad = rng.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80", bytes([rng.randrange(256)])])
                at = rng.randint(0, len(broken))
                broken[at:at] = bad
            line = bytes(broken)
        lines.append(line)
    return lines[:count]


def code_point_lines():
    """Every code point of the planes in use, between letters, digits and marks and behind itself."""
    lines = []
    for start in [*range(0, 0xD800, 64), *range(0xE000, 0x33400, 64), *range(0xE0000, 0xE0200, 64)]:
        lines.append("".join(f"a{chr(c)} {chr(c)}{chr(c)}1{chr(c)}\u0334!" for c in range(start, start + 64)).encode())
    return lines


def _trained(tokenizer, vocab_size, specials):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = SENTENCES * 3 + [line.decode("utf-8", "ignore") for line in make_lines(7, 400)]
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def gpt2_style(vocab_size=700):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    _trained(t, vocab_size, ["<|endoftext|>"])
    t.add_tokens([AddedToken("keepspace", normalized=True), AddedToken("word", single_word=True)])
    return t, {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}


def llama3_style(vocab_size=700):
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    t.decoder = decoders.ByteLevel()
    _trained(t, vocab_size, [])
    t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"])
    begin = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A",
            pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
            special_tokens=[("<|begin_of_text|>", begin)],
        ),
    ])
    return t, {"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|eot_id|>", "special": True}}


def qwen2_style(vocab_size=700):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_PATTERN), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    _trained(t, vocab_size, [])
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("café", normalized=True)])
    return t, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None}


STYLES = {
    "gpt2": gpt2_style,
    "llama3": llama3_style,
    "qwen2": qwen2_style,
    "metaspace": lambda vocab_size: metaspace_style("first"),
    "unigram": lambda vocab_size: metaspace_style("always", split=True, model="unigram"),
    "bert": lambda vocab_size: bert_style(),
}


def cased_style():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r" {3,}"), "   "), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex(CASED_PATTERN), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True),
    ])
    t.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("a", "A")])
    return _trained(t, 500, ["<s>", "</s>"]), {}


def sentencepiece_style():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256) if b not in (0xF3, 0xF4))],
        limit_alphabet=120,
        show_progress=False,
    )
    t.train_from_iterator([s.replace(" ", "▁") for s in SENTENCES], trainer)
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    return t, {}


def unknowns_style(**options):
    vocab = {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "##b": 4, "a</w>": 5, "##b</w>": 6, "ab</w>": 7, " ": 8, "##a": 9, "aa": 10}
    merges = [("a", "##b"), ("a", "##b</w>"), ("a", "##a")]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>", **options))
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return t, {}


def splits_style(behavior, invert):
    t = Tokenizer(models.BPE(vocab={}, merges=[]))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"a|(?=b)|\s|[^\S\p{L}]|\p{P}+?|x*"), behavior, invert=invert),
        pre_tokenizers.Split(" ", behavior, invert=invert),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
    ])
    t.decoder = decoders.ByteLevel()
    return _trained(t, 400, []), {}


def normal_form_style(name):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([getattr(normalizers, name)(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    _trained(t, 300, [])
    t.add_tokens([
        AddedToken("[MASK]", lstrip=True, rstrip=True, normalized=True),
        AddedToken("<TOOL>", lstrip=True, single_word=True, normalized=False),
        AddedToken("Straße!", rstrip=True, normalized=True, special=True),
        AddedToken("<|", rstrip=True, normalized=False, special=True),
        AddedToken(" ", lstrip=False, normalized=False) if name == "NFD" else AddedToken("--", normalized=True),
        AddedToken("café", single_word=True, normalized=True),
    ])
    return t, {}


def metaspace_style(scheme, split=False, byte_fallback=True, model="bpe"):
    """What transformers 5 saves for SentencePiece models (Llama-2, Mistral)."""
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] * byte_fallback
    if model == "bpe":
        t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=specials, limit_alphabet=120, show_progress=False)
        t.train_from_iterator([s.replace(" ", "▁") for s in SENTENCES], trainer)
    else:
        t = unigram(700, byte_fallback)
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=split)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    t.decoder = decoders.Metaspace("▁", scheme) if split else decoders.Sequence(steps)
    t.add_special_tokens(["<s>", "</s>"])
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("word", single_word=True)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", t.token_to_id("<s>"))])
    return t, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def unigram(vocab_size, byte_fallback=False):
    """A small trained model whose scores the library's own trainer made; bytes, where asked for, behind them."""
    t = Tokenizer(models.Unigram())
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>",
                                      show_progress=False)
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    t.train_from_iterator(SENTENCES, trainer)
    pieces = [tuple(piece) for piece in json.loads(t.to_str())["model"]["vocab"]]
    pieces += [(f"<0x{b:02X}>", -20.0 - b / 16) for b in range(256)] * byte_fallback
    return Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=byte_fallback))


def t5_style():
    t = unigram(800)
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", "always")])
    t.decoder = decoders.Metaspace("▁", "always")
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
    return t, {"eos_token": "</s>", "unk_token": "<unk>"}


def bert_style(**options):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    t.normalizer = normalizers.BertNormalizer(**options)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                        limit_alphabet=200, show_progress=False)
    t.train_from_iterator(SENTENCES, trainer)
    t.decoder = decoders.WordPiece("##", cleanup=options.get("lowercase", True))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t, {"unk_token": "[UNK]", "pad_token": "[PAD]"}


def words_style(splitter):
    """A token a word, and what is no word of the sentences unknown."""
    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    t.pre_tokenizer = splitter
    t.train_from_iterator(SENTENCES, trainers.WordLevelTrainer(special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1), add_prefix_space=False)
    return t, {"unk_token": "<unk>"}


def suffix_style():
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.CharDelimiterSplit("_")])
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], end_of_word_suffix="</w>", limit_alphabet=150,
                                  show_progress=False)
    t.train_from_iterator(SENTENCES, trainer)
    t.decoder = decoders.BPEDecoder("</w>")
    return t, {}

def class_style(expression):
    """What the expression matches is dropped, so that the ids show the class of every single character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(expression), "removed"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    t.decoder = decoders.ByteLevel()
    return t, {}


CLASSES = [r"\p{%s}" % c for c in "L N M P S Z Lu Ll Lt Lm Lo Nd Nl No Mn Mc Me Pd Po Sm Sc Sk So Zs Cc Cf".split()] + [
    r"\s", r"[^\s\p{L}\p{N}]", r"[^\r\n\p{L}\p{N}]", r"\P{L}", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"(?i:k|å|ss)",
]

OTHERS = {
    "cased": cased_style,
    "sentencepiece": sentencepiece_style,
    "unknowns": unknowns_style,
    "unknowns_fused": lambda: unknowns_style(fuse_unk=True),
    **{
        f"splits_{behavior}_{invert}": (lambda b=behavior, i=invert: splits_style(b, i))
        for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
        for invert in (False, True)
    },
    **{f"metaspace_{scheme}_{split}_{model}": (lambda a=scheme, b=split, m=model: metaspace_style(a, b, model=m))
       for scheme in ("always", "first", "never") for split in (False, True) for model in ("bpe", "unigram")},
    "unigram_without_bytes": lambda: metaspace_style("always", True, False, "unigram"),
    "t5": t5_style,
    "bert_cased": lambda: bert_style(lowercase=False, strip_accents=True),
    "bert_plain": lambda: bert_style(clean_text=False, handle_chinese_chars=False, lowercase=False),
    "suffix": suffix_style,
    "words_whitespace": lambda: words_style(pre_tokenizers.Whitespace()),
    "words_split": lambda: words_style(pre_tokenizers.WhitespaceSplit()),
    **{
        f"words_punctuation_{behavior}": (lambda b=behavior: words_style(pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(b)])))
        for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
    },
    **{name: (lambda n=name: normal_form_style(n)) for name in ("NFC", "NFD", "NFKC", "NFKD")},
}
