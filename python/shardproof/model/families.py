"""The families of transformers: which configuration and which model class belong to a name."""

import difflib
import importlib
import inspect
import json
import pkgutil
from dataclasses import dataclass
from pathlib import Path

from ..error import Error

# Of several model classes of a configuration, the first whose name ends like this.
ENDINGS = ("ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "TextModel", "Model", "Decoder", "Encoder")


@dataclass
class Family:
    """A model that can be built from its configuration alone."""

    name: str
    config: type
    model: type
    given: dict | None = None  # the values of a config.json, of which a tiny configuration keeps what is not a size


def all_with_plan() -> list[Family]:
    """Each family of the installed transformers that has a plan of tensor parallelism, one for each folder."""
    import transformers.models
    found = []
    for module in pkgutil.iter_modules(transformers.models.__path__):
        if module.ispkg and (family := find_in_folder(module.name)):
            found.append(family)
    return found


def find_in_folder(folder: str) -> Family | None:
    """The family of a folder of transformers.models: its configuration that has a plan and a model class
    with a head, and not parts of other configurations, where there is one."""
    modeling = module_of(folder, "modeling")
    ranked = []
    for config in configs_in(folder):
        if has_plan(config) and not config.__name__.endswith(LEFT_OUT) and (model := model_of(config, modeling)):
            is_composed = bool(config.sub_configs)
            ranked.append((is_composed, rank_of(model), len(ranked), Family(folder, config, model)))
    return min(ranked)[-1] if ranked else None


# Parts of a family that cannot be run alone.
LEFT_OUT = ("TalkerCodePredictorConfig", "DecoderConfig")


def find(name: str) -> Family:
    """The family of a name, or of a folder with a config.json."""
    path = Path(name)
    if (path / "config.json").is_file():
        return from_folder(path)
    try:
        importlib.import_module(f"transformers.models.{name}")
    except ImportError:
        import transformers.models
        known = [module.name for module in pkgutil.iter_modules(transformers.models.__path__) if module.ispkg]
        near = difflib.get_close_matches(name, known, 1, 0)
        raise Error(f'The installed transformers has {len(known)} families and none of the name "{name}"',
                    f'The nearest is "{near[0]}"; or give a folder with a config.json, or module:function') from None
    family = find_in_folder(name)
    if family is None:
        raise Error(f'The family "{name}" has no configuration with both a plan of tensor parallelism and a model class',
                    "Give a function that builds the model, as module:function")
    return family


def from_folder(path: Path) -> Family:
    given = values_of(path / "config.json")
    from transformers import CONFIG_MAPPING
    kind = given.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise Error(f'{path / "config.json"} has the model_type {kind!r}, which the installed transformers does not have',
                    "Install the version that has it, or give module:function")
    config = CONFIG_MAPPING[kind]
    folder = config.__module__.split(".")[2]
    model = model_of(config, module_of(folder, "modeling"))
    named = getattr(module_of(folder, "modeling"), (given.get("architectures") or [""])[0], None)
    if named is None and model is None:
        raise Error(f'No class of transformers.models.{folder} is built from a {config.__name__}', "Give module:function")
    return Family(path.name or str(path), config, named or model, given)


def values_of(path: Path) -> dict:
    """What a config.json holds."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Error(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", "Give a folder whose config.json is whole") from None
    if not isinstance(found, dict):
        raise Error(f"{path} holds a {type(found).__name__} and no dictionary", "Give the config.json of a model")
    return found


def has_plan(config: type) -> bool:
    return bool(getattr(config, "base_model_tp_plan", None))


def module_of(folder: str, kind: str):
    try:
        return importlib.import_module(f"transformers.models.{folder}.{kind}_{folder}")
    except ImportError:
        return None


def configs_in(folder: str) -> list[type]:
    from transformers import PreTrainedConfig
    module = module_of(folder, "configuration")
    found = [one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, PreTrainedConfig)
             and one.__module__ == module.__name__] if module else []
    return found


def model_of(config: type, modeling) -> type | None:
    """The class that is built from exactly this configuration; one with a head comes first."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel
    if modeling is None:  # a family that has no code of its own
        return MODEL_FOR_CAUSAL_LM_MAPPING.get(config, None)
    fitting = [one for one in vars(modeling).values()
               if inspect.isclass(one) and issubclass(one, PreTrainedModel) and one.__module__ == modeling.__name__
               and config_of(one) is config and not one.__name__.endswith("PreTrainedModel")]
    fitting = [one for one in fitting if rank_of(one) < len(ENDINGS)]
    return min(fitting, key=rank_of) if fitting else None


def config_of(model: type) -> type | None:
    """The configuration that a class names, in its attribute or in the annotation of its first argument."""
    annotation = inspect.signature(model.__init__).parameters.get("config")
    annotation = annotation and annotation.annotation
    if inspect.isclass(annotation) and "Config" in annotation.__name__:
        return annotation
    if isinstance(annotation, str):
        named = getattr(inspect.getmodule(model), annotation.split("|")[0].strip(), None)
        if inspect.isclass(named):
            return named
    return getattr(model, "config_class", None)


def rank_of(model: type) -> int:
    return next((rank for rank, ending in enumerate(ENDINGS) if model.__name__.endswith(ending)), len(ENDINGS))
