"""Texts that no package holds: from the Hugging Face hub, or put into the cache by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

from filelock import FileLock
from pydantic import Field

from lowprec.errors import LowprecError
from lowprec.eval.fetch import Say, check_sha256, to_stderr
from lowprec.spec.base import Spec
from lowprec.spec.load import cache_dir


class FileText(Spec):
    """One UTF-8 text file that no package holds: fetched from the Hugging Face hub where there is
    one, else put into the ``downloads`` folder of the cache by hand; checked either way.

    repository, member: the data set on the hub and its Parquet file, whose rows joined give the
    text. heading: a pattern of the lines that begin a document; the file is one without it.
    """

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    repository: str
    member: str
    heading: str | None = None
    licence: str
    licence_source: str
    attribution: str
    citation: str
    source: str
    notes: tuple[str, ...] = ()


def file_text(source: FileText, say: Say = to_stderr) -> str:
    """The text, out of the cache or written there first; LowprecError where it is not to be had,
    or is another text than `source` says."""
    folder = cache_dir() / "downloads"
    folder.mkdir(exist_ok=True)
    path = folder / source.file
    with FileLock(f"{path}.lock"):
        if not path.is_file():
            say(f"downloading {source.repository} from the Hugging Face hub, once")
            data = _from_hub(source, path)
            found = hashlib.sha256(data).hexdigest()
            if found != source.sha256:
                raise LowprecError(
                    f"{source.repository}: its rows give another text: expected sha256 "
                    f"{source.sha256}, got {found}; put the file into {folder} by hand"
                )
            path.write_bytes(data)
        check_sha256(path, source.sha256)
    return path.read_bytes().decode()


def _from_hub(source: FileText, path: Path) -> bytes:
    """The rows of the Parquet file on the hub, as the text file that they were made from: a blank
    row was a line of one space."""
    try:
        from huggingface_hub import hf_hub_download
        from pyarrow.parquet import read_table

        file = hf_hub_download(source.repository, source.member, repo_type="dataset")
        rows = read_table(file, columns=["text"])["text"].to_pylist()
    except ImportError:
        raise LowprecError(
            f"{source.file}: reading it from the hub takes pyarrow (pip install 'lowprec[tasks]'); "
            f"or put the file as {path}"
        ) from None
    except Exception as error:  # the hub's client raises its transport's errors too
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LowprecError(
            f"{source.file}: not to be had from the Hugging Face hub ({reason}); put it as {path}"
        ) from None
    return "".join(row or " \n" for row in rows).encode()
