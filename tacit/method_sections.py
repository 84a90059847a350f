"""One section of a recipe per method: what a person may set of it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tacit.clipping.thresholds import Clipping
from tacit.privacy.batch_plan import Sampling
from tacit.privacy.fixed_order import BatchOrder
from tacit.privacy.sanitized import Guarantee, Mask, Range, usual_range
from tacit.privacy.selective import LARGEST_BUFFER, Statistic
from tacit.recipe_sections import (
    Clip,
    Count,
    CountFromZero,
    Fraction,
    NotNegative,
    Number,
    Positive,
    Section,
    UpToOne,
)

Decay = Annotated[float, Number, Field(gt=0, le=1)]
LayersAcrossRecords = Literal["refused", "sealed", "free"]
Head = Literal["trained", "prototypes", "ridge"]


class AnyMethod(Section):
    """What the library asks of every method before it is built."""

    correlated: ClassVar[bool] = False
    """Whether later noise depends on earlier draws, so that a run cannot go on with a new key."""
    budgeted: ClassVar[bool] = True
    """Whether the run is planned to stay within the recipe's ε."""

    @property
    def in_order(self) -> bool:
        """Whether an epoch is a whole number of batches in a fixed order."""
        return False

    def layers_across_records(self, batch_size: int) -> LayersAcrossRecords:
        """What becomes of layers that mix the records of a batch, such as BatchNorm."""
        return "refused"


class ClippedRecipe(AnyMethod):
    """How gradients are clipped."""

    clipped_unit: ClassVar[str] = "each record"
    divided_by: ClassVar[str] = "expected batch size"
    clip: Clip = 1.0
    clipping: Clipping = "flat"
    clip_decay: UpToOne = 1.0
    """Factor on the clip norm after every epoch."""
    groups: Literal["layers", "tensors"] | Count = "layers"
    """What is clipped apart: every layer, every tensor, or so many groups of layers whose norms on
    public records are alike before training."""
    thresholds: tuple[Clip, ...] = ()
    """Norms of the groups, in the model's order, for 'layerwise' and 'multiplied'."""
    noise_weights: tuple[Positive, ...] = ()
    """p_h of each group: its noise is that of multiplier σ/p_h. Equal where none are given."""
    estimate_every: NotNegative = 1.0
    """Epochs between estimates of the groups' norms; 0 estimates before every step."""

    @property
    def estimates(self) -> bool:
        """Whether norms are estimated on public records as training goes on."""
        if self.clipping == "multiplied":
            return not self.thresholds
        return self.clipping in ("adaptive-layerwise", "adaptive-norms")


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

    @property
    def in_order(self) -> bool:
        return self.mechanism != "amplified"


class BatchClippingRecipe(ClippedRecipe):
    """Batch clipping: k mini-sets of s records, each clipped as a whole."""

    clipped_unit: ClassVar[str] = "each mini-set"
    divided_by: ClassVar[str] = "number of mini-sets"
    name: Literal["batch-clipping"] = "batch-clipping"
    mini_sets: Count = 1
    """k: one clips the whole batch, as many as the batch has records clips each record."""
    sampling: Sampling = "subset"
    set_pass: Literal["mean", "momentum"] = "mean"
    """What is computed of a mini-set: its mean gradient, or a pass with momentum over pieces."""
    pass_pieces: Count = 4
    pass_rate: Positive = 0.1
    pass_momentum: Fraction = 0.9
    batch_norm: Literal["none", "public", "noisy"] = "none"
    """Where released BatchNorm buffers come from: there are none, public records, or clipped
    moments of all records with noise, which are charged."""
    moments_noise: Positive = 20.0
    """Multiplier of the noise on the moments of each BatchNorm layer."""
    moments_clip: Clip = 1.0
    """Largest root mean square of a record's moments at a layer."""

    @property
    def in_order(self) -> bool:
        return self.sampling == "once-per-epoch"

    def layers_across_records(self, batch_size: int) -> LayersAcrossRecords:
        return "sealed" if batch_size > self.mini_sets else "refused"


class SanitizationRecipe(AnyMethod):
    """Noise on activations: features are private, labels are public."""

    name: Literal["sanitization"] = "sanitization"
    guarantee: Guarantee = "one-time"
    """What is released and proven; "paper" is the paper's algorithm, which proves nothing."""
    clip: Clip = 1.0
    """C: the largest element of a vector, or the radius of the ball."""
    range: Range | None = None
    """Where values lie; a ball for class sums and [0, C] otherwise, unless given."""
    dropout: Fraction = 0.0
    mask: Mask = "exact"
    activation_noise: NotNegative = 0.0
    """Noise of the vectors under "joint"; 0 chooses one that costs about as much as gradients."""
    gradient_clip: Clip = 1.0
    """Largest norm of a record's gradient under "joint"."""
    encoder: Literal["given", "patches", "generated"] = "given"
    """Where the frozen encoder comes from: the network's first weights, patches of generated
    images, or training on generated images."""
    follow: NotNegative = 0.0
    """t: after every epoch the threshold becomes t·‖W‖; 0 keeps it."""
    stop: Literal["never", "flag", "stop"] = "never"
    """What a stopping flag does: it is not looked for, noted, or ends the run."""
    window: Count = 10
    """Epochs that the stopping rule looks back on."""
    slope: NotNegative = 1e-4
    """T_s: a flag goes up where the spread changes by no more than this an epoch."""
    tolerance: NotNegative = 2e-5
    """τ: with a moving threshold, how far slopes of two windows may differ."""
    head: Head | None = None
    """Where the head comes from: "trained" by the loss, the class whose mean of released vectors is
    nearest ("prototypes"), or ridge regression on released moments, for "class-sums" alone. Class
    sums make a ridge head and all others train one, unless it is given."""

    @property
    def values_in(self) -> Range:
        """The range that is used."""
        return self.range or usual_range(self.guarantee)

    @property
    def frozen(self) -> bool:
        """Whether the encoder stays as it is before private records are seen."""
        return self.guarantee in ("one-time", "class-sums")

    @property
    def head_by(self) -> Head:
        """The kind of head that is made."""
        return self.head or ("ridge" if self.guarantee == "class-sums" else "trained")


class SelectiveRecipe(ClippedRecipe):
    """Selective update: which candidates are kept, and what follows from keeping them."""

    validation_batch_size: Count = 256
    """Expected records of the test, sampled by themselves."""
    validation_clip: Positive = 0.001
    """The change of loss counts up to this much: the mean's, or each record's of a sum."""
    validation_noise: Positive = 1.37
    """In units of how far one record can move what is tested."""
    validation_unit: Literal["sensitivity", "literal"] = "sensitivity"
    """"literal" takes validation_noise as a standard deviation, as Eq. 12 of paper 001 is printed;
    what is proven is accounted for by the noise that this amounts to."""
    statistic: Statistic = "clipped-mean"
    reach: Positive = 1.5
    """The clipped sum counts up to so many standard deviations of its noise."""
    beta: Annotated[float, Number, Field(allow_inf_nan=False)] = -1.5
    """A candidate is accepted below this threshold, in units of half the range of the test."""
    buffer: Annotated[int, Number, Field(ge=1, le=LARGEST_BUFFER)] = 1
    """Accepted candidates from which one update is made."""
    choice: Literal["lowest", "average", "random", "literal"] = "lowest"
    """How: the lowest noisy loss, their average, by lot, or the highest, as Eq. 16 is printed."""
    indifference: NotNegative = 0.5
    """Within so many standard deviations of the noise the choice is by lot."""
    patience: CountFromZero = 0
    """After so many rejections in a row a single candidate is enough; 0 waits for ever."""
    decay: bool = False
    """Lower noise and learning rate, and relax the threshold, as accuracy grows."""
    fast: Decay = 0.999
    slow: Decay = 0.9999
    """Factors per update: on both noises and the rate while accuracy grows by more than
    `progress`, on gradient noise, threshold and rate otherwise."""
    progress: NotNegative = 0.02
    """What is asked with noise is blurred by half a point and more: less growth cannot be told."""
    decay_until: Positive | None = None
    """Claimed ε from which on nothing decays any more."""
    feedback: Literal["charged", "public"] = "charged"
    """Accuracy is asked of a sample of the private records, noised and charged, or measured on
    public records (data.public), which get no protection."""
    feedback_batch_size: Count = 2048
    feedback_noise: Positive = 10.0
    """On the number of wrong answers in that sample."""
    stop_at_claimed: Positive | None = None
    """End before the claimed ε exceeds this; what is proven is for all trials all the same."""

    @property
    def compares(self) -> bool:
        """Whether noisy losses are used again after the test."""
        return self.buffer > 1 and self.choice in ("lowest", "literal")


class DpsurRecipe(SelectiveRecipe):
    """DPSUR: one candidate at a time."""

    name: Literal["dpsur"] = "dpsur"


class DpsgdBrRecipe(SelectiveRecipe):
    """DPSGD-BR: a buffer of candidates, and phased decay."""

    name: Literal["dpsgd-br"] = "dpsgd-br"
    buffer: Annotated[int, Number, Field(ge=1, le=LARGEST_BUFFER)] = 2
    patience: CountFromZero = 5
    decay: bool = True


class PlainRecipe(AnyMethod):
    """Plain SGD, without privacy."""

    budgeted: ClassVar[bool] = False
    name: Literal["plain"] = "plain"

    def layers_across_records(self, batch_size: int) -> LayersAcrossRecords:
        return "free"


MethodRecipe = Annotated[
    DpSgdRecipe
    | DpFtrlRecipe
    | BatchClippingRecipe
    | SanitizationRecipe
    | DpsurRecipe
    | DpsgdBrRecipe
    | PlainRecipe,
    Field(discriminator="name"),
]

METHODS: dict[str, type[AnyMethod]] = {
    "dpsgd": DpSgdRecipe,
    "dpftrl": DpFtrlRecipe,
    "batch-clipping": BatchClippingRecipe,
    "sanitization": SanitizationRecipe,
    "dpsur": DpsurRecipe,
    "dpsgd-br": DpsgdBrRecipe,
    "plain": PlainRecipe,
}
