"""Settings of a task or a strategy: a plain map from the manifest to a checked record."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from swarmnode.errors import ConfigError

PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
PositiveFloat = Annotated[float, Meta(gt=0.0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every set of settings: each field has a default, a type and a range."""


SettingsT = TypeVar("SettingsT", bound=Settings)


def parse_settings(
    settings: dict[str, Any], settings_type: type[SettingsT], *, owner: str
) -> SettingsT:
    """Return ``settings`` as a ``settings_type``; ``owner`` names whose they are.

    Raises:
        ConfigError: an unknown key, a wrong type or a value out of range.
    """
    check_settings(settings, settings_type, owner=owner)
    return msgspec.convert(settings, settings_type)


def check_settings(
    settings: dict[str, Any], settings_type: type[msgspec.Struct], *, owner: str
) -> None:
    """Look at each of ``settings`` by itself; ``owner`` names whose they are.

    Raises:
        ConfigError: an unknown key, a wrong type or a value out of range.
    """
    known = settings_type.__struct_fields__
    for key in settings:
        if key not in known:
            raise ConfigError(
                f"{owner}: unknown setting {key!r}; known settings: {', '.join(known) or 'none'}"
            )
    for key, value in settings.items():
        try:
            msgspec.convert({key: value}, settings_type)
        except msgspec.ValidationError as error:
            hint = get_type_hints(settings_type)[key]
            choices = _choices(hint)
            expected = str(error).split(" - at ")[0].lower()
            if choices and (isinstance(value, str) or get_origin(hint) is Literal):
                expected = f"expected one of {', '.join(choices)}"
            raise ConfigError(f"{owner}: setting {key}: {expected}, got {value!r}") from error


def _choices(hint: Any) -> list[str]:
    """Return the values that a type allows, each once; none where it is no choice of values."""
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    return list(dict.fromkeys(value for part in get_args(hint) for value in _choices(part)))
