"""What may be searched over: lists, ranges, and refusals before anything is trained."""

import pytest

from tacit.config import Recipe
from tacit.errors import ArgumentError
from tacit.search_space import Choice, Range, Space, changed


def test_lists_and_ranges_are_told_apart() -> None:
    space = Space.parse(
        {
            "method.clip": "0.1..2",
            "training.batch_size": "64..512",
            "training.learning_rate": "0.5, 1, 2.0",
            "training.optimizer": "sgd,adam",
            "training.augment": '[["shift"], []]',
        }
    )
    assert space.parts == (
        Range("method.clip", 0.1, 2.0, False),
        Range("training.batch_size", 64, 512, True),
        Choice("training.learning_rate", (0.5, 1, 2.0)),
        Choice("training.optimizer", ("sgd", "adam")),
        Choice("training.augment", (["shift"], [])),
    )
    space.check(Recipe())


def test_all_combinations_where_they_are_few() -> None:
    space = Space.parse({"method.clip": "0.1,1", "training.epochs": "1,2,3"})
    found = space.candidates(6)
    assert len(found) == 6 and {"method.clip": 1, "training.epochs": 2} in found


def test_candidates_of_a_range_lie_within_it_and_cannot_be_drawn_again() -> None:
    texts = {"method.clip": "0.1..2", "training.batch_size": "64..512"}
    found = Space.parse(texts).candidates(50)
    assert found == Space.parse(texts).candidates(50)
    assert 40 < len(found) <= 50
    clips = [settings["method.clip"] for settings in found]
    sizes = [settings["training.batch_size"] for settings in found]
    assert min(clips) >= 0.1 and max(clips) <= 2 and max(clips) > 5 * min(clips)
    assert all(isinstance(size, int) and 64 <= size <= 512 for size in sizes)
    other = Space.parse({**texts, "method.clip": "0.1..2.1"}).candidates(50)
    assert other != found


def test_changed_sets_dotted_keys_and_checks_them() -> None:
    recipe = changed(Recipe(), {"method.clip": 0.3, "training.epochs": 2})
    assert (recipe.method.clip, recipe.training.epochs) == (0.3, 2)
    with pytest.raises(ArgumentError, match="clip"):
        changed(Recipe(), {"method.clip": -1})


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("privacy.noise", "1,2", "noise follows"),
        ("data.name", "mnist", "can be searched"),
        ("method.name", "dpsgd,dpftrl", "can be searched"),
        ("clip", "1,2", "can be searched"),
        ("method.clip", "2..1", "above the first"),
        ("method.clip", "low..high", "numbers"),
        ("method.clip", "", "no value"),
    ],
)
def test_what_cannot_be_searched_is_refused(key: str, text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as refused:
        Space.parse({key: text})
    assert str(refused.value).startswith(key) and "--try" not in str(refused.value)


def test_values_that_the_recipe_cannot_take_are_refused_at_once() -> None:
    with pytest.raises(ArgumentError, match=r"--try .* \(in Python: \{"):
        Space.parse({})
    with pytest.raises(ArgumentError, match="clp"):
        Space.parse({"method.clp": "1,2"}).check(Recipe())
    with pytest.raises(ArgumentError, match="clip"):
        Space.parse({"method.clip": "1,-2"}).check(Recipe())
