"""Compiled kernels of packages as the Hub holds them, fetched by the package ``kernels`` (extra ``hub-kernels``).

To build mamba-ssm and causal-conv1d from source needs a compiler that fits torch and CUDA. The Hub has them compiled.
They are code that runs with the rights of the user, so nothing is fetched unless it is asked for, by
``use_kernels=True`` in ``from_pretrained`` or ``HF_MEMORY_HUB_KERNELS=1``; they are those of one publisher, of one
version each, and are proved before use like all others. What was fetched once is used offline (``HF_HUB_OFFLINE=1``).

As in transformers, they come before a package that is installed, which is used where they cannot be had.
"""

import functools
import importlib
import logging
from types import ModuleType
from typing import Any

from hf_memory.ops.backends.dispatch import hub_kernels_wanted

logger = logging.getLogger(__name__)

PUBLISHER = "kernels-community"
"""The only account whose kernels are loaded."""

REPOSITORIES = {
    "mamba_ssm": ("mamba-ssm", 5),
    "causal_conv1d": ("mamba-ssm", 5),
    "fla": ("fla", 2),
}
"""Package -> the publisher's repository with its kernels, and the version, which transformers 5.24 takes as well."""


def package_function(module: str, name: str) -> tuple[Any, str | None]:
    """A function of a package, from the Hub where that is asked for and has it.

    Args:
        module: The module of the package, for instance ``"fla.ops.hgrn"``.
        name: Name of the function.

    Returns:
        The function, and the repository with its version that it comes from; None for the package itself.

    Raises:
        ImportError: Neither has it.
    """
    package, _, path = module.partition(".")
    if hub_kernels_wanted() and package in REPOSITORIES:
        repository, version = REPOSITORIES[package]
        try:
            return _found(_repository(package), path, name), f"{PUBLISHER}/{repository} version {version}"
        except ImportError as error:
            logger.warning("%s of %s does not come from the Hub: %s", name, module, error)
    return _found(importlib.import_module(module), "", name), None


@functools.cache
def _repository(package: str) -> ModuleType:
    """The kernels of a package, from the cache or the Hub."""
    name, version = REPOSITORIES[package]
    try:
        kernels = importlib.import_module("kernels")
    except ImportError as error:
        raise ImportError("the package `kernels` is missing; `pip install hf_memory[hub-kernels]`") from error
    try:
        return kernels.get_kernel(f"{PUBLISHER}/{name}", version=version)
    except Exception as error:
        raise ImportError(f"{PUBLISHER}/{name} cannot be loaded ({type(error).__name__}: {error})") from error


def _found(repository: ModuleType, path: str, name: str) -> Any:
    """A function at the top of a repository, or in the module where the package has it."""
    place = repository if hasattr(repository, name) or not path else _within(repository, path)
    try:
        return getattr(place, name)
    except AttributeError as error:
        raise ImportError(f"{place.__name__} has no {name}") from error


def _within(repository: ModuleType, path: str) -> ModuleType:
    """A module of a repository."""
    place = repository
    for part in path.split("."):
        place = getattr(place, part, None) or importlib.import_module(f"{place.__name__}.{part}")
    return place
