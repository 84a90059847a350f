"""Events travel through JSON unchanged, and the sampling rate is the one that is drawn."""

import dp_accounting as dpa
import pytest

from tacit.errors import ArgumentError, NoProofError
from tacit.privacy import events

ALL = [
    events.gaussian(1.25),
    events.poisson(0.125, events.gaussian(0.7)),
    events.repeated(events.poisson(0.1, events.gaussian(2.0)), 12),
    events.composed([events.gaussian(1.0), events.repeated(events.gaussian(3.0), 4)]),
    dpa.NoOpDpEvent(),
    dpa.NonPrivateDpEvent(),
]


@pytest.mark.parametrize("event", ALL)
def test_json_round_trip(event: dpa.DpEvent) -> None:
    assert events.from_json(events.to_json(event)) == event


def test_unknown_events_are_refused_both_ways() -> None:
    with pytest.raises(NoProofError):
        events.to_json(dpa.LaplaceDpEvent(1.0))
    for text in ({"laplace": 1.0}, {"gaussian": "1"}, {}):
        with pytest.raises(NoProofError):
            events.from_json(text)


def test_leaves_count_nested_compositions() -> None:
    inner = events.gaussian(1.0)
    event = events.composed([events.repeated(events.composed([inner, inner]), 3), inner])
    assert events.leaves(event) == {inner: 7}


def test_sampling_probability_is_on_the_grid_and_never_rounded_up() -> None:
    for records, size in ((60000, 256), (7, 3), (1438, 512), (10, 10)):
        rate = events.sampling_probability(records, size)
        assert rate * 2**32 == int(rate * 2**32)
        assert size / records - 2**-31 < rate <= size / records


@pytest.mark.parametrize(("records", "size"), [(0, 1), (10, 0), (10, 11), (10, -1)])
def test_impossible_samples_are_refused(records: int, size: int) -> None:
    with pytest.raises(ArgumentError):
        events.sampling_probability(records, size)
