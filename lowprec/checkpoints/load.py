"""A quantized checkpoint as a model that runs on its codes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lowprec.checkpoints import compressed_tensors, deepseek, gguf, gpt_oss, hf, modelopt
from lowprec.checkpoints.files import Files, read_json
from lowprec.checkpoints.source import Checkpoint, Plain, Quantized
from lowprec.errors import LowprecError, unknown
from lowprec.nn.stored.codes import Codes
from lowprec.nn.stored.modules import StoredEmbedding, StoredExperts, StoredLinear

SCHEMES = {
    "compressed-tensors": compressed_tensors.read,
    "fp8": deepseek.read,
    "modelopt": modelopt.read,
    "modelopt_fp4": modelopt.read,
    "mxfp4": gpt_oss.read,
}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def load_checkpoint(
    path: str | Path, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> Any:
    """The transformers model of a checkpoint, its quantized weights kept as codes.

    path: a folder with config.json and safetensors, or a .gguf file. Read are compressed-tensors,
    ModelOpt NVFP4, gpt-oss MXFP4, DeepSeek float8, GGUF and unquantized models. nn.Linear,
    nn.Embedding and stacked experts become `StoredLinear`, `StoredEmbedding` and
    `StoredExperts`, which dequantize at every use; the other tensors are cast to `dtype`. Inputs
    are quantized as the checkpoint says. Tensors are read one at a time, after all names, shapes
    and dtypes have been checked, so the memory needed is about that of the codes.

    Warns of what the checkpoint says and this model does not do: scales of a quantized KV cache,
    quantized inputs of experts. LowprecError: files that are damaged, pickled or of another
    scheme; tensors that are missing, unexpected, or not of the model's shapes.
    """
    path = Path(path).expanduser()
    if path.suffix == ".gguf":
        found = gguf.read(path)
    elif path.is_dir():
        found = _read_folder(path)
    else:
        raise LowprecError(f"{path}: expected a model folder or a .gguf file")
    if dtype not in FLOATS:
        raise LowprecError(f"dtype {dtype}: expected {', '.join(map(str, FLOATS))}")
    return _assemble(found, dtype, torch.device(device))


def is_quantized(path: str | Path) -> bool:
    """Whether `path` is a .gguf file, or a folder whose weights are quantized."""
    path = Path(path).expanduser()
    if path.suffix == ".gguf":
        return path.is_file()
    if not (path / "config.json").is_file():
        return False
    settings = "quantization_config" in read_json(path / "config.json")
    return settings or (path / "hf_quant_config.json").is_file()


def _read_folder(folder: Path) -> Checkpoint:
    config, settings = hf.read_config(folder)
    files = Files(folder)
    exported = folder / "hf_quant_config.json"
    if settings is None and exported.is_file():
        settings = {"quant_method": "modelopt", **read_json(exported).get("quantization", {})}
    quantized: dict[str, Quantized] = {}
    used: set[str] = set()
    set_aside: dict[str, str] = {}
    if settings is not None:
        method = str(settings.get("quant_method"))
        if method not in SCHEMES:
            raise unknown("quant_method", method, SCHEMES, str(folder / "config.json"))
        quantized, used, set_aside = SCHEMES[method](files, settings)
    rest = [n for n in files.entries if n not in used and n not in set_aside]
    plain = {name: files.plain(name) for name in rest}
    return Checkpoint(str(folder), config, plain, quantized, set_aside)


def _assemble(found: Checkpoint, dtype: torch.dtype, device: torch.device) -> Any:
    model = hf.empty_model(found.config, dtype, found.where)
    todo = hf.targets(model, [*found.plain, *found.quantized])
    _check(model, found, todo)
    for target in todo.values():
        if hf.is_ignored(model, target.name):
            continue
        if target.names[0] in found.quantized:
            _place_codes(model, found, target, dtype)
        else:
            _place_plain(model, found, target, dtype)
    _tie(model)
    left = [n for n, t in [*model.named_parameters(), *model.named_buffers()] if t.is_meta]
    if left:
        raise LowprecError(f"{found.where}: {_some(left)}: missing")
    if any(isinstance(module, StoredExperts) for module in model.modules()):
        hf.use_one_expert_at_a_time(model)
    _warn(model, found)
    return model.to(device)


def _check(model: nn.Module, found: Checkpoint, todo: dict[str, hf.Target]) -> None:
    """Every tensor against the model, before one is read."""
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    made = {name for target in todo.values() for name in _made(target)}
    missing = expected.keys() - made - _tied(model, made)
    if missing:
        raise LowprecError(f"{found.where}: {_some(missing)}: missing")
    extra = [n for n, t in todo.items() if n not in expected and t.converter is None]
    extra = [n for n in extra if not hf.is_ignored(model, n)]
    if extra:
        raise LowprecError(
            f"{found.where}: {_some(extra)}: unexpected; the model has no such tensor"
        )
    for name, target in todo.items():
        if hf.is_ignored(model, name):
            continue
        kinds = {part in found.quantized for part in target.names}
        if len(kinds) > 1:
            raise LowprecError(
                f"{found.where}: {name}: some of its tensors are quantized, some not"
            )
        if True in kinds:
            shape = _shape_of(found, target)
        elif target.converter is None:
            plain = found.plain[target.names[0]]
            _check_dtype(plain, target.names[0], found.where)
            shape = plain.shape
        else:
            continue  # transformers makes it; its shape is checked then
        if shape != expected.get(name):
            raise LowprecError(
                f"{found.where}: {name}: shape {shape}; the model has {expected.get(name)}"
            )


def _made(target: hf.Target) -> set[str]:
    """The parameters that a target makes: one, or all those its converter names."""
    if target.converter is None or len(target.converter.target_patterns) == 1:
        return {target.name}
    first, *others = target.converter.target_patterns
    return {target.name, *(target.name.replace(first, other) for other in others)}


def _check_dtype(plain: Plain, name: str, where: str) -> None:
    if plain.dtype.is_floating_point and plain.dtype.itemsize == 1:
        raise LowprecError(f"{where}: {name}: {plain.dtype} without scales")
    if plain.dtype in (torch.uint8, torch.int8):
        raise LowprecError(
            f"{where}: {name}: {plain.dtype}: codes, of which nothing says the format"
        )


def _shape_of(found: Checkpoint, target: hf.Target) -> tuple[int, ...] | None:
    parts = {name: found.quantized[name] for name in target.names}
    if target.converter is None:
        return parts[target.names[0]].parameter_shape
    rows = target.stacks
    if rows is None or any(part.stacked for part in parts.values()):
        operations = ", ".join(type(op).__name__ for op in target.converter.operations)
        raise LowprecError(
            f"{found.where}: {target.name}: transformers makes it by {operations}, which codes "
            "cannot follow"
        )
    shapes = {tuple(parts[name].shape for name in row) for row in rows}
    first = next(iter(shapes))
    if len(shapes) != 1 or len({k for _, k in first}) != 1:
        raise LowprecError(f"{found.where}: {target.name}: experts of different shapes {shapes}")
    return len(rows), sum(n for n, _ in first), first[0][1]


def _place_codes(model: Any, found: Checkpoint, target: hf.Target, dtype: torch.dtype) -> None:
    path, _, last = target.name.rpartition(".")
    module = model.get_submodule(path)
    parts = {name: found.quantized[name] for name in target.names}
    first = parts[target.names[0]]
    if first.stacked or target.converter is not None:
        if first.stacked:
            rows = [[Codes(read(), dtype)] for read in first.matrices]
        else:
            rows = [[Codes(parts[n].matrices[0](), dtype) for n in row] for row in target.stacks]
        del module._parameters[last]
        module.add_module(last, StoredExperts(rows, first.transposed, first.activation))
        return
    if last != "weight" or not isinstance(module, nn.Linear | nn.Embedding):
        raise LowprecError(
            f"{found.where}: {target.name}: quantized, in a {type(module).__name__}; only "
            "nn.Linear, nn.Embedding and experts are kept as codes"
        )
    codes = Codes(first.matrices[0](), dtype)
    if isinstance(module, nn.Linear):
        StoredLinear.adopt(module, codes, first.activation)
    else:
        StoredEmbedding.adopt(module, codes)


def _place_plain(model: Any, found: Checkpoint, target: hf.Target, dtype: torch.dtype) -> None:
    made = hf.convert(model, target, {name: found.plain[name].read() for name in target.names})
    for name, tensor in made.items():
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        place = module._parameters if last in module._parameters else module._buffers
        there = place.get(last)
        if there is None or there.shape != tensor.shape:
            wanted = None if there is None else tuple(there.shape)
            raise LowprecError(
                f"{found.where}: {name}: shape {tuple(tensor.shape)}; the model has {wanted}"
            )
        wide = hf.dtype_of(model, name, dtype) if there.dtype.is_floating_point else there.dtype
        value = tensor.to(wide)
        place[last] = nn.Parameter(value) if place is module._parameters else value


def _tied(model: Any, made: set[str]) -> set[str]:
    """Names of parameters that are another one which there is."""
    pairs = model.all_tied_weights_keys.items()
    return {a for a, b in pairs if b in made} | {b for a, b in pairs if a in made}


def _tie(model: Any) -> None:
    for names in model.all_tied_weights_keys.items():
        for name, other in (names, names[::-1]):
            path, _, last = name.rpartition(".")
            module = model.get_submodule(path)
            there = module._parameters.get(last)
            if there is None or not there.is_meta:
                continue
            source = model.get_submodule(other.rpartition(".")[0])
            if isinstance(source, StoredEmbedding | StoredLinear):
                cls = StoredLinear if isinstance(module, nn.Linear) else StoredEmbedding
                cls.adopt(module, source.codes)
            elif not (given := source._parameters[other.rpartition(".")[2]]).is_meta:
                module._parameters[last] = given


def _warn(model: nn.Module, found: Checkpoint) -> None:
    if found.set_aside:
        name, reason = next(iter(found.set_aside.items()))
        warnings.warn(
            f"{found.where}: {len(found.set_aside)} tensors such as {name} are not used: {reason}",
            stacklevel=4,
        )
    stacks = [m for m in model.modules() if isinstance(m, StoredExperts) and m.activation]
    if stacks:
        spelled = stacks[0].activation.quantizer.spell()
        warnings.warn(
            f"{found.where}: the inputs of the experts are not quantized; the checkpoint says "
            f"{spelled}",
            stacklevel=4,
        )


def _some(names: Any) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more
