"""Where the scripts of this folder leave their results; how they measure is ``mlx_rvqspec.bench.harness``."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def finish(name: str, result: dict[str, Any]) -> None:
    """Write bench/results/<name>.json and print the same object as the last line."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
