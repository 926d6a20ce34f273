"""What vectors are of, from a name or a file."""

from __future__ import annotations

from lowprec.errors import LowprecError
from lowprec.proposal.vectors.model import Target
from lowprec.spec import (
    BlockFormat,
    list_datapaths,
    load_datapath,
    load_format,
    load_quantizer,
    read_toml,
)


def load_target(name: str) -> Target:
    """A datapath by its name or file, a scalar format, or a quantizer as recipes spell it.

    LowprecError for a block format without its scale rule: no rule is assumed.
    """
    if name in list_datapaths():
        return load_datapath(name)
    if not name.endswith(".toml"):
        return load_quantizer(name)
    if "accumulator" in read_toml(name):
        return load_datapath(name)
    found = load_format(name)
    if isinstance(found, BlockFormat):
        raise LowprecError(f"{name}: needs a scale rule, as in '{name}/amax'")
    return found
