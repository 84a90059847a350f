"""A recipe: everything that decides a run, as frozen typed values read from TOML.

Unknown keys are refused with the nearest known name; values are checked before data is touched.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from tacit.clipping.engines import EngineName
from tacit.data.batches import Augmentation
from tacit.errors import ArgumentError
from tacit.models import InitialWeights
from tacit.optim import Schedule
from tacit.privacy.fixed_order import BatchOrder
from tacit.privacy.relations import Relation

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


_Number = BeforeValidator(_number)
Positive = Annotated[float, _Number, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, _Number, Field(ge=0, allow_inf_nan=False)]
Clip = Annotated[float, _Number, Field(ge=1e-6, le=1e6)]
Fraction = Annotated[float, _Number, Field(ge=0, lt=1)]
Count = Annotated[int, _Number, Field(gt=0)]
CountFromZero = Annotated[int, _Number, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataRecipe(_Section):
    """Which records, and which of them are for evaluation."""

    name: str = "digits"
    holdout: CountFromZero = 0
    """Evaluate on this many records taken out of the training set, instead of the test set."""
    options: dict[str, Any] = Field(default_factory=dict)


class ModelRecipe(_Section):
    """Which network; "auto" chooses by the kind of data."""

    name: str = "auto"
    initial: InitialWeights = "torch"
    """How the first weights are drawn."""
    mend: bool = False
    """Replace layers that cannot be private by ones that can."""


class _Method(_Section):
    correlated: ClassVar[bool] = False
    """Whether later noise depends on earlier draws, so that a run cannot go on with a new key."""


class ClippedRecipe(_Method):
    """How per-record gradients are clipped."""

    clip: Clip = 1.0
    clipping: Literal["flat", "automatic"] = "flat"


class DpSgdRecipe(ClippedRecipe):
    """DP-SGD."""

    name: Literal["dpsgd"] = "dpsgd"


class DpFtrlRecipe(ClippedRecipe):
    """DP-FTRL: how noise is shared between steps."""

    correlated: ClassVar[bool] = True
    name: Literal["dpftrl"] = "dpftrl"
    mechanism: Literal["tree", "banded", "amplified"] = "tree"
    restart_every: CountFromZero = 0
    """Epochs after which a new tree starts; 0 keeps one tree."""
    completion: bool = False
    """Fill up a tree with empty leaves before a restart."""
    reduced: bool = True
    """Honaker's estimate: less variance from the same nodes."""
    order: BatchOrder = "same"
    bands: CountFromZero = 0
    """Bands of the factor, and groups of the amplified one; 0 chooses them."""


class PlainRecipe(_Method):
    """Plain SGD, without privacy."""

    name: Literal["plain"] = "plain"


MethodRecipe = Annotated[DpSgdRecipe | DpFtrlRecipe | PlainRecipe, Field(discriminator="name")]


class PrivacyRecipe(_Section):
    """The promise: give epsilon, and the noise is solved for; or give the noise. Given both, the
    noise is used and must keep within epsilon. Given neither, epsilon is 3."""

    epsilon: Positive | None = None
    delta: Annotated[float, _Number, Field(gt=0, lt=1)] = 1e-5
    noise: Positive | None = None
    relation: Relation | None = None
    """Against which change the promise is made; the method's own where none is given."""
    tuned_on: str = ""
    """In words, for the certificate: what the recipe's settings were tuned on."""

    @model_validator(mode="before")
    @classmethod
    def _three_by_default(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("epsilon") is values.get("noise") is None:
            return {**values, "epsilon": 3.0}
        return values


class TrainingRecipe(_Section):
    """How the weights are updated."""

    epochs: Positive = 10.0
    batch_size: Count = 256
    micro_batch: Count = 256
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Positive = 0.5
    momentum: Fraction = 0.0
    weight_decay: NotNegative = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup: Fraction = 0.0
    average: Fraction = 0.0
    """Decay of the exponential moving average of the weights; 0 releases the last weights."""
    views: Count = 1
    """Augmented copies of each record whose gradients are averaged before clipping."""
    augment: tuple[Augmentation, ...] = ()

    @model_validator(mode="after")
    def _views_need_augmentation(self) -> TrainingRecipe:
        if self.views > 1 and not self.augment:
            raise ValueError("views above 1 need augment, or every copy is the same")
        return self


class RunRecipe(_Section):
    """What does not change the promise."""

    seed: CountFromZero | None = None
    """Fixes all randomness; anyone who knows it can subtract the noise."""
    evaluate_every: Positive = 1.0
    """Epochs between evaluations."""
    engine: EngineName = "fast"
    """How clipped sums are computed; all engines give the same sum."""
    deterministic: bool = True
    """Choose algorithms by a fixed rule, so that a resumed run repeats itself bit for bit. Without
    it they are timed, which can be faster; a resumed run then draws new noise and pays again for
    the steps it lost."""


class Recipe(_Section):
    """A whole run."""

    title: str = ""
    data: DataRecipe = DataRecipe()
    model: ModelRecipe = ModelRecipe()
    method: Annotated[DpSgdRecipe | DpFtrlRecipe | PlainRecipe, Field(discriminator="name")] = (
        DpSgdRecipe()
    )
    privacy: PrivacyRecipe = PrivacyRecipe(epsilon=3.0)
    training: TrainingRecipe = TrainingRecipe()
    run: RunRecipe = RunRecipe()

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
            elif key in ("data", "model", "method"):
                values[key] = {"name": value}
            elif key == "title":
                values[key] = value
            else:
                known = sorted([*_SECTION_OF, "data", "model", "method", "title"])
                near = get_close_matches(key, known, 1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ArgumentError(
                    f"{key} is not a known setting; {hint}known: {', '.join(known)}"
                )
        return Recipe.parse(values)

    def as_toml(self) -> str:
        """The recipe as a file that repeats the run."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))

    def digest(self) -> str:
        """A hash of all values."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


_METHODS: dict[str, type[BaseModel]] = {
    "dpsgd": DpSgdRecipe,
    "dpftrl": DpFtrlRecipe,
    "plain": PlainRecipe,
}
_SECTION_OF = {
    key: section
    for section, model in (
        ("data", DataRecipe),
        ("model", ModelRecipe),
        ("method", DpSgdRecipe),
        ("method", DpFtrlRecipe),
        ("privacy", PrivacyRecipe),
        ("training", TrainingRecipe),
        ("run", RunRecipe),
    )
    for key in model.model_fields
    if key != "name"
}


def load(name: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """A recipe from a TOML file, or a built-in one by name, with `key.path=value` overrides."""
    return from_values(read(name), overrides)


def from_values(values: dict[str, Any], overrides: Mapping[str, str] | None = None) -> Recipe:
    """A recipe from nested values with `key.path=value` overrides."""
    if overrides and "privacy.noise" in overrides and "privacy.epsilon" not in overrides:
        values.get("privacy", {}).pop("epsilon", None)
    for key, text in (overrides or {}).items():
        _set(values, key, text)
    return Recipe.parse(values)


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
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ArgumentError(
                f"recipe is {name!r}, which is neither a file nor a built-in recipe.{hint}"
                f" Built in: {', '.join(builtin_names())}"
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
            raise ArgumentError(f"--set {key}={text}: {section!r} is a value, not a section")
        values = inner
    if key == "method.name" and values.get("name") != value:
        values.clear()
    values[last] = value


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        path = [str(part) for part in problem["loc"]]
        key = ".".join(part for part in path if part not in _METHODS)
        if problem["type"] == "extra_forbidden":
            known = _known_keys(path[:-1])
            near = get_close_matches(path[-1], known, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            lines.append(f"{key} is not a known key; {hint}known here: {', '.join(known)}")
        else:
            lines.append(f"{key} is {problem['input']!r}: {problem['msg']}")
    return "the recipe cannot be used:\n  " + "\n  ".join(lines)


def _known_keys(path: list[str]) -> list[str]:
    section: type[BaseModel] = Recipe
    for part in path:
        if part in _METHODS:
            section = _METHODS[part]
            continue
        field: FieldInfo | None = section.model_fields.get(part)
        if field is not None and isinstance(field.annotation, type):
            section = field.annotation
    return sorted(section.model_fields)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }
