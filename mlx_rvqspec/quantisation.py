"""Weights of 8, 6 or 4 bits: which modules have them, how they are packed, and how a folder says so.

The layout is MLX's affine one and the fields are mlx-lm's: ``quantization`` in config.json holds bits and group_size,
and by module name an entry of its own where a module differs, or false where it keeps its numbers. Beside each packed
weight, [..., in * bits / 32] uint32, stand its scales and biases [..., in / group_size].
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .config import ModelError

BITS, KNOWN_BITS = (8, 6, 4), (2, 3, 4, 5, 6, 8)  # those we write, and those MLX reads
GROUP_SIZES, KNOWN_GROUP_SIZES = (64, 32), (32, 64, 128)
FINE_BITS = 8  # in a mixed model, of all but the bulk
# Most of the numbers, and those whose rounding moves the built-in voice's codes least (bench/quantisation.py).
BULK = ("q_proj", "k_proj", "gate_proj", "up_proj", "down_proj")
WORD = 32  # bits of a packed word


def level(quantize: int | str) -> tuple[int, bool]:
    """(bits, mixed) of what ``load`` is asked for: 8, 6 or 4, or "mixed", which is 4 bits mixed.

    Raises ValueError for anything else.
    """
    if quantize == "mixed":
        return 4, True
    if quantize not in BITS or isinstance(quantize, str):
        raise ValueError(f"quantize is {quantize!r}; expected {', '.join(map(str, BITS))} or 'mixed'")
    return int(quantize), False


def table_of(config: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """The ``quantization`` of a model's config.json, None where it has none.

    Raises ModelError for fields that are not what they should be, and for layouts other than the affine one.
    """
    table = config.get("quantization", config.get("quantization_config"))
    if table is None:
        return None
    if not isinstance(table, dict) or not _is_packing(table):
        raise ModelError(f"{where}: quantization is {table!r:.80}; expected an object with group_size and bits")
    entries = {name: value for name, value in table.items() if name not in ("group_size", "bits", "mode")}
    for name, value in {"": table, **entries}.items():
        if isinstance(value, dict) and value.get("mode", "affine") != "affine":
            raise ModelError(f"{where}: quantization {name} has mode {value['mode']!r}; only 'affine' can be read")
        if isinstance(value, dict) and not _is_packing(value):
            raise ModelError(
                f"{where}: quantization {name} has bits {value.get('bits')!r} in groups of "
                f"{value.get('group_size')!r}; expected bits {KNOWN_BITS} in groups of {KNOWN_GROUP_SIZES}"
            )
    return table


def _is_packing(value: Mapping[str, Any]) -> bool:
    return value.get("bits") in KNOWN_BITS and value.get("group_size") in KNOWN_GROUP_SIZES


def packing(table: Mapping[str, Any], name: str) -> tuple[int, int] | None:
    """(bits, group_size) that a table gives to a module, None where the module keeps its numbers."""
    entry = table.get(name, table)
    if entry is False:
        return None
    entry = entry if isinstance(entry, dict) else table
    return entry["bits"], entry["group_size"]


def label(table: Mapping[str, Any] | None) -> str:
    """A table in a word for people and file names, such as "q4+8"; empty where nothing is quantised."""
    if table is None:
        return ""
    entries = [table, *(value for value in table.values() if isinstance(value, dict))]
    return "q" + "+".join(map(str, sorted({entry["bits"] for entry in entries})))


def quantise(weights: Mapping[str, mx.array], bits: int, mixed: bool) -> tuple[dict[str, mx.array], dict[str, Any]]:
    """The tensors of a checkpoint with all matrices of the talker packed, and the table that says so.

    mixed: ``bits`` are those of the bulk; heads, tables, values and projections have ``FINE_BITS``, or keep their
    numbers where the bulk has as many. A matrix whose rows are no whole number of groups keeps its numbers. The
    speaker encoder and the SpeechDecoder are never quantised.
    """
    table: dict[str, Any] = {"group_size": GROUP_SIZES[0], "bits": bits, "mode": "affine"}
    packed = dict(weights)
    for name in sorted(_matrices(weights)):
        entry = _choose(name, weights[f"{name}.weight"].shape[-1], bits, mixed)
        if entry is None:
            table[name] = False
            continue
        if entry != (bits, GROUP_SIZES[0]):
            table[name] = {"group_size": entry[1], "bits": entry[0]}
        parts = mx.quantize(weights[f"{name}.weight"], entry[1], entry[0])
        packed |= {f"{name}.{part}": value for part, value in zip(("weight", "scales", "biases"), parts)}
    return packed, table


def _matrices(weights: Mapping[str, mx.array]) -> list[str]:
    found = [name for name, value in weights.items() if name.startswith("talker.") and value.ndim == 2]
    return [name.removesuffix(".weight") for name in found]


def _choose(name: str, num_in: int, bits: int, mixed: bool) -> tuple[int, int] | None:
    group_size = next((size for size in GROUP_SIZES if num_in % size == 0), None)
    if mixed and not name.endswith(BULK):
        bits = FINE_BITS if bits < FINE_BITS else 0
    return (bits, group_size) if bits and group_size else None


def check_packing(weights: Mapping[str, mx.array], table: Mapping[str, Any] | None, where: str) -> None:
    """Whether what config.json says of each module is what its tensors look like. Raises ModelError where it is not."""
    packed = {name.removesuffix(".scales") for name in weights if name.endswith(".scales")}
    if bool(packed) != (table is not None):
        found = f"{sorted(packed)[0]}.scales" if packed else "no tensor with scales"
        raise ModelError(f"{where}: {found} found, but config.json has {'a' if table else 'no'} field quantization")
    for name, entry in (table or {}).items():
        if isinstance(entry, dict) and name not in packed:
            raise ModelError(f"{where}: quantization of {name} is {entry}, but {name}.scales is missing")
    for name in sorted(packed):
        parts = [weights.get(f"{name}.{part}") for part in ("weight", "scales", "biases")]
        expected = packing(table or {}, name)
        if expected is None or any(part is None for part in parts):
            missing = "config.json says it is not quantised" if expected is None else "its weight or biases is missing"
            raise ModelError(f"{where}: {name}.scales found, but {missing}")
        weight, scales = parts[0], parts[1]
        assert weight is not None and scales is not None
        (bits, group_size), shape = expected, (*scales.shape[:-1], scales.shape[-1] * expected[1] * expected[0] // WORD)
        if weight.dtype != mx.uint32 or weight.shape != shape:
            raise ModelError(
                f"{where}: {name}.weight is {_name(weight.dtype)} {list(weight.shape)}; expected uint32 {list(shape)} "
                f"of {bits} bits in groups of {group_size}, as config.json says, for scales {list(scales.shape)}"
            )


def adapt(module: nn.Module, weights: Mapping[str, mx.array], where: str) -> None:
    """Give ``module`` quantised modules where ``weights``, by its own names, have scales. Changes ``module``.

    Bits and group size follow from the shapes and the configured width. Raises ModelError where no packing fits them.
    """

    def params(name: str, leaf: nn.Module) -> bool | dict[str, int]:
        scales = weights.get(f"{name}.scales")
        if scales is None:
            return False
        num_in, words = leaf["weight"].shape[-1], weights[f"{name}.weight"].shape[-1]
        bits, group_size = words * WORD // num_in, num_in // scales.shape[-1]
        if not _is_packing({"bits": bits, "group_size": group_size}) or words * WORD != bits * num_in:
            raise ModelError(
                f"{where}: {name}.weight has rows of {words} words and {scales.shape[-1]} scales; "
                f"expected the packing of {num_in} numbers, as config.json says"
            )
        return {"bits": bits, "group_size": group_size}

    nn.quantize(module, class_predicate=params)


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
