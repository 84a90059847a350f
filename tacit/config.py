"""A recipe: everything that decides a run, as frozen typed values read from TOML.

Unknown keys are refused with the nearest known name; values are checked before data is touched.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, ValidationError, model_validator
from pydantic.fields import FieldInfo

from tacit.errors import ArgumentError
from tacit.method_sections import METHODS, DpSgdRecipe, MethodRecipe
from tacit.recipe_sections import (
    FEATURES,
    DataRecipe,
    FeaturesRecipe,
    ModelRecipe,
    PrivacyRecipe,
    RunRecipe,
    Section,
    TrainingRecipe,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Recipe(Section):
    """A whole run."""

    title: str = ""
    data: DataRecipe = DataRecipe()
    features: FeaturesRecipe | None = None
    model: ModelRecipe = ModelRecipe()
    method: MethodRecipe = DpSgdRecipe()
    privacy: PrivacyRecipe = PrivacyRecipe(epsilon=3.0)
    training: TrainingRecipe = TrainingRecipe()
    run: RunRecipe = RunRecipe()

    @model_validator(mode="after")
    def _features_are_not_augmented(self) -> Recipe:
        if self.features and self.training.augment:
            raise ValueError(
                "training.augment changes images, but features take their place; leave out one"
            )
        return self

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Recipe:
        """A recipe from nested values; every mistake is named with its way out."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ArgumentError(_explain(error)) from None

    def with_settings(self, **settings: Any) -> Recipe:
        """The same recipe with some values changed, each named without its section.

        >>> Recipe().with_settings(epsilon=1.0, clip=0.1).method.clip
        0.1
        """
        values = self.model_dump(mode="json")
        if settings.get("noise") is not None and "epsilon" not in settings:
            values["privacy"]["epsilon"] = None
        for key, value in settings.items():
            if key in _SECTION_OF:
                values[_SECTION_OF[key]][key] = value
            elif key in _BY_NAME:
                values[key] = {"name": value}
            elif key == "title":
                values[key] = value
            else:
                known = sorted([*_SECTION_OF, *_BY_NAME, "title"])
                elsewhere = _NAMES_ELSEWHERE.get(key)
                near = [elsewhere] if elsewhere else get_close_matches(key, known, 1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ArgumentError(
                    f"{key} is not a known setting; {hint}known: {', '.join(known)}"
                )
        return Recipe.parse(values)

    def as_toml(self) -> str:
        """The recipe as a file that repeats the run."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))

    def digest(self) -> str:
        """A hash of all values that are not the default, so that new settings do not change it."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        values["method"] = {"name": self.method.name, **values.get("method", {})}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


_SECTIONS: tuple[tuple[str, type[Section]], ...] = (
    ("data", DataRecipe),
    ("model", ModelRecipe),
    *(("method", method) for method in METHODS.values()),
    ("privacy", PrivacyRecipe),
    ("training", TrainingRecipe),
    ("run", RunRecipe),
)
_NAMED: dict[str, type[Section]] = {**METHODS, **FEATURES}
_BY_NAME = ("data", "features", "model", "method")
_NAMES_ELSEWHERE = {
    "lr": "learning_rate",
    "max_grad_norm": "clip",
    "l2_norm_clip": "clip",
    "noise_multiplier": "noise",
    "sigma": "noise",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "max_physical_batch_size": "micro_batch",
}
"""Settings as other libraries call them."""
_SECTION_OF = {
    key: name for name, section in _SECTIONS for key in section.model_fields if key != "name"
}


def load(name: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """A recipe from a TOML file, or a built-in one by name, with `key.path=value` overrides."""
    return from_values(read(name), overrides)


def from_values(values: dict[str, Any], overrides: Mapping[str, str] | None = None) -> Recipe:
    """A recipe from nested values with `key.path=value` overrides.

    `budgets` in the values lists settings for some ε. Those for the nearest ε are taken, before
    the overrides. Features belong to their model: they go when another model is named.
    """
    overrides = overrides or {}
    values = _for_budget(values, overrides)
    model = values.get("model", {}).get("name")
    if overrides.get("model.name", model) != model:
        values.pop("features", None)
    if "privacy.noise" in overrides and "privacy.epsilon" not in overrides:
        values.get("privacy", {}).pop("epsilon", None)
    for key, text in overrides.items():
        _set(values, key, text)
    return Recipe.parse(values)


def _for_budget(values: dict[str, Any], overrides: Mapping[str, str]) -> dict[str, Any]:
    """The values without `budgets`, of which the entry with the nearest ε has been taken in."""
    values = dict(values)
    budgets = [(_epsilon(entry), entry) for entry in values.pop("budgets", [])]
    if any(epsilon is None for epsilon, _ in budgets):
        raise ArgumentError("budgets has an entry without an epsilon above 0; give it one")
    asked = _epsilon(values.get("privacy", {}))
    if "privacy.noise" in overrides:
        asked = None
    if "privacy.epsilon" in overrides:
        asked = _epsilon({"epsilon": overrides["privacy.epsilon"]})
    if asked is None or not budgets:
        return values
    _, nearest = min(budgets, key=lambda entry: abs(math.log((entry[0] or 1) / asked)))
    for name, section in nearest.items():
        if isinstance(section, Mapping):
            values[name] = {**values.get(name, {}), **section}
    return values


def _epsilon(values: Mapping[str, Any]) -> float | None:
    try:
        epsilon = float(values["epsilon"])
    except (KeyError, TypeError, ValueError):
        return None
    return epsilon if 0 < epsilon < math.inf else None


def builtin_names() -> list[str]:
    """The recipes that come with the package."""
    root = resources.files("tacit") / "recipes"
    names = []
    for item in root.iterdir():
        if item.is_dir():
            names += [f"{item.name}/{f.name[:-5]}" for f in item.iterdir() if _is_toml(f.name)]
        elif _is_toml(item.name):
            names.append(item.name[:-5])
    return sorted(names)


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")


def read(name: str) -> dict[str, Any]:
    """The values of a TOML file or a built-in recipe as they stand there, unchecked."""
    if name in builtin_names():
        text = (resources.files("tacit") / "recipes" / f"{name}.toml").read_text("utf-8")
    else:
        path = Path(name)
        if not path.is_file():
            near = get_close_matches(name, builtin_names(), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ArgumentError(
                f"recipe is {name!r}, which is neither a file nor a built-in recipe{hint}"
                " (`tacit papers` lists those of the papers)"
            )
        text = path.read_text("utf-8")
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"recipe {name}: not valid TOML: {error}") from None
    return values


def _set(values: dict[str, Any], key: str, text: str) -> None:
    """Set a dotted key to a value written as TOML, or to the bare text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, last = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ArgumentError(
                f"{key} is set to {text}, but {section!r} is a value, not a section"
            )
        values = inner
    if key in ("method.name", "features.name") and values.get("name") != value:
        values.clear()
    values[last] = value


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        path = [str(part) for part in problem["loc"]]
        key = ".".join(part for part in path if part not in _NAMED)
        if problem["type"] == "extra_forbidden":
            known = _known_keys(path[:-1])
            near = get_close_matches(path[-1], known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            lines.append(f"{key} is not a known key; {hint}known here: {', '.join(known)}")
        elif problem["type"] == "union_tag_not_found":
            names = FEATURES if key == "features" else METHODS
            lines.append(f"{key}.name is missing; give one of {', '.join(names)}")
        elif problem["type"] == "union_tag_invalid":
            names = FEATURES if key == "features" else METHODS
            given = str(problem["ctx"]["tag"])
            near = get_close_matches(given, names, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            lines.append(f"{key}.name is {given!r}; {hint}known: {', '.join(names)}")
        else:
            said = problem["msg"].removeprefix("Value error, ")
            said = said.replace("Input should be", "it must be")
            lines.append(f"{key} is {problem['input']!r}; {said}")
    return "the recipe cannot be used:\n  " + "\n  ".join(lines)


def _known_keys(path: list[str]) -> list[str]:
    section: type[BaseModel] = Recipe
    for part in path:
        if part in _NAMED:
            section = _NAMED[part]
            continue
        field: FieldInfo | None = section.model_fields.get(part)
        if field is not None:
            kinds = (field.annotation, *get_args(field.annotation))
            models = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
            section = models[0] if models else section
    return sorted(section.model_fields)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }
