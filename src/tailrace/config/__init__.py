"""The configuration file: one schema for YAML and TOML.

    text → `yaml_text`, `toml_text` → nodes with lines → `checking` → `Config`

What a value may be is said where it is used (`queue/settings.py`, `log/options.py`); here is which
keys there are, and which line of the file is to blame. Nothing is imported before it is needed: a
program without a file pays for none of it.
"""

from __future__ import annotations

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from tailrace.config.model import Config, QueueConfig, Value, check, load
    from tailrace.config.nodes import Problem

__all__ = ["Config", "Problem", "QueueConfig", "Value", "check", "load"]

_LATER = dict.fromkeys(__all__, "model") | {"Problem": "nodes"}


def __getattr__(name: str) -> _typing.Any:
    if name in _LATER:
        found = getattr(_importlib.import_module(f"tailrace.config.{_LATER[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'tailrace.config' has no attribute {name!r}")
