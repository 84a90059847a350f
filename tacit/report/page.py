"""report.html: one page that needs nothing but itself."""

from __future__ import annotations

import math
from pathlib import Path

from tacit.report import values
from tacit.report.audit import audit_section
from tacit.report.document import document, write_whole
from tacit.report.doubts import alert, warning
from tacit.report.load import Confusion, Evaluation, Run, load_run
from tacit.report.markup import details, escape, facts, paragraph, section, table, verbatim
from tacit.report.plots import charts
from tacit.report.privacy import coverage, header, three_numbers

_ROWS = 60  # more evaluations than this are thinned out in the table
_METRICS = {
    *("evaluations", "evaluated_on", "final", "training_seconds", "inference_seconds"),
    *("records_per_second", "parameters", "epsilon_curve", "delta", "records", "model", "data"),
    "sanitization",
}


def write_report(run: Path) -> Path:
    """Write run/report.html from the files of a run directory and return its path."""
    directory = Path(run)
    target = directory / "report.html"
    write_whole(target, render(load_run(directory)))
    return target


def render(run: Run) -> str:
    """The whole page as text; the same run gives the same page."""
    body = "\n".join(
        part
        for part in (
            alert(run),
            three_numbers(run),
            warning(run),
            _results(run),
            _figures(run),
            audit_section(run.audit) if run.audit else "",
            coverage(run),
            _certificate(run),
            _recipe(run),
        )
        if part
    )
    return document(f"{run.title} · tacit report", header(run), body, _footer(run))


def _results(run: Run) -> str:
    data = run.metrics
    final = data.get("final") or {}
    rows: list[tuple[str, str]] = []
    if "accuracy" in final:
        rows.append(("Accuracy", values.percent(final["accuracy"])))
    if "loss" in final:
        rows.append(("Loss", values.loss(final["loss"])))
    if isinstance(data.get("evaluated_on"), str):
        rows.append(("Measured on", data["evaluated_on"]))
    rows += _by_class(run.confusion)
    for name, key, show in (
        ("Model", "model", values.plain),
        ("Parameters", "parameters", values.count),
        ("Data", "data", values.plain),
        ("Training records", "records", values.count),
        ("Training time", "training_seconds", _up_to),
        ("Inference time", "inference_seconds", _up_to),
        ("Records per second", "records_per_second", values.count),
    ):
        if key in data:
            rows.append((name, show(data[key])))
    rows += [(values.words(key), values.plain(data[key])) for key in data if key not in _METRICS]
    shown = {"accuracy", "loss", "confusion", "class_names"}
    rows += [
        (values.words(f"final {key}"), values.plain(final[key]))
        for key in final
        if key not in shown
    ]
    if not rows:
        return section("results", "Results", paragraph("No results were recorded.", "quiet"))
    return section("results", "Results", facts(rows, strong=("Accuracy",)))


def _up_to(seconds: object) -> str:
    return f"up to {values.duration(seconds)}"


def _by_class(confusion: Confusion | None) -> list[tuple[str, str]]:
    """What an average hides: the worst class, and how well a constant answer would do."""
    if confusion is None or len(confusion.names) < 2:
        return []
    totals = [sum(row) for row in confusion.counts]
    if not sum(totals):
        return []
    largest = max(totals) / sum(totals)
    common = confusion.names[totals.index(max(totals))]
    recalls = [
        (row[index] / total, confusion.names[index])
        for index, (row, total) in enumerate(zip(confusion.counts, totals, strict=True))
        if total
    ]
    worst, name = min(recalls)
    return [
        ("Weakest class", f"{name}: {values.percent(worst)} recognised"),
        ("Baseline", f"{values.percent(largest)} by always answering {common}"),
    ]


def _figures(run: Run) -> str:
    drawn = [chart.markup() for chart in charts(run)]
    if not drawn:
        empty = "No evaluation was recorded, so there is nothing to draw."
        return section("figures", "Figures", paragraph(empty, "quiet"))
    return section(
        "figures",
        "Figures",
        f'<div class="figures">{"".join(drawn)}</div>',
        _evaluation_table(run),
        _class_table(run.confusion),
    )


def _evaluation_table(run: Run) -> str:
    if not run.evaluations:
        return ""
    head = ["Step", "Epoch", "Time", "Proven ε", "Loss", "Accuracy"]
    if run.guarantee is None:
        head.remove("Proven ε")
    timed = any(row.seconds is not None for row in run.evaluations)  # by earlier versions
    if not timed:
        head.remove("Time")
    last = len(run.evaluations) - 1
    stride = math.ceil(len(run.evaluations) / _ROWS)
    kept = [e for i, e in enumerate(run.evaluations) if i % stride == 0 or i == last]
    title = f"All {last + 1} evaluations as a table" if last else "The evaluation as a table"
    if stride > 1:
        title = f"{len(kept)} of {last + 1} evaluations as a table"
    rows = [_evaluation_row(e, run.guarantee is not None, timed) for e in kept]
    return details(title, table("Evaluations", head, rows, words=()))


def _evaluation_row(row: Evaluation, private: bool, timed: bool) -> list[str]:
    epoch = values.finite(row.epoch)
    return [
        values.count(row.step),
        values.UNKNOWN if epoch is None else f"{epoch:,.2f}",
        *([values.duration(row.seconds)] if timed else []),
        *([values.proven(row.epsilon)] if private else []),
        values.loss(row.loss),
        values.percent(row.accuracy),
    ]


def _class_table(confusion: Confusion | None) -> str:
    if confusion is None:
        return ""
    rows = []
    for index, (name, row) in enumerate(zip(confusion.names, confusion.counts, strict=True)):
        total = sum(row)
        wrong = max((n, -i) for i, n in enumerate(row) if i != index) if len(row) > 1 else (0, 0)
        mistaken = f"{confusion.names[-wrong[1]]} ({values.count(wrong[0])})" if wrong[0] else "—"
        right = values.percent(row[index] / total) if total else values.UNKNOWN
        rows.append((str(index), name, values.count(total), right, mistaken))
    head = ("No.", "True class", "Records", "Recognised", "Most often taken for")
    return details("Every class as a table", table("Classes", head, rows, words=(1, 4)))


def _certificate(run: Run) -> str:
    if run.certificate_text is None:
        none = "None: this run protects nothing, so no certificate was issued for it."
        return section("certificate", "Certificate", paragraph(none))
    body = details("Certificate as text", verbatim(run.certificate_text))
    said = "The statement to pass on with the model, word for word as in certificate.txt."
    return section("certificate", "Certificate", paragraph(said), body)


def _recipe(run: Run) -> str:
    said = (
        "All settings of this run. To repeat it, save them as recipe.toml "
        "(the run directory has the file) and run:"
    )
    command = verbatim("tacit train recipe.toml --out NEW-RUN")
    recipe = details("recipe.toml", verbatim(run.recipe), opened=True)
    return section("recipe", "Recipe", paragraph(said), command, recipe)


def _footer(run: Run) -> str:
    version = (run.certificate.get("versions") or {}).get("tacit")
    made = f"Made by tacit {version}" if version else "Made by tacit"
    files = "certificate.json, certificate.txt, metrics.json and recipe.toml"
    if run.certificate_text is None:
        files = "ledger.jsonl, metrics.json and recipe.toml"
    return (
        f"<footer><p>{escape(made)} from {files}. The ledger covers all of these but metrics.json: "
        "accuracy, loss, times and figures are as the run recorded them. Check the rest, and this "
        "page against it, with tacit account. Proven ε and loss are rounded up; audited ε and "
        "accuracy are rounded down.</p></footer>"
    )
