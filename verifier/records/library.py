"""A library: an installed Python package whose norms a file declares, and which version of it is here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement


@dataclass(frozen=True, kw_only=True)
class Library:
    """The package that a file's subjects take their kernels from, unmodified.

    distribution: its name in package indexes. package: the name under which it is imported. needs: further
    distributions without which it cannot be imported. without_init: packages whose `__init__` is not
    executed, since it asks for a device or for an extension that is not built here; their modules are
    imported as they are. handed_on: what such a package takes from a module of its own, and its other modules
    from it, by the full name where it is made. environment: variables that the library reads as it is
    imported, as "NAME=VALUE", where the user has not set them. installed_by: what installs it, in words,
    where `pip install` of its name does not.
    """

    distribution: str
    package: str
    needs: tuple[str, ...] = ()
    without_init: tuple[str, ...] = ()
    handed_on: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    installed_by: str = ""

    @property
    def version(self) -> str | None:
        """The version that is installed, None without one; of several the first on the path counts."""
        return version_of(self.distribution)

    @property
    def absent(self) -> tuple[str, ...]:
        """The distributions that are not installed, of itself and what it needs."""
        return tuple(name for name in (self.distribution, *self.needs) if version_of(name) is None)

    def within(self, versions: str) -> bool:
        """Return whether the installed version is one of these, such as "<0.5.4" or ">=0.6,<0.8"."""
        return fits(f"{self.distribution}{versions}")


def version_of(distribution: str) -> str | None:
    """Return the version of a distribution that is installed here, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def fits(requirement: str) -> bool:
    """Return whether what is installed is as a requirement such as "liger-kernel<0.5.4" says.

    Raises:
        ValueError: it is no requirement.

    """
    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        raise ValueError(f"{requirement!r} is no requirement such as 'liger-kernel<0.5.4'") from error
    found = version_of(wanted.name)
    return found is not None and wanted.specifier.contains(found, prereleases=True)
