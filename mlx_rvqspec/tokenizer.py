"""Qwen2's tokenizer from a model folder: byte-level BPE, without the transformers library."""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from .config import AGAIN, ModelConfig, ModelError, read_json

# Qwen2's split rule (transformers, tokenization_qwen2.py); upstream's Mistral patch is left out on purpose, it
# depends on how the model was loaded (ARCHITECTURE, trap 1).
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
ROLE, NUM_ROLE_TOKENS = "<|im_start|>assistant\n", 3
END, NUM_END_TOKENS = "<|im_end|>\n<|im_start|>assistant\n", 5


def load_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """The tokenizer of vocab.json, merges.txt and the added tokens of tokenizer_config.json.

    Raises ModelError for files that make none, or one that does not fit the model's table or the prompt.
    """
    vocabulary, added = _read_ids(folder)
    num_ids = config.code_decoder.text_vocab_size
    for number, name in (*((number, name) for name, number in vocabulary.items()), *added):
        if not 0 <= number < num_ids:
            raise ModelError(f"{folder}: token {name!r:.60} has id {number}, the model's table {num_ids} rows")
    if not (folder / "merges.txt").is_file():  # nor a pipe, on which reading would wait for ever
        raise ModelError(f"{folder / 'merges.txt'} is missing; {AGAIN}")
    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(f"{folder}: vocab.json and merges.txt make no tokenizer ({error})") from None
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    for number, name in added:
        tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True)])
        if tokenizer.token_to_id(name) != number:
            where = folder / "tokenizer_config.json"
            raise ModelError(f"{where}: token {name!r:.60} should have id {number}; {AGAIN}")
    _check(tokenizer, folder, config)
    return tokenizer


def _read_ids(folder: Path) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """The vocabulary by token, and the added tokens in the order of their ids."""
    vocabulary, where = read_json(folder / "vocab.json"), folder / "tokenizer_config.json"
    if not all(type(number) is int for number in vocabulary.values()):
        raise ModelError(f"{folder / 'vocab.json'} is not a table of ids; {AGAIN}")
    if missing := set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys():
        raise ModelError(f"{folder / 'vocab.json'} lacks the token {min(missing)!r} for a byte; {AGAIN}")
    try:
        added = sorted(
            (int(number), token["content"]) for number, token in read_json(where)["added_tokens_decoder"].items()
        )
        if not all(isinstance(name, str) and name for _, name in added):
            raise TypeError("a token is no text")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{where}: added_tokens_decoder is not as expected ({error!r:.80})") from None
    return vocabulary, added


def _check(tokenizer: Tokenizer, folder: Path, config: ModelConfig) -> None:
    """The prompt cuts the text out by counting tokens, so what surrounds it must have as many as it thinks."""
    role, end, whole = (tokenizer.encode(text).ids for text in (ROLE, END, f"{ROLE}a{END}"))
    right = len(role) == NUM_ROLE_TOKENS and len(end) == NUM_END_TOKENS and whole == [*role, *whole[3:-5], *end]
    if not right or len(whole) <= len(role) + len(end) or role[0] != config.im_start_token_id:
        raise ModelError(f"{folder}: the tokenizer does not know this model's prompt ({ROLE!r}); {AGAIN}")
