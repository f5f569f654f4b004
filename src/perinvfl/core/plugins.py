"""A user's own code by name: `module:function` or `module:Class`, as written in an experiment file."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from perinvfl.errors import UserError

DIGEST = "__source_digest__"  # kept in a user's own module
_ALLOWED: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)  # names that a site may load


@contextmanager
def importing_from(*folders: Path) -> Iterator[None]:
    """Modules are also looked for in these folders, after all others."""
    added = [str(folder.absolute()) for folder in folders]
    sys.path.extend(added)
    try:
        yield
    finally:
        for folder in added:
            sys.path.reverse()  # the last one is ours
            sys.path.remove(folder)
            sys.path.reverse()


class NotAllowed(UserError):
    """Code that is not among those allowed."""


@contextmanager
def allowing_only(names: Collection[str]) -> Iterator[None]:
    """Whatever is not among these names is refused before it is imported: somebody else wrote what is read here."""
    before = _ALLOWED.set(frozenset(names))
    try:
        yield
    finally:
        _ALLOWED.reset(before)


def load(name: str, where: str) -> Any:
    """What `module:name` stands for; modules in the working folder are found too."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise UserError(f'{where} = "{name}": must be module:name, such as my_module:build.')
    allowed = _ALLOWED.get()
    if allowed is not None and name not in allowed:
        raise NotAllowed(
            f'{where} = "{name}": this site does not allow it. To allow it, join with --allow {name}, or write '
            f'allow = ["{name}"] in the site\'s site.toml.'
        )
    try:
        with importing_from(Path.cwd()):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UserError(
                f'{where} = "{name}": there is no module {error.name} here; it must be installed, or lie in the '
                "working folder or beside the experiment file."
            ) from None
        raise UserError(f'{where} = "{name}": {module_name} needs {error.name}, which is not installed.') from None
    except Exception as error:
        raise UserError(f'{where} = "{name}": {module_name} cannot be imported ({in_words(error)}).') from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UserError(f'{where} = "{name}": {module_name} has no {attribute}.')
        found = getattr(found, part)
    return found


def source_of(thing: Any) -> str:
    """Sixteen hex digits of the file that a function or class is written in: code that changed is another run.

    As it was when this process first asked: a module stays as it was imported, whatever becomes of its file.
    """
    module = sys.modules.get(getattr(thing, "__module__", ""))
    if module is not None and DIGEST in vars(module):
        return str(vars(module)[DIGEST])
    try:
        file = inspect.getsourcefile(thing)
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""
    except (TypeError, OSError):
        return ""
    if module is not None:
        setattr(module, DIGEST, digest)
    return digest


def in_words(error: Exception) -> str:
    """Its kind and the first line of what it says."""
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
