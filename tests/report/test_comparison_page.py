"""The page of a comparison is whole, loads nothing, and its figures say what the runs say."""

import base64
import csv
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from comparison_runs import member
from html_page import Page

from tacit.errors import RunError
from tacit.report.comparison import write_comparison
from tacit.report.groups import Group
from tacit.report.labels import labelled

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
in_a_browser = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium")


def several() -> list[Group]:
    """Two recipes at two budgets with three seeds each, and one without privacy."""
    private = [
        member(f"{model}-{epsilon}-{seed}", accuracy + 0.01 * seed, epsilon, seed=seed, model=model)
        for model, lift in (("mlp", 0.0), ("convnet", 0.1))
        for epsilon, accuracy in ((1.0, 0.6 + lift), (3.0, 0.7 + lift))
        for seed in range(3)
    ]
    return labelled([*private, member("plain", 0.97, None, method="plain", claimed=None)])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("comparison")
    write_comparison(several(), ["A note <b>."], out)
    return out


@pytest.fixture(scope="module")
def found(written: Path) -> Page:
    return Page((written / "compare.html").read_text("utf-8"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_is_whole_and_says_everything(found: Page) -> None:
    assert len(found.ids) == len(set(found.ids))
    assert found.tags.count("figure") == found.tags.count("svg") == 10
    for text in (
        *(
            "5 groups of 13 runs",
            "ε claimed",
            "ε proven",
            "ε audited",
            "not audited",
            "A note <b>.",
        ),
        *(
            "61.00%\u00a0±\u00a01.01",
            "Every proven ε here holds at δ\u00a0=\u00a01e-5",
            "no privacy guarantee",
        ),
        *("Accuracy against proven ε", "Accuracy against claimed ε, which is no guarantee"),
        *("Proven ε against epochs", "Accuracy against epochs", "Accuracy against time"),
        *("Training time (seconds)", "Accuracy (%)", "Claimed ε, as the paper computes it"),
        *("Steps and time to accuracy", "Confusion matrices", "What differs", "model.name"),
    ):
        assert text in found.text, text


def test_nothing_is_loaded_and_only_the_own_script_runs(found: Page) -> None:
    assert found.tags.count("script") == 1
    assert not {"iframe", "object", "embed", "base", "img"} & set(found.tags)
    for tag, name, value in found.attributes:
        assert not name.startswith("on"), f"{name} on {tag}"
        if name.split(":")[-1] in {"href", "src", "srcset", "action", "data"}:
            assert value.startswith(("#", "data:")), f"{tag} {name}={value[:40]}"
    addresses = set(re.findall(r"https?://[^\s\"'<]+", found.source))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    script = found.source.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in found.source


def test_every_figure_is_an_svg_and_a_csv_file_that_agree_with_the_runs(written: Path) -> None:
    numbers = json.loads((written / "compare.json").read_text("utf-8"))
    figures = sorted(f"figures/{path.name}" for path in (written / "figures").iterdir())
    assert figures == sorted(numbers["figures"]) and len(figures) == 20
    for path in (written / "figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    by_label = {group.label: group for group in several()}
    drawn = rows(written / "figures" / "accuracy-proven-epsilon.csv")
    assert {row["group"] for row in drawn} == set(by_label)
    for row in drawn:
        group = by_label[row["group"]]
        assert float(row["accuracy mean"]) == group.accuracy
        assert row["accuracy sd"] == ("" if group.spread is None else repr(group.spread))
        assert row["proven epsilon"] == ("" if group.proven is None else repr(group.proven))
    for row in numbers["groups"]:
        assert row["accuracy"] == by_label[row["group"]].accuracy
    claimed = rows(written / "figures" / "accuracy-claimed-epsilon.csv")
    assert {row["claimed epsilon"] for row in claimed} == {"0.8", ""}
    last = rows(written / "figures" / "accuracy-epochs.csv")[9]
    assert (last["epoch"], last["seconds"], last["runs"]) == ("10.0", "20.0", "3")
    confusion = rows(written / "figures" / "confusion-1.csv")
    assert [row["predicted cat"] for row in confusion] == ["27.0", "6.0"]
    spent = rows(written / "figures" / "epsilon-epochs.csv")
    assert max(float(row["proven epsilon"]) for row in spent) == pytest.approx(3.0)


def test_other_promises_never_share_a_figure_and_old_figures_go(tmp_path: Path) -> None:
    promises = {"a": {}, "b": {"delta": 1e-6}, "c": {"data": "mnist"}}
    groups = labelled(
        member(f"{name}-{epsilon}", 0.9, epsilon, **values)
        for name, values in promises.items()
        for epsilon in (1.0, 3.0)
    )
    write_comparison(groups, [], tmp_path)
    (tmp_path / "figures" / "own.csv").write_text("kept")
    by_epsilon = sorted((tmp_path / "figures").glob("accuracy-proven-epsilon*.csv"))
    assert [len(rows(path)) for path in by_epsilon] == [2, 2, 2]
    assert len(list((tmp_path / "figures").glob("epsilon-epochs-?.csv"))) == 2
    assert "not comparable with B" in (tmp_path / "compare.html").read_text("utf-8")
    write_comparison(groups[:2], [], tmp_path)
    left = {path.name for path in (tmp_path / "figures").glob("*.csv")}
    assert "accuracy-proven-epsilon.csv" in left and "own.csv" in left
    assert not any(name.startswith("accuracy-proven-epsilon-") for name in left)


def test_a_figure_with_a_single_point_is_left_out_and_named(tmp_path: Path) -> None:
    page = write_comparison(labelled([member("a")]), [], tmp_path).page.read_text("utf-8")
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert {"accuracy-epochs", "accuracy-time", "epsilon-epochs"} <= figures
    assert not any(name.startswith("accuracy-proven") for name in figures)
    said = re.findall(r"<p[^>]*>(Left out[^<]*)</p>", page)
    assert said == [
        "Left out, because a single point would stand in it: Accuracy against proven ε; "
        "Accuracy against claimed ε, which is no guarantee."
    ]
    both = labelled([member("a"), member("plain", 0.97, None, method="plain", claimed=None)])
    page = write_comparison(both, [], tmp_path).page.read_text("utf-8")
    assert "Left out" not in page
    assert len(rows(tmp_path / "figures" / "accuracy-proven-epsilon.csv")) == 2


def test_every_text_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script>&"'
    groups = labelled([member(evil, model=evil, title=evil, x__y=evil)])
    write_comparison(groups, [evil], tmp_path)
    page = Page((tmp_path / "compare.html").read_text("utf-8"))
    assert page.tags.count("script") == 1 and evil in page.text
    for path in (tmp_path / "figures").glob("*.svg"):
        assert "<script" not in path.read_text("utf-8") and ElementTree.parse(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="another directory"):
        write_comparison(several()[:1], [], tmp_path / "file")


def browse(tmp_path: Path, page: Path, *arguments: str, show: str = "") -> str:
    profile = tmp_path / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *arguments]
    done = subprocess.run(
        [*command, f"{page.as_uri()}{show}"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown_rows(dom: str) -> list[str]:
    """The first cell of each visible row of the results, in their order."""
    body = re.findall(r"<tbody>(.*?)</tbody>", dom, re.DOTALL)[0]
    found = re.findall(r'<tr( hidden="")?><td data-value="([^"]*)"', body)
    return [label for hidden, label in found if not hidden]


@in_a_browser
def test_rows_are_sorted_and_filtered_in_a_browser(tmp_path: Path, written: Path) -> None:
    page = written / "compare.html"
    labels = [group.label for group in several()]
    plain = browse(tmp_path, page, "--dump-dom")
    assert shown_rows(plain) == labels and "5 of 5" in plain
    falling = browse(tmp_path, page, "--dump-dom", show="#sort=-accuracy&show=dp-sgd")
    expected = sorted(
        (g for g in several() if g.promise), key=lambda g: g.accuracy or 0.0, reverse=True
    )
    assert shown_rows(falling) == [group.label for group in expected]
    assert "4 of 5" in falling and 'aria-sort="descending"' in falling


@in_a_browser
def test_a_click_on_a_heading_sorts_and_what_is_missing_comes_last(
    tmp_path: Path, written: Path
) -> None:
    text = (written / "compare.html").read_text("utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    click = "document.querySelector('th[data-key=epsilon_proven] button').click();"
    for clicks, first in ((1, "1.0"), (2, "3.0")):
        page = tmp_path / f"clicked-{clicks}.html"
        page.write_text(
            text.replace("</body>", f"<script>{click * clicks}</script></body>"), "utf-8"
        )
        order = shown_rows(browse(tmp_path, page, "--dump-dom"))
        by_label = {group.label: group for group in several()}
        assert str(by_label[order[0]].proven) == first
        assert by_label[order[-1]].proven is None


@in_a_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(tmp_path: Path, written: Path, width: int) -> None:
    """The page itself never scrolls sideways; wide tables do, inside their own box, and say so."""
    text = (written / "compare.html").read_text("utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    measure = (
        "const hints = [...document.querySelectorAll('.more')].filter((hint) => hint.offsetHeight);"
        "const wide = hints.every((hint) => hint.textContent.includes('scroll the table sideways')"
        " && hint.nextElementSibling.scrollWidth > hint.nextElementSibling.clientWidth);"
        "document.title = document.documentElement.scrollWidth + ' of ' + innerWidth"
        " + ', ' + wide + ' ' + document.querySelectorAll('.more:not([hidden]) + .sortable').length"
    )
    page = tmp_path / "measured.html"
    page.write_text(text.replace("</body>", f"<script>{measure}</script></body>"), "utf-8")
    # Chromium opens no window narrower than 500 pixels, so a narrow one is a frame.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe src="measured.html" width="{width}" height="900" style="border:0"></iframe>'
        "<script>onload = () => { const inner = document.querySelector('iframe').contentDocument;"
        "document.title = inner.title }</script>",
        "utf-8",
    )
    dom = browse(
        tmp_path, frame, "--dump-dom", "--allow-file-access-from-files", "--window-size=1400,900"
    )
    measured = re.search(r"<title>(\d+) of (\d+), true (\d)</title>", dom)
    assert measured and int(measured[2]) == width
    assert int(measured[1]) <= width
    assert width > 390 or measured[3] == "1", "the results have columns that are out of sight"
    shot = tmp_path / "shot.png"
    browse(tmp_path, frame, f"--screenshot={shot}", f"--window-size={max(width, 500)},900")
    assert shot.stat().st_size > 20_000


def test_a_shortened_name_shows_the_whole_title_on_hover(tmp_path: Path) -> None:
    title = "A <very> long title of a recipe " * 5
    groups = labelled([member("a", title=title), member("b", title="Short", method="dpftrl")])
    page = write_comparison(groups, [], tmp_path).page.read_text("utf-8")
    hint = html.escape(title, quote=True)
    assert page.count(f'title="{hint}">DP-SGD</td>') >= 3
