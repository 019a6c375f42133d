"""Where the host waits for the device: in few places, each with a reason."""

import re
from pathlib import Path

PKG = Path(__file__).parents[1] / "mlx_rvqspec"
WAIT = re.compile(r"mx\.eval\(|np\.array\(|\.item\(\)")
ONCE = {
    "layers",
    "load",
    "multi_code_decoder",
    "spec_decode.drafter",
    "spec_decode.rounds",
}  # when a model is loaded or a size first used
SPEAKING = {"utterance", "reading", "generate", "spec_decode.frames"}  # a frame, a chunk or a round at a time
RECORDINGS = {"encoders"}
PROMPTS = {"heads", "kept"}  # when a voice's first text is read
ASIDE = ("fit", "bench", "report", "commands")  # what is not speaking


def waits() -> dict[str, list[tuple[str, bool]]]:
    """The lines that wait, of modules that know MLX, and whether a comment on or just above them says why."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for path in PKG.rglob("*.py"):
        module, text = ".".join(path.relative_to(PKG).with_suffix("").parts), path.read_text()
        if module.split(".")[0] in ASIDE or "import mlx" not in text:
            continue
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if WAIT.search(line.partition("#")[0]):
                told = "#" in "".join(lines[max(0, number - 3) : number + 1])
                found.setdefault(module, []).append((line.strip(), told))
    return found


def test_the_host_waits_where_the_table_says():
    assert set(waits()) == ONCE | SPEAKING | RECORDINGS | PROMPTS


def test_every_wait_has_a_reason():
    silent = {module: [line for line, told in lines if not told] for module, lines in waits().items()}
    assert not any(silent.values()), silent
