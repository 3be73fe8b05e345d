"""Converts a handler to a reference (`module:name` or `path.py:name`), and loads it elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from nadi.errors import InvalidArgumentError

HandlerFunction = Callable[..., Any]


def reference_of(handler: object) -> str:
    """Return the reference by which another process finds the handler; InvalidArgumentError if it can't."""
    if isinstance(handler, str):
        return handler
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", "")
    if not callable(handler) or module is None or "<" in name:
        raise InvalidArgumentError(
            f"{handler!r} can't be a handler, because other processes can't find it by its name: define it with `def` "
            "at the top of a module"
        )
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None:
            raise InvalidArgumentError(f"handler {name} is defined in a console: define it in a file")
        return f"{Path(file).resolve()}:{name}"
    return f"{module}:{name}"


def load(reference: str) -> Any:
    """Import the object that `module:name` or `path.py:name` refers to; InvalidArgumentError if it doesn't exist.

    Errors raised by the module pass unchanged.
    """
    location, _, name = reference.rpartition(":")
    if not location or not name:
        raise InvalidArgumentError(
            f"invalid handler reference {reference!r}: write `module:function` or `path/file.py:function`"
        )
    loaded: Any = _module(location)
    for part in name.split("."):
        try:
            loaded = getattr(loaded, part)
        except AttributeError:
            raise InvalidArgumentError(f"{location} doesn't have {name!r}: name one of its functions") from None
    return loaded


def _module(location: str) -> ModuleType:
    if not location.endswith(".py"):
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(location)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{location}.".startswith(f"{error.name}."):
                raise  # an import of the module is missing
            raise InvalidArgumentError(
                f"module {location!r} doesn't exist: run this in its folder, or name the file, as in path/file.py"
            ) from None
    path = Path(location).resolve()
    if not path.is_file():
        raise InvalidArgumentError(f"file {location} doesn't exist: check the path")
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) and Path(str(main.__file__)).resolve() == path:
        return main
    name = f"nadi_handler_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def takes_context(handler: HandlerFunction) -> bool:
    """Return whether it takes a context after the event; InvalidArgumentError if it can't be called with an event."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return False
    for arguments in ((None, None), (None,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise InvalidArgumentError(
        f"the handler {getattr(handler, '__qualname__', handler)}{signature} can't be called with (event) or (event, "
        "context): change its parameters"
    )


def takes_list(handler: HandlerFunction) -> bool:
    """Return whether its first argument is annotated as a list, so that it gets batches."""
    try:
        first = next(iter(inspect.signature(handler).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    note = "" if first is None else first.annotation
    text = note if isinstance(note, str) else getattr(note, "__name__", None) or str(note)
    return text.partition("[")[0].rpartition(".")[2] in ("list", "List", "Sequence", "Iterable")
