"""The mixins of transformers' own tests, imported from their source distribution.

It leaves out the folders ``exporters``, ``generation``, ``pipelines`` and ``utils`` of the tests. What the common files
import from there is put in place here. Exports and generation are held by the contracts of ``hf_memory.testing``.

The mixin of pipelines calls test classes of that folder on checkpoints of the Hub, and that of tensor parallelism a
module ``distributed_testing_utils``, which is left out as well; no type here has a plan for tensor parallelism, so that
it would skip them all. Pipelines are held by ``tests/models/test_pipelines.py``.
"""

import importlib
import os
import sys
import unittest.mock
from pathlib import Path
from types import ModuleType

import transformers

FOLDER = Path(os.environ["HF_MEMORY_TRANSFORMERS_TESTS"])
PACKAGE = "transformers_tests"

# Arguments that every config of transformers takes, none of them at its default.
COMMON_ARGUMENTS = {
    "return_dict": False,
    "output_hidden_states": True,
    "output_attentions": True,
    "dtype": "float16",
    "architectures": ["BertModel"],
    "id2label": {0: "label"},
    "label2id": {"label": "0"},
    "problem_type": "regression",
    "chunk_size_feed_forward": 5,
    "is_encoder_decoder": False,
}


class Empty:
    """In the place of a mixin that the distribution leaves out."""


STUBS = {
    "exporters": {},
    "exporters.test_export": {"ExportTesterMixin": Empty},
    "generation": {},
    "generation.test_utils": {"GenerationTesterMixin": Empty},
    "utils": {},
    "utils.test_configuration_utils": {"config_common_kwargs": COMMON_ARGUMENTS},
}


def load() -> dict[str, type]:
    """The mixins by name, and ``ConfigTester``."""
    sys.path.insert(0, str(FOLDER / "packages"))
    package = ModuleType(PACKAGE)
    package.__path__ = [str(FOLDER / "tests")]
    sys.modules[PACKAGE] = package
    for name, values in STUBS.items():
        module = ModuleType(f"{PACKAGE}.{name}")
        vars(module).update(values)
        sys.modules[module.__name__] = module
    with unittest.mock.patch("transformers.utils.direct_transformers_import", return_value=transformers):
        modules = [
            importlib.import_module(f"{PACKAGE}.{name}")
            for name in ("test_modeling_common", "test_configuration_common", "test_training_mixin")
        ]
    names = ("ModelTesterMixin", "ConfigTester", "TrainingTesterMixin")
    return {name: getattr(module, name) for name, module in zip(names, modules, strict=True)}


MIXINS = load()
