"""Local checkpoints: the class that a config names, with weights that are whole and no pickle."""

import os
from pathlib import Path

from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME

from hf_memory.experiments.provenance import PICKLES, check_weights, read_config
from hf_memory.mixers.auto import HEADS, model_class, model_keys
from hf_memory.storage import find_files


def load_checkpoint(folder: str | os.PathLike[str], *, allow_pickle: bool = False) -> PreTrainedModel:
    """Load a local checkpoint with the class that its config names, and refuse one that is not whole.

    Raises:
        ValueError: There is no config or there are no weights; the mixer or the class is unknown; a tensor is missing
            or in excess, those of the head included; the weights are a pickle and ``allow_pickle`` is False.
    """
    folder = Path(folder)
    cls, is_safe = _named_class(folder), bool(find_files(folder, "*.safetensors"))
    if not is_safe and not allow_pickle:
        pickles = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLES]
        what = f"its weights are a pickle ({', '.join(pickles)}), which can run code when it is read" if pickles else ""
        advice = "; allow it where you trust its origin, and safetensors are pushed" if pickles else ""
        raise ValueError(f"checkpoint: {folder} has no safetensors; {what or 'it holds no weights'}{advice}")
    if is_safe:
        check_weights(folder)
    model, info = cls.from_pretrained(folder, use_safetensors=is_safe, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys"):
        if info[kind]:
            raise ValueError(f"checkpoint: {folder} has {kind.replace('_', ' ')}: {', '.join(sorted(info[kind]))}")
    return model.eval()


def _named_class(folder: Path) -> type[PreTrainedModel]:
    """The class that a checkpoint's config names."""
    config = read_config(folder)
    key = str(config.get("model_type")).removeprefix("memory_")
    if key not in model_keys() or config["model_type"] == key:
        known = ", ".join(f"memory_{key}" for key in model_keys())
        raise ValueError(
            f"checkpoint: {folder / CONFIG_NAME} has the unknown model_type {config.get('model_type')!r} "
            f"(known: {known})"
        )
    names = config.get("architectures") or ["none"]
    name = names[0] if isinstance(names, list) else names
    classes = {cls.__name__: cls for cls in (model_class(key, head) for head in HEADS)}
    if name not in classes:
        raise ValueError(
            f"checkpoint: architectures in {folder / CONFIG_NAME} must name one of {', '.join(classes)}, got {name!r}"
        )
    read_config(folder, classes[name].config_class)
    return classes[name]
