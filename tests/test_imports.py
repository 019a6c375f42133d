"""Inside the package, imports point one way: to an earlier row of ORDER."""

import ast
from pathlib import Path

PKG = Path(__file__).parents[1] / "mlx_rvqspec"
ORDER = [
    {"names", "whole_file"},
    {
        "blas",
        "version",
        "owner",
        "config",
        "english",
        "sampling",
        "audio",
        "recording",
        "text",
        "spec_decode.pace",
        "spec_decode.stats",
        "spec_decode.tree",
    },
    {"manifest", "quantisation", "tensor_file", "tokenizer", "hub"},
    {"passages", "kept", "layers", "cache", "speech_decoder.layers", "speech_decoder.quantizer"},
    {
        "code_decoder",
        "multi_code_decoder",
        "speech_decoder.decoder",
        "speech_encoder.encoder",
        "speech_encoder.speaker",
    },
    {"model", "spec_decode.drafter"},
    {"device_profile"},
    {"load", "spec_decode.rounds"},
    {"cloned_voice", "integrity"},
    {"prompt", "encoders"},
    {"heads", "spec_decode.frames"},
    {"conversion"},
    {"utterance"},
    {"guard", "fit.collect"},
    {"bench.harness", "bench.markdown"},
    {"bench.frame"},
    {"bench.scaling"},
    {"delivery"},
    {"reading"},
    {"batch", "feed"},
    {"generate"},
    {"server"},
    {"bench.speech"},
    {"bench.run"},
    {"fit.offsets", "fit.grow_tree", "fit.device", "fit.recordings"},
    {"fit.run"},
    {"report.record", "report.pictures"},
    {"report.page"},
    {"report.summary"},
    {"commands.shared"},
    {"commands.overview", "commands.process"},
    {"commands.inspect", "commands.models", "commands.info"},
    {"commands.passages", "commands.speaker"},
    {"commands.convert"},
    {"commands.bench"},
    {"commands.fit", "commands.voices", "commands.batch", "commands.serve"},
    {"cli"},
]
RANK = {m: i for i, row in enumerate(ORDER) for m in row}


def local_imports(tree: ast.AST, module: str):
    """Yield package modules that ``module`` imports; absolute ones are refused."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(a.name.split(".")[0] == PKG.name for a in node.names), module
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parts = [*module.split(".")[: -node.level], *(node.module or "").split(".")]
                target = ".".join(filter(None, parts))
                if PKG.joinpath(*target.split(".")).is_dir():  # modules of a subpackage
                    yield from (f"{target}.{alias.name}" for alias in node.names)
                else:
                    yield target
            else:
                assert node.module.split(".")[0] != PKG.name, module


def test_imports_point_down():
    seen = set()
    for path in PKG.rglob("*.py"):
        module = ".".join(path.relative_to(PKG).with_suffix("").parts)
        if path.name == "__init__.py":
            continue
        seen.add(module)
        for target in local_imports(ast.parse(path.read_text()), module):
            assert RANK[target] < RANK[module], f"{module} must not import {target}"
    assert seen == set(RANK), seen ^ set(RANK)
