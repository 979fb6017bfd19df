"""Loading kernel files by path, the user's and our own alike."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from verifier.records.library import Library
from verifier.records.printable import line, said, text_of
from verifier.records.subject import Subject
from verifier.subjects.bare_packages import prepare

SOURCE_BYTES = 1 << 24
"""A source file that is larger is something else; Python would read all of it."""
_PREFIX = "norm_verifier_kernel_files"


class LoadError(Exception):
    """A kernel file that cannot be used; the message names the file and the reason."""

    def __init__(self, message: str) -> None:
        """Keep the message one line that can be shown: a part of it may be the file's own words."""
        super().__init__(line(message))


class NoSubjectError(LoadError):
    """A kernel file that declares no subject."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A kernel file's module and the subjects declared in it, in order of declaration.

    library: the installed package that all of them are of, where the file names one.
    """

    path: Path
    module: ModuleType
    subjects: tuple[Subject, ...]
    library: Library | None = None


def source_file(path: str | Path) -> Path:
    """Return the absolute path of a file that may be a kernel's source; nothing of it is executed.

    Raises:
        LoadError: it does not exist, or is nothing that could be one.

    """
    try:
        file = Path(path).expanduser().resolve()
        size = file.stat().st_size
    except (OSError, RuntimeError) as error:  # resolve() says RuntimeError of a loop of links
        absent = isinstance(error, FileNotFoundError)
        why = f"no such file{_neighbour(Path(path))}" if absent else text_of(error)
        raise LoadError(f"{path}: {why}") from error
    if file.is_dir():
        raise LoadError(f"{path}: is a folder; name a kernel file in it")
    if not file.is_file():
        raise LoadError(f"{path}: is no regular file")
    if size > SOURCE_BYTES:
        raise LoadError(f"{path}: has {size} bytes, which is no kernel's source")
    if file.suffix != ".py":
        raise LoadError(f"{path}: a kernel file is a Python file (a .cu needs its declaring .py beside it)")
    if not _is_utf8(str(file)):
        raise LoadError(f"{path}: the path is not read as UTF-8 here; set PYTHONUTF8=1, or rename it")
    return file


ROOT_MARKS = ("pyproject.toml", "setup.py", ".git")
"""A folder that holds one of these is that of a repository."""


def repository_folders(file: Path) -> list[Path]:
    """Return the folders in which modules of a file's repository lie: its root, and `src` there; or none."""
    root = next((one for one in file.parents if any((one / mark).exists() for mark in ROOT_MARKS)), None)
    return [] if root is None else [one for one in (root, root / "src") if one.is_dir()]


def make_importable(folders: Iterable[Path]) -> None:
    """Let modules in these folders be imported by this process and those it starts; they hide no others."""
    sys.path.extend(str(folder) for folder in folders if str(folder) not in sys.path)


def _neighbour(path: Path) -> str:
    """Return a question after the Python file of the same folder whose name is most alike, or nothing."""
    try:
        names = [file.name for file in path.expanduser().parent.iterdir() if file.suffix == ".py"]
    except (OSError, RuntimeError):
        return ""
    alike = get_close_matches(path.name, names, n=1)
    return f" (did you mean {path.with_name(alike[0])}?)" if alike else ""


def load(path: str | Path) -> Loaded:
    """Execute a kernel file under a module name of its own and collect its subjects.

    It may import modules of the repository that it lies in, and those beside it. What has been loaded before
    is taken as it is, unless the file has been edited since.

    The module is registered before it is executed, so that decorators can look up sources and
    classes can be pickled, and removed again if it fails.

    Raises:
        LoadError: the file does not exist, is no Python file, raises while it is executed, or holds a kernel
            whose language is neither declared nor can be told.

    """
    file = source_file(path)
    name = f"{_PREFIX}.{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    make_importable(repository_folders(file))
    text = _digest(file)
    known = sys.modules.get(name) if _EXECUTED.get(name) == text else None
    _EXECUTED[name] = text
    module = known or _execute(file, name)
    subjects = [value for value in vars(module).values() if isinstance(value, Subject)]
    own: dict[str, Subject] = {}
    for one in (s for s in subjects if s.path == file):
        if own.setdefault(one.name, one) is not one:
            raise LoadError(
                f"{path}: two subjects are named {one.name!r}; give their functions names of their own"
            )
    library = next((one for one in vars(module).values() if isinstance(one, Library)), None)
    if library is not None:
        prepare(library)
    return Loaded(path=file, module=module, subjects=tuple(_in_languages(path, own)), library=library)


_EXECUTED: dict[str, str] = {}
"""By module name the digest of the text that was executed: a file that has been edited is executed again."""


def _digest(file: Path) -> str:
    """Return the digest of a file's text, "" where it cannot be read: then executing it says why."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _in_languages(path: str | Path, own: dict[str, Subject]) -> Iterator[Subject]:
    """Yield subjects with their languages, those that a declaration leaves out."""
    for one in own.values():
        if "language" not in one.claim.assumed:
            yield one
            continue
        from verifier.subjects.language import with_language  # it looks at what Triton and CUDA make

        try:
            yield with_language(one)
        except ValueError as error:
            raise LoadError(f"{path}: {error}") from error


def load_subjects(path: str | Path) -> tuple[Subject, ...]:
    """Return the subjects of a kernel file; what the file sets for the whole process is set back.

    Raises:
        LoadError: as `load`; NoSubjectError: the file declares none.

    """
    from verifier.subjects.process_settings import settings_kept

    with settings_kept():
        subjects = load(path).subjects
    if not subjects:
        raise NoSubjectError(
            f"{path}: declares no subject; decorate the kernel's function with @verifier.subject(...)"
        )
    return subjects


def load_subject(path: str | Path, name: str) -> Subject:
    """Return the subject of that name of a kernel file.

    Raises:
        LoadError: as `load_subjects`, or the file has no such subject.

    """
    found = {subject.name: subject for subject in load_subjects(path)}
    if name not in found:
        raise LoadError(f"{path} has no subject {name!r}; it has {', '.join(found)}")
    return found[name]


def builtin_folder() -> Path:
    """Return the folder of the built-in kernels: inside the installed package, or beside it in a checkout.

    Raises:
        LoadError: neither exists.

    """
    package = Path(__file__).parents[1]
    for folder in (package / "kernels", package.parent / "kernels"):
        if folder.is_dir():
            return folder
    raise LoadError("the built-in kernels are missing from this installation")


def builtin_files() -> list[Path]:
    """Return the built-in kernel files that declare subjects, sorted by name."""
    return sorted(file for file in builtin_folder().glob("*.py") if not is_skeleton(file))


def is_skeleton(path: Path) -> bool:
    """Return whether a file's name says that kernels load it and that it declares no subject."""
    return "_skeleton_" in path.name


def _is_utf8(text: str) -> bool:
    """Return whether a path has a name in UTF-8: other bytes, and the locale C, leave surrogates in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Source(SourceFileLoader):
    """Compiles the source each time: what a full disk left of a cached compilation is no kernel."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the source as it stands, and leave nothing beside it."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _execute(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise LoadError(f"{file}: Python cannot load this file")
    if type(spec.loader) is SourceFileLoader:
        spec.loader = _Source(name, str(file))
    module = importlib.util.module_from_spec(spec)
    if _PREFIX not in sys.modules:
        package = ModuleType(_PREFIX)
        package.__path__ = []
        sys.modules[_PREFIX] = package
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        del sys.modules[name]
        raise
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError) and _stands_beside(file, error.name or ""):
            make_importable([file.parent])
            _BESIDE.add(file.parent)
            return _execute(file, name)
        raise LoadError(f"{file}: {_last_line(error, file)}") from error
    if any(_stands_beside(file, name) for name in _imported_later(file)):
        make_importable([file.parent])
        _BESIDE.add(file.parent)
    if hidden := _hidden_beside(file, module):
        del sys.modules[name]
        raise LoadError(f"{file}: imports {hidden}, and finds that of another folder: rename one of them")
    return module


def _imported_later(file: Path) -> Iterator[str]:
    """Yield the modules that a file imports, in functions as well, which nobody finds yet; not itself."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            first = name.partition(".")[0]
            if first not in {file.stem, *sys.modules} and importlib.util.find_spec(first) is None:
                yield name


def _stands_beside(file: Path, name: str) -> bool:
    """Return whether a module that was not found stands in the file's folder, where none was looked for."""
    first = name.partition(".")[0]
    found = (file.parent / f"{first}.py").is_file() or (file.parent / first / "__init__.py").is_file()
    return bool(first) and found and str(file.parent) not in sys.path


def _hidden_beside(file: Path, module: ModuleType) -> str:
    """Return the name of a module of the folder in whose place it uses that of another one, or ""."""
    values = vars(module).values()
    used = {value.__name__ for value in values if isinstance(value, ModuleType)}
    used |= {str(getattr(value, "__module__", "")) for value in values}
    for name in sorted(used & sys.modules.keys()):
        folder = Path(getattr(sys.modules[name], "__file__", None) or file).parent
        if folder in _BESIDE and folder != file.parent and (file.parent / f"{name}.py").is_file():
            return name
    return ""


_BESIDE: set[Path] = set()
"""Folders of kernel files that were made importable."""


def _last_line(error: BaseException, file: Path) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename == str(file) and error.lineno:
        shown = line((error.text or "").strip())  # its own words would say file and line once more
        return f"line {error.lineno}: {type(error).__name__}: {line(error.msg)}{shown and f': {shown}'}"
    return f"line {frames[-1].lineno}: {said(error)}" if frames else said(error)
