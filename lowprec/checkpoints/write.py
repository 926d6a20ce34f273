"""Write a quantized model as a compressed-tensors checkpoint, in whole or not at all."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from lowprec.checkpoints import hf
from lowprec.checkpoints.files import INDEX
from lowprec.checkpoints.schemes import activation_args, weight_args, weight_tensors
from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, quantize, unpack
from lowprec.nn.emulation import Emulated, sites_of
from lowprec.nn.stored.modules import Activation, StoredEmbedding, StoredExperts, StoredLinear
from lowprec.spec import BlockFormat, Format, Rule

SHARD_BYTES = 4 << 30
# The version whose form of the configuration and the tensors this is.
VERSION = "0.20.1"


@dataclass(frozen=True)
class _Weight:
    """A linear module whose weight is written as codes; they are made when they are written."""

    module: nn.Linear
    rule: Rule | None
    activation: Activation | None

    @property
    def format(self) -> Format | BlockFormat:
        if isinstance(self.module, StoredLinear):
            return self.module.quantizer.format
        return self.rule.weight.format

    def codes(self) -> QTensor:
        if isinstance(self.module, StoredLinear):
            return unpack(self.module.codes.packed())
        return quantize(self.module.weight, self.rule.weight)


def save_checkpoint(model: Any, path: str | Path) -> None:
    """Write a transformers model to the new folder `path`, quantized as it is now.

    model: from `lowprec.wrap`, whose rules say how weights and inputs of its nn.Linear are
    quantized, or from `load_checkpoint`. The form is that of compressed-tensors, which vLLM and
    transformers load: config.json with ``quantization_config``, generation_config.json and
    safetensors of at most 4 GiB. Scales keep the dtype of their format. A datapath is no
    property of a file and is not written; neither is a tokenizer, which is not the model's.

    NVFP4's global scale divides there: a weight read again may differ in the last bit of float32.
    LowprecError, and nothing is written: a format, rule or operation that such a file cannot say;
    `path` exists already; a model without quantized nn.Linear.
    """
    path = Path(path).expanduser()
    if path.exists():
        raise LowprecError(f"{path}: exists already; expected the name of a new folder")
    found = _quantized(model)
    groups, of_module = _groups(found)
    if not path.parent.is_dir():
        raise LowprecError(f"{path.parent}: no such folder")
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        kinds = {name: groups[group]["format"] for name, group in of_module.items()}
        _save_tensors(model, found, kinds, partial)
        _save_config(model, found, groups, of_module, partial)
        partial.chmod(0o755)  # mkdtemp's is 0o700
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _quantized(model: nn.Module) -> dict[str, _Weight]:
    found: dict[str, _Weight] = {}
    for path, module in model.named_modules():
        if isinstance(module, StoredExperts | StoredEmbedding):
            raise LowprecError(
                f"{path}: {type(module).__name__}: only quantized nn.Linear are written"
            )
        rule, activation = None, None
        if isinstance(module, Emulated):
            rule, activation = _rule(module, path)
        if isinstance(module, StoredLinear):
            if rule is not None and rule.weight is not None:
                raise LowprecError(f"{path}: codes that a rule quantizes again are not written")
            own = module.activation
            found[path] = _Weight(module, rule, activation or own)
        elif rule is not None:
            if not isinstance(module, nn.Linear) or rule.weight is None:
                raise LowprecError(
                    f"{path}: {type(module).__name__} with {rule.match!r}: only nn.Linear with a "
                    "quantized weight are written"
                )
            found[path] = _Weight(module, rule, activation)
    if not found:
        raise LowprecError("the model has no quantized nn.Linear; use save_pretrained")
    return found


def _rule(module: Emulated, path: str) -> tuple[Rule | None, Activation | None]:
    """The rule of a module's matmul and its input's quantizer; LowprecError for all else."""
    sites = list(sites_of(module))
    if not sites:
        return None, None
    site = sites[0]
    spoken = {name for name, _ in site.rule.quantizers()} - {"weight", "activation"}
    rule = site.rule
    other = [key for key in ("transform", "delayed", "phase") if getattr(rule, key) is not None]
    if len(sites) > 1 or site.operation != "linear" or spoken or other:
        what = ", ".join([*sorted(spoken), *other]) or " and ".join(s.operation for s in sites)
        raise LowprecError(
            f"{path or 'the model'}: {what}: a compressed-tensors file cannot say it"
        )
    if rule.activation is None:
        return rule, None
    return rule, Activation(rule.activation, site.scales.get("activation"))


def _groups(found: dict[str, _Weight]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """``config_groups``, and the group of each module."""
    groups: dict[str, dict[str, Any]] = {}
    of_module: dict[str, str] = {}
    for path, each in found.items():
        args = None if each.activation is None else activation_args(each.activation, path)
        kind, weights = weight_args(each.format, args, path)
        scheme = {
            "targets": [],
            "weights": weights,
            "input_activations": args,
            "output_activations": None,
            "format": kind,
        }
        name = next((n for n, g in groups.items() if {**g, "targets": []} == scheme), None)
        if name is None:
            name = f"group_{len(groups)}"
            groups[name] = scheme
        groups[name]["targets"].append(path)
        of_module[path] = name
    return groups, of_module


def _save_config(
    model: Any,
    found: dict[str, _Weight],
    groups: dict[str, dict[str, Any]],
    of_module: dict[str, str],
    folder: Path,
) -> None:
    linears = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    formats = {group["format"] for group in groups.values()}
    if len(groups) == 1:
        groups = {name: {**group, "targets": ["Linear"]} for name, group in groups.items()}
    settings = {
        "config_groups": groups,
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "global_compression_ratio": None,
        "ignore": [name for name in linears if name not in of_module],
        "kv_cache_scheme": None,
        "moe_sparsity_config": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": VERSION,
    }
    config = copy.deepcopy(model.config)
    config.architectures = [_class_name(model)]
    if any(f"{name}.weight" in model.all_tied_weights_keys for name in found):
        config.tie_word_embeddings = False  # the codes are one module's alone
    data = {**config.to_diff_dict(), "quantization_config": settings}
    data["dtype"] = str(model.dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def _class_name(model: nn.Module) -> str:
    return (
        sites_of(model).original.__name__ if isinstance(model, Emulated) else type(model).__name__
    )


def _save_tensors(
    model: Any, found: dict[str, _Weight], kinds: dict[str, str], folder: Path
) -> None:
    """Shard after shard, so that no more than one is in memory beside the model."""
    codes = {name for name in model.state_dict() if ".codes." in name}
    weights = {f"{path}.weight" for path in found}
    inputs = {f"{path}.input_scale" for path in found}
    tied = {a for a, b in model.all_tied_weights_keys.items() if b not in weights}
    plain = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name not in codes | weights | inputs | (tied - weights)
    }
    plain = hf.saved_names(model, plain)
    shards: list[set[str]] = []
    shard: dict[str, Tensor] = {}

    def flush() -> None:
        save_file(
            {name: t.detach().contiguous().cpu() for name, t in shard.items()},
            folder / f"shard-{len(shards)}",
            metadata={"format": "pt"},
        )
        shards.append(set(shard))
        shard.clear()

    def add(tensors: dict[str, Tensor]) -> None:
        shard.update(tensors)
        if sum(t.nbytes for t in shard.values()) >= SHARD_BYTES:
            flush()

    for name, tensor in plain.items():
        add({name: tensor})
    for path, each in found.items():
        made = weight_tensors(each.codes(), kinds[path], each.activation)
        add({f"{path}.{name}": tensor for name, tensor in made.items()})
    if shard:
        flush()
    _name_shards(shards, folder)


def _name_shards(shards: list[set[str]], folder: Path) -> None:
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / "model.safetensors")
        return
    names: dict[str, str] = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"shard-{i}").rename(folder / file)
        names |= dict.fromkeys(shard, file)
    size = sum((folder / file).stat().st_size for file in set(names.values()))
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(names.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
