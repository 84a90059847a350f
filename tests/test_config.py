"""Recipes: typed, frozen, and helpful about mistakes."""

from pathlib import Path

import pytest

from tacit import config
from tacit.config import Recipe
from tacit.errors import ArgumentError
from tacit.method_sections import DpSgdRecipe


@pytest.mark.parametrize("name", config.builtin_names())
def test_every_built_in_recipe_is_valid_and_survives_toml(name: str, tmp_path: Path) -> None:
    recipe = config.load(name)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.as_toml(), "utf-8")
    assert config.load(str(path)) == recipe
    assert config.load(str(path)).digest() == recipe.digest()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"privacy": {"epsilon": 0}}, "privacy.epsilon is 0"),
        ({"privacy": {"epsilon": -2.0}}, "privacy.epsilon is -2.0"),
        ({"privacy": {"delta": 1.0}}, "privacy.delta is 1.0"),
        ({"privacy": {"delta": 0}}, "privacy.delta"),
        ({"method": {"name": "dpsgd", "clip": 0}}, "method.clip is 0"),
        ({"method": {"name": "dpsgd", "clip": 1e-30}}, "method.clip is 1e-30"),
        ({"method": {"name": "dpsgd", "clip": 1e30}}, "method.clip is 1e+30"),
        ({"training": {"batch_size": 0}}, "training.batch_size"),
        ({"training": {"batch_size": True}}, "training.batch_size is True"),
        ({"privacy": {"epsilon": True}}, "privacy.epsilon is True"),
        ({"training": {"epochs": "many"}}, "training.epochs"),
        ({"training": {"learning_rte": 1}}, "did you mean 'learning_rate'"),
        ({"privacy": {"epsilom": 1}}, "did you mean 'epsilon'"),
        ({"method": {"name": "dpsgd", "clop": 1}}, "did you mean 'clip'"),
        ({"trainin": {}}, "did you mean 'training'"),
        ({"method": {"name": "dpsgdd"}}, "method"),
        ({"training": {"views": 4}}, "augment"),
        ({"run": {"engine": "warp"}}, "run.engine"),
    ],
)
def test_mistakes_are_named_with_a_way_out(values: dict[str, object], words: str) -> None:
    with pytest.raises(ArgumentError) as error:
        Recipe.parse(values)
    assert words in str(error.value)


def test_overrides_reach_any_value() -> None:
    changed = {"privacy.epsilon": "1.5", "data.name": "mnist", "training.augment": '["flip"]'}
    recipe = config.load("digits", changed)
    assert recipe.privacy.epsilon == 1.5 and recipe.data.name == "mnist"
    assert [kind.value for kind in recipe.training.augment] == ["flip"]
    assert config.load("digits", {"method.name": "plain"}).method.name == "plain"
    with pytest.raises(ArgumentError, match="not a section"):
        config.load("digits", {"title.x": "1"})


BUDGETS = """
[method]
name = "dpsgd"
[model]
name = "linear"
[features]
name = "scattering"
groups = 3
[privacy]
epsilon = 3.0
[training]
epochs = 30
momentum = 0.9
[[budgets]]
epsilon = 1.0
training.epochs = 10
method.clip = 0.1
[[budgets]]
epsilon = 8.0
training.epochs = 80
"""


def test_a_recipe_may_have_settings_for_some_budgets(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(BUDGETS, "utf-8")

    def epochs(**overrides: str) -> float:
        changes = {key.replace("_", "."): text for key, text in overrides.items()}
        return config.load(str(path), changes).training.epochs

    assert epochs() == 80 and epochs(privacy_epsilon="1.5") == 10
    assert epochs(privacy_epsilon="5") == 80 and epochs(privacy_epsilon="100") == 80
    assert epochs(privacy_epsilon="1", training_epochs="7") == 7
    assert epochs(privacy_noise="2.0") == 30
    tight = config.load(str(path), {"privacy.epsilon": "0.9"})
    assert tight.privacy.epsilon == 0.9 and tight.method.clip == 0.1
    assert tight.training.momentum == 0.9
    path.write_text(BUDGETS.replace("epsilon = 8.0", "epsilon = 0"), "utf-8")
    with pytest.raises(ArgumentError, match="without an epsilon above 0"):
        config.load(str(path))


def test_features_go_when_another_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(BUDGETS, "utf-8")
    assert config.load(str(path), {"model.name": "lenet5"}).features is None
    kept = config.load(str(path), {"model.name": "linear"}).features
    assert kept is not None and kept.groups == 3


def test_settings_by_name_alone() -> None:
    recipe = Recipe().with_settings(epsilon=1.0, clip=0.1, epochs=2, seed=4, model="mlp")
    assert recipe.privacy.epsilon == 1.0 and recipe.method.clip == 0.1
    assert recipe.run.seed == 4 and recipe.model.name == "mlp"
    assert Recipe().with_settings(method="plain").method.name == "plain"
    with pytest.raises(ArgumentError, match="did you mean 'epsilon'"):
        Recipe().with_settings(epsillon=1.0)


def test_files_that_are_not_recipes(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="did you mean 'digits'"):
        config.load("digit")
    bad = tmp_path / "bad.toml"
    bad.write_text("a = = b")
    with pytest.raises(ArgumentError, match="not valid TOML"):
        config.load(str(bad))


def test_recipes_are_frozen_and_digests_follow_values() -> None:
    recipe = Recipe()
    with pytest.raises(ValueError, match="frozen"):
        recipe.title = "x"
    assert recipe.digest() != recipe.with_settings(epsilon=1.0).digest()


def test_a_digest_tells_recipes_apart_and_ignores_what_is_the_default() -> None:
    changed = [
        *({"method": name} for name in ("dpsgd", "dpftrl", "plain")),
        *({"clip": 0.5}, {"epsilon": 2.0}, {"seed": 0}, {"epochs": 3}, {"holdout": 5}),
    ]
    digests = {Recipe().with_settings(**change).digest() for change in changed}
    assert len(digests) == len(changed)
    clip = DpSgdRecipe().clip
    assert Recipe().with_settings(clip=clip).digest() == Recipe().digest()
    assert Recipe.parse({"training": {"epochs": 10}}).digest() == Recipe.parse({}).digest()
