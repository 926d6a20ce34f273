"""Constants of collective communication, from calibration/collectives.toml."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from lowprec.perf.quantity import Positive, Text
from lowprec.spec import Spec, read_toml
from lowprec.spec.load import build

_FILE = Path(__file__).parent / "calibration" / "collectives.toml"


class Family(Spec):
    """Seconds, by family of machines: start of a collective of the library, one hop of it, and
    the start of a serving engine's own one-shot kernel."""

    start: Positive
    hop: Positive
    one_shot: Positive
    points: Annotated[int, Field(ge=0)]


class Spread(Spec):
    """90 % interval: the measured time over the predicted one, its low and its high end."""

    low: Positive
    high: Positive


class Network(Spec):
    """Between domains: seconds of a hop, and the share of the adapters' rate that is reached."""

    hop: Positive
    efficiency: Positive
    note: str
    spread: Spread


class Constants(Spec):
    """See the file for what each is and where it comes from. Seconds, and shares of a rate."""

    efficiency: Positive
    stage: Positive
    ramp: Positive
    flagged: Positive
    exchange_start: Positive
    exchange_hop: Positive
    exchange_setup: Positive
    reduce_efficiency: Positive
    reduce_setup: Positive
    one_shot_efficiency: Positive
    one_shot_hop: Positive
    tree_efficiency: Positive
    network: Network
    families: dict[str, Family]
    fitted: Spread
    transferred: Spread
    points: Text

    def family(self, name: str | None) -> Family:
        """Constants of a family of machines; of an unknown one the geometric mean of the known."""
        if name in self.families:
            return self.families[name]
        known = self.families.values()
        mean = {
            field: math.exp(sum(math.log(getattr(f, field)) for f in known) / len(known))
            for field in ("start", "hop", "one_shot")
        }
        return Family(**mean, points=0)


@cache
def constants() -> Constants:
    """The shipped constants."""
    return build(Constants, read_toml(_FILE), str(_FILE))
