"""The sections of a recipe that every method shares, as frozen typed values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tacit.clipping.engines import EngineName
from tacit.clipping.numerics import NumericsName
from tacit.data.batches import Augmentation
from tacit.data.generated import Pictures
from tacit.models import InitialWeights
from tacit.optim import Schedule
from tacit.privacy.relations import Relation


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


Number = BeforeValidator(_number)
Positive = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]
Clip = Annotated[float, Number, Field(ge=1e-6, le=1e6)]
Share = Annotated[float, Number, Field(ge=0, le=1)]
UpToOne = Annotated[float, Number, Field(gt=0, le=1)]
Fraction = Annotated[float, Number, Field(ge=0, lt=1)]
Count = Annotated[int, Number, Field(gt=0)]
CountFromZero = Annotated[int, Number, Field(ge=0)]


class Section(BaseModel):
    """Values of a recipe that belong together; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataRecipe(Section):
    """Which records, and which of them are for evaluation."""

    name: str = "digits"
    holdout: CountFromZero = 0
    """Evaluate on this many records taken out of the training set, instead of the test set."""
    public: CountFromZero = 0
    """Take this many records out of the training set and treat them as public: thresholds and
    statistics are estimated on them, and they get no guarantee."""
    options: dict[str, Any] = Field(default_factory=dict)


class ScatteringRecipe(Section):
    """The scattering transform of each image."""

    name: Literal["scattering"] = "scattering"
    scale: Count = 2
    """Coefficients are averaged over squares of 2^scale pixels."""
    angles: Count = 8
    groups: Count = 27
    """Groups of channels that are normalised within each record."""
    mirrored: bool = False
    """Average with the mirror image, for images whose class does not change in a mirror."""
    centred: bool = False
    """Subtract the mean over generated images, which stand in for public data."""
    upright: bool = False
    """Take out slant and place of each image first, for handwriting."""
    whitened: Share = 0.0
    """How far directions in which generated images vary much are shortened: 0 is not at all, 1
    until they vary like others."""
    pictures: Pictures = "auto"
    """What the generated images show by which features are centred or whitened."""

    @model_validator(mode="after")
    def _pictures_have_a_use(self) -> ScatteringRecipe:
        if self.pictures != "auto" and not (self.centred or self.whitened):
            raise ValueError("pictures has no use here; leave it out, or set centred or whitened")
        return self


class PatchesRecipe(Section):
    """How each image answers to patches of generated images."""

    name: Literal["patches"]
    count: Count = 800
    size: Count = 6
    """Pixels of a patch's side."""
    grid: Count = 2
    """Answers are averaged over grid × grid regions of the image."""
    width: Count = 4000
    """Directions of the answers that are kept; whitened by generated images."""
    mirrored: bool = False
    """Average with the mirror image, for images whose class does not change in a mirror."""


FeaturesRecipe = Annotated[ScatteringRecipe | PatchesRecipe, Field(discriminator="name")]
"""Features that take the place of the records' own, by a fixed function of one record."""

FEATURES: dict[str, type[Section]] = {"scattering": ScatteringRecipe, "patches": PatchesRecipe}


class ModelRecipe(Section):
    """Which network; "auto" chooses by the kind of data."""

    name: str = "auto"
    initial: InitialWeights = "torch"
    """How the first weights are drawn."""
    width: CountFromZero = 0
    """Width of the layer before the last, for networks that let one choose it; 0 is their own."""
    mend: bool = False
    """Replace layers that cannot be private by ones that can."""


class PrivacyRecipe(Section):
    """The promise: give epsilon, and the noise is solved for; or give the noise. Given both, the
    noise is used and must keep within epsilon. Given neither, epsilon is 3."""

    epsilon: Positive | None = None
    delta: Annotated[float, Number, Field(gt=0, lt=1)] = 1e-5
    noise: Positive | None = None
    relation: Relation | None = None
    """Against which change the promise is made; the method's own where none is given."""
    numerics: NumericsName = "best"
    """"proven" refuses a run whose sums have no proof for the floating-point program that runs;
    "best" proves them where that takes no longer, for models with one trained layer, and says of
    others that their sums are idealised."""
    tuned_on: str = ""
    """In words, for the certificate: what the recipe's settings were tuned on."""
    assume_independent: bool = False
    """Do not check that no record's loss or gradient depends on another record; the certificate
    says that it is assumed."""

    @model_validator(mode="before")
    @classmethod
    def _three_by_default(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("epsilon") is values.get("noise") is None:
            return {**values, "epsilon": 3.0}
        return values


class TrainingRecipe(Section):
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
    rate_decay: UpToOne = 1.0
    """Factor on the learning rate after every epoch, beside the schedule."""
    average: Fraction = 0.0
    """Decay of the exponential moving average of the weights; 0 releases the last weights."""
    sparsify_every: NotNegative = 0.0
    """Epochs after which weights that only noise moved are fixed at their average; 0 never does."""
    sparsify_below: Positive = 0.5
    """A weight is fixed that moved less than this many standard deviations of the noise."""
    views: Count = 1
    """Augmented copies of each record whose gradients are averaged before clipping."""
    augment: tuple[Augmentation, ...] = ()

    @model_validator(mode="after")
    def _views_need_augmentation(self) -> TrainingRecipe:
        if self.views > 1 and not self.augment:
            raise ValueError("views above 1 need augment, or every copy is the same")
        return self

    @model_validator(mode="after")
    def _sparsifying_needs_sgd(self) -> TrainingRecipe:
        if self.sparsify_every and self.optimizer != "sgd":
            raise ValueError("sparsify_every needs optimizer 'sgd', whose noise is known")
        return self


class RunRecipe(Section):
    """What does not change the promise."""

    seed: CountFromZero | None = None
    """Fixes all randomness; anyone who knows it can subtract the noise."""
    evaluate_every: Positive = 1.0
    """Epochs between evaluations."""
    engine: EngineName = "fast"
    """How clipped sums are computed; all engines give the same sum."""
    memory_ceiling: Annotated[int, Number, Field(ge=32)] = 512
    """MiB of scratch memory that the fast engine may take for any one layer; algorithms that need
    more are left out. `training.micro_batch` bounds what activations take."""
    deterministic: bool = True
    """Choose algorithms by a fixed rule, so that a resumed run repeats itself bit for bit. Without
    it they are timed, which can be faster; a resumed run then draws new noise and pays again for
    the steps it lost."""
