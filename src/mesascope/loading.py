"""Import of objects from users' Python files."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mesascope.errors import ArgumentError, MesascopeError, one_line, require_choice

__all__ = ["from_file", "imported_files", "imported_from", "in_file", "module_of", "own_files"]

# Beginning of the names of modules that `module_of` imports.
_PREFIX = "_mesascope_"
# Folders of the files that were imported.
_FOLDERS: set[Path] = set()


def in_file(spec: str) -> bool:
    """True for ``path.py:NAME`` and for ``path.py``.

    >>> in_file("mine.py:STUDY"), in_file("package.module:function")
    (True, False)
    """
    return re.search(r"\.py(:\w*)?$", spec) is not None


def from_file(spec: str, kind: type = object) -> Any:
    """Import the object ``NAME``, of type ``kind``, from the Python file in ``path.py:NAME``.

    Raises:
        ArgumentError: the file cannot be read, raises an error or defines no such object, or the name is missing.
    """
    path, _, name = spec.rpartition(":") if not spec.endswith(".py") else (spec, "", "")
    try:
        module = module_of(Path(path))
    except OSError as error:
        raise ArgumentError(
            f"{path or spec} must be a Python file, but cannot be read ({error.strerror}): correct the path."
        ) from None
    named = {key: value for key, value in vars(module).items() if isinstance(value, kind) and key[0] != "_"}
    if not named:
        what = "value" if kind is object else kind.__name__
        raise ArgumentError(f"{path} must define a {what}, but defines none: write one.")
    if not name:
        raise ArgumentError(f"{path} must be followed by a name, but is not: pass {path}:{[*named][-1]}.")
    require_choice(f"the name after {path}:", name, named)
    return named[name]


def module_of(path: Path) -> ModuleType:
    """Import a Python file as a module; run it again only if it was edited. It can import from its folder.

    If the program has imported the file itself, that module is returned: each class then exists once.

    Raises:
        ArgumentError: the file raises an error (but a MesascopeError is raised unchanged).
        OSError: the file cannot be read.
    """
    try:
        file = path.expanduser().resolve()
    except RuntimeError:  # ~name of no user
        file = path.resolve()
    if imported := _imported(file):
        return imported
    own = f"{_PREFIX}{hashlib.sha256(os.fsencode(file) + file.read_bytes()).hexdigest()[:16]}"
    if own in sys.modules:
        return sys.modules[own]
    loader = _Loader(own, str(file))
    spec = importlib.util.spec_from_file_location(own, file, loader=loader)
    assert spec is not None
    module = sys.modules[own] = importlib.util.module_from_spec(spec)
    try:
        with _importing_from(file.parent):
            loader.exec_module(module)
    except BaseException as error:
        del sys.modules[own]
        if isinstance(error, MesascopeError) or not isinstance(error, Exception | SystemExit):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        where = f" at line {lines[-1]}" if lines else ""
        raise ArgumentError(
            f"{file} must run, but raises {type(error).__name__}{where} ({one_line(error)}): correct it."
        ) from error
    return module


def file_of(place: str) -> Path:
    """File of a place ``file.py:NAME``."""
    return Path(place.rpartition(":")[0])


def own_files(file: Path) -> list[Path]:
    """A Python file, and the files of its folder that it imports, directly or through one of them."""
    found, left = list[Path](), [file]
    while left:
        one = left.pop(0)
        if one not in found and one.is_file():
            found.append(one)
            with contextlib.suppress(SyntaxError):
                left += imported_files(one, (file.parent, one.parent))
    return found


def imported_files(file: Path, homes: Iterable[Path]) -> list[Path]:
    """Files, in folders to import from, that define the modules and names that ``file`` uses.

    A package such as `mesascope.learners` adds only the modules that define the names in use.
    """
    names = {*_used(ast.parse(file.read_bytes()))}
    found = {_place(home, name.split(".")) for name in names for home in homes}
    return sorted(path for path in found if path)


def _used(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports, and attributes of imported names that it uses."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {one.asname: one.name for one in node.names if one.asname}
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            own = {one.asname or one.name: f"{base}{one.name}" for one in node.names}
            aliases |= own
            yield from own.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            yield f"{aliases[node.value.id]}.{node.attr}"


def _place(home: Path, parts: list[str]) -> Path | None:
    """File of a module, or of the module that defines a name of a package; None if it is not under ``home``."""
    for count in range(len(parts), 0, -1):
        base = home.joinpath(*parts[:count])
        stub = base / "__init__.pyi"
        if stub.is_file():  # a package whose names load on use
            nodes = (node for node in ast.parse(stub.read_bytes()).body if isinstance(node, ast.ImportFrom))
            named = {one.name: f"{node.module}.{one.name}" for node in nodes for one in node.names}
            return _place(base, named[parts[count]].split(".")) if {*parts[count : count + 1]} & {*named} else None
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file.resolve()
    return None


def imported_from(stem: str) -> ModuleType | None:
    """The last module that `from_file` imported from a file ``stem.py``."""
    ours = [module for name, module in sys.modules.items() if name.startswith(_PREFIX)]
    return next((one for one in reversed(ours) if Path(one.__file__ or "").stem == stem), None)


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """In this context, imports look into ``folder`` first; afterwards last, for imports inside functions.

    Modules of the same names, imported from the folders of other files, are forgotten.
    """
    others = _FOLDERS - {folder}
    for name, module in [*sys.modules.items()]:
        root, file = name.partition(".")[0], Path(getattr(module, "__file__", None) or "")
        theirs = folder not in file.parents and any(other in file.parents for other in others)
        if theirs and ((folder / f"{root}.py").exists() or (folder / root).is_dir()):
            del sys.modules[name]
    _FOLDERS.add(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _imported(file: Path) -> ModuleType | None:
    """Module that the program has imported from a file, or run as its script."""
    for name, module in [*sys.modules.items()]:
        own = Path(getattr(module, "__file__", None) or "")
        if own.name == file.name and not name.startswith(_PREFIX) and own.resolve() == file:
            return module
    return None


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader that always compiles the file: cached bytecode can be stale if the file was edited within a second."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)
