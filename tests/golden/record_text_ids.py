"""Token ids of thirty texts by the official tokenizer class: python record_text_ids.py > text_ids.json

Needs transformers==4.57.3, which qwen-tts 0.1.1 pins; reads tiny_customvoice next to this script. Its slow and fast
forms must agree. A second run gives the same bytes.
"""

import json
from pathlib import Path

from transformers import Qwen2Tokenizer, Qwen2TokenizerFast

TEXTS = [
    "Hello there.",
    "Hello, world! How are you today?",
    "I'm sure they've said it's what we'd do; you'll see, he's SURE.",
    "IT'S WE'RE I'VE THEY'LL",
    "Call 555-0100, 1,200 kg, 3.14, 2026-11-29.",
    "1 2 3 4 5",
    "12345678901234567890",
    "3\u00bd pints, x\u00b2 + y\u2083, \u2164 and \u0663\u0664",
    "  two  spaces   and\ttabs ",
    "Line one.\nLine two.\r\nLine three.\n\n\nEnd",
    "trailing spaces   \n   leading spaces",
    "non\u00a0breaking\u2009thin\u3000wide",
    "zero\u200bwidth \ufeffmark",
    "Caf\u00e9 and Cafe\u0301, na\u00efve, \u00c5ngstr\u00f6m and A\u030angstro\u0308m",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u6211\u4eec\u6709\u0032\u6b21\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u30c6\u30b9\u30c8\u3067\u3059\u3002",
    "\uc548\ub155\ud558\uc138\uc694, \u1112\u1161\u11ab\uae00.",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0401\u0436\u0438\u043a.",
    "Stra\u00dfe, \u00dcbergr\u00f6\u00dfe, \u017fchlo\u017f\u017f",
    "\u00bfQu\u00e9 tal, se\u00f1or? \u00a1Muy bien!",
    "\u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902",
    "\U0001f642 \U0001f680\U0001f1e9\U0001f1ea \U0001f469\u200d\U0001f52c",
    "<|im_start|>assistant\nsay <|im_end|> twice<|im_end|>",
    "<tts_pad><|endoftext|> <tts_text_bos>x",
    "<|not_a_token|> <|im_start",
    "snake_case, kebab-case, CamelCase, path/to/file.txt",
    "`code` **bold** #tag @name $9.99 100% [x](y) {z}",
    "...!!!???---\u2014\u2013\u2026",
    "ffi \ufb03, \u212b, \u2126, \uff21\uff22\uff23, \u0130\u0131",
]

folder = Path(__file__).parent / "tiny_customvoice"
slow, fast = (cls.from_pretrained(folder) for cls in (Qwen2Tokenizer, Qwen2TokenizerFast))
rows = []
for text in TEXTS:
    ids = slow(text)["input_ids"]
    assert ids == fast(text)["input_ids"], (text, ids, fast(text)["input_ids"])
    rows.append({"text": text, "ids": ids})
print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")
