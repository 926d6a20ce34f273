"""The frozen, strict base of every type that comes out of a file, and its digest."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

# Elements, channels or calls of something that a file may ask for.
Count = Annotated[int, Field(ge=1, le=1 << 20)]


class Spec(BaseModel):
    """Frozen and strict: unknown keys and wrong types do not construct."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, defer_build=True, ser_json_inf_nan="constants"
    )

    def to_json(self) -> dict[str, Any]:
        """Plain data; `type(self).model_validate` of its JSON text gives an equal object."""
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON of every field."""
        return digest(self.to_json())


def digest(data: Any) -> str:
    """SHA-256 (hex) of `data` as canonical JSON: sorted keys, no spaces, NaN and Inf by name."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
