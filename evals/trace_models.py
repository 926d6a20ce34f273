"""Records lowprec/perf/workloads/NAME.json from evals/configs/NAME.json, of all models or some.

    python evals/trace_models.py [NAME ...]

Takes some seconds per model and needs no weights; an estimate of a shipped workload needs no torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lowprec as lp

HERE = Path(__file__).parent
SHIPPED = HERE.parent / "lowprec" / "perf" / "workloads"


def main(names: list[str]) -> None:
    for name in names or sorted(path.stem for path in (HERE / "configs").glob("*.json")):
        config = json.loads((HERE / "configs" / f"{name}.json").read_text())
        work = lp.trace(config, batch=1, tokens=1, context=2048)
        if work.fixed:
            sys.exit(f"{name}: {work.fixed}")
        data = work.model_copy(update={"model": name}).model_dump(
            mode="json", exclude_defaults=True
        )
        path = SHIPPED / f"{name}.json"
        path.write_text(json.dumps(data, indent=1) + "\n")
        print(f"{name}: {work.weight_elements:,} parameters, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
